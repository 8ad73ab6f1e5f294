"""FedAvg + local fine-tuning (Yu et al. 2020; FLamby's strongest entry): federate, then each site goes on alone.

w:   FedAvg to the end
v_i: starts at w, then `epochs` epochs on the site's own rows; nothing travels any more

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitrail.core.exchange import Stage, training
from vitrail.core.task import Task
from vitrail.methods.fedavg import FedAvg, Own, Shared
from vitrail.methods.local import Local


@dataclass(frozen=True)
class FineTune(FedAvg):
    title: ClassVar[str] = "FedAvg + fine-tuning"
    brief: ClassVar[bool] = True
    epochs: int = 10

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return training(self, rounds), Stage("fine-tune", (Local(),), self.epochs, "training alone", "Then, alone")

    def settle(self, task: Task, state: Own, down: Shared) -> Own:
        params = super().settle(task, state, down).params
        return Own(params, task.remembered(params))  # from here on nothing of it is shared

"""FedAvg + local fine-tuning (Yu et al. 2020; FLamby's strongest entry): first FedAvg, then each site trains on alone.

w:   FedAvg to the end
v_i: starts at w, then `epochs` epochs on the site's own rows; nothing travels any more

`part = "head"` trains only the last layer further: the features that the sites learned together stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.core.declarations import Catalogue, Ge
from vitrail.core.exchange import Nothing, SiteContext, Stage, training
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, clone
from vitrail.methods.fedavg import FedAvg, Own, Shared, Work
from vitrail.methods.local import Local

HEAD = ("head", "output")


@dataclass(frozen=True)
class LocalHead(Local):
    """Local, of the last layer."""

    def begin(self, site: SiteContext, state: Own, down: Nothing) -> Work:
        params = clone(state.params)
        return Work(params, site.optimizer.state(site.task.select(params, HEAD), state.memory), {})

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.apply(
            site.task.select(work.params, HEAD), work.memory, site.task.select(site.task.grad(work.params, batch), HEAD)
        )


@dataclass(frozen=True)
class FineTune(FedAvg):
    catalogue = Catalogue(
        "FedAvg + fine-tuning", tuning_grid={"epochs": (1, 3, 10), "part": ("all", "head")}, in_short_comparison=True
    )
    epochs: Annotated[int, Ge(1)] = 10
    part: Literal["all", "head"] = "all"

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        alone = Local() if self.part == "all" else LocalHead()
        return training(self, rounds), Stage("fine-tune", (alone,), self.epochs, "training alone", "Then, alone")

    def settle(self, task: Task, state: Own, down: Shared) -> Own:
        params = super().settle(task, state, down).params
        moved: Params = params if self.part == "all" else task.select(params, HEAD)
        return Own(params, task.initial_state(moved))  # from here on nothing of it is shared

"""FedAvg + local fine-tuning (Yu et al. 2020; FLamby's strongest entry): federate, then each site goes on alone.

w:   FedAvg to the end
v_i: starts at w, then `epochs` epochs on the site's own rows; nothing travels any more

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitrail.core.exchange import Stage
from vitrail.methods.fedavg import FedAvg
from vitrail.methods.local import Local


@dataclass(frozen=True)
class FineTune(FedAvg):
    title: ClassVar[str] = "FedAvg + fine-tuning"
    epochs: int = 10

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return Stage("train", self, rounds), Stage("fine-tune", Local(), self.epochs)

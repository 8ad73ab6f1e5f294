"""iFedAvg (Roschewitz et al. 2021): FedAvg with small private layers that say, per feature, how a site's data differs.

    f = f_out o f_shared o f_in
    f_in(x)  = (x + b_in)  * w_in          element-wise, one number per feature; starts as the identity
    f_out(z) = (z + b_out) * w_out         element-wise, one per class; optional (`output`), w_out may be one scalar

f_shared is averaged with equal weights. f_in and f_out are trained with it in the same step and never leave the site
while training. Afterwards each site may publish them, once, in an exchange of its own that it can refuse; the
coordinator then sees each site's layers, which is what the heatmaps show.

`identity` (lambda, default 0: the paper) pulls the private layers towards the identity, lambda/2 |f_in - id|^2, so
that only necessary shifts are learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from vitrail.core.exchange import Ends, Exchange, Facts, Nothing, Pace, Roster, Rows, Stage
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, add_, pull_, to_all
from vitrail.methods.fedavg import FedAvg, Own, Shared, Work

PRIVATE = ("input", "output")


class Layers(NamedTuple):
    """What a site publishes when it agrees to."""

    layers: Params  # shift and scale of f_in, and of f_out where there is one


class Publish(Exchange[Own, Shared, Nothing, Nothing, Layers]):
    """Each site shows its private layers, once, by consent. A site that refuses is absent from this exchange."""

    sees = "each"
    trains = False

    def send(self, task: Task, coord: Shared, roster: Roster) -> Nothing:
        return Nothing()

    def begin(self, task: Task, state: Own, down: Nothing) -> Nothing:
        return Nothing()

    def step(self, task: Task, work: Nothing, batch: Batch, pace: Pace) -> None:
        """Nothing is trained."""

    def report(
        self, task: Task, state: Own, work: Nothing, down: Nothing, rows: Rows, pace: Pace
    ) -> tuple[Own, Layers]:
        return state, Layers(task.select(state.params, PRIVATE))

    def merge(self, task: Task, coord: Shared, up: Layers, roster: Roster) -> tuple[Shared, Facts]:
        return coord, {"published": roster.present, **up.layers}

    def settle(self, task: Task, state: Own, down: Nothing) -> Own:
        return state


@dataclass(frozen=True)
class IFedAvg(FedAvg):
    title: ClassVar[str] = "iFedAvg"
    personal: ClassVar[tuple[str, ...]] = PRIVATE
    output: Literal["no", "each", "scalar"] = "no"
    identity: float = 0.0

    def ends(self) -> Ends:
        return Ends(True, self.output)

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return Stage("train", self, rounds), Stage("publish", Publish(), 1)

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        task.push(work.params, work.velocity, batch, pace.lr, pace.momentum)
        if self.identity:
            still = task.select(task.start, PRIVATE)  # they start as the identity
            pull_(work.velocity, work.params, to_all(still, batch.x.shape[0]), pace.lr * self.identity)
        add_(work.params, work.velocity)

"""FedAvg (McMahan et al. 2017): every site trains from the same model, the coordinator averages.

    w_i <- w - lr * sum of gradients over one or more local epochs
    w   <- sum_i p_i w_i / sum_i p_i          over the sites that answered

p_i = 1 (`weights = "uniform"`, the default, as in the iFedAvg paper) or the site's number of training rows (`"rows"`,
as in McMahan et al.). The velocity of momentum starts at zero in every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Facts, Method, Pace, Roster, Rows
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, copied, scaled, tmap, to_all, zeros


class Own(NamedTuple):
    params: Params  # groups that never leave the site; all groups once settled


class Shared(NamedTuple):
    params: Params


class Up(NamedTuple):
    weighted: Params  # p_i * trained parameters
    weight: Tensor  # p_i


class Work(NamedTuple):
    params: Params
    velocity: Params
    received: Params


@dataclass(frozen=True)
class Averages:
    """The coordinator's half, for every method whose coordinator averages models."""

    sees: ClassVar[Literal["sum", "each"]] = "sum"
    personal: ClassVar[tuple[str, ...]] = ()  # parameter groups that stay at the site
    weights: Literal["uniform", "rows"] = "uniform"

    def coord(self, task: Task, sites: int) -> Shared:
        return Shared(copied(task.select(task.start, task.others(self.personal))))

    def send(self, task: Task, coord: Shared, roster: Roster) -> Shared:
        return Shared(to_all(coord.params, len(roster.names)))

    def say(self, params: Params, down: Shared, rows: Rows) -> Up:
        """The parameters that travel, weighted, at the site."""
        shared = {k: params[k] for k in down.params}
        if self.weights == "rows":
            return Up(scaled(rows.total, shared), rows.total)
        return Up(shared, torch.ones_like(rows.total))

    def merge(self, task: Task, coord: Shared, up: Up, roster: Roster) -> tuple[Shared, Facts]:
        return Shared(tmap(lambda v: v / up.weight, up.weighted)), {}


@dataclass(frozen=True)
class FedAvg(Averages, Method[Own, Shared, Work, Shared, Up]):
    title: ClassVar[str] = "FedAvg"

    def state(self, task: Task, sites: int) -> Own:
        return Own(copied(to_all(task.select(task.start, self.personal), sites)))

    def begin(self, task: Task, state: Own, down: Shared) -> Work:
        params = copied({**state.params, **down.params})
        return Work(params, zeros(params), down.params)

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        task.descend(work.params, work.velocity, batch, pace.lr, pace.momentum)

    def report(self, task: Task, state: Own, work: Work, down: Shared, rows: Rows, pace: Pace) -> tuple[Own, Up]:
        return Own({k: work.params[k] for k in state.params}), self.say(work.params, down, rows)

    def settle(self, task: Task, state: Own, down: Shared) -> Own:
        return Own({**state.params, **down.params})

    def predict(self, task: Task, state: Own, x: Tensor) -> Tensor:
        return task.output(state.params, x)

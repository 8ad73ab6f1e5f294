"""Ditto (Li et al. 2021): beside FedAvg, each site trains a model of its own that is held near the shared one.

    w:   FedAvg
    v_i: minimise  loss_i(v) + lam/2 |v - w_received|^2      v_i never leaves the site

lam = 0 is Local (in the same run as FedAvg). Both models take one step on each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from vitrail.core.exchange import Method, Pace, Rows
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, add_, copied, pull_, to_all, zeros
from vitrail.methods.fedavg import Averages, Own, Shared, Up


class Work(NamedTuple):
    params: Params  # w
    velocity: Params
    own: Params  # v
    own_velocity: Params
    received: Params


@dataclass(frozen=True)
class Ditto(Averages, Method[Own, Shared, Work, Shared, Up]):
    title: ClassVar[str] = "Ditto"
    lam: float = 0.1

    def state(self, task: Task, sites: int) -> Own:
        return Own(copied(to_all(task.start, sites)))

    def begin(self, task: Task, state: Own, down: Shared) -> Work:
        params, own = copied(down.params), copied(state.params)
        return Work(params, zeros(params), own, zeros(own), down.params)

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        task.descend(work.params, work.velocity, batch, pace.lr, pace.momentum)
        task.push(work.own, work.own_velocity, batch, pace.lr, pace.momentum)
        pull_(work.own_velocity, work.own, work.received, pace.lr * self.lam)
        add_(work.own, work.own_velocity)

    def report(self, task: Task, state: Own, work: Work, down: Shared, rows: Rows, pace: Pace) -> tuple[Own, Up]:
        return Own(work.own), self.say(work.params, down, rows)

    def settle(self, task: Task, state: Own, down: Shared) -> Own:
        return state

    def predict(self, task: Task, state: Own, x: Tensor) -> Tensor:
        return task.output(state.params, x)

"""Local: each site trains alone on its own rows. Nothing leaves, nothing comes in. The yardstick of joining."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vitrail.core.exchange import Facts, Method, Nothing, Pace, Roster, Rows
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import copied, to_all, zeros
from vitrail.methods.fedavg import Own, Work


@dataclass(frozen=True)
class Local(Method[Own, Nothing, Work, Nothing, Nothing]):
    title: ClassVar[str] = "Local"
    federated: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    def state(self, task: Task, sites: int) -> Own:
        return Own(copied(to_all(task.start, sites)))

    def coord(self, task: Task, sites: int) -> Nothing:
        return Nothing()

    def send(self, task: Task, coord: Nothing, roster: Roster) -> Nothing:
        return Nothing()

    def begin(self, task: Task, state: Own, down: Nothing) -> Work:
        params = copied(state.params)
        return Work(params, zeros(params), {})

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        task.descend(work.params, work.velocity, batch, pace.lr, pace.momentum)

    def report(self, task: Task, state: Own, work: Work, down: Nothing, rows: Rows, pace: Pace) -> tuple[Own, Nothing]:
        return Own(work.params), Nothing()

    def merge(self, task: Task, coord: Nothing, up: Nothing, roster: Roster) -> tuple[Nothing, Facts]:
        return coord, {}

    def settle(self, task: Task, state: Own, down: Nothing) -> Own:
        return state

    def predict(self, task: Task, state: Own, x: Tensor) -> Tensor:
        return task.output(state.params, x)

"""Local: each site trains alone on its own rows. Nothing leaves, nothing comes in. The yardstick of joining."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitrail.core.exchange import Method, Nothing, Roster, Rows
from vitrail.core.facts import OWN, Facts
from vitrail.core.optimizers import Optimizer
from vitrail.core.task import Batch, Task, carried
from vitrail.core.tensors import Params, copied, to_all
from vitrail.methods.fedavg import Own, Work


@dataclass(frozen=True)
class Local(Method[Own, Nothing, Work, Nothing, Nothing]):
    title: ClassVar[str] = "Local"
    federated: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    def state(self, task: Task, sites: int) -> Own:
        params = copied(to_all(task.start, sites))
        return Own(params, task.remembered(params))

    def coord(self, task: Task, sites: int) -> Nothing:
        return Nothing()

    def send(self, task: Task, coord: Nothing, roster: Roster) -> Nothing:
        return Nothing()

    def begin(self, task: Task, state: Own, down: Nothing, rows: Rows, rule: Optimizer) -> Work:
        params = copied(state.params)
        return Work(params, rule.memory(params, state.memory), {})

    def step(self, task: Task, work: Work, batch: Batch, rule: Optimizer) -> None:
        rule = rule.alone if self.alone else rule  # all sites' rows in one place are more than one site's
        rule.descend(task, work.params, work.memory, batch)

    def report(
        self, task: Task, state: Own, work: Work, down: Nothing, rows: Rows, rule: Optimizer
    ) -> tuple[Own, Nothing]:
        return Own(work.params, carried(work.memory, state.memory)), Nothing()

    def merge(self, task: Task, coord: Nothing, up: Nothing, roster: Roster) -> tuple[Nothing, Facts]:
        return coord, {}

    def settle(self, task: Task, state: Own, down: Nothing) -> Own:
        return Own(state.params)

    def models(self, task: Task, state: Own) -> dict[str, Params]:
        return {OWN: state.params}

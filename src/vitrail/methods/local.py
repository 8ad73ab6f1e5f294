"""Local: each site trains alone on its own rows. Nothing leaves, nothing comes in. The yardstick of joining."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitrail.core.exchange import Method, Nothing, SiteContext
from vitrail.core.facts import OWN
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

    def begin(self, site: SiteContext, state: Own, down: Nothing) -> Work:
        params = copied(state.params)
        return Work(params, site.optimizer.memory(params, state.memory), {})

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        # all sites' rows in one place are more than one site's
        optimizer = site.optimizer.alone if self.alone else site.optimizer
        optimizer.descend(site.task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: Own, work: Work, down: Nothing) -> tuple[Own, Nothing]:
        return Own(work.params, carried(work.memory, state.memory)), Nothing()

    def settle(self, task: Task, state: Own, down: Nothing) -> Own:
        return Own(state.params)

    def models(self, task: Task, state: Own) -> dict[str, Params]:
        return {OWN: state.params}

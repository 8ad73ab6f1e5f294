"""Local: each site trains alone on its own rows, and sends nothing. The yardstick for the benefit of joining."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.core.declarations import Catalogue
from vitrail.core.exchange import Method, Nothing, SiteContext
from vitrail.core.facts import OWN
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, to_all
from vitrail.methods.fedavg import Own, Work


@dataclass(frozen=True)
class Local(Method[Own, Nothing, Work, Nothing, Nothing]):
    catalogue = Catalogue("Local", baseline="alone")

    def state(self, task: Task, sites: int) -> Own:
        params = clone(to_all(task.start, sites))
        return Own(params, task.initial_state(params))

    def begin(self, site: SiteContext, state: Own, down: Nothing) -> Work:
        params = clone(state.params)
        return Work(params, site.optimizer.state(params, state.memory), {})

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        # all sites' rows in one place are more than one site's
        optimizer = site.optimizer.alone if self.catalogue.alone else site.optimizer
        optimizer.step(site.task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: Own, work: Work, down: Nothing) -> tuple[Own, Nothing]:
        return Own(work.params, carry_state(work.memory, state.memory)), Nothing()

    def settle(self, task: Task, state: Own, down: Nothing) -> Own:
        return Own(state.params)

    def models(self, task: Task, state: Own) -> dict[str, Params]:
        return {OWN: state.params}

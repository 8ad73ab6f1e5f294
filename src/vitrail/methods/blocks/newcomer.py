"""A site that comes after training: the shared model stands still, only the site's private layers are fitted.

    f = f_out o f_shared o f_in      f_shared fixed; f_in (and f_out) by the same steps as in iFedAvg

Not in the table of methods: it has no federation of its own. See runs/site/newcomer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitrail.core.declarations import Adapters, Catalogue, Ge, Needs, OutputLayer
from vitrail.core.exchange import Nothing, SiteContext
from vitrail.core.optimizers import with_term
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, clone, proximal_term, to_all
from vitrail.methods.fedavg import Own, Work
from vitrail.methods.local import Local

PRIVATE = ("input", "output")


def identity(task: Task, params: Params) -> Params:
    """The private layers that change nothing."""
    return {k: v.new_full((), float(k.endswith("scale"))).expand_as(v) for k, v in task.select(params, PRIVATE).items()}


@dataclass(frozen=True)
class Newcomer(Local):
    catalogue = Catalogue("Newcomer", baseline="alone")
    output: OutputLayer = "no"
    identity: Annotated[float, Ge(0)] = 0.0

    @property
    def needs(self) -> Needs:
        return Needs(adapters=Adapters(True, self.output))

    def state(self, task: Task, sites: int) -> Own:
        params = clone(to_all(task.start, sites))
        return Own(params, task.initial_state(task.select(params, PRIVATE)))

    def begin(self, site: SiteContext, state: Own, down: Nothing) -> Work:
        params = clone(state.params)
        return Work(params, site.optimizer.state(site.task.select(params, PRIVATE), state.memory), {})

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        own, slope = site.task.select(work.params, PRIVATE), site.task.grad(work.params, batch)
        with_term(slope, proximal_term(own, identity(site.task, own), self.identity))
        site.optimizer.apply(own, work.memory, {k: slope[k] for k in own})

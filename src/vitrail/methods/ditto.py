"""Ditto (Li et al. 2021): in parallel with FedAvg, each site trains a model of its own that stays near the shared one.

    w:   FedAvg
    v_i: minimise  loss_i(v) + lam/2 |v - w_received|^2      v_i never leaves the site

With lam = 0 the site's own model is that of Local (in the same run as FedAvg, with weight_decay instead of
weight_decay_alone). Both models take one step on each batch. loss_i is the mean over rows. Where the loss of a batch is
their sum, the term with lam is multiplied by the number of rows too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from vitrail.core.declarations import Catalogue, Ge
from vitrail.core.exchange import Method, SiteContext
from vitrail.core.facts import OWN
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, proximal_term, to_all
from vitrail.methods.fedavg import Averages, Shared, Up


class State(NamedTuple):
    params: Annotated[Params, "the model of your own that is trained in parallel with the shared one"]  # v
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012
    own_memory: Annotated[Params, "what the optimiser remembers for your own model"] = {}  # noqa: RUF012


class Work(NamedTuple):
    params: Params  # w
    memory: Params
    own: Params  # v
    own_memory: Params
    received: Params


@dataclass(frozen=True)
class Ditto(Averages, Method[State, Shared, Work, Shared, Up]):
    catalogue = Catalogue("Ditto", tuning_grid={"lam": (0.01, 0.1, 1.0)})
    lam: Annotated[float, Ge(0)] = 0.1

    def state(self, task: Task, sites: int) -> State:
        own = clone(to_all(task.start, sites))
        return State(own, task.initial_state(own, own), task.initial_state(own))

    def begin(self, site: SiteContext, state: State, down: Shared) -> Work:
        params, own = clone(down.params), clone(state.params)
        memory, own_memory = site.optimizer.state(params, state.memory), site.optimizer.state(own, state.own_memory)
        return Work(params, memory, own, own_memory, down.params)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch)
        # scaled as the loss of the batch is
        near = proximal_term(work.own, work.received, self.lam, batch.w.sum((1, 2)))
        site.optimizer.step(site.task, work.own, work.own_memory, batch, near)

    def report(self, site: SiteContext, state: State, work: Work, down: Shared) -> tuple[State, Up]:
        memory, own_memory = carry_state(work.memory, state.memory), carry_state(work.own_memory, state.own_memory)
        return State(work.own, memory, own_memory), self.say(work.params, down, site.rows)

    def settle(self, task: Task, state: State, down: Shared) -> State:
        return State(state.params)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params}

"""APFL (Deng et al. 2020): each site mixes a model of its own with the shared one, and learns how much of each to use.

    prediction with  a v + (1 - a) w        w is averaged; v and a never leave the site
    w <- w - lr grad f(w)
    v <- v - lr grad_v f(a v + (1 - a) w)   = v - lr a grad f(mixed)
    a <- a - lr <v - w, grad f(mixed)>,     kept within [0, 1]

All three updates use the values from before the step. alpha, the start of a, is 0.5, which the iFedAvg paper's
comparison found best; `adaptive = false` keeps a there. alpha = 0 with `adaptive = false` is FedAvg. Momentum is off by
default, as in that comparison. Departure: we adapt a at every step; Deng et al. write the rule per step and leave its
frequency open. With Adam as the optimizer, Adam updates w and v; a follows its plain gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Le
from vitrail.core.exchange import Method, SiteContext
from vitrail.core.facts import OWN
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, dot, interpolate, scaled, to_all, tree_map
from vitrail.methods.fedavg import Averages, Shared, Up


class State(NamedTuple):
    own: Annotated[Params, "the model of your own that is mixed into the shared one"]  # v
    alpha: Annotated[Tensor, "how much of your own model is mixed in"]  # [site]
    params: Params  # w, once settled
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012
    own_memory: Annotated[Params, "what the optimiser remembers for your own model"] = {}  # noqa: RUF012


class Work(NamedTuple):
    own: Params
    alpha: Tensor
    params: Params
    memory: Params
    own_memory: Params


@dataclass(frozen=True)
class APFL(Averages, Method[State, Shared, Work, Shared, Up]):
    catalogue = Catalogue("APFL", tuning_grid={"alpha": (0.25, 0.5, 0.75)})
    momentum: Annotated[float, Ge(0)] | None = 0.0
    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    adaptive: bool = True

    def state(self, task: Task, sites: int) -> State:
        own = clone(to_all(task.start, sites))
        alpha = torch.full((sites,), self.alpha, dtype=task.like.dtype, device=task.like.device)
        return State(own, alpha, {}, task.initial_state(own, own), task.initial_state(own))

    def begin(self, site: SiteContext, state: State, down: Shared) -> Work:
        own, params = clone(state.own), clone(down.params)
        memory, own_memory = site.optimizer.state(params, state.memory), site.optimizer.state(own, state.own_memory)
        return Work(own, state.alpha.clone(), params, memory, own_memory)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        slope = site.task.grad(interpolate(work.alpha, work.own, work.params), batch)
        turn = dot(tree_map(torch.sub, work.own, work.params), slope) if self.adaptive else None
        site.optimizer.step(site.task, work.params, work.memory, batch)
        site.optimizer.apply(work.own, work.own_memory, scaled(work.alpha, slope))
        if turn is not None:
            work.alpha.sub_(turn, alpha=site.optimizer.lr).clamp_(0, 1)

    def report(self, site: SiteContext, state: State, work: Work, down: Shared) -> tuple[State, Up]:
        memory, own_memory = carry_state(work.memory, state.memory), carry_state(work.own_memory, state.own_memory)
        return State(work.own, work.alpha, {}, memory, own_memory), self.say(work.params, down, site.rows)

    def settle(self, task: Task, state: State, down: Shared) -> State:
        return State(state.own, state.alpha, down.params)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: interpolate(state.alpha, state.own, state.params)}

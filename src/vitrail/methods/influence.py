"""Influence: each site learns from the others in proportion to how much their models lower its own validation loss.

The idea is sketched in the Weight Erosion report (sections 2.2 and 6) and worked out here. Every site is the user once,
all in one run. Each site keeps the share `share` of its training rows, V_u, out of training and judges models on V_u
alone.

    at site u    r_uj =  max(0, L_u(v_u) - L_u(t_j))             L_u: mean loss on V_u
                 w_uj =  r_uj / sum_j r_uj                       all zero: w_uu = 1, the site continues alone
                 v_u  <- v_u + sum_j w_uj (t_j - v_u)            which is sum_j w_uj t_j
                 t_u  <- v_u after the local epochs              on its rows without V_u; sent, and predicted with

Choices. Each site trains from its own model. From a common model, one site with wrong labels would harm all sites; from
every user's model, a round would cost N^2 trainings. V_u stays at the user, so the models travel to it: at the start of
a round, a site weighs the models of the round before. A reduction below 1e-6 of the loss counts as none. With r_uj
divided by |t_j - v_u| this would be FedFomo (Zhang et al. 2021).

Cost of a round: N trainings, as in FedAvg, and N^2 + N evaluations on V_u; N models reach every site.
Revealed: every site's trained model, to every site; whom each site learns from (w_u), to the coordinator. A site that
copies a good model earns its weight: influence separates useful from harmful, not honest from dishonest.
Late in a run, when no model lowers a user's loss any more, w is that of a site alone: read the first rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Gt, Le, Needs, WireRules
from vitrail.core.exchange import Method, Roster, SiteContext
from vitrail.core.facts import OWN, SHARE, Facts
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, per_site, select_own, to_all, tree_map
from vitrail.methods.blocks.basics import per_pair

NONE = 1e-6  # of the loss: a smaller reduction is rounding


class State(NamedTuple):
    params: Params  # t_u
    before: Params  # v_u; none once settled
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Models(NamedTuple):
    """What the coordinator holds."""

    models: Params  # [site, ...]: t_j as last sent
    known: Tensor  # [site]: 1 when it has ever sent one


class Down(NamedTuple):
    models: Annotated[Params, "the models of all sites"]  # [user, site, ...]
    known: Annotated[Tensor, "which sites have sent a model"]  # [user, site]
    own: Annotated[Tensor, "which of them is yours"]  # [user, site]: 1 at the user's own place


class Up(NamedTuple):
    change: Annotated[Params, "what changed in your whole model since you last sent it"]  # t_u less the one before
    weights: Annotated[Tensor, "how much your site learned from each site"]  # [user, site]: w_u


class Work(NamedTuple):
    params: Params
    memory: Params
    before: Params
    weights: Tensor


@dataclass(frozen=True)
class Influence(Method[State, Models, Work, Down, Up]):
    catalogue = Catalogue("Influence", tuning_grid={"share": (0.1, 0.2, 0.4)}, tune_first=True)
    wire = WireRules(score_fields={"weights"}, disclosed_state={"params"}, per_site_messages=True)
    share: Annotated[float, Gt(0), Le(0.5)] = 0.2  # of the training rows: those that a site judges by

    @property
    def needs(self) -> Needs:
        return Needs(validation_share=self.share)

    def state(self, task: Task, sites: int) -> State:
        params = clone(to_all(task.start, sites))
        return State(params, clone(params), task.initial_state(params, params))

    def coord(self, task: Task, sites: int) -> Models:
        return Models(clone(to_all(task.start, sites)), task.like.new_zeros(sites))

    def send(self, task: Task, coord: Models, roster: Roster) -> Down:
        n = len(roster.names)
        own = torch.eye(n, dtype=coord.known.dtype, device=coord.known.device)
        return Down(to_all(coord.models, n), coord.known.expand(n, n), own)

    def begin(self, site: SiteContext, state: State, down: Down) -> Work:
        assert site.rows.validation is not None
        sites = range(down.own.shape[1])
        after = torch.stack([site.task.value(_model(state, down, j), site.rows.validation) for j in sites], 1)
        weights = weigh(site.task.value(state.before, site.rows.validation), after, down.known, down.own)
        params = clone(state.params)
        for v in params.values():
            v.zero_()
        for j in sites:
            for k, theirs in _model(state, down, j).items():
                w = per_site(weights[:, j], theirs)
                params[k] += torch.where(w > 0, w * theirs, 0)  # what has no weight may be no number at all
        return Work(params, site.optimizer.state(params, state.memory), clone(params), weights)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: State, work: Work, down: Down) -> tuple[State, Up]:
        state = State(work.params, work.before, carry_state(work.memory, state.memory))
        return state, Up(tree_map(torch.sub, work.params, select_own(down.models, down.own)), work.weights)

    def merge(self, task: Task, coord: Models, up: Up, roster: Roster) -> tuple[Models, Facts]:
        """This round's weights [user, site]; NaN where a user was away, or there was nothing to weigh."""
        here = roster.present
        models = tree_map(torch.add, coord.models, up.change)  # of who is away it is zero
        facts = {"influence": per_pair(up.weights, SHARE, (here & (coord.known.sum() > 0))[:, None])}
        return Models(models, torch.where(here, 1.0, coord.known)), facts

    def settle(self, task: Task, state: State, down: Down) -> State:
        return State(state.params, {})

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params}


def _model(state: State, down: Down, j: int) -> Params:
    """Site j's model as each user has it; its own it does not take from the coordinator."""
    mine = down.own[:, j] > 0
    return {k: torch.where(per_site(mine, v), v, down.models[k][:, j]) for k, v in state.params.items()}


def weigh(before: Tensor, after: Tensor, available: Tensor, own: Tensor) -> Tensor:
    """Losses before [user] and with each site's model [user, site] -> weights [user, site] that sum to 1."""
    gain = before[:, None] - after
    useful = (gain > NONE * before[:, None].abs()) & gain.isfinite() & (available > 0)
    gain = torch.where(useful, gain, 0)
    total = gain.sum(1, keepdim=True)
    return torch.where(total > 0, gain / total.clamp(min=torch.finfo(gain.dtype).tiny), own)

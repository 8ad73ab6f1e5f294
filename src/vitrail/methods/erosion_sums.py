"""Weight Erosion in sums: the equations of Weight Erosion, and nobody reads an update but the user's own.
Every site sees the user's own update and compares it with its own; the coordinator reads totals, weighted by how far
the user trusts each site, and that trust, site by site. A coordinator that sends a false update of the user can still
arrange that only one site adds to a total, and so read that site's update.

In Weight Erosion the coordinator reads every site's update to compare it with the user's. Here the user's update g_0
goes to the sites, and each compares for itself. Every round has two parts, of which the coordinator sees totals only:

    1. every site i works out its update g_i of every model, and keeps it; the user's own g_0 is added to nothing else
    2. the sites receive g_0; each works out d_i = |g_i - g_0| / |g_0| and its alpha_i (as in weight_erosion.py), and
       reports alpha_i beta_i g_i, alpha_i beta_i and, at its own place of a list, alpha_i
       w <- w - lr sum_i alpha_i beta_i g_i / sum_i alpha_i beta_i         beta_i: 1, or |S_i| with size = "weight"

`user` names the one site that the run is about; the model of all sites, trained beside it, is then what the others
predict with. Without a name every site is the user of a model of its own, and then every site's own update is shown.

Who learns what: all sites and the coordinator, g_0 of each user and the alphas of all sites, in each round. Of the
other updates, only totals weighted by the alphas. A total of few is little protection, so that a site adds nothing to
a user's model while fewer than `fewest` sites, the user among them, were trusted after the round before. In the round
in which their number falls below it, a total of fewer is still opened.

What this does not stop: a coordinator that sends a false g_0, or a false list of alphas, to all sites but one, so that
they have nothing to add; and a user whose own updates are made up. With an honest coordinator and an honest user the
models are those of the open run, but for the rounding of the masks.

Choices where this differs from the open run. g_0 counts as nothing where it is at rounding level of the site's own g_i
(there: of the longest). There is no early stopping. A site that misses either part is absent in that round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, WireRules
from vitrail.core.exchange import Method, Roster, SiteContext, Stage, training
from vitrail.core.facts import ALONE, OWN, SHARED, Facts
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, per_site, select_own, subtract, to_all, zeros
from vitrail.methods.blocks.basics import ErosionRule
from vitrail.methods.blocks.erosion_at_sites import Compared, Coord, Erode, State, per_pair_of
from vitrail.methods.blocks.per_user import stacked


class UserModels(NamedTuple):
    models: Annotated[Params, "the models of all users, and that of all sites"]  # [site, user, ...]
    own: Annotated[Tensor, "which of them is yours"]  # [site, user]: 1 where the site is the user


class Reference(NamedTuple):
    reference: Annotated[Params, "what your rows change in your own model, if the run is about you"]


class Work(NamedTuple):
    models: dict[str, Params]  # by user; Global is the last
    memory: dict[str, Params]
    drawn: Tensor
    local: Params
    local_memory: Params


@dataclass(frozen=True)
class ErosionSums(ErosionRule, Method[State, Coord, Work, UserModels, Reference]):
    catalogue = Catalogue("Weight Erosion in sums", tuning_grid={"p_d": (0.001, 0.01, 0.1, 1.0)}, tune_first=True)
    wire = WireRules("sum", per_site_messages=True, disclosed_state={"updates"})
    name: ClassVar[str] = "updates"
    momentum: Annotated[float, Ge(0)] | None = 0.0
    p_d: Annotated[float, Ge(0)] = 0.01
    p_s: Annotated[float, Ge(0)] = 0.2
    size: Literal["penalty", "weight"] = "penalty"
    update: Literal["gradient", "local"] = "gradient"
    user: str = ""
    fewest: Annotated[int, Ge(1)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_momentum()

    def named_sites(self) -> tuple[str, ...]:
        return (self.user,) if self.user else ()

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (training(self, rounds)._replace(exchanges=(self, Erode(self))),)

    def users(self, sites: int) -> int:
        return 1 if self.user else sites

    def state(self, task: Task, sites: int) -> State:
        local = clone(to_all(task.start, sites))
        updates = zeros(to_all(to_all(task.start, self.users(sites) + 1), sites))
        return State({}, local, {}, updates, task.like.new_zeros(sites), task.initial_state(local))

    def coord(self, task: Task, sites: int) -> Coord:
        n = self.users(sites)
        models, pairs = clone(to_all(task.start, n + 1)), task.like.new_ones(n, sites)
        return Coord(models, pairs, torch.zeros_like(pairs), zeros(to_all(task.start, n)), pairs[0] < 0)

    def shared(self, coord: Coord) -> Params:
        return {k: v[-1] for k, v in coord.models.items()}

    def own(self, coord: Coord, roster: Roster) -> Tensor:
        """[site, user]: 1 where the site is the user."""
        if not self.user:
            return torch.eye(len(roster.names), dtype=coord.alpha.dtype, device=coord.alpha.device)
        return coord.alpha.new_tensor([[float(name == self.user)] for name in roster.names])

    def send(self, task: Task, coord: Coord, roster: Roster) -> UserModels:
        return UserModels(to_all(coord.models, len(roster.names)), self.own(coord, roster))

    def begin(self, site: SiteContext, state: State, down: UserModels) -> Work:
        models = {str(u): clone({k: v[:, u] for k, v in down.models.items()}) for u in range(down.own.shape[1] + 1)}
        memory = {u: site.optimizer.state(model) for u, model in models.items()}
        drawn, local = torch.zeros_like(site.rows.total), clone(state.local)
        return Work(models, memory, drawn, local, site.optimizer.state(local, state.memory))

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        work.drawn.add_((batch.w > 0).sum((1, 2)))
        for u, model in work.models.items():
            site.optimizer.step(site.task, model, work.memory[u], batch)
        site.optimizer.alone.step(site.task, work.local, work.local_memory, batch)

    def report(self, site: SiteContext, state: State, work: Work, down: UserModels) -> tuple[State, Reference]:
        # SGD remembers its step, which is exact; the difference of two models would be rounded
        updates = stacked(work.memory) if self.update == "gradient" else subtract(stacked(work.models), down.models)
        users, memory = down.own.shape[1], carry_state(work.local_memory, state.memory)
        mine = {k: per_pair_of(down.own, v) * v[:, :users] for k, v in updates.items()}
        return State({}, work.local, {}, updates, work.drawn, memory), Reference(mine)

    def merge(self, task: Task, coord: Coord, up: Reference, roster: Roster) -> tuple[Coord, Facts]:
        return coord._replace(reference=up.reference, came=roster.present), {}

    def settle(self, task: Task, state: State, down: UserModels | Compared) -> State:
        shared = {k: v[:, -1] for k, v in down.models.items()}
        theirs = select_own(down.models, down.own)
        own = {k: torch.where(per_site(down.own.sum(1), v) > 0, v, shared[k]) for k, v in theirs.items()}
        return state._replace(params=own, shared=shared, updates=zeros(state.updates))

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params, SHARED: state.shared, ALONE: state.local}

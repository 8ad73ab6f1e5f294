"""The second part of a round of Weight Erosion in sums (methods/erosion_sums.py): each site compares its updates with
those of the users. And what sites and coordinator keep between the two parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import WireRules
from vitrail.core.exchange import Exchange, Nothing, Roster, SiteContext
from vitrail.core.facts import TRUST, Facts
from vitrail.core.task import Task
from vitrail.core.tensors import Params, per_site, to_all, tree_map, zeros
from vitrail.methods.blocks.basics import median, per_pair

if TYPE_CHECKING:
    from vitrail.methods.erosion_sums import ErosionSums


class State(NamedTuple):
    params: Params  # the site's own model, once settled
    local: Annotated[Params, "the model that is trained on your rows alone, beside"]
    shared: Params  # Global, once settled
    updates: Annotated[Params, "what your rows changed in each model in this round, one by one"]  # [site, model, ...]
    drawn: Tensor  # [site]: rows drawn in this round
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Coord(NamedTuple):
    models: Params  # [user, ...]; Global is the last
    alpha: Tensor  # [user, site]
    met: Tensor  # [user, site]: rounds in which the site compared itself with the user
    reference: Params  # [user, ...]: g_0 of this round
    came: Tensor  # [site] bool: who took part in the first half of this round


class Compared(NamedTuple):
    models: Annotated[Params, "the models of all users, and that of all sites"]  # [site, user, ...]
    own: Annotated[Tensor, "which of them is yours"]  # [site, user]
    reference: Annotated[Params, "what the rows of each user change in its own model"]  # [site, user, ...]
    here: Annotated[Tensor, "which users take part in this round"]  # [site, user]: 1 or 0
    counted: Annotated[Tensor, "whether your first answer of this round was counted"]  # [site]: 1 or 0
    met: Annotated[Tensor, "in how many rounds you were compared with each user"]  # [site, user]
    alphas: Annotated[Tensor, "how far each user trusts each site"]  # [site, user, site]
    place: Annotated[Tensor, "your place among the sites"]  # [site, site]: one 1


class WeighedUpdates(NamedTuple):
    update: Annotated[Params, "what your rows change in each model, times how far its user trusts you"]
    weight: Annotated[Tensor, "how far that is, times how much you count"]  # [site, user]
    alpha: Annotated[Tensor, "how far each user trusts you, at your place of a list"]  # [site, user, site]


@dataclass(frozen=True)
class Erode(Exchange[State, Coord, Nothing, Compared, WeighedUpdates]):
    """The second part of a round."""

    method: ErosionSums
    name: ClassVar[str] = "alphas"
    wire = WireRules("sum", step_fields={"reference"}, final_fields={"models", "own"})

    def send(self, task: Task, coord: Coord, roster: Roster) -> Compared:
        n, own = len(roster.names), self.method.own(coord, roster)
        here = (own * coord.came[:, None]).sum(0)  # [user]
        # a site that comes after the user's first round starts at the median of those before it
        first = (coord.met * own.T).sum(1, keepdim=True) > 0
        late = first & (coord.met == 0)
        alphas = torch.where(late, median(coord.alpha, coord.met > 0)[:, None], coord.alpha)
        return Compared(
            to_all(coord.models, n), own, to_all(coord.reference, n), here.expand(n, -1), coord.came.to(here),
            coord.met.T, alphas.expand(n, -1, -1), torch.eye(n, dtype=here.dtype, device=here.device),
        )  # fmt: skip

    def report(self, site: SiteContext, state: State, work: Nothing, down: Compared) -> tuple[State, WeighedUpdates]:
        m, rows, users = self.method, site.rows.total, down.own.shape[1]
        mine = {k: v[:, :users] for k, v in state.updates.items()}
        length, ref = _squares(mine), _squares(down.reference)
        vanished = ref <= torch.finfo(ref.dtype).eps ** 2 * length
        d = (_squares(tree_map(torch.sub, mine, down.reference)) / torch.where(vanished, 1.0, ref)).sqrt()
        erosion = m.erosion(d, down.met * (state.drawn / rows.clamp(min=1))[:, None])
        before = (down.alphas * down.place[:, None]).sum(2)  # [site, user]
        enough = (down.alphas > 0).sum(2) >= min(m.fewest, down.place.shape[1])
        alpha = torch.where(vanished, before, (before - erosion).clamp(min=0)) * down.here
        counts = rows if m.size == "weight" else torch.ones_like(rows)
        trust = torch.where(enough | (down.own > 0), alpha, 0)
        weight = torch.cat([trust, torch.ones_like(trust[:, :1])], 1) * (counts * down.counted)[:, None]
        update = {k: per_pair_of(weight, v) * v for k, v in state.updates.items()}
        return state, WeighedUpdates(update, weight, (alpha * down.counted[:, None])[:, :, None] * down.place[:, None])

    def merge(self, task: Task, coord: Coord, up: WeighedUpdates, roster: Roster) -> tuple[Coord, Facts]:
        n, both = len(roster.names), coord.came & roster.present
        own = self.method.own(coord, roster)
        took = ((own * coord.came[:, None]).sum(0) > 0)[:, None] & both & (coord.alpha > 0)
        alpha = torch.where(took, up.alpha, coord.alpha)
        share = up.weight.clamp(min=torch.finfo(up.weight.dtype).tiny)
        models = {k: v + up.update[k] / per_site(share, v) for k, v in coord.models.items()}
        rows = [roster.names.index(self.method.user)] if self.method.user in roster.names else range(len(alpha))
        shown, met = alpha.new_ones(n, n), torch.zeros(n, n, dtype=torch.bool, device=alpha.device)
        shown[list(rows)], met[list(rows)] = alpha, coord.met + took > 0
        none = torch.zeros_like(coord.came)
        coord = Coord(models, alpha, coord.met + took, zeros(coord.reference), none)
        return coord, {"alpha": per_pair(shown, TRUST, met)}

    def settle(self, task: Task, state: State, down: Compared) -> State:
        return self.method.settle(task, state, down)


def per_pair_of(weight: Tensor, like: Tensor) -> Tensor:
    """[site, model] -> [site, model, 1, ...]"""
    return weight.view(*weight.shape, *[1] * (like.dim() - 2))


def _squares(tree: Params) -> Tensor:
    """[site, user]: the square of the length."""
    return torch.stack([(v**2).flatten(2).sum(2) for v in tree.values()]).sum(0)

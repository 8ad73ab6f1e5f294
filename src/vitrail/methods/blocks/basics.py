"""What several papers share: showing something by consent, stopping early, distances between models and updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Exchange, Nothing, Roster, SiteContext
from vitrail.core.facts import AGREED, Fact, Facts
from vitrail.core.optimizers import SGD
from vitrail.core.task import Task
from vitrail.core.tensors import Params, dot, per_site, tree_map

STEPS = 300  # towards the shortest vector of a convex hull


class Revealed(NamedTuple):
    shown: Annotated[Params, "what you agree to show"]


@dataclass(frozen=True)
class Reveal(Exchange[Any, Any, Nothing, Nothing, Revealed]):
    """Each site shows something of its state, once. A site that refuses is absent from this exchange."""

    show: Callable[[Task, Any], Params]  # (task, state) -> what
    means: Callable[[str], tuple[tuple[str, ...], str]]  # name of a tensor -> its axes, and what it means
    consent: str = ""

    def report(self, site: SiteContext, state: Any, work: Nothing, down: Nothing) -> tuple[Any, Revealed]:
        return state, Revealed(self.show(site.task, state))

    def merge(self, task: Task, coord: Any, up: Revealed, roster: Roster) -> tuple[Any, Facts]:
        facts = {k: Fact(v, *self.means(k)) for k, v in up.shown.items()}
        return coord, {"agreed": Fact(roster.present, ("site",), AGREED), **facts}


class EarlyStopping(NamedTuple):
    """Early stopping, at the coordinator: each user's best model so far."""

    stopped: Tensor  # [user] bool
    loss: Tensor  # [user]: the lowest on the rows set aside
    waited: Tensor  # [user]: rounds since then
    best: Params  # [user, ...]: the model of then; empty where nobody stops early

    @classmethod
    def of(cls, models: Params, users: int, watched: bool) -> EarlyStopping:
        some = next(iter(models.values()))
        best = {k: v[:users].clone() for k, v in models.items()} if watched else {}
        waited = some.new_zeros(users)
        return cls(waited > 0, some.new_full((users,), torch.inf), waited, best)

    def observe(self, models: Params, loss: Tensor, here: Tensor, patience: int) -> tuple[EarlyStopping, Params]:
        """After losses [user] of these models, from the users that are `here`; who has waited too long goes back to its
        best model and stands still. More models than users: the others are left alone."""
        counts = here & loss.isfinite() & ~self.stopped
        better = counts & (loss < self.loss)
        waited = torch.where(better, 0.0, self.waited + counts)
        stops = counts & (waited >= patience)
        users = {k: models[k][: len(here)] for k in self.best}
        best = {k: torch.where(per_site(better, v), v, self.best[k]) for k, v in users.items()}
        back = {k: torch.where(per_site(stops, v), best[k], v) for k, v in users.items()}
        models = {k: torch.cat([v, models[k][len(here) :]]) for k, v in back.items()}
        return EarlyStopping(self.stopped | stops, torch.where(better, loss, self.loss), waited, best), models


class ErosionRule:
    """What Weight Erosion has in common with its form in sums: the update that is compared, and how trust erodes."""

    momentum: float | None
    p_d: float
    p_s: float
    size: Literal["penalty", "weight"]
    update: Literal["gradient", "local"]

    def check_momentum(self) -> None:
        if self.update == "gradient" and self.momentum != 0:
            raise ValueError('momentum needs update = "local"')

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        if self.update == "local" or (isinstance(task.rule, SGD) and not task.rule.factors):
            return ()
        return (
            'with update = "gradient" a step is lr times the gradient itself; update = "local" takes any optimiser',
        )

    def batches(self) -> int | None:
        return 1 if self.update == "gradient" else None

    def erosion(self, distance: Tensor, passes: Tensor) -> Tensor:
        """How much trust is lost by a distance, after so many passes over the site's rows."""
        lost = self.p_d * distance
        return lost * (1 + self.p_s * passes.floor()) if self.size == "penalty" else lost


def distance(one: Params, other: Params) -> Tensor:
    """|one - other| for each site: [site]."""
    difference = tree_map(torch.sub, one, other)
    return dot(difference, difference).sqrt()


def median(values: Tensor, among: Tensor) -> Tensor:
    """[row]: of each row of values, over the columns among which it is asked for."""
    ranked = torch.where(among, values, torch.inf).sort(1).values
    count = among.sum(1, keepdim=True)
    middle = torch.cat([(count - 1).clamp(min=0) // 2, (count // 2).clamp(max=values.shape[1] - 1)], 1)
    return ranked.gather(1, middle).mean(1)


def distances(update: Params, took: Tensor) -> tuple[Tensor, Tensor]:
    """Of updates g [site, user, ...], with the user's own g_0: |g_i - g_0| / |g_0|, [user, site]; and whether g_0
    is nothing, [user]: at rounding level of the longest of those that `took` part, [user, site]."""
    flat = [v.flatten(2) for v in update.values()]
    mine = [v.diagonal(dim1=0, dim2=1).T for v in flat]  # [user, number]
    square = torch.stack([(v**2).sum(2) for v in flat]).sum(0).T
    between = torch.stack([((v - o) ** 2).sum(2) for v, o in zip(flat, mine, strict=True)]).sum(0).T
    own = square.diagonal()
    vanished = took.diagonal() & (own <= torch.finfo(own.dtype).eps ** 2 * (square * took).amax(1))
    return (between / torch.where(vanished, 1.0, own)[:, None]).sqrt(), vanished


def common_cosine(update: Params, took: Tensor) -> Tensor:
    """Of updates g [site, user, ...]: the largest c for which one direction has a cosine of at least c with every
    update that `took` part [user, site]; [user], 0 where none has, NaN where no update did.

    It is the length of the shortest vector in the convex hull of the g_i / |g_i|, found by Frank-Wolfe with away steps.
    """
    flat = torch.cat([v.flatten(2) for v in update.values()], 2).transpose(0, 1).double()  # [user, site, number]
    unit = flat / flat.norm(dim=2, keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
    products = unit @ unit.transpose(1, 2)  # [user, site, site]
    share = took.double() / took.sum(1, keepdim=True).clamp(min=1)
    at = torch.arange(len(share), device=share.device)
    for _ in range(STEPS):
        slope = (products @ share[:, :, None])[:, :, 0]
        best, worst = (torch.where(on, v, torch.inf).argmin(1) for on, v in ((took, slope), (share > 0, -slope)))
        now = (share * slope).sum(1)
        away = slope[at, worst] - now > now - slope[at, best]
        towards = torch.zeros_like(share)
        towards[at, torch.where(away, worst, best)] = 1.0
        direction = torch.where(away[:, None], share - towards, towards - share)
        held = share[at, worst]
        most = torch.where(away, held / (1 - held).clamp(min=1e-12), 1.0)
        length = (direction * (products @ direction[:, :, None])[:, :, 0]).sum(1)
        step = (-(direction * slope).sum(1) / length.clamp(min=1e-30)).clamp(min=0).minimum(most)
        share = (share + step[:, None] * direction).clamp(min=0)
    shortest = (share * (products @ share[:, :, None])[:, :, 0]).sum(1).clamp(min=0).sqrt()
    return torch.where(took.any(1), shortest, torch.nan).to(next(iter(update.values())))


def per_user(value: Tensor, means: str, where: Tensor | None = None) -> Fact:
    """Of every round, [user]; no number where it is not known."""
    return Fact(value if where is None else torch.where(where, value, torch.nan), ("user",), means, every=True)


def per_pair(value: Tensor, means: str, where: Tensor) -> Fact:
    """Of every round, [user, site]; no number where it is not known."""
    return Fact(torch.where(where, value, torch.nan), ("user", "site"), means, every=True)

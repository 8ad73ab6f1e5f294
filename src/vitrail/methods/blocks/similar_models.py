"""Whom to mix with whom: the sites that are surest, some of the others by lot, and of these the most similar models.

The hyperparameters are those of RIPFL (methods/ripfl.py), which says what each means.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vitrail.core.exchange import Roster
from vitrail.core.random import mixed
from vitrail.core.task import Task
from vitrail.core.tensors import Params, per_site

LEAST = 2  # models in a mix, where so many are chosen


class SimilarModels:
    """The coordinator's choice, for a method with these hyperparameters."""

    selection: Literal["uncertainty", "all", "random"]
    drawn: float
    drawn_sure: float
    similarity: bool
    takes: int | None
    count_self: bool

    def choose(self, doubt: Tensor, fit: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """[site] bool: who is of the surer half of those that are `fit` to be chosen, and who is chosen."""
        place, many = ranked(torch.where(fit, doubt, torch.inf), key), fit.sum()
        half = (many + 1) // 2
        sures = (half * self.drawn_sure).round().clamp(min=1 if self.drawn_sure else 0)
        lots = ((many - half) * self.drawn).round().clamp(min=1 if self.drawn else 0)
        sure = fit & (place < half)
        if self.selection == "all":
            return sure, fit
        if self.selection == "random":
            return sure, fit & (ranked((~fit).to(doubt), key) < sures + lots)
        others = fit & ~sure
        of_the_sure = sure & (ranked((~sure).to(doubt), key) < sures)
        return sure, of_the_sure | (others & (ranked((~others).to(doubt), key) < lots))

    def mixed_of(self, alike: Tensor, doubt: Tensor, fit: Tensor, chosen: Tensor, roster: Roster) -> Tensor:
        """[user, site]: of whose models each user's mix is made; its own last one where nobody may be in it."""
        alone = torch.eye(len(doubt), dtype=doubt.dtype, device=doubt.device)
        may = chosen & (self.count_self | (alone == 0))  # [user, site]
        many = may.sum(1).to(doubt)
        low, high = torch.where(fit, doubt, torch.inf).amin(), torch.where(fit, doubt, -torch.inf).amax()
        if self.takes is None:
            part = torch.where(high > low, (doubt - low) / (high - low), 0).nan_to_num(1.0).clamp(0, 1)
            count = torch.minimum((LEAST + (many - LEAST) * part).round(), many)
        else:
            count = many.clamp(max=self.takes)
        if self.similarity:
            apart, lots = (-alike - alone).nan_to_num(torch.inf), roster.key
        else:
            apart, lots = torch.zeros_like(alike), mixed(roster.key[:, None], roster.seeds)
        taken = may & (ranked(torch.where(may, apart, torch.inf), lots) < count[:, None])
        return torch.where(many[:, None] > 0, taken / count.clamp(min=1)[:, None], alone)


def mix_models(models: Params, share: Tensor) -> Params:
    """Of models [site, ...]: the mix of each user, [user, ...], by its shares [user, site]."""
    given = share.amax(0) > 0
    # what nobody takes may be no number at all, and 0 times it would be none either
    held = {k: torch.where(per_site(given, v), v, 0) for k, v in models.items()}
    return {k: (share @ v.reshape(len(v), -1)).view_as(v) for k, v in held.items()}


def cosines(models: Params) -> tuple[Tensor, Tensor]:
    """Of models [site, ...]: their cosines, [site, site], in double; and which are numbers throughout, [site]."""
    flat = [v.reshape(len(v), -1).double() for v in models.values()]
    product = torch.stack([v @ v.T for v in flat]).sum(0)
    length = product.diagonal().sqrt()
    return (product / (length * length[:, None])).clamp(-1, 1), length.isfinite()


def ranked(values: Tensor, lots: Tensor) -> Tensor:
    """[..., site]: the place of each, the lowest first. Those that differ by rounding alone stand by their lots: the
    order of the sites changes nothing."""
    by_lot = lots.expand(values.shape).argsort(-1)
    level = (values / (16 * torch.finfo(values.dtype).eps)).round()
    order = by_lot.gather(-1, level.gather(-1, by_lot).argsort(dim=-1, stable=True))
    return order.argsort(-1)


def rear_of(task: Task) -> tuple[str, ...]:
    """Names of the parameters that most rounds leave at the site: groups rear, head and output. Of a network that names
    no rear: the head, and the layer before it if that is linear too and not the first, so that a front remains."""
    groups = task.net.groups
    names = {k for group in ("rear", "head", "output") for k in groups.get(group, ())}
    if "rear" not in groups:
        layers = list(dict.fromkeys(k.rpartition(".")[0] for k in groups.get("body", ())))
        last = [k for k in groups.get("body", ()) if layers[1:] and k.rpartition(".")[0] == layers[-1]]
        if any(task.start[k].dim() == 2 for k in last):
            names |= set(last)
    return tuple(k for k in task.start if k in names)

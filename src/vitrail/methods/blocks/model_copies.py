"""Copies of a model at one site, trained or judged at once: for networks and rules a copy is one more site.

Params of copies are [site, copy, ...].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.core.exchange import Roster
from vitrail.core.random import mixed
from vitrail.core.task import Batch, Out, Task
from vitrail.core.tensors import Params, map_tensors

ALPHAS = tuple(i / 10 for i in range(11))  # shares of one's own model that are tried
STEPS = 30  # to find what is best added to scores


def merged(tree: Any) -> Any:
    """[site, copy, ...] -> [site * copy, ...], as a view where what it is of lies in one piece."""
    return map_tensors(lambda t: t.flatten(0, 1), tree)


def parted(tree: Any, sites: int) -> Any:
    return map_tensors(lambda t: t.reshape(sites, len(t) // sites, *t.shape[1:]), tree)


def version(tree: Any, which: int, axis: int = 0) -> Any:
    return map_tensors(lambda t: t.select(axis, which), tree)


def last(tree: Params) -> Params:
    """Of all versions that with all rows."""
    return {k: v[:, -1] for k, v in tree.items()}


def copies(batch: Batch, w: Tensor) -> Batch:
    """The rows once for each copy, with weights [site, copy, row, 1] of its own."""

    def wide(t: Tensor) -> Tensor:
        return t[:, None].expand(-1, w.shape[1], *t.shape[1:]).contiguous().flatten(0, 1)

    return Batch(wide(batch.x), wide(batch.y), w.flatten(0, 1), tuple(wide(k) for k in batch.keep))


def lot_of(roster: Roster) -> Tensor:
    """The same for all sites: rows of the same place are in the same fold."""
    return roster.seeds.sum().expand(len(roster.names))


def fold_of(batch: Batch, lot: Tensor, folds: int) -> Tensor:
    """[site, row]: by lot, from the place of the row."""
    assert batch.at is not None
    return mixed(lot[:, None], batch.at + 1) % folds


def picked(tensor: Tensor, place: Tensor, axis: int = 3) -> Tensor:
    """Along this axis those at `place`, which has all axes up to it."""
    at = place.view(*place.shape, *[1] * (tensor.dim() - axis - 1))
    return tensor.gather(axis, at.expand(*place.shape, *tensor.shape[axis + 1 :]))


def loss(task: Task, z: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Of scores [..., row, output], summed over rows."""
    zs, ys, ws = (t.expand(*z.shape[:-1], -1).flatten(0, -3) for t in (z, y, w))
    return task.loss.rows(Out(zs, zs), Batch(zs, ys, ws)).sum(1).view(z.shape[:-2])


def counted(w: Tensor, fold: Tensor, folds: int, more: float = 1.0) -> Tensor:
    """[site, version, row, 1], of weights w [site, row, 1]: a row counts in every version but that without its fold,
    and `more` times as much in all of these but the last, which has all rows."""
    seen = fold[:, None] != torch.arange(folds + 1, device=fold.device)[:, None]
    times = w.new_full((folds + 1,), more)
    times[-1:].fill_(1.0)  # `= 1.0` would come from outside, which a captured graph may not take
    return w[:, None] * (seen * times[:, None])[..., None]


def counted_rows(batch: Batch, lot: Tensor, folds: int, more: float = 1.0) -> Tensor:
    return counted(batch.w, fold_of(batch, lot, folds), folds, more)


def mix(a: float, mine: Tensor, theirs: Tensor) -> Tensor:
    return theirs if a == 0 else mine.expand_as(theirs) if a == 1 else torch.lerp(theirs, mine.expand_as(theirs), a)


def mix_scores(share: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """Scores [site, row, output], by each site's share of its own model; at the ends the other model is not looked at,
    whatever became of it."""
    a = share[:, None, None]
    return torch.where(a == 0, theirs, torch.where(a == 1, mine, torch.lerp(theirs, mine, a)))


def fitted(task: Task, z: Tensor, y: Tensor, w: Tensor, hold: float) -> Tensor:
    """[..., output]: what, added to scores z [..., row, output], makes their loss + hold/2 |b|^2 lowest. Downhill, with
    shorter steps where the slope does not get less: it must do for any convex loss."""
    y, w = (t.expand(*z.shape[:-1], -1) for t in (y, w))
    b, step = z.new_zeros(*z.shape[:-2], 1, z.shape[-1]), 1 / (w.sum((-2, -1), keepdim=True) + hold)

    def slope(b: Tensor) -> Tensor:
        zs, ys, ws = (t.flatten(0, -3) for t in (z + b, y, w))
        return task.loss.grad(Out(zs, zs), Batch(zs, ys, ws)).sum(1).view(b.shape) + hold * b

    now = slope(b)
    for _ in range(STEPS):
        after = slope(tried := b - step * now)
        better = (after**2).sum(-1, keepdim=True) <= (now**2).sum(-1, keepdim=True)
        b, now = torch.where(better, tried, b), torch.where(better, after, now)
        step = step * torch.where(better, 1.2, 0.5)
    return b[..., 0, :]

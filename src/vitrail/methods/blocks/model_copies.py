"""Copies of a model at one site, trained or judged at once: for networks and rules a copy is one more site.

Params of copies are [site, copy, ...].
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.core.exchange import Roster
from vitrail.core.random import mixed
from vitrail.core.task import Batch, Out, Task
from vitrail.core.tensors import Params, tree_map

STEPS = 30  # to find what is best added to scores


def flat(tree: Params) -> Params:
    """[site, copy, ...] -> [site * copy, ...]."""
    return {k: v.flatten(0, 1) for k, v in tree.items()}


def apart(tree: Params, sites: int) -> Params:
    return {k: v.view(sites, len(v) // sites, *v.shape[1:]) for k, v in tree.items()}


def joined(one: Params, other: Params) -> Params:
    return tree_map(lambda a, b: torch.cat([a, b], 1), one, other)


def repeated(tree: Params, times: int) -> Params:
    return {k: v.repeat_interleave(times, 1) for k, v in tree.items()}


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
    flat_z, flat_y, flat_w = (t.expand(*z.shape[:-1], -1).flatten(0, -3) for t in (z, y, w))
    return task.loss.rows(Out(flat_z, flat_z), Batch(flat_z, flat_y, flat_w)).sum(1).view(z.shape[:-2])


def mix(a: float, mine: Tensor, theirs: Tensor) -> Tensor:
    return theirs if a == 0 else mine.expand_as(theirs) if a == 1 else torch.lerp(theirs, mine.expand_as(theirs), a)


def fitted(task: Task, z: Tensor, y: Tensor, w: Tensor, hold: float) -> Tensor:
    """[..., output]: what, added to scores z [..., row, output], makes their loss + hold/2 |b|^2 lowest. Downhill, with
    shorter steps where the slope does not get less: it must do for any convex loss."""
    y, w = (t.expand(*z.shape[:-1], -1) for t in (y, w))
    b, step = z.new_zeros(*z.shape[:-2], 1, z.shape[-1]), 1 / (w.sum((-2, -1), keepdim=True) + hold)

    def slope(b: Tensor) -> Tensor:
        flat_z, flat_y, flat_w = (t.flatten(0, -3) for t in (z + b, y, w))
        return task.loss.grad(Out(flat_z, flat_z), Batch(flat_z, flat_y, flat_w)).sum(1).view(b.shape) + hold * b

    now = slope(b)
    for _ in range(STEPS):
        after = slope(tried := b - step * now)
        better = (after**2).sum(-1, keepdim=True) <= (now**2).sum(-1, keepdim=True)
        b, now = torch.where(better, tried, b), torch.where(better, after, now)
        step = step * torch.where(better, 1.2, 0.5)
    return b[..., 0, :]

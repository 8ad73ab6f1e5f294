"""What is done with prototypes at one site, for all sites at once: the pull of a loss, push, last layer; and how much
of its own prototypes a site goes on with beside the shared ones (inDISCO's contribution 4).

The thesis says that the distance of local and shared prototypes "could be used to derive a personalization weight",
and gives no formula. Ours, for a class c at a site, with its prototypes p as they were before they were averaged:

    d_c      = mean over p of c, |p - shared p|
    r_c      = mean over p of c, |p - the nearest own prototype of another class|
    kept_c   = d_c / (d_c + r_c)                           "distance"; 1/2 with "half"; 0 with "no"
    p        <- shared p + kept_c (p - shared p)           whenever a site goes on from what it was sent, and at the end

r_c makes it free of scale: a half is kept where the shared prototypes lie as far off as another class does. All is
computed at the site, so that what is reported and added up stays the same. Both lie in one latent space, that of the
model whose prototypes are shared; those of a model trained alone lie in another.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vitrail.core.exchange import Rows
from vitrail.core.task import Batch, Out, Task
from vitrail.core.tensors import Params, per_site
from vitrail.nets import ProtoNet

Personal = Literal["no", "distance", "half"]
NEAR = 1e-6  # relative: closer distances are one, of which the first counts; engines may round otherwise


def net_of(task: Task) -> ProtoNet:
    assert isinstance(task.net, ProtoNet)
    return task.net


def pulls(net: ProtoNet, out: Out, batch: Batch, clst: float, sep: float) -> Tensor:
    """[site, row, prototype]: the slope of clst Clst + sep Sep at the distances, weighted as the rows are."""
    mine = batch.y @ net.own(batch.y).to(batch.y) > 0
    near, far = (out.features.masked_fill(other, torch.inf).argmin(-1, keepdim=True) for other in (~mine, mine))
    slope = torch.zeros_like(out.features)
    slope.scatter_add_(-1, near, clst * batch.w * mine.any(-1, keepdim=True))
    return slope.scatter_add_(-1, far, -sep * batch.w * (~mine).any(-1, keepdim=True))


def nearest_patches(net: ProtoNet, params: Params, rows: Rows) -> tuple[Tensor, Tensor]:
    """[site, prototype, D]: the nearest latent patch of the pictures of its class, itself where there is none; and
    where it is, [site, prototype, 2]: row and cell, or -1."""
    prototypes = params[net.NAME]
    best = torch.full(prototypes.shape[:2], torch.inf, dtype=prototypes.dtype, device=prototypes.device)
    taken, where, first = prototypes, torch.full((*best.shape, 2), -1, device=best.device), 0
    for block in rows.blocks():
        distance, z = net.seen(params, block.x)
        many, cells = distance.shape[1], distance[0, 0, 0].numel()
        of_class = (block.y @ net.own(block.y).to(block.y) > 0) & (block.w > 0)  # [site, row, prototype]
        all_cells = distance.flatten(3).masked_fill(~of_class[..., None], torch.inf)
        flat = all_cells.transpose(1, 2).flatten(2)  # [site, prototype, row and cell]
        low, at = _first_lowest(flat)
        patches = z.flatten(3).transpose(2, 3).flatten(1, 2)  # [site, row and cell, D]
        nearest = patches.gather(1, at[..., None].expand(-1, -1, patches.shape[-1]))
        better = low < best * (1 - NEAR)
        best, taken = torch.where(better, low, best), torch.where(better[..., None], nearest, taken)
        place = torch.stack([first + at // cells, at % cells], -1)
        where, first = torch.where(better[..., None], place, where), first + many
    return taken, where


def sparse_last(net: ProtoNet, params: Params, rows: Rows, l1: float, steps: int) -> Tensor:
    """[site, class, prototype]: after so many proximal steps on mean cross-entropy + l1 |weights of other classes|."""
    blocks = [(net.similarity(net.forward(params, b.x, tape=False).features), b.y, b.w) for b in rows.blocks()]
    s, y, w = (torch.cat(parts, 1) for parts in zip(*blocks, strict=True))
    w = w / w.sum(1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)
    weight, wrong = params[net.HEAD], ~net.own(s)
    steepest = torch.linalg.eigvalsh(s.transpose(1, 2) @ (w * s))[:, -1] / 2  # of the slope: softmax bends by 1/2
    step = per_site(1 / steepest.clamp(min=torch.finfo(w.dtype).tiny), weight)
    ahead, pace = weight, 1.0
    for _ in range(steps):
        slope = ((s @ ahead.transpose(1, 2)).softmax(-1) - y) * w
        moved = ahead - step * (slope.transpose(1, 2) @ s)
        shrunk = moved.sign() * (moved.abs() - step * l1).clamp(min=0)
        before, weight = weight, torch.where(wrong, shrunk, moved)
        pace, slower = (1 + (1 + 4 * pace**2) ** 0.5) / 2, pace
        ahead = weight + (slower - 1) / pace * (weight - before)
    return torch.where(per_site(steepest > 0, weight), weight, params[net.HEAD])


def kept(net: ProtoNet, how: Personal, local: Tensor, shared: Tensor) -> Tensor:
    """[site, class]: the part of its own prototypes [site, prototype, D] that a site keeps."""
    by_class = (len(local), net.outputs, net.per_class)
    far = (local - shared).square().sum(-1).sqrt().view(by_class).mean(2)
    if how != "distance":
        return torch.full_like(far, 0.5 if how == "half" else 0.0)
    same = torch.arange(net.outputs, device=local.device).repeat_interleave(net.per_class)
    squares = (local[:, :, None] - local[:, None]).square().sum(-1)
    nearest = squares.masked_fill(same[:, None] == same, torch.inf).amin(-1).sqrt()
    apart = nearest.view(by_class).mean(2)
    return far / (far + apart).clamp(min=torch.finfo(far.dtype).tiny)


def mixed_in(net: ProtoNet, how: Personal, local: Params, shared: Params) -> Params:
    """The shared layers, with so much of the site's own prototypes."""
    if how == "no" or net.NAME not in shared:
        return shared
    mine, theirs = local[net.NAME], shared[net.NAME]
    part = kept(net, how, mine, theirs).repeat_interleave(net.per_class, 1)[..., None]
    return {**shared, net.NAME: theirs + part * (mine - theirs)}


def _first_lowest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Along the last axis: the lowest, and the first place of those that are as low."""
    low = values.amin(-1, keepdim=True)
    places = torch.arange(values.shape[-1], device=values.device)
    at = torch.where(values <= low + NEAR * low.abs() + NEAR**2, places, values.shape[-1]).amin(-1)
    return low[..., 0], at

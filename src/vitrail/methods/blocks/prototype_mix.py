"""A site's own prototypes beside the shared ones: how much of each it goes on with (inDISCO's contribution 4).

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

from vitrail.core.tensors import Params
from vitrail.nets import ProtoNet

Personal = Literal["no", "distance", "half"]


def kept(net: ProtoNet, how: Personal, local: Tensor, shared: Tensor) -> Tensor:
    """[site, class]: the part of its own prototypes [site, prototype, D] that a site keeps."""
    far = (local - shared).square().sum(-1).sqrt().unflatten(1, (net.outputs, net.per_class)).mean(2)
    if how != "distance":
        return torch.full_like(far, 0.5 if how == "half" else 0.0)
    same = torch.arange(net.outputs, device=local.device).repeat_interleave(net.per_class)
    squares = (local[:, :, None] - local[:, None]).square().sum(-1)
    nearest = squares.masked_fill(same[:, None] == same, torch.inf).amin(-1).sqrt()
    apart = nearest.unflatten(1, (net.outputs, net.per_class)).mean(2)
    return far / (far + apart).clamp(min=torch.finfo(far.dtype).tiny)


def mixed_in(net: ProtoNet, how: Personal, local: Params, shared: Params) -> Params:
    """The shared layers, with so much of the site's own prototypes."""
    if how == "no" or net.NAME not in shared:
        return shared
    mine, theirs = local[net.NAME], shared[net.NAME]
    part = kept(net, how, mine, theirs).repeat_interleave(net.per_class, 1)[..., None]
    return {**shared, net.NAME: theirs + part * (mine - theirs)}

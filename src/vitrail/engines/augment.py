"""Pictures as they might have been: drawn anew for each picture of each batch, from its key alone."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.core.random import mixed

KINDS = ("flip", "shift", "brightness")
REACH = 14  # a shift is at most this part of a picture's side: 2 pixels of 28
GLARE = 0.2  # pixels times 1 -+ this


def augmented(x: Tensor, keys: Tensor, kinds: tuple[str, ...]) -> Tensor:
    """x: [site, row, channel, height, width], numbers from 0 to 1; keys: [site, row] int64.

    flip: left and right, every second one; shift: up to 1/14 of each side, the edge repeated; brightness: times .8 to
    1.2, cut at 1.
    """
    for number, kind in enumerate(KINDS):
        if kind not in kinds:
            continue
        lots = [mixed(keys, torch.tensor(2 * number + i + 1, device=x.device)) for i in (0, 1)]
        if kind == "flip":
            x = torch.where((lots[0] < 0)[..., None, None, None], x.flip(-1), x)
        elif kind == "shift":
            for axis, lot in zip((-2, -1), lots, strict=True):
                x = _shifted(x, lot, axis)
        else:
            share = (lots[0] >> 11).to(x.dtype) / 2**52  # -1 to 1
            x = (x * (1 + GLARE * share)[..., None, None, None]).clamp(max=1)
    return x


def _shifted(x: Tensor, lots: Tensor, axis: int) -> Tensor:
    side = x.shape[axis]
    reach = max(1, side // REACH)
    by = lots.remainder(2 * reach + 1) - reach  # [site, row]
    at = (torch.arange(side, device=x.device) + by[..., None]).clamp(0, side - 1)  # [site, row, pixel]
    at = at[:, :, None, :, None] if axis == -2 else at[:, :, None, None, :]
    return x.gather(axis, at.expand(x.shape))

"""Pictures as they might have been: drawn anew for each picture of each batch, from its key alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitrail.core.random import mixed

KINDS = ("flip", "shift", "brightness", "affine", "skew")
REACH = 14  # a shift is at most this part of a picture's side: 2 pixels of 28
GLARE = 0.2  # pixels times 1 -+ this
TURN, SHEAR, TILT = math.radians(15), math.tan(math.radians(10)), 0.2  # at most, as ProtoPNet's recipe has them


def augmented(x: Tensor, keys: Tensor, kinds: tuple[str, ...]) -> Tensor:
    """x: [site, row, channel, height, width], numbers from 0 to 1; keys: [site, row] int64.

    flip: left and right, every second one; shift: up to 1/14 of each side, the edge repeated; brightness: times .8 to
    1.2, cut at 1; affine: turned by up to 15 degrees and sheared by up to 10 along both sides; skew: as if seen from
    aside, one edge up to a fifth nearer. What lies outside is the edge repeated.
    """
    for number, kind in enumerate(KINDS):
        if kind not in kinds:
            continue
        lots = [mixed(keys, _counter(2 * number + i + 1, keys)) for i in (0, 1)]
        if kind == "flip":
            x = torch.where((lots[0] < 0)[..., None, None, None], x.flip(-1), x)
        elif kind == "shift":
            for axis, lot in zip((-2, -1), lots, strict=True):
                x = _shifted(x, lot, axis)
        elif kind == "brightness":
            x = (x * (1 + GLARE * _share(lots[0], x))[..., None, None, None]).clamp(max=1)
        else:
            more = mixed(lots[1], _counter(1, keys))
            one, two, three = (_share(lot, x) for lot in (*lots, more))
            x = _warped(x, _turned(one, two, three) if kind == "affine" else _seen_from(one, two))
    return x


def _counter(number: int, keys: Tensor) -> Tensor:
    """Made where the keys are: while a graph is captured nothing may be copied there."""
    return torch.full((), number, device=keys.device)


def _share(lots: Tensor, like: Tensor) -> Tensor:
    """-1 to 1."""
    return (lots >> 11).to(like.dtype) / 2**52


def _turned(turn: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """[site, row, 3, 3]: of pixels, x to the right and y down from the middle; from where each is taken."""
    angle, none, one = TURN * turn, torch.zeros_like(turn), torch.ones_like(turn)
    turned = _matrix([angle.cos(), -angle.sin(), none], [angle.sin(), angle.cos(), none], [none, none, one])
    return turned @ _matrix([one, SHEAR * across, none], [SHEAR * down, one, none], [none, none, one])


def _seen_from(across: Tensor, down: Tensor) -> Tensor:
    none, one = torch.zeros_like(across), torch.ones_like(across)
    return _matrix([one, none, none], [none, one, none], [TILT / 2 * across, TILT / 2 * down, one])


def _matrix(*rows: list[Tensor]) -> Tensor:
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _warped(x: Tensor, matrix: Tensor) -> Tensor:
    """Each pixel from where the matrix takes its place, in units of half the longer side."""
    height, width = x.shape[-2:]
    longer = max(height, width)
    down, across = ((torch.arange(n, device=x.device, dtype=x.dtype) * 2 + 1 - n) / longer for n in (height, width))
    places = torch.stack([*torch.meshgrid(across, down, indexing="xy"), torch.ones_like(x[0, 0, 0])], -1)
    source = places.view(-1, 3) @ matrix.flatten(0, 1).transpose(1, 2)  # [picture, pixel, 3]
    at = longer * source[..., :2] / source[..., 2:]
    grid = torch.stack([at[..., 0] / width, at[..., 1] / height], -1).view(-1, height, width, 2)
    pictures = x.flatten(0, 1)
    warped = torch.nn.functional.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    return warped.view(x.shape)


def _shifted(x: Tensor, lots: Tensor, axis: int) -> Tensor:
    side = x.shape[axis]
    reach = max(1, side // REACH)
    by = lots.remainder(2 * reach + 1) - reach  # [site, row]
    at = (torch.arange(side, device=x.device) + by[..., None]).clamp(0, side - 1)  # [site, row, pixel]
    at = at[:, :, None, :, None] if axis == -2 else at[:, :, None, None, :]
    return x.gather(axis, at.expand(x.shape))

"""A window that slides over pictures [row, channel, height, width]: painted over, or filled from another picture.

Painted over means: in the colour that the picture has around the window, fading in from its rim, so that no edge is
added. Filled likewise: the other picture's piece fades in.
"""

from __future__ import annotations

import torch
from torch import Tensor


def places(side: int, window: int, step: int) -> list[int]:
    """Where the window's first pixel comes to lie along a side; the last place ends with the side."""
    return sorted({*range(0, side - window, max(1, step)), side - window})


def painted(pictures: Tensor, y: int, x: int, window: int) -> Tensor:
    rim = max(1, window // 4)
    ring = pictures[:, :, max(0, y - rim) : y + window + rim, max(0, x - rim) : x + window + rim]
    inside = pictures[:, :, y : y + window, x : x + window]
    around = ring.shape[2] * ring.shape[3] - window * window
    colour = (ring.sum((2, 3)) - inside.sum((2, 3))) / max(1, around)
    return _covered(pictures, colour[:, :, None, None], y, x, window)


def filled(pictures: Tensor, source: Tensor, y: int, x: int, window: int) -> Tensor:
    """`source` [channel, height, width]: whose piece is put into all pictures, at its own place."""
    return _covered(pictures, source[:, y : y + window, x : x + window], y, x, window)


def _covered(pictures: Tensor, by: Tensor, y: int, x: int, window: int) -> Tensor:
    """Fading in over a quarter of the window's side."""
    rim, along = max(1, window // 4), torch.arange(window, device=pictures.device)
    ramp = ((torch.minimum(along, along.flip(0)) + 1) / rim).clamp(max=1).to(pictures)
    cover = torch.minimum(ramp[:, None], ramp)
    out = pictures.clone()
    at = out[:, :, y : y + window, x : x + window]
    at.copy_(at * (1 - cover) + by * cover)
    return out

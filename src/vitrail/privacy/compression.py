"""Reports in fewer bytes. What the short form loses stays at the site and is said in its next report.

    int8    each number a whole one from -127 to 127 times a power of two, the same for 1024 numbers that follow
    rank    a matrix as the product of two thin ones, one power step from those of the round before (PowerSGD, Vogels
            et al. 2019); what is no matrix, or would not be shorter, crosses as it is

Powers of two, so that what is read is exactly what was meant, in every precision. A power of NONE says that numbers
were none; the coordinator then finds no report in it. The model that goes to the sites is sent whole.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange
from vitrail.core.random import key, normals
from vitrail.core.tensors import Params, flatten, unflatten
from vitrail.privacy.report_vectors import is_change

Short = Literal["int8", "rank"]
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]  # without the axis of sites
BLOCK, MOST, RANK = 1024, 127, 2
NONE = 127  # a power that is none
LOST, START = "lost", "start"  # of what a site remembers: what it has not said yet; where the next power step begins


def compressed_spec(ex: AnyExchange, report: Shapes, how: Short) -> Shapes:
    """What crosses in place of a report of these shapes."""
    out: Shapes = {}
    for name, (shape, kind) in report.items():
        if not is_change(ex, name) or not kind.is_floating_point:
            out[name] = shape, kind
        elif how == "int8":
            out[f"{name}/whole"] = shape, torch.int8
            out[f"{name}/power"] = (-(-math.prod(shape) // BLOCK),), torch.int8
        elif sides := low_rank_shape(shape):
            out[f"{name}/left"], out[f"{name}/right"] = ((sides[0], RANK), kind), ((sides[1], RANK), kind)
        else:
            out[name] = shape, kind
    return out


def low_rank_shape(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Rows and columns of what is worth writing as two thin matrices."""
    if len(shape) < 2:
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows, columns) if RANK * (rows + columns) < rows * columns else None


def error_feedback(ex: AnyExchange, report: Shapes, how: Short, sites: int, like: Tensor) -> Params:
    """What each site remembers before its first report, [site, ...]."""
    out: Params = {}
    for name, (shape, kind) in report.items():
        if not is_change(ex, name) or not kind.is_floating_point or (how == "rank" and not low_rank_shape(shape)):
            continue
        out[f"{LOST}/{name}"] = torch.zeros(sites, *shape, dtype=kind, device=like.device)
        if how == "rank" and (sides := low_rank_shape(shape)):
            first = normals(torch.tensor([key("power step", name)]), sides[1] * RANK).view(1, sides[1], RANK)
            out[f"{START}/{name}"] = first.to(out[f"{LOST}/{name}"]).repeat(sites, 1, 1)
    return out


def compress(up: Any, residual: Params, how: Short) -> tuple[Params, Params]:
    """At the site: what crosses of a report [site, ...], and what is remembered after it."""
    out, after = {}, dict(residual)
    for name, v in flatten(up):
        lost = residual.get(f"{LOST}/{name}")
        if lost is None:
            out[name] = v
            continue
        whole = v + lost
        if how == "int8":
            parts = dict(zip(("whole", "power"), _to_bytes(whole.reshape(len(v), -1)), strict=True))
            parts["whole"] = parts["whole"].view(v.shape)
        else:
            matrix = whole.reshape(len(v), v.shape[1], -1)  # [site, row, column]
            left = torch.linalg.qr(matrix @ residual[f"{START}/{name}"])[0]
            right = matrix.transpose(1, 2) @ left
            moved = right.abs().amax((1, 2), keepdim=True) > 0  # from nothing no power step leads anywhere
            after[f"{START}/{name}"] = torch.where(moved, right, residual[f"{START}/{name}"])
            parts = {"left": left, "right": right}
        named = {f"{name}/{k}": part for k, part in parts.items()}
        rest = whole - _read(named, name, v, how)
        after[f"{LOST}/{name}"] = torch.where(rest.isfinite(), rest, torch.zeros_like(rest))
        out |= named
    return out, after


def decompress(up: Any, crossed: Params, how: Short) -> Any:
    """The report that was meant, in the shape of `up`."""
    return unflatten(up, {k: crossed[k] if k in crossed else _read(crossed, k, v, how) for k, v in flatten(up)})


def _read(crossed: Params, name: str, like: Tensor, how: Short) -> Tensor:
    if how == "rank":
        left, right = crossed[f"{name}/left"], crossed[f"{name}/right"]
        return (left @ right.transpose(1, 2)).reshape(left.shape[0], *like.shape[1:])
    whole, power = crossed[f"{name}/whole"], crossed[f"{name}/power"]
    step = torch.where(power == NONE, torch.nan, torch.exp2(power.double()))  # [site, block]
    numbers = whole.reshape(len(whole), -1).double()
    return (numbers * step.repeat_interleave(BLOCK, 1)[:, : numbers.shape[1]]).to(like.dtype).view(whole.shape)


def _to_bytes(v: Tensor) -> tuple[Tensor, Tensor]:
    """[site, number] -> whole numbers [site, number], and powers of two [site, block]"""
    blocks = torch.nn.functional.pad(v.double(), (0, -v.shape[1] % BLOCK)).view(len(v), -1, BLOCK)
    most = blocks.abs().amax(2)
    power = torch.log2(most / MOST).ceil().clamp(-126, 126).nan_to_num(0.0)
    whole = (blocks / torch.exp2(power)[..., None]).round().clamp(-MOST, MOST).nan_to_num(0.0).to(torch.int8)
    power = torch.where(most.isfinite(), power, NONE).to(torch.int8)
    return whole.view(len(v), -1)[:, : v.shape[1]].contiguous(), power

"""A centre of what sites report that a few liars cannot move far; and how far each report lies from it.

    median      of each number by itself
    trimmed     the mean of each number without the largest and the smallest f
    multikrum   the mean of the n - f reports whose nearest n - f - 2 others are nearest (Blanchard et al. 2017)
    clipping    three steps from the median: each report pulled to at most the median distance (Karimireddy et al. 2021)

f: so many may lie, a quarter of those who answered, at least one.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["median", "trimmed", "multikrum", "clipping"]
FEWEST = 4  # reports: of three, one that lies and one that differs cannot be told apart


def liars(reports: int) -> int:
    """How many are reckoned with."""
    return max(1, reports // 4)


def centre(rows: Tensor, kind: Kind) -> Tensor:
    """[report, number] -> [number]"""
    n, f = len(rows), liars(len(rows))
    if kind == "median":
        return _median(rows)
    if kind == "trimmed":
        return rows.sort(0).values[f : n - f].mean(0)
    if kind == "multikrum":
        return rows[krum(rows, f).argsort(stable=True)[: n - f]].mean(0)
    middle = _median(rows)
    for _ in range(3):
        off = rows - middle
        size = off.double().norm(dim=1)
        pull = (_median(size[:, None]) / size.clamp(min=1e-30)).clamp(max=1).to(off)
        middle = middle + (off * pull[:, None]).mean(0)
    return middle


def krum(rows: Tensor, f: int) -> Tensor:
    """[report]: how far the n - f - 2 nearest others are, squared and added up."""
    return krum_of(torch.cdist(rows.double(), rows.double()).square(), f)


def krum_of(square: Tensor, f: int) -> Tensor:
    """The same from [report, report] distances, squared."""
    return square.sort(1).values[:, 1 : max(2, len(square) - f - 1)].sum(1)


def apart(rows: Tensor, middle: Tensor) -> Tensor:
    """[report]: how many times as far from the centre as the median report it lies."""
    return against_median(torch.linalg.vector_norm((rows - middle).double(), dim=1))


def against_median(size: Tensor) -> Tensor:
    return size / _median(size[:, None]).clamp(min=1e-30)


def _median(rows: Tensor) -> Tensor:
    """The mean of both where there are two in the middle: torch takes the lower."""
    n, ranked = len(rows), rows.sort(0).values
    return (ranked[(n - 1) // 2] + ranked[n // 2]) / 2

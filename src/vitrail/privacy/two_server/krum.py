"""Which reports two servers take, from what they open of them (privacy/two_server/protocol.py): the same in a
simulation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.privacy.robust import krum_of, liars

PLACES = 24  # after the point, in units of the clip
LONGEST = 10.0  # times the median length: a longer report counts for nothing (benchmarks/attacks/attack_liar.py)


def choose_reports(products: NDArray[np.float64], sound: NDArray[np.bool_], clip: float) -> list[int]:
    """Multi-Krum on distances alone, of the reports that are short enough; who is too long counts as one of those who
    may lie. Both servers find the same."""
    fine = within_length(products, sound, clip)
    n, f = len(fine), liars(len(products)) - (len(products) - len(fine))
    if n < 3 or f < 1:
        return [int(i) for i in fine]
    inner = products[np.ix_(fine, fine)]
    square = (np.diag(inner)[:, None] + np.diag(inner)[None] - 2 * inner).clip(min=0)
    score = krum_of(torch.from_numpy(square), f).numpy()
    return [int(fine[i]) for i in np.argsort(score, kind="stable")[: n - f]]


def within_length(products: NDArray[np.float64], sound: NDArray[np.bool_], clip: float) -> NDArray[np.int64]:
    """The reports that are no longer than the clip, nor than LONGEST times the median of those. That holds as long as
    fewer than half of them lie."""
    size = np.diag(products)
    fine = np.flatnonzero(sound & (size >= 0) & (size <= (clip * 1.001) ** 2))
    if not len(fine):
        return fine
    return fine[size[fine] <= LONGEST**2 * max(float(np.median(size[fine])), 1e-30)]

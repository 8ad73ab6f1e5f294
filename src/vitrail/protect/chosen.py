"""Which reports two servers take, from what they open of them (protect/two_servers.py): the same in a simulation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.protect.robust import krum_of, liars

PLACES = 24  # after the point, in units of the clip


def chosen_by(products: NDArray[np.float64], sound: NDArray[np.bool_], clip: float) -> list[int]:
    """Multi-Krum on distances alone; who is longer than the clip is never chosen. Both servers find the same."""
    size = np.diag(products)
    fine = np.flatnonzero(sound & (size >= 0) & (size <= (clip * 1.001) ** 2))
    n = len(fine)
    if n < 3:
        return [int(i) for i in fine]
    inner = products[np.ix_(fine, fine)]
    square = (np.diag(inner)[:, None] + np.diag(inner)[None] - 2 * inner).clip(min=0)
    score = krum_of(torch.from_numpy(square), liars(n)).numpy()
    return [int(fine[i]) for i in np.argsort(score, kind="stable")[: n - liars(n)]]

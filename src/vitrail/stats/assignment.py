"""Which of several things is which: the assignment whose costs add up to the least."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

FEW = 6  # of so many things all assignments are tried: 720


def best_assignment(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """[row] -> column, each once. `cost`: [row, column], square.

    >>> best_assignment(np.array([[1.0, 0.0], [0.0, 5.0]])).tolist()
    [1, 0]
    """
    if len(cost) <= FEW:
        tried = np.array([*permutations(range(len(cost)))])
        return np.asarray(tried[cost[np.arange(len(cost)), tried].sum(1).argmin()])
    from scipy.optimize import linear_sum_assignment  # takes a fifth of a second to load, and few columns need it

    return np.asarray(linear_sum_assignment(cost)[1])

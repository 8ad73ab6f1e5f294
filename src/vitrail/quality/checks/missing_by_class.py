"""Whether missing depends on the outcome, by a test that knows how many rows there are."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

CHANCE = 0.01  # that any of a table's columns is named although missing has nothing to do with the outcome
LEAST = 0.05  # between the classes' shares of missing values: less is of no use to a model


def depends_on_class(absent: np.ndarray, classes: Collection[np.ndarray], tests: int = 1) -> bool:
    """`absent`: which rows lack the value; `classes`: which rows are of each class; `tests`: how many columns of the
    table are looked at, which share CHANCE."""
    counts = np.array([[absent[rows].sum(), (~absent[rows]).sum()] for rows in classes], np.float64).reshape(-1, 2)
    counts = counts[counts.sum(1) > 0]
    if len(counts) < 2 or not counts.sum(0).all():
        return False
    shares = counts[:, 0] / counts.sum(1)
    return bool(np.ptp(shares) >= LEAST and _p_value(counts) < CHANCE / max(tests, 1))


def _p_value(counts: np.ndarray) -> float:
    """Of [class, missing or not]: Fisher's exact test where there are two classes, else Pearson's chi squared."""
    from scipy.stats import chi2_contingency, fisher_exact  # takes half a second to load

    if len(counts) == 2:
        return float(fisher_exact(counts.astype(int))[1])
    return float(chi2_contingency(counts, correction=False)[1])

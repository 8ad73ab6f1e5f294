"""Weights that make the rows of one table stand for those of another (importance weighting by density ratio).

A logistic model tells the two tables apart from their columns. Both tables count alike, so that its odds are the ratio
of the two densities. Ridge keeps the odds moderate where there are few rows for many columns, and no row stands for
more than CLIP average ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RIDGE = 30.0  # on coefficients of standardised columns; chosen with the prior of random_effects.py
CLIP = 10.0  # times the mean weight
STEPS = 50  # Newton steps at most: it takes about seven


def density_ratio(here: Floats, there: Floats) -> Floats:
    """[row of `there`]: for how many rows it stands when `there` is to look like `here`; 1 on average.

    >>> rng = np.random.default_rng(0)
    >>> there = rng.normal(0, 1, (4000, 1))
    >>> weights = density_ratio(rng.normal(0.5, 1, (4000, 1)), there)
    >>> bool(abs(np.average(there[:, 0], weights=weights) - 0.5) < 0.05)
    True
    """
    x = np.concatenate([here, there]).astype(np.float64)
    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
    x = np.column_stack([x, np.ones(len(x))])
    member = np.arange(len(x)) < len(here)
    alike = len(x) / 2 / np.where(member, len(here), len(there))  # both tables have the same total
    ridge = np.full(x.shape[1], RIDGE)
    ridge[-1] = 1e-9  # the intercept is free
    beta = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-(x @ beta).clip(-30, 30)))
        slope = x.T @ (alike * (member - p)) - ridge * beta
        bend = (x * (alike * p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(bend, slope)
        beta += step * min(1.0, 5 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-8:
            break
    odds = np.exp((x[len(here) :] @ beta).clip(-30, 30))
    odds = np.minimum(odds / odds.mean(), CLIP)
    return np.asarray(odds / odds.mean())


def effective_size(weights: Floats) -> float:
    """How many rows of equal weight tell as much (Kish).

    >>> effective_size(np.ones(40)), effective_size(np.array([1.0, 0.0, 0.0]))
    (40.0, 1.0)
    """
    return float(weights.sum() ** 2 / max(float((weights**2).sum()), 1e-300))


def imbalance(here: Floats, there: Floats, weights: Floats) -> float:
    """The largest distance of a mean of `here` from the weighted mean of `there`, in standard deviations within tables.

    >>> alike = np.array([[0.0], [1.0], [2.0]])
    >>> imbalance(alike, alike, np.ones(3)), round(imbalance(alike + 8, alike, np.ones(3)), 1)
    (0.0, 9.8)
    """
    gaps = np.abs(here.mean(0) - np.average(there, axis=0, weights=weights))
    within = np.sqrt((here.var(0) + there.var(0)) / 2)
    return float((gaps / np.maximum(within, 1e-9)).max(initial=0.0))

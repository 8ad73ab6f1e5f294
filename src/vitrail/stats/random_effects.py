"""What several sites measured, and between which limits a further site lies: a random-effects prediction interval.

    v_j      the variance of site j's estimate x_j by its own rows
    tau^2    the variance between sites; DerSimonian and Laird's estimate D from k sites is unsure where k is small
    tau^2 = (PRIOR_SITES * (PRIOR * m)^2 + (k - 1) * D) / (PRIOR_SITES + k - 1), with m the fixed-effect mean: a prior
            that sites differ by a share PRIOR of what they have in common, worth as much as PRIOR_SITES more sites
    further site: mean -+ t(PRIOR_SITES + k - 1) * sqrt(tau^2 + 1 / sum of 1 / (v_j + tau^2))

The prior was chosen on the design tables of benchmarks/verdicts/missing_column.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from vitrail.stats.intervals import LEVEL

Floats = NDArray[np.float64]
PRIOR = 0.25
PRIOR_SITES = 2


class Pooled(NamedTuple):
    """A mean over sites, and the interval in which a further site lies."""

    value: float
    low: float
    high: float
    between: float  # standard deviation between sites


def predict_further(values: Floats, variances: Floats, level: float = LEVEL) -> Pooled:
    """`values` and `variances`: [site], of at least two sites.

    >>> further = predict_further(np.array([0.10, 0.12, 0.11]), np.full(3, 1e-6))
    >>> round(further.value, 2), round(further.low, 2), round(further.high, 2)
    (0.11, 0.04, 0.18)
    """
    inverse, degrees = 1 / np.maximum(variances, 1e-18), len(values) - 1
    mean = float((inverse * values).sum() / inverse.sum())
    excess = float((inverse * (values - mean) ** 2).sum()) - degrees
    spread = max(0.0, excess / float(inverse.sum() - (inverse**2).sum() / inverse.sum()))
    between = (PRIOR_SITES * (PRIOR * mean) ** 2 + degrees * spread) / (PRIOR_SITES + degrees)
    weights = 1 / np.maximum(variances + between, 1e-18)
    value = float((weights * values).sum() / weights.sum())
    error = np.sqrt(between + 1 / weights.sum())
    half = float(stdtrit(PRIOR_SITES + degrees, 1 - level / 2)) * float(error)
    return Pooled(value, value - half, value + half, float(np.sqrt(between)))

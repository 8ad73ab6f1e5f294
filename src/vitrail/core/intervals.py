"""How sure a mean over seeds is.

Seeds redraw which rows are tested, from the same rows; their scores are not independent, and the usual interval is too
narrow. Nadeau and Bengio (2003) widen the variance by test/train rows: var * (1/seeds + test/train).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom
_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)


def t95(freedom: int) -> float:
    """
    >>> t95(4), round(t95(100), 3)
    (2.776, 1.984)
    """
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(
    values: Sequence[float], test_share: float, within: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float, float]:
    """Mean and 95 % interval over seeds, cut to what is possible; no interval from fewer than two.

    >>> interval([1.0], 0.33)
    (1.0, nan, nan)
    >>> mean, low, high = interval([0.1, 0.2, 0.3], 0.0)
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (0.2, -0.048, 0.448)
    """
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return math.nan, math.nan, math.nan
    n, mean = len(known), sum(known) / len(known)
    if n < 2:
        return mean, math.nan, math.nan
    variance = sum((v - mean) ** 2 for v in known) / (n - 1)
    half = t95(n - 1) * math.sqrt(variance * (1 / n + test_share / (1 - test_share)))
    return mean, max(mean - half, within[0]), min(mean + half, within[1])

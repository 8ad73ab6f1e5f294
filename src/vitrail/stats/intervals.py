"""How sure a mean over seeds or folds is: Student's t, widened; and the level that is spent by looking more than once.

Seeds and folds redraw which rows are tested, from the same rows; their scores are not independent, and the usual
interval is too narrow. Nadeau and Bengio (2003) widen the variance by test/train rows: var * (1/values + test/train).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

LEVEL = 0.05  # of an interval: how often it may leave out the truth, both sides together
EARLY = 0.1  # the share of LEVEL that is spent on all looks before the last
BELOW = 0.4  # of LEVEL, what a verdict spends on the lower end: losses saved are skewed (decision 025)
LEAST = 3  # seeds: from two, Student's t makes an interval 12.7 standard errors wide on each side


def interval(
    values: Sequence[float],
    test_share: float,
    within: tuple[float, float] = (-math.inf, math.inf),
    level: float = LEVEL,
    below: float = 0.5,
) -> tuple[float, float, float]:
    """Mean and interval (95 % unless another level is given), cut to what is possible; none from fewer than two.
    `below`: how much of the level lies below the lower end.

    >>> interval([1.0], 0.33)
    (1.0, nan, nan)
    >>> mean, low, high = interval([0.1, 0.2, 0.3], 0.0)
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (0.2, -0.048, 0.448)
    """
    finite = [v for v in values if not math.isnan(v)]
    if not finite:
        return math.nan, math.nan, math.nan
    n, mean = len(finite), sum(finite) / len(finite)
    if n < 2:
        return mean, math.nan, math.nan
    variance = sum((v - mean) ** 2 for v in finite) / (n - 1)
    error = math.sqrt(variance * (1 / n + test_share / (1 - test_share)))
    down, up = (float(stdtrit(n - 1, 1 - level * part)) * error for part in (below, 1 - below))
    return mean, max(mean - down, within[0]), min(mean + up, within[1])


def level_of(look: int, looks: int) -> float:
    """The level of that look, counted from 1. All looks together spend LEVEL (Bonferroni, so that it holds however the
    looks depend on each other), nearly all of it at the last one: who stops early must be far surer.

    >>> [round(level_of(i, 3), 4) for i in (1, 2, 3)], level_of(1, 1)
    ([0.0025, 0.0025, 0.045], 0.05)
    """
    if looks == 1:
        return LEVEL
    return EARLY * LEVEL / (looks - 1) if look < looks else (1 - EARLY) * LEVEL


def says_nothing(low: float, high: float, seeds: int, chance: float, best: float) -> bool:
    """Whether an interval is not worth drawing: it is of two seeds, or it reaches from what always giving the same
    answer comes to (`chance`) to the best score there is.

    >>> says_nothing(0.7, 0.8, 2, 0.5, 1.0), says_nothing(0.4, 1.0, 5, 0.5, 1.0), says_nothing(0.6, 1.0, 5, 0.5, 1.0)
    (True, True, False)
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return False
    if math.isnan(chance) or chance == best:  # not known, or always right already: then from the worst score
        chance = 0.0 if best > 0 else math.inf
    return seeds < LEAST or (low <= min(chance, best) and high >= max(chance, best))

"""How many sites a model that all agreed on serves worse than one trained alone, of what sums over sites tell.

What it costs site i more than alone, per row left out, is d_i, with the error e_i of its rows; the truth behind it,
t_i ~ N(m, s^2), is spread over sites:

    d_i ~ N(t_i, e_i^2)                  of all sites only how many they are, sum d, sum d^2 and sum e^2 are known,
                                         so that one error stands for all: e^2 = the mean of e_i^2
    p(m, s | sums)                       m and s unknown, anything as likely as another before
    worse = P(t > 0 | m, s) = Phi(m / s) and how many of n sites: binomial, over all m and s

So a site's own d is never taken at face value: that spread which the rows' errors explain is no difference between
sites. Of a site that shows its d and e, P(t_i > 0) rests on both, its own rows and all sites (shrunk towards m).
Errors of folds that share rows are a little too small, and what was chosen because it looks best looks better than it
is: harm is told too low (benchmarks/verdicts/agreed_mix.py: by how much).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr, ndtri, xlog1py, xlogy

Array = NDArray[Any]
FEWEST = 3  # sites: of two nothing can be said about a spread
WITHIN = 0.9  # of the interval
SPREADS, MEANS = 120, 41  # points of the grid


class HarmEstimate(NamedTuple):
    sites: int
    share: float  # expected, of all sites
    low: int  # so many sites, at least and at most, in 90 % of cases
    high: int


class HarmPosterior(NamedTuple):
    """What is known of m and s: points and how likely each is."""

    mean: Array
    spread: Array
    weight: Array


def read_spread(sums: Sequence[float]) -> HarmPosterior | None:
    """`sums` over sites: how many, d, d^2, e^2."""
    n, total, squares, errors = sums
    if n < FEWEST or not all(map(math.isfinite, sums)):
        return None
    mean, noise = total / n, errors / n
    off = max(squares - n * mean**2, 0.0)
    widest = 4 * math.sqrt(off / (n - 1) + noise)
    if widest == 0:
        return HarmPosterior(np.array([mean]), np.zeros(1), np.ones(1))
    spread = widest * (np.arange(SPREADS) + 0.5) / SPREADS
    wide = spread**2 + noise
    log = -(n - 1) / 2 * np.log(wide) - off / (2 * wide)
    weight = np.exp(log - log.max())
    at = ndtri((np.arange(MEANS) + 0.5) / MEANS)  # of m, given s
    means = mean + np.sqrt(wide / n)[:, None] * at
    return HarmPosterior(means.ravel(), np.repeat(spread, MEANS), np.repeat(weight / weight.sum() / MEANS, MEANS))


def expect_worse(sums: Sequence[float]) -> HarmEstimate | None:
    """None where there are too few sites to tell."""
    if (posterior := read_spread(sums)) is None:
        return None
    n = round(sums[0])
    chance = _above(posterior.mean, posterior.spread)
    k = np.arange(n + 1)[:, None]
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    many = np.cumsum((np.exp(ways + xlogy(k, chance) + xlog1py(n - k, -chance)) * posterior.weight).sum(1))
    low, high = (int(np.searchsorted(many, q)) for q in ((1 - WITHIN) / 2, (1 + WITHIN) / 2))
    return HarmEstimate(n, float((chance * posterior.weight).sum()), low, min(high, n))


def chance_worse(more: float, error: float, sums: Sequence[float]) -> float:
    """That the truth of a site whose rows say `more`, with that error, is above 0; by its rows alone where there are
    too few sites."""
    if (posterior := read_spread(sums)) is None:
        return float(_above(np.array(more), np.array(error)))
    own = posterior.spread**2 + error**2
    by = np.divide(posterior.spread**2, own, out=np.zeros_like(own), where=own > 0)
    agrees = np.exp(-((more - posterior.mean) ** 2) / (2 * own)) / np.sqrt(own) if own.all() else np.ones_like(own)
    weight = posterior.weight * agrees
    if not weight.sum() > 0:
        return float(_above(np.array(more), np.array(error)))
    chance = _above(posterior.mean + by * (more - posterior.mean), np.sqrt(by) * error)
    return float((chance * weight).sum() / weight.sum())


def _above(mean: Array, spread: Array) -> Array:
    """P(t > 0), t ~ N(mean, spread^2); of what is not spread, whether it is."""
    sure = np.where(mean > 0, 1.0, np.where(mean < 0, 0.0, 0.5))
    return np.where(spread > 0, ndtr(mean / np.where(spread > 0, spread, 1.0)), sure)

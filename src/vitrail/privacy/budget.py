"""The privacy budget in closed form: what so many looks, each under Gaussian noise, have spent.

One look adds noise of standard deviation z c to a sum in which a row (or a site) moves at most c. So many looks are one
look under z / sqrt(looks), and of one look (Balle and Wang 2018)

    delta(epsilon) = Phi(1/(2s) - epsilon s) - exp(epsilon) Phi(-1/(2s) - epsilon s),     s = z / sqrt(looks)

Batches are shuffled and every row is in one batch of an epoch, so that a row is looked at once an epoch: an accountant
for rows drawn by lot (Poisson) would promise too much, and is not used.

All that is about a row that is removed: its numbers are taken away, and how many rows there are is known. Where a row
is replaced by another, one goes and one comes, so that a sum moves by up to 2 c: the same formula with s / 2
(`replaced`).

Losses 1/s^2 of looks under independent noise add up, also over runs and where a later question depends on earlier
answers (Dong, Roth and Su 2022, corollary 2): `epsilon_of` says what a sum of them comes to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

MOST = 1e6  # an epsilon above says nothing


class Budget(NamedTuple):
    """With probability delta more may be told; else no row (or site) changes a probability by more than e^epsilon."""

    epsilon: float
    delta: float


def spent(noise: float, looks: int, delta: float) -> float:
    """The epsilon of so many looks, with noise z times what one row can move.

    >>> round(spent(1.0, 1, 1e-5), 2), spent(0.0, 1, 1e-5)
    (4.38, inf)
    """
    if looks == 0:
        return 0.0
    if noise <= 0:
        return math.inf
    s = noise / math.sqrt(looks)
    low, high = 0.0, 1.0
    if _delta(s, low) <= delta:
        return 0.0
    while _delta(s, high) > delta:
        high *= 2
        if high > MOST:
            return math.inf
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(s, middle) > delta else (low, middle)
    return high


def replaced(noise: float, looks: int, delta: float) -> float:
    """The same for a row that is replaced by any other row, or a site by any other site.

    >>> [round(replaced(noise_for(Budget(e, 1e-5), 1), 1, 1e-5), 2) for e in (1, 4, 8)]
    [2.15, 9.08, 19.12]
    """
    return spent(noise / 2, looks, delta)


def epsilon_of(loss: float, delta: float) -> float:
    """The epsilon of looks whose 1/s^2 add up to this.

    >>> round(epsilon_of(1 / 4 + 1 / 9, 1e-5), 6) == round(spent(1 / (1 / 4 + 1 / 9) ** 0.5, 1, 1e-5), 6)
    True
    """
    if loss <= 0:
        return 0.0
    return spent(1 / math.sqrt(loss), 1, delta) if math.isfinite(loss) else math.inf


def noise_for(budget: Budget, looks: int) -> float:
    """The least noise z with which so many looks stay within the budget."""
    low, high = 1e-3, 1.0
    while spent(high, looks, budget.delta) > budget.epsilon:
        high *= 2
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle, looks, budget.delta) > budget.epsilon else (low, middle)
    return high


def _delta(s: float, epsilon: float) -> float:
    first = _phi(1 / (2 * s) - epsilon * s)
    return first - math.exp(min(epsilon, 700.0)) * _phi(-1 / (2 * s) - epsilon * s)


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))

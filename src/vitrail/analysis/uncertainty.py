"""How unsure sites are, who was chosen for it, and whether either goes with anything else that is known of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitrail.core import facts as means
from vitrail.core.facts import Facts, find_value

SHUFFLES = 2000  # of the sites, to tell how far chance alone would go


class UncertaintyCourse(NamedTuple):
    """Of every round; not a number where a site was away."""

    sites: list[str]
    rounds: np.ndarray  # [round]: their numbers, from 1
    unsure: np.ndarray  # [round, site]: from 0, sure, to 1, knows nothing


class ConfidenceChoice(NamedTuple):
    """Of every round whose models were mixed."""

    sites: list[str]
    rounds: np.ndarray  # [round]
    chosen: np.ndarray  # [round, site] bool
    sure: np.ndarray | None  # [round, site] bool: of these, who was of the surer half; None where that did not matter
    here: np.ndarray  # [round, site] bool: who answered, as far as is told

    def often(self) -> np.ndarray:
        """[site]: in which share of the rounds in which it was there a site was chosen."""
        return np.asarray(self.chosen.sum(0) / np.maximum(self.here.sum(0), 1))


class Correlation(NamedTuple):
    value: float
    low: float = math.nan  # 95 % interval, where there is one
    high: float = math.nan
    pairs: int = 0


def read_uncertainty(sites: Sequence[str], facts: Facts) -> UncertaintyCourse | None:
    unsure, rounds = find_value(facts, means.UNCERTAINTY), find_value(facts, means.ROUND)
    if unsure is None or rounds is None or not unsure.isfinite().any():
        return None
    return UncertaintyCourse(list(sites), rounds.numpy(), unsure.double().numpy())


def read_choice(sites: Sequence[str], facts: Facts) -> ConfidenceChoice | None:
    chosen, sure, unsure, rounds = (
        find_value(facts, what) for what in (means.CHOSEN, means.SURE, means.UNCERTAINTY, means.ROUND)
    )
    if chosen is None or rounds is None:
        return None
    here = np.ones(chosen.shape, dtype=bool) if unsure is None else unsure.isfinite().numpy()
    return ConfidenceChoice(list(sites), rounds.numpy(), chosen.numpy(), None if sure is None else sure.numpy(), here)


def ranks(values: np.ndarray) -> np.ndarray:
    """From 1; equal ones share the mean of their places.

    >>> ranks(np.array([0.2, 0.1, 0.2, 0.9])).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    _, at, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[at])


def rank_correlation(one: np.ndarray, other: np.ndarray) -> Correlation:
    """Spearman's, over the pairs in which both are known. Its interval is by Fisher's z with the variance of Bonett and
    Wright (2000), (1 + r^2 / 2) / (n - 3): from four pairs on, unless the ranks agree or are opposed throughout.

    >>> rank_correlation(np.arange(3.0), np.array([5.0, 6.0, 9.0]))
    Correlation(value=1.0, low=nan, high=nan, pairs=3)
    """
    both = np.isfinite(one) & np.isfinite(other)
    a, b, n = ranks(one[both]), ranks(other[both]), int(both.sum())
    if n < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(math.nan, pairs=n)
    value = float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1).round(12))
    if n < 4 or abs(value) == 1:
        return Correlation(value, pairs=n)
    z, half = math.atanh(value), 1.96 * math.sqrt((1 + value**2 / 2) / (n - 3))
    return Correlation(value, math.tanh(z - half), math.tanh(z + half), n)


def shared_classes(share: np.ndarray) -> np.ndarray:
    """[site, site]: of the classes that occur at either of two sites [site, class], the part that occurs at both.

    >>> shared_classes(np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])).round(2).tolist()
    [[1.0, 0.33], [0.33, 1.0]]
    """
    has = (share > 0).astype(float)
    both = has @ has.T
    either = has.sum(1)[:, None] + has.sum(1) - both
    return np.asarray(both / np.maximum(either, 1))


def rank_agreement(weights: np.ndarray, alike: np.ndarray) -> tuple[Correlation, float]:
    """The rank correlation of two matrices [site, site] over pairs of different sites; and in which share of SHUFFLES
    of the sites it is as high by chance (Mantel 1967). Pairs are not independent: no interval is given."""
    apart = ~np.eye(len(weights), dtype=bool) & np.isfinite(weights) & np.isfinite(alike)
    correlation = rank_correlation(weights[apart], alike[apart])._replace(low=math.nan, high=math.nan)
    if not math.isfinite(correlation.value):
        return correlation, math.nan
    rng, one, other = np.random.default_rng(0), ranks(weights[apart]), ranks(alike[apart])
    place = np.zeros(alike.shape)
    place[apart] = other
    one, high = (one - one.mean()) / one.std() / len(one), 0
    for _ in range(SHUFFLES):
        order = rng.permutation(len(alike))
        there = place[np.ix_(order, order)][apart]
        spread = there.std()
        high += bool(spread == 0 or one @ (there - there.mean()) / spread >= correlation.value - 1e-9)
    return correlation, (high + 1) / (SHUFFLES + 1)

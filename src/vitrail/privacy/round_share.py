"""The share of a site in a round, and whether it takes part with it.

    share_i = weight_i / sum of weight_j over the sites j of the round

The weight is the number of training rows, or 1 where all sites count the same. A site takes part where its share is
within the limits. All sites that are outside leave together; the shares of the others grow by that, so it is looked at
again until nobody leaves. A simulation and every site between machines use this one rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class ShareLimits(NamedTuple):
    """Shares with which a site takes part."""

    least: float = 0.0
    most: float = 1.0

    def allow(self, share: float) -> bool:
        return self.least <= share <= self.most

    def with_own(self, own: ShareLimits) -> ShareLimits:
        """The narrower of the two, at both ends."""
        return ShareLimits(max(self.least, own.least), min(self.most, own.most))


NO_LIMITS = ShareLimits()


@dataclass
class RoundShares:
    """The sites of a run, what each weighs, and the limits of the study."""

    limits: ShareLimits
    weights: dict[str, float]
    by_rows: bool  # or 1 each
    refused: set[str] = field(default_factory=set)  # sites that refused a round by limits of their own, or the study's

    def shares(self, listed: Sequence[str]) -> dict[str, float]:
        """Of each of these sites, if exactly these take part."""
        return shares_of(self.weights, listed)

    def admitted(self, listed: Sequence[str]) -> list[str]:
        return admitted(self.limits, self.weights, listed)


def shares_of(weights: Mapping[str, float], listed: Sequence[str]) -> dict[str, float]:
    """Of each of these sites, if exactly these take part.

    >>> shares_of({"a": 30, "b": 60, "c": 10}, ["a", "b"])
    {'a': 0.3333333333333333, 'b': 0.6666666666666666}
    """
    total = sum(weights.get(site, 0.0) for site in listed)
    return {site: weights.get(site, 0.0) / total if total else 0.0 for site in listed}


def admitted(limits: ShareLimits, weights: Mapping[str, float], listed: Sequence[str]) -> list[str]:
    """Of these sites, those that take part.

    >>> admitted(ShareLimits(least=0.2), {"a": 30, "b": 60, "c": 10}, ["a", "b", "c"])
    ['a', 'b']
    >>> admitted(ShareLimits(most=0.5), {"a": 30, "b": 60, "c": 20}, ["a", "b", "c"])
    []
    """
    left = list(listed)
    while left:
        shares = shares_of(weights, left)
        inside = [site for site in left if limits.allow(shares[site])]
        if len(inside) == len(left):
            break
        left = inside
    return left

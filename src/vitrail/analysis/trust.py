"""Whom each site learned from: what the facts of a run say, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitrail.core import facts as means
from vitrail.core.facts import Facts, find_value
from vitrail.stats.linkage import Join, order_by_linkage


class Trust(NamedTuple):
    """Users and sites are the same sites, in one order. NaN where a site or a user had not come yet, or was away.

    Where sites weigh each other anew in every round, `shares` of a user's model are known, its own among them, which
    sum to 1.
    """

    sites: list[str]
    rounds: np.ndarray  # [round]: their numbers, from 1
    alpha: np.ndarray  # [round, user, site]: after the round; shares: those of this round alone
    distance: np.ndarray  # [round, user, site]: |g_i - g_0| / |g_0|
    vanished: np.ndarray  # [round, user] bool: |g_0| was nothing, so that nothing eroded
    stopped: np.ndarray  # [round, user] bool
    gradients: np.ndarray  # [round, 2]: computed for the users, and for the models beside
    to_local: np.ndarray  # [round, user]: how far the user's model was before the round; NaN without models beside
    to_global: np.ndarray
    between: np.ndarray  # Local and Global
    shares: bool = False

    @property
    def final(self) -> np.ndarray:
        """[user, site]: trust at the end."""
        return np.asarray(self.alpha[-1])

    @property
    def mean(self) -> np.ndarray:
        """[user, site]: over the rounds in which it is known, since the two met; NaN where they never did."""
        met = np.isfinite(self.alpha)
        total = np.where(met, self.alpha, 0).sum(0)
        return np.where(met.any(0), total / np.maximum(met.sum(0), 1), np.nan)

    def stop_round(self, user: int) -> int | None:
        """The round in which the user's model stopped."""
        when = np.flatnonzero(self.stopped[:, user])
        return int(self.rounds[when[0]]) if len(when) else None

    def alone_from(self, user: int) -> int | None:
        """The round from which on, to the end, the user trusted nobody but itself."""
        others = np.delete(self.alpha[:, user], user, axis=1)  # [round, site]
        present = np.isfinite(others).any(1)  # elsewhere it was away
        others, rounds = np.nan_to_num(others[present], nan=1.0), self.rounds[present]
        trusting = np.flatnonzero(others.any(1))
        first = trusting[-1] + 1 if len(trusting) else 0
        return int(rounds[first]) if first < len(rounds) else None


def groups(trust: np.ndarray) -> tuple[list[int], list[Join]]:
    """Sites ordered by mutual trust: average linkage of 1 - (alpha_ij + alpha_ji) / 2; unknown trust is none."""
    weights = np.nan_to_num(trust)
    return order_by_linkage((1 - (weights + weights.T) / 2).round(9))


def read_trust(sites: Sequence[str], facts: Facts) -> Trust | None:
    """From the facts of a run; None where no site weighed another."""
    trust, shares, rounds = (find_value(facts, what) for what in (means.TRUST, means.SHARE, means.ROUND))
    alpha = trust if trust is not None else shares
    if alpha is None or rounds is None or not alpha.isfinite().any():
        return None
    many, users = alpha.shape[:2]
    shapes = {"distance": (many, users, users), "gradients": (many, 2)}

    def known(name: str, what: str) -> np.ndarray:
        tensor = find_value(facts, what)
        return np.full(shapes.get(name, (many, users)), np.nan) if tensor is None else tensor.double().numpy()

    rest = {name: known(name, what) for name, what in REST.items()}
    rest |= {k: rest[k] > 0 for k in ("vanished", "stopped")}
    return Trust(list(sites), rounds.numpy(), alpha.double().numpy(), **rest, shares=trust is None)


REST = {  # what is known besides, where a method tells it
    "distance": means.DISTANCE,
    "vanished": means.VANISHED,
    "stopped": means.STOPPED,
    "gradients": means.GRADIENTS,
    "to_local": means.TO_ALONE,
    "to_global": means.TO_SHARED,
    "between": means.BETWEEN,
}

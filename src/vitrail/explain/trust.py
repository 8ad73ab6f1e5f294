"""Whom each site learned from: what a run of Weight Erosion says, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitrail.explain.groups import Join, joined


class Trust(NamedTuple):
    """Users and sites are the same sites, in one order. NaN where a site or a user had not come yet, or was away."""

    sites: list[str]
    rounds: np.ndarray  # [round]: their numbers, from 1
    alpha: np.ndarray  # [round, user, site]: after the round
    distance: np.ndarray  # [round, user, site]: |g_i - g_0| / |g_0|
    vanished: np.ndarray  # [round, user] bool: |g_0| was nothing, so that nothing eroded
    stopped: np.ndarray  # [round, user] bool
    gradients: np.ndarray  # [round, 2]: computed for the users, and for the models beside
    to_local: np.ndarray  # [round, user]: how far the user's model was before the round; NaN without models beside
    to_global: np.ndarray
    between: np.ndarray  # Local and Global

    @property
    def final(self) -> np.ndarray:
        """[user, site]: trust at the end."""
        return np.asarray(self.alpha[-1])

    @property
    def mean(self) -> np.ndarray:
        """[user, site]: over the rounds since the two met; NaN where they never did."""
        known = np.isfinite(self.alpha)
        total = np.where(known, self.alpha, 0).sum(0)
        return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)

    def stop_round(self, user: int) -> int | None:
        """The round in which the user's model stopped."""
        when = np.flatnonzero(self.stopped[:, user])
        return int(self.rounds[when[0]]) if len(when) else None

    def alone_from(self, user: int) -> int | None:
        """The round from which on, to the end, the user trusted nobody but itself."""
        others = np.nan_to_num(np.delete(self.alpha[:, user], user, axis=1), nan=1.0)  # [round, site]
        trusting = np.flatnonzero(others.any(1))
        first = trusting[-1] + 1 if len(trusting) else 0
        return int(self.rounds[first]) if others.shape[1] and first < len(self.rounds) else None


def groups(trust: np.ndarray) -> tuple[list[int], list[Join]]:
    """Sites ordered by mutual trust: average linkage of 1 - (alpha_ij + alpha_ji) / 2; unknown trust is none."""
    known = np.nan_to_num(trust)
    return joined((1 - (known + known.T) / 2).round(9))


def read_trust(sites: Sequence[str], facts: Mapping[str, Tensor]) -> Trust | None:
    """From the facts of a run; None where no trust was kept."""
    if "alpha" not in facts or facts["alpha"].dim() != 3:
        return None
    got = {k: facts[k].double().numpy() for k in Trust._fields if k in facts}
    nothing = np.full(facts["alpha"].shape[:2], np.nan)
    return Trust(
        list(sites),
        facts["round"].numpy(),
        got["alpha"],
        got["distance"],
        got["vanished"] > 0,
        got["stopped"] > 0,
        got["gradients"],
        *(got.get(k, nothing) for k in ("to_local", "to_global", "between")),
    )

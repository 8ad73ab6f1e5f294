"""Shapley values: what each player adds to a game, averaged over all orders in which the players could arrive.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S));      sum_i phi_i = v(all) - v(none)

`exact` asks for all 2^n coalitions. `paired` is for many players and few questions: coalitions are drawn with their
complements, without repetition, their sizes by the Shapley kernel or all equally likely (leverage scores: Musco and
Witter 2025), and the values are those of least squares weighted by kernel / chance of being drawn (KernelSHAP, Lundberg
and Lee 2017), bound to sum to v(all) - v(none). The interval of each value is a jackknife over groups of pairs.

A coalition is worth a vector, one number for each test row. The values are linear in it, so that the values of the
mean are the means of the values, and resampling the rows costs nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # Student's t

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]
Worth = Callable[[Masks], Floats]  # [coalition, player] -> [coalition, row]


class Values(NamedTuple):
    rows: Floats  # [player, row]
    half: Floats  # [player], or [player, row] of pairs: half of the 95 % interval; 0 where nothing was drawn by lot
    asked: int  # coalitions whose worth was asked for

    @property
    def mean(self) -> Floats:
        return np.asarray(self.rows.mean(1))


@cache
def every(players: int) -> tuple[Masks, Floats]:
    """All coalitions [coalition, player], the last player changing fastest, and their weights in each value."""
    masks = np.array(list(itertools.product((False, True), repeat=players)), dtype=bool).reshape(-1, players)
    size = masks.sum(1)
    fact = [math.factorial(k) for k in range(players + 1)]
    joins = np.array([fact[s - 1] * fact[players - s] / fact[players] if s else 0.0 for s in range(players + 1)])
    stays = np.array([*joins[1:], 0.0])
    return masks, np.where(masks, joins[size][:, None], -stays[size][:, None])


def exact(worth: Worth, players: int) -> Values:
    masks, weights = every(players)
    return Values(weights.T @ worth(masks), np.zeros(players), len(masks))


def leave_one_out(worth: Worth, players: int) -> Values:
    """v(all) - v(all but i): no Shapley value, and the values need not sum to anything."""
    got = worth(np.vstack([np.ones(players, dtype=bool), ~np.eye(players, dtype=bool)]))
    return Values(got[0] - got[1:], np.zeros(players), players + 1)


GROUPS = 20  # of pairs, each left out once


def paired(
    worth: Worth, players: int, asked: int, rng: np.random.Generator, sizes: Literal["kernel", "leverage"] = "leverage"
) -> Values:
    """Of `asked` coalitions; all of them where there are no more. At least 8 for each player are needed."""
    if 2**players <= asked:
        return exact(worth, players)
    pairs = max(asked, 8 * players, 4 * GROUPS) // 2
    size = np.arange(1, players)
    kernel = (players - 1) / (size * (players - size))  # of all coalitions of that size together
    share = kernel / kernel.sum() if sizes == "kernel" else np.full(players - 1, 1 / (players - 1))
    half, draws = _pairs(players, pairs, share, rng)
    both = np.stack([half, ~half], 1)  # [pair, 2, player]
    ends = worth(np.array([[False] * players, [True] * players]))
    got = worth(both.reshape(-1, players)).reshape(len(half), 2, -1)
    many = half.sum(1)
    count = np.array([math.comb(players, int(k)) for k in many], dtype=np.float64)
    chance = (share[many - 1] + share[players - many - 1]) / count  # that a draw gives this pair
    weight = kernel[many - 1] / count / -np.expm1(draws * np.log1p(-np.minimum(chance, 0.5)))
    a = both - both.mean(2, keepdims=True)
    b = got - ends[0] - both.mean(2, keepdims=True) * (ends[1] - ends[0])
    group = rng.permutation(len(half)) % GROUPS
    left = np.stack([np.einsum("n,nsi,nsj->ij", weight[g], a[g], a[g]) for g in (group == k for k in range(GROUPS))])
    right = np.stack([np.einsum("n,nsi,nsr->ir", weight[g], a[g], b[g]) for g in (group == k for k in range(GROUPS))])
    level = np.full((players, players), np.trace(left.sum(0)) / players)  # binds what is left to sum to 0
    values = np.linalg.solve(left.sum(0) + level, right.sum(0))
    without = np.linalg.solve(left.sum(0) - left + level, right.sum(0) - right)  # [group, player, row]
    error = np.sqrt((GROUPS - 1) / GROUPS * ((without - without.mean(0)) ** 2).sum(0))
    total = values + (ends[1] - ends[0]) / players
    return Values(total, stdtrit(GROUPS - 1, 0.975) * error, 2 * len(half) + 2)


def paired_mean(worth: Worth, players: int, asked: int, rng: np.random.Generator) -> Values:
    """`paired`, with the interval of each player's mean over the rows."""

    def with_mean(masks: Masks) -> Floats:
        got = worth(masks)
        return np.hstack([got, got.mean(1, keepdims=True)])

    got = paired(with_mean, players, asked, rng)
    half = got.half[:, -1] if got.half.ndim > 1 else got.half
    return got._replace(rows=got.rows[:, :-1], half=half)


def _pairs(players: int, count: int, share: Floats, rng: np.random.Generator) -> tuple[Masks, int]:
    """Coalitions that hold player 0, all different, each standing for itself and its complement; and how many draws it
    took."""
    masks: dict[bytes, Masks] = {}
    draws = 0
    while len(masks) < count:
        size = rng.choice(np.arange(1, players), p=share)
        mask = np.zeros(players, dtype=bool)
        mask[rng.choice(players, size, replace=False)] = True
        mask = mask if mask[0] else ~mask
        masks.setdefault(mask.tobytes(), mask)
        draws += 1
    return np.array(list(masks.values())), draws

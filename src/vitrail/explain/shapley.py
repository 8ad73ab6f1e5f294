"""Shapley values: what each player adds to a game, averaged over all orders in which the players could arrive.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S));      sum_i phi_i = v(all) - v(none)

`exact` asks for all 2^n coalitions. `sampled` follows orders drawn by lot (all of them, once each, where there are no
more than asked for), with the truncation of Ghorbani and Zou (2019): an order is left as soon as its coalition is worth
v(all) to within `tolerance` times |v(all) - v(none)|. Departure: what is then still missing is shared equally by the
players who have not arrived, where they give them nothing, so that the values sum to v(all) - v(none) all the same.
A coalition is asked for once, however many orders pass it. Truncation can be wrong where players undo each other's
work: a coalition may happen to be worth v(all) in the middle of an order.

`paired` is for many players and few questions: coalitions are drawn with their complements, without repetition, their
sizes by the Shapley kernel or all equally likely (leverage scores: Musco and Witter 2025), and the values are those of
least squares weighted by kernel / chance of being drawn (KernelSHAP, Lundberg and Lee 2017), bound to sum to
v(all) - v(none). The interval of each value is a jackknife over groups of pairs.

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
    orders: int  # that were followed; 0 where all coalitions were asked for
    cut: float = 0.0  # share of the steps of all orders that truncation left out

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
    return Values(weights.T @ worth(masks), np.zeros(players), len(masks), 0)


def leave_one_out(worth: Worth, players: int) -> Values:
    """v(all) - v(all but i): no Shapley value, and the values need not sum to anything."""
    got = worth(np.vstack([np.ones(players, dtype=bool), ~np.eye(players, dtype=bool)]))
    return Values(got[0] - got[1:], np.zeros(players), players + 1, 0)


def sampled(worth: Worth, players: int, orders: int, tolerance: float, rng: np.random.Generator) -> Values:
    every = players <= 12 and math.factorial(players) <= orders
    all_orders = itertools.permutations(range(players))
    walks = np.array(list(all_orders) if every else [rng.permutation(players) for _ in range(orders)], dtype=np.int64)
    walks = walks.reshape(-1, players)
    place: dict[bytes, int] = {}
    found: list[Floats] = []

    def ask(masks: Masks) -> NDArray[np.int64]:
        new = {m.tobytes(): m for m in masks if m.tobytes() not in place}
        if new:
            found.extend(worth(np.array(list(new.values()))))
            place.update({k: len(place) + i for i, k in enumerate(new)})
        return np.array([place[m.tobytes()] for m in masks], dtype=np.int64)

    none, whole = ask(np.array([[False] * players, [True] * players]))
    end, gap = found[whole].mean(), tolerance * abs(found[whole].mean() - found[none].mean())
    here = np.zeros((len(walks), players), dtype=bool)
    path = np.full((len(walks), players + 1), none)  # which coalition each order stands at after each step
    stop = np.full(len(walks), players)
    for step in range(1, players):
        going = np.flatnonzero(stop == players)
        here[going, walks[going, step - 1]] = True
        path[going, step] = ask(here[going])
        means = np.array([found[k].mean() for k in path[going, step]])
        stop[going[np.abs(end - means) <= gap]] = step
    path[:, players] = whole
    table = np.array(found)
    total, spread = np.zeros((players, table.shape[1])), np.zeros((len(walks), players))
    for w, (walk, at) in enumerate(zip(walks, stop, strict=True)):
        worths = table[path[w]]
        if at < players:  # the rest share what is missing
            share = np.arange(1, players - at + 1)[:, None] / (players - at)
            worths[at + 1 :] = worths[at] + share * (table[whole] - worths[at])
        steps = np.diff(worths, axis=0)
        total[walk] += steps
        spread[w, walk] = steps.mean(1)
    m = len(walks)
    half = np.zeros(players)
    if m > 1 and not every:
        half = stdtrit(m - 1, 0.975) * spread.std(0, ddof=1) / math.sqrt(m)
    cut = float((players - 1 - np.minimum(stop, players - 1)).sum()) / max(1, m * (players - 1))
    return Values(total / m, half, len(found), m, cut)


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
    return Values(total, stdtrit(GROUPS - 1, 0.975) * error, 2 * len(half) + 2, 0)


def _pairs(players: int, count: int, share: Floats, rng: np.random.Generator) -> tuple[Masks, int]:
    """Coalitions that hold player 0, all different, each standing for itself and its complement; and how many draws it
    took."""
    found: dict[bytes, Masks] = {}
    draws = 0
    while len(found) < count:
        size = rng.choice(np.arange(1, players), p=share)
        mask = np.zeros(players, dtype=bool)
        mask[rng.choice(players, size, replace=False)] = True
        mask = mask if mask[0] else ~mask
        found.setdefault(mask.tobytes(), mask)
        draws += 1
    return np.array(list(found.values())), draws

"""Which things are alike: average linkage, the joins from the closest pair up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Join(NamedTuple):
    """Two groups that become one, at the mean distance between their members."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    apart: float


def joined(apart: np.ndarray) -> tuple[list[int], list[Join]]:
    """Distances [thing, thing] -> an order in which no two joins cross, each turned so that its nearest ends meet;
    and the joins, lowest first.

    >>> joined(np.array([[0, 9, 1], [9, 0, 8], [1, 8, 0]]))
    ([0, 2, 1], [Join(first=(0,), second=(2,), apart=1.0), Join(first=(0, 2), second=(1,), apart=8.5)])
    """
    between = apart + np.where(np.eye(len(apart), dtype=bool), np.inf, 0)  # groups, under the index of one of theirs
    groups, joins = {i: [i] for i in range(len(apart))}, []
    while len(groups) > 1:
        i, j = divmod(int(between.argmin()), len(apart))
        a, b = groups[i], groups.pop(j)
        joins.append(Join(tuple(a), tuple(b), float(between[i, j])))
        turns = [(a, b), (a[::-1], b), (a, b[::-1]), (a[::-1], b[::-1])]
        first, second = min(turns, key=lambda t: apart[t[0][-1], t[1][0]])
        mean = (len(a) * between[i] + len(b) * between[j]) / (len(a) + len(b))
        between[i], between[:, i] = mean, mean
        between[j], between[:, j] = np.inf, np.inf
        groups[i] = first + second
    return next(iter(groups.values()), []), joins

"""Which things are alike: average linkage, the joins from the closest pair up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Join(NamedTuple):
    """Two groups that become one, at the mean distance between their members."""

    first: tuple[int, ...]  # the one with the first of all their members
    second: tuple[int, ...]
    apart: float


def order_by_linkage(apart: np.ndarray) -> tuple[list[int], list[Join]]:
    """Distances [thing, thing] -> an order in which no two joins cross, each turned so that its nearest ends meet;
    and the joins, lowest first.

    >>> order_by_linkage(np.array([[0, 9, 1], [9, 0, 8], [1, 8, 0]]))
    ([0, 2, 1], [Join(first=(0,), second=(2,), apart=1.0), Join(first=(0, 2), second=(1,), apart=8.5)])
    """
    from scipy.cluster.hierarchy import linkage  # takes as long to load as pandas, and few pages draw a tree
    from scipy.spatial.distance import squareform

    groups, joins = [[i] for i in range(len(apart))], []  # as scipy numbers them: things, then joins
    tree = linkage(squareform(apart, checks=False), "average") if len(apart) > 1 else []  # of one thing there is none
    for left, right, mean, _ in tree:
        a, b = sorted((groups[int(left)], groups[int(right)]), key=min)
        joins.append(Join(tuple(a), tuple(b), float(mean)))
        turns = [(a, b), (a[::-1], b), (a, b[::-1]), (a[::-1], b[::-1])]
        first, second = min(turns, key=lambda t: apart[t[0][-1], t[1][0]])
        groups.append(first + second)
    return groups[-1] if groups else [], joins

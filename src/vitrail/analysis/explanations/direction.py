"""In which direction a feature moves the answer: the association between its value and its Shapley value.

The mean Shapley value has the sign of the column's skewness, not of its effect: with effect b, reference m and mean v
it is b (v - m). So the sign is that of the rank correlation between value and Shapley value, over the rows whose value
is known.

    +   the answer rises with the value            -   it falls
    ±   both ways: it bends                        ?   no clear direction: other features decide
    ≠   a category of three or more levels has no order: each level is told against the reference

It bends where the mean Shapley value both rises and falls beyond chance from one group of rows to a later one, and the
smaller of the largest rise and the largest fall is at least a fifth of the other. Groups are up to ten parts of the
rows in the order of their values, each of 15 rows or more; "beyond chance" is Welch's t over all pairs of groups, with
Bonferroni's correction. A relation that is monotone and noisy does not bend. How often the rule errs is measured in
tests/analysis/explanations/test_direction.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
UP, DOWN, BOTH, UNCLEAR, BY_LEVEL = "+", "-", "±", "?", "≠"
UNKNOWN = ""  # too few rows, or values that are not known here
WORDS = {UP: "up", DOWN: "down", BOTH: "both ways", UNCLEAR: "no clear direction", BY_LEVEL: "by level", UNKNOWN: ""}
FEWEST = 10  # rows that are otherwise than the most frequent value, and rows of a level
GROUPS, ROWS = 10, 15  # at most so many groups, of at least so many rows
LEAST_TURN = 0.2  # of the larger of rise and fall
ERROR = 0.05  # chance that somewhere a rise is seen where there is none, and likewise a fall
SURE = 0.995  # one side of the interval by which a correlation is told from 0


class Direction(NamedTuple):
    sign: str
    levels: tuple[tuple[str, str], ...] = ()  # of levels: each that is told, and its sign
    reference: str = ""  # the level against which they are told

    @property
    def words(self) -> str:
        """up; both ways; up for yes, against no; up for b and c, down for d, against a."""
        if not self.levels:
            return WORDS[self.sign]
        parts = []
        for way in (UP, DOWN):
            *others, last = ["", *(level for level, sign in self.levels if sign == way)]
            if last:
                parts.append(f"{WORDS[way]} for {' and '.join(filter(None, (', '.join(others[1:]), last)))}")
        if not parts:
            return WORDS[UNCLEAR]
        return ", ".join([*parts, f"against {self.reference}"] if self.reference else parts)


def direction(
    values: Sequence[Any] | NDArray[Any], phi: Floats, levels: Sequence[str] = (), off: Any = None
) -> Direction:
    """values [row]: as a person writes them, None or NaN where missing; phi [row]: their Shapley values. `levels` of a
    category, whose reference is `off`.

    >>> direction(np.arange(40.0), -0.2 * np.arange(40.0)).words
    'down'
    """
    present = ~pd.isna(np.asarray(values, object))
    held, phi = np.asarray(values, object)[present], phi[present]
    if len(levels) > 2:
        return _by_level(held.astype(str), phi, levels, off)
    if levels:  # of two, the second against the first, whichever is the reference
        held = held.astype(str) == levels[1]
    x = held.astype(np.float64)
    if not len(x) or len(x) - np.unique(x, return_counts=True)[1].max() < FEWEST or not phi.any():
        return Direction(UNKNOWN)
    sign = BOTH if _bends(x, phi) else _sign(x, phi)
    return Direction(sign, ((levels[1], sign),), levels[0]) if levels and sign in (UP, DOWN) else Direction(sign)


def _sign(x: Floats, phi: Floats) -> str:
    """Of Spearman's correlation, where it can be told from 0: by White's standard error, since Shapley values spread
    the more the further the value is from the reference."""
    value, answer = (ranks - ranks.mean() for ranks in (pd.Series(v).rank().to_numpy() for v in (x, phi)))
    spread = (value**2).sum()
    slope = (value * answer).sum() / spread
    error = np.sqrt((value**2 * (answer - slope * value) ** 2).sum() * len(x) / (len(x) - 2)) / spread
    if abs(slope) <= stdtrit(len(x) - 2, SURE) * error:
        return UNCLEAR
    return UP if slope > 0 else DOWN


def _bends(x: Floats, phi: Floats) -> bool:
    group = _grouped(x)
    rows = np.bincount(group)
    if len(rows) < 3:
        return False
    mean = np.bincount(group, phi) / rows
    error = np.bincount(group, (phi - mean[group]) ** 2) / (rows - 1) / rows  # [group]: squared
    first, later = np.triu_indices(len(rows), 1)
    change, both = mean[later] - mean[first], error[first] + error[later]
    within = error[first] ** 2 / (rows[first] - 1) + error[later] ** 2 / (rows[later] - 1)
    free = np.divide(both**2, within, out=np.full(len(both), 1e9), where=within > 0)
    beyond = stdtrit(free, 1 - ERROR / len(change)) * np.sqrt(both)
    rise, fall = change.max(), -change.min()
    sure = (change > beyond).any() and (-change > beyond).any()
    return bool(sure and min(rise, fall) >= LEAST_TURN * max(rise, fall))


def _grouped(x: Floats) -> NDArray[np.int64]:
    """[row]: its group, in the order of values; equal values stay together."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    least, seen = max(ROWS, len(x) / GROUPS), counts.cumsum()
    group, number, before = np.zeros(len(counts), np.int64), 0, 0
    for i, rows in enumerate(seen):
        group[i] = number
        if rows - before >= least and len(x) - rows >= least:
            number, before = number + 1, rows
    return np.asarray(group[place], np.int64)


def _by_level(held: NDArray[np.str_], phi: Floats, levels: Sequence[str], off: Any) -> Direction:
    """Each level's mean against 0, which is what the reference has, or where that is not known against all rows."""
    reference = str(off) if off in levels else ""
    base = 0.0 if reference else float(phi.mean()) if len(phi) else 0.0
    directions = []
    for level in levels:
        mine = phi[held == level] - base
        if level == reference or len(mine) < FEWEST:
            continue
        mean, half = mine.mean(), stdtrit(len(mine) - 1, SURE) * mine.std(ddof=1) / np.sqrt(len(mine))
        directions.append((level, UNCLEAR if abs(mean) <= half else UP if mean > 0 else DOWN))
    return Direction(BY_LEVEL if directions else UNKNOWN, tuple(directions), reference)

"""Whether a repair brings a column closer to what the other sites published of it: before and after, in numbers.

Two distances: of its own counts (of a number the quantiles, in widths of the middle half; else the shares of levels),
and of its correlations with other columns and the outcome. A repair that moves values must bring the first closer, one
that turns or renames them the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import VitrailError
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.quality.screening.pooled_reference import PooledNumber, as_number
from vitrail.quality.screening.result import LABEL
from vitrail.quality.screening.schema import Numbers
from vitrail.quality.screening.site import ScreeningSite, correlate
from vitrail.quality.screening.text import percent, short

MOVES = {"unit": 0.8, "offset": 0.35}  # all values are moved: most of the distance must go; widths that may be left
IN_PART = ("unit in part", "code")  # some are
HALF, SOME = 0.4, 0.8  # of the distance may be left
NEAR = 0.8  # widths, or a share, that may be left at all
TIES = 0.05  # by which correlations must come closer
BESIDES = 0.3  # by which the other distance may grow


class ColumnDistance(NamedTuple):
    counts: float  # NaN where nothing comparable was published
    ties: float


class Closeness(NamedTuple):
    before: ColumnDistance
    after: ColumnDistance
    number: bool

    @property
    def words(self) -> str:
        """Both distances, before and after; empty where nothing can be compared."""
        out = []
        if np.isfinite(self.before.counts) and np.isfinite(self.after.counts):
            a, b = self.before.counts, self.after.counts
            words = (
                f"{_say(a)} widths of the middle half before and {_say(b)} after"
                if self.number
                else f"shares differ by {percent(a)} before and {percent(b)} after"
            )
            out.append(words)
        if np.isfinite(self.before.ties) and np.isfinite(self.after.ties):
            pair = f"{_say(self.before.ties)} before and {_say(self.after.ties)} after"
            out.append(f"its correlations differ by {pair}")
        return f"distance from the other sites' published numbers: {'; '.join(out)}" if out else ""

    def closer(self, cause: str) -> bool:
        """Whether the repair of this cause does what it should."""
        (a, ties), (b, then) = self.before, self.after
        if cause in MOVES:
            return bool(b <= HALF * a and b <= MOVES[cause])
        if cause in IN_PART:
            return bool(b <= SOME * a and b <= NEAR)
        tied = np.isfinite(ties) and np.isfinite(then)
        if cause in ("recoded", "swapped"):
            return bool(b <= SOME * a and not then > ties + TIES) or bool(
                tied and then < ties - TIES and not b > a + TIES
            )
        if tied:
            return bool(then < ties - TIES and not b > a + BESIDES)
        return bool(not self.number and b < a - TIES)


def _say(x: float) -> str:
    return short(round(float(x), 2), 3)


def is_published(columns: Iterable[str], table: TableSchema, pooled: Mapping[str, Any]) -> bool:
    """Whether the other sites published anything of these columns."""
    names = [LABEL if name == table.plain.target.column else name for name in columns]
    return any(isinstance(pooled.get(name), Mapping) for name in names)


def compare(
    columns: Iterable[str], frame: pd.DataFrame, repaired: pd.DataFrame, table: TableSchema, pooled: Mapping[str, Any]
) -> Closeness | None:
    """The mean over these columns (features, or the outcome's column); None where a frame cannot be read."""
    try:
        seats = [ScreeningSite(clean(rows, table), table) for rows in (frame, repaired)]
    except VitrailError:
        return None
    names = [LABEL if name == table.plain.target.column else name for name in columns]
    shown = [name for name in names if isinstance(pooled.get(name), Mapping)]
    if not shown:
        return None
    before, after = (np.array([distance(seat, name, pooled) for name in shown]) for seat in seats)
    with np.errstate(all="ignore"):
        one, two = (ColumnDistance(*(_mean(d[:, j]) for j in (0, 1))) for d in (before, after))
    at = seats[0].layout
    return Closeness(one, two, at.kinds[at.columns.index(shown[0])] == "numeric")


def _mean(x: Numbers) -> float:
    x = x[np.isfinite(x)]
    return float(x.mean()) if len(x) else float("nan")


def distance(seat: ScreeningSite, name: str, pooled: Mapping[str, Any]) -> ColumnDistance:
    """How far a column of a site's own rows is from the pooled summaries."""
    at, summary = seat.layout, pooled[name]
    column = at.columns.index(name)
    own = np.flatnonzero(at.column == column)
    values = seat.values[:, own]
    if at.kinds[column] == "numeric":
        x = values[np.isfinite(values[:, 0]), 0]
        counts = float("nan")
        if len(x):
            view = PooledNumber(name, at.table.features.get(name), x, summary)
            counts = view.off(view.q)
    else:
        theirs = np.array([as_number(v) for v in summary.get("levels", [])])
        rows, total = np.isfinite(values[:, 0]).sum(), as_number(summary.get("known"))
        fits = len(theirs) == len(own) and rows and total > 0
        gap = np.abs(np.nansum(values, 0) / rows - theirs / total).sum() if fits else np.nan
        counts = float(gap if at.kinds[column] == "binary" else gap / 2)
    return ColumnDistance(counts, _tie_distance(seat, column, summary.get("ties")))


def _tie_distance(seat: ScreeningSite, column: int, ties: object) -> float:
    """The mean difference of correlations, those that are usually strong counting more."""
    at = seat.layout
    pairs = []
    for other, listed in ties.items() if isinstance(ties, Mapping) else ():
        for pair in listed if isinstance(listed, list) and other in at.columns else ():
            level, other_level, usual = ([as_number(x) for x in pair] if isinstance(pair, list) else []) or [0.0] * 3
            one = np.flatnonzero((at.column == column) & (at.level == level))
            two = np.flatnonzero((at.column == at.columns.index(other)) & (at.level == other_level))
            if len(one) and len(two) and np.isfinite(usual):
                pairs.append((int(one[0]), int(two[0]), usual))
    if not pairs:
        return float("nan")
    a, b, r = (np.array(x) for x in zip(*pairs, strict=True))
    u, w = seat.scores[:, a], seat.scores[:, b]
    ok = np.isfinite(u) & np.isfinite(w)
    with np.errstate(all="ignore"):
        here = correlate(np.where(ok, u, 0.0), np.where(ok, w, 0.0), ok)[0]
    weight = np.where(np.isfinite(here), np.abs(r), 0.0)
    return float((weight * np.abs(np.nan_to_num(here) - r)).sum() / weight.sum()) if weight.sum() > 0 else float("nan")

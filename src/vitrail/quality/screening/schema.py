"""Which arrays cross in a screening, and how much of them a site of so many rows fills in.

Columns are the study's features and, last, the outcome; of a time to an event whether it was seen until the horizon,
and how long a row was followed is a column beside the features. A *variable* is a number, or yes or no for a level:
one for each number and each binary column, one for each level of a categorical one and of an outcome of three or more
classes.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.schema import TableSchema
from vitrail.quality.screening.result import LABEL, ScreeningTensor

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Said = dict[str, Numbers]
Places = NDArray[np.int64]

# Where a study names persons, one row of each is looked at, so that these numbers of rows are numbers of persons.
FLOOR = 12  # a site with fewer rows publishes nothing
HELD = 5  # a single value is published only where so many rows hold it
WIDEST = 400  # variables in the matrix of products
RELATED = 3  # other variables that each is compared with
QUANTILES = np.arange(1, 20) / 20  # 5 %, 10 %, ... 95 %
QUARTILES = np.array([4, 9, 14])
OUTER = np.array([0, 1, 4, 9, 14, 17, 18])  # of QUANTILES: where not all are published
CUTS = np.array([0, 4, 9, 14, 18])  # of QUANTILES: pooled, rows below are counted; and a fence on either side
FENCES = (0, len(CUTS) + 1)
MOMENTS = 7  # of a column: how its values fit the rest of their rows
VALUES = 4  # stand-out values of each number that all sites count


class ScreeningSchema:
    """Columns and variables of a study, and where they lie in what is published."""

    def __init__(self, table: TableSchema) -> None:
        whole, self.table = table, table.plain
        table = self.table
        features = list(table.features.items())
        self.columns = [name for name, _ in features] + [LABEL]
        self.kinds: list[str] = [f.kind for _, f in features]
        self.kinds.append("numeric" if table.target.kind == "number" else "categorical")
        self.levels = [f.levels if f.kind != "numeric" else () for _, f in features] + [table.target.levels]
        if table.target.kind == "classes" and len(table.target.levels) == 2:
            self.kinds[-1] = "binary"
        # how long rows were followed, and with it how often the event was seen, is each house's own way
        timed = whole.target.kind == "time"
        self.by_habit = [len(features) - 1, len(features)] if timed else []
        at: list[tuple[int, int]] = []
        for c, kind in enumerate(self.kinds):
            shown = {"numeric": [-1], "binary": [1]}.get(kind, list(range(len(self.levels[c]))))
            at += [(c, level) for level in shown]
        self.column, self.level = np.array(at, np.int64).reshape(-1, 2).T
        self.outcome = np.flatnonzero(self.column == len(features))  # variables of the outcome
        self.inputs = np.flatnonzero(self.column < len(features))
        self.numbers = np.flatnonzero(self.level < 0)  # variables that are numbers
        self.yesno = np.flatnonzero(self.level >= 0)
        self.is_number = self.level < 0
        self.wide = min(len(self.inputs), WIDEST)

    @cached_property
    def target(self) -> str:
        return self.table.target.column

    def parts(self) -> list[ScreeningTensor]:
        """Every array that crosses."""
        c, v, n, b = len(self.columns), len(self.inputs), len(self.numbers), len(self.yesno)
        k, d = len(self.outcome), self.wide + len(self.outcome)
        q, cuts = len(QUANTILES), len(CUTS) + 2
        few = f"where at least {HELD} rows hold it"
        many = "how many patients; of each, one row is used" if self.table.person_column else "how many rows"
        return [
            ScreeningTensor("sketch", "from site", "rows", (1,), many),
            ScreeningTensor("sketch", "from site", "known", (c,), "for each column, how many rows have a value"),
            ScreeningTensor("sketch", "from site", "levels", (b,), "how many rows have each level"),
            ScreeningTensor(
                "sketch",
                "from site",
                "quantiles",
                (n, q),
                "for each numeric column, the quantiles at 5 %, 10 %, ... 95 %",
            ),
            ScreeningTensor(
                "sketch",
                "from site",
                "held",
                (n, 3, 2),
                (
                    "for each numeric column, the most frequent, smallest and largest value and its number of rows, "
                    f"{few}"
                ),
            ),
            ScreeningTensor(
                "sketch",
                "from site",
                "grain",
                (n, 2),
                "for each numeric column, the number of different values and their step",
            ),
            ScreeningTensor(
                "sketch", "from site", "outcome", (v, k, 2), "how each column is associated with the outcome"
            ),
            ScreeningTensor(
                "sketch", "from site", "digest", (2,), "a digest of all rows, to find two sites with the same rows"
            ),
            ScreeningTensor(
                "counts",
                "to site",
                "cuts",
                (n, cuts),
                "for each numeric column, the cuts at which sites count their rows",
            ),
            ScreeningTensor(
                "counts",
                "to site",
                "values",
                (n, VALUES),
                "for each numeric column, values that stand out at some site",
            ),
            ScreeningTensor(
                "counts", "to site", "chosen", (self.wide,), "the columns that the outcome is predicted from"
            ),
            ScreeningTensor(
                "counts", "from site", "below", (n, cuts), "for each numeric column, how many rows lie up to each cut"
            ),
            ScreeningTensor(
                "counts",
                "from site",
                "same",
                (n, VALUES),
                "for each numeric column, how many rows hold each value that stands out",
            ),
            ScreeningTensor(
                "counts", "from site", "products", (d, d), "products of all columns, summed over rows", total=True
            ),
            ScreeningTensor("ties", "to site", "products", (d, d), "products of all columns, summed over all sites"),
            ScreeningTensor(
                "ties", "to site", "chosen", (self.wide,), "the columns that the outcome is predicted from"
            ),
            ScreeningTensor(
                "ties", "to site", "related", (v, RELATED), "the columns that each column is compared with"
            ),
            ScreeningTensor(
                "ties",
                "from site",
                "related",
                (v, RELATED, 4),
                "how columns that are correlated at other sites are correlated here",
            ),
            ScreeningTensor(
                "ties", "from site", "predicted", (k, 2), "how well the other sites' rows predict the outcomes here"
            ),
            ScreeningTensor(
                "ties",
                "from site",
                "ratios",
                (c, MOMENTS),
                "for each column, whether its values fit the rest of their rows as at the other sites",
            ),
        ]


class Share(NamedTuple):
    """What a site with so many rows publishes of one column; each step only once the ones before it are paid for."""

    counts: int = 0  # cuts: 0, 2 (quartiles), 3 (and the median), 5 (and the fences), 7
    quantiles: int = 0  # 0, 3, 7 or 19
    ties: int = 0  # 0, 1 (how strong), 2 (and how it scatters)
    ratios: bool = False  # whether its values belong to their rows
    values: int = 0  # 0, 1 (the most frequent), 3 (least and greatest as well), and then counts of what stands out
    grain: bool = False
    related: int = 0  # other variables
    numbers: int = 1  # how many in all


def share_of(kind: str, levels: int, outcomes: int, is_outcome: bool, rows: float) -> Share:
    """What is published of a column, so that the rows are at least twice as many as the numbers."""
    if rows < FLOOR:
        return Share(numbers=0)
    room, share = int(rows // 2), Share()
    variables = 1 if kind != "categorical" else levels
    if kind == "numeric":
        steps = [
            (3, {"quantiles": 3}),
            (2 * outcomes, {"ties": 2}) if is_outcome else (outcomes, {"ties": 1}),
            (2, {"counts": 2}),
            (1, {"counts": 3}),
            (2, {"counts": 5}),
            *([] if is_outcome else [(outcomes, {"ties": 2})]),
            (2, {"values": 1}),
            (2, {"counts": 7}),
            (2, {"grain": True}),
            (4 + VALUES, {"values": 3}),
            (MOMENTS, {"ratios": True}),
            (4, {"quantiles": 7}),
            (12, {"quantiles": 19}),
        ]
    else:
        steps = [(variables, {"counts": 7}), (2 * outcomes * (1 if is_outcome else variables), {"ties": 2})]
        steps += [(MOMENTS, {"ratios": True})]
    steps += [] if is_outcome else [(4 * variables, {"related": k + 1}) for k in range(RELATED)]
    for price, what in steps:
        if share.numbers + price > room:
            break
        share = share._replace(numbers=share.numbers + price, **what)  # type: ignore[arg-type]
    return share


def shares(layout: ScreeningSchema, rows: float) -> list[Share]:
    """For each column."""
    k, last = len(layout.outcome), len(layout.columns) - 1
    kinds = zip(layout.kinds, layout.levels, strict=True)
    cached: dict[tuple[str, int, bool], Share] = {}  # wide tables have many alike
    out = []
    for c, (kind, levels) in enumerate(kinds):
        key = (kind, len(levels), c == last)
        if key not in cached:
            cached[key] = share_of(kind, len(levels), k, c == last, rows)
        out.append(cached[key])
    return out


def budget(table: TableSchema, rows: int) -> dict[str, int]:
    """How many numbers a site with so many rows publishes of each column."""
    layout = ScreeningSchema(table)
    return {name: s.numbers for name, s in zip(layout.columns, shares(layout, rows), strict=True)}


def parts(table: TableSchema) -> list[ScreeningTensor]:
    """Every array that crosses in a screening: shapes depend on the study alone; NaN is what is not published."""
    return ScreeningSchema(table).parts()

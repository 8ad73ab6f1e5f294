"""Differences that are planted on purpose into one column of one site's table, for research on methods that find them.

    shift     x + size SD             SD: of this column at this site, before planting
    factor    x * size                about zero, as a wrong unit
    stretch   m + size (x - m)        m: the site's mean, so that standardised values are multiplied
    missing   nothing                 the cell is empty
    flip      the classes reversed    of the outcome: two classes change places

Without `label` all rows are meant, with it those of that class: a stretch of one class, or a column that is not
recorded where the outcome is negative. `share` of these rows are changed; which ones depends on (seed, kind, site,
column, label), and a larger share changes the same rows and more.

The kinds "paper" are those of the iFedAvg paper's appendix (Roschewitz et al. 2021), each at another site: a column
shifted (figures 13 and 16), a column of another width (14), one class stretched (15), a column that is recorded for one
class alone (4 and 17), and a flipped label (19). The paper says that appendix A.2 has artificial shifts; in the text
that we have, the flipped label of A.4 is the only one, and the others were found in real tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.random import key
from vitrail.data.readers.cells import as_numbers
from vitrail.data.schema import canon

ShiftKind = Literal["shift", "factor", "stretch", "missing", "flip"]
SIZES: dict[ShiftKind, float] = {"shift": 2.0, "factor": 2.0, "stretch": 2.0, "missing": 0.0, "flip": 0.0}
PAPER: tuple[ShiftKind, ...] = ("shift", "factor", "stretch", "missing", "flip")
SIZED: frozenset[ShiftKind] = frozenset({"shift", "factor", "stretch"})
OF_ONE_CLASS: frozenset[ShiftKind] = frozenset({"stretch", "missing"})  # in "paper"
FEWEST_VALUES = 5  # different numbers of a column that is chosen at random
MOST_CLASSES = 20


class PlantedShift(NamedTuple):
    """What was planted, and where."""

    kind: ShiftKind
    site: str
    column: str
    label: str | None  # of the class whose rows were meant; None: all rows
    size: float  # as it was asked for; 0 where the kind has none
    amount: (
        float  # what was added to the values (shift) or what they were multiplied by, in the column's unit; NaN: none
    )
    rows: tuple[int, ...]  # the places of the changed rows in the site's table


class ShiftedFederation(NamedTuple):
    """The tables with what was planted, and a record of it."""

    sites: dict[str, pd.DataFrame]
    planted: list[PlantedShift]


def shift(
    sites: Mapping[str, pd.DataFrame],
    kind: ShiftKind | Literal["paper"],
    *,
    target: str,
    site: str | None = None,
    column: str | None = None,
    label: object = None,
    size: float | None = None,
    share: float = 1.0,
    seed: int = 0,
) -> ShiftedFederation:
    """Plant a difference into one column of one site's table; the given tables stay as they are.

    `sites` has the table of each site and `target` names the column of the outcome. `kind` is shift, factor, stretch,
    missing or flip (of the outcome), or "paper" for all five, each at another site as far as there are enough. `site`
    and `column` are drawn from `seed` where they are not given. `label` limits it to the rows of one class; of "paper",
    the stretch and the missing values are of one class in any case, drawn from the seed without it. `share` limits it
    to a part of these rows. `size` is the shift in standard deviations of the column at that site, or the factor; 2 if
    it is not given.

    The result has the new tables as `sites`, and as `planted` what was changed: kind, site, column, label, size, the
    amount in the column's unit and the rows.
    """
    _check_given(sites, kind, target, site, column, size, share)
    tables = {name: frame.copy() for name, frame in sites.items()}
    kinds = PAPER if kind == "paper" else (kind,)
    order = [site] if site is not None else _by_lot(list(tables), seed, "site", kind)
    planted = list[PlantedShift]()
    for i, one in enumerate(kinds):
        where, of = order[i % len(order)], label
        if kind == "paper" and one not in OF_ONE_CLASS:
            of = None
        elif kind == "paper" and of is None:
            of = _by_lot(_classes(sites, target), seed, "label", one)[0]
        taken = {p.column for p in planted if p.site == where}
        name = target if one == "flip" else column or _any_column(sites[where], one, target, taken, seed)
        given = _ShiftRequest(tables, one, where, name, target, of, SIZES[one] if size is None else size, share, seed)
        record, tables[where][name] = given.planted()
        planted.append(record)
    return ShiftedFederation(tables, planted)


class _ShiftRequest(NamedTuple):
    sites: Mapping[str, pd.DataFrame]
    kind: ShiftKind
    site: str
    column: str
    target: str
    label: object
    size: float
    share: float
    seed: int

    def planted(self) -> tuple[PlantedShift, pd.Series]:
        rows, label = self._rows(), None if self.label is None else canon(self.label)
        old = self.sites[self.site][self.column]
        old = self._numbers(old) if self.kind in SIZED else old
        values, amount = self._changed(old)
        at = np.zeros(len(old), bool)
        at[rows] = True
        size = self.size if self.kind in SIZED else 0.0
        record = PlantedShift(self.kind, self.site, self.column, label, size, amount, tuple(rows.tolist()))
        return record, old.mask(at) if values is None else old.mask(at, values)

    def _rows(self) -> NDArray[np.int64]:
        frame, label = self.sites[self.site], self.label
        if self.column not in frame:
            what = f"site {self.site} has no column {self.column!r}."
            raise _refusal(Problem("column", what, nearest(str(self.column), map(str, frame.columns))))
        meant = (
            np.ones(len(frame), bool) if label is None else (frame[self.target].map(canon) == canon(label)).to_numpy()
        )
        if not meant.any():
            what = f"site {self.site} has no row" + ("." if label is None else f" of {label!r}.")
            raise _refusal(Problem("label", what, nearest(canon(label), _classes({"": frame}, self.target))))
        name = None if label is None else canon(label)
        lots = np.random.default_rng(key(self.seed, self.kind, self.site, self.column, name))
        order = lots.permutation(np.flatnonzero(meant))
        return np.sort(order[: max(1, round(self.share * len(order)))])

    def _changed(self, old: pd.Series) -> tuple[pd.Series | None, float]:
        """What every value of the column would become (None: nothing), and by how much in its unit."""
        if self.kind == "missing":
            return None, np.nan
        if self.kind == "flip":
            return _flipped(old, self.sites, self.target), np.nan
        if self.kind == "shift":
            amount = self.size * float(old.std(ddof=0))
            return old + amount, amount
        centre = float(old.mean()) if self.kind == "stretch" else 0.0
        return centre + self.size * (old - centre), self.size

    def _numbers(self, old: pd.Series) -> pd.Series:
        numbers = _as_floats(old)
        if numbers.nunique() < 2:
            what = f"it holds fewer than two different numbers at {self.site}."
            raise _refusal(Problem(f"column {self.column!r}", what, "Choose a column of numbers."))
        return numbers


def _flipped(old: pd.Series, sites: Mapping[str, pd.DataFrame], target: str) -> pd.Series:
    """Each class under the name that has its place in the reverse order of the classes of all sites."""
    values = {canon(v): v for frame in sites.values() for v in frame[target].dropna().tolist()}
    classes = _classes(sites, target)
    if not 2 <= len(classes) <= MOST_CLASSES:
        what = f"it has {len(classes)} different values, and a flip needs from 2 to {MOST_CLASSES} classes."
        raise _refusal(Problem(f"target {target!r}", what, "Name the column of the classes."))
    other = {a: values[b] for a, b in zip(classes, reversed(classes), strict=True)}
    flipped = [value if pd.isna(value) else other[canon(value)] for value in old.tolist()]
    return pd.Series(flipped, old.index, dtype=old.dtype)


def _any_column(frame: pd.DataFrame, kind: ShiftKind, target: str, taken: set[str], seed: int) -> str:
    """A random column with several different values; one of numbers where the kind is about numbers."""
    usable = [str(c) for c in frame.columns if c != target and frame[c].nunique() > 1 and c not in taken]
    if kind in SIZED:
        usable = [c for c in usable if _as_floats(frame[c]).nunique() >= FEWEST_VALUES]
    if not usable:
        what = f"no column fits a {kind}." if kind in SIZED else "no column varies."
        raise _refusal(Problem("column", what, "Name a column: column = ..."))
    return _by_lot(usable, seed, "column", kind)[0]


def _as_floats(column: pd.Series) -> pd.Series:
    numbers, _ = as_numbers(column)
    return numbers.astype(np.float64)


def _classes(sites: Mapping[str, pd.DataFrame], target: str) -> list[str]:
    return sorted({canon(v) for frame in sites.values() for v in frame[target].dropna().unique()})


def _by_lot(names: Sequence[str], seed: int, *about: str) -> list[str]:
    places: NDArray[np.int64] = np.random.default_rng(key(seed, "planted shift", *about)).permutation(len(names))
    return [names[i] for i in places]


def _check_given(
    sites: Mapping[str, pd.DataFrame],
    kind: str,
    target: str,
    site: str | None,
    column: str | None,
    size: float | None,
    share: float,
) -> None:
    """Every mistake that can be seen before anything is planted, at once."""
    problems = []
    if kind not in (*SIZES, "paper"):
        what = f"expected {', '.join(SIZES)} or paper, got {kind!r}."
        problems.append(Problem("kind", what, nearest(str(kind), (*SIZES, "paper"))))
    if not sites:
        problems.append(Problem("sites", "there is no table.", "Give one for each site."))
    for name, frame in sites.items():
        if target not in frame:
            what = f"site {name} has no column {target!r}."
            problems.append(Problem("target", what, nearest(str(target), map(str, frame.columns))))
    if site is not None and site not in sites:
        problems.append(Problem("site", f"there is no site {site!r}.", nearest(str(site), map(str, sites))))
    if kind == "flip" and column not in (None, target):
        problems.append(Problem("column", f"a flip is of the outcome {target!r}.", "Leave it out."))
    if isinstance(share, bool) or not isinstance(share, int | float | np.number) or not 0 < share <= 1:
        problems.append(Problem("share", f"expected a number above 0 and up to 1, got {share!r}.", "Correct it."))
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | float) or not np.isfinite(size)):
        problems.append(Problem("size", f"expected a number, got {size!r}.", "Correct it."))
    elif size is not None and kind in SIZES and kind not in SIZED:
        problems.append(Problem("size", f"a {kind} has no size.", "Leave it out."))
    if problems:
        raise _refusal(*problems)


def _refusal(*problems: Problem) -> VitrailError:
    return VitrailError("cannot plant a shift", list(problems))

"""Faults as they happen when a table is exported, typed in or joined, to plant in one column of one site's rows.

These are the kinds that the rule's causes name: its author knew them. Each takes the site's cleaned rows and returns a
copy with the fault, and the columns that are wrong. Kinds that were made up later lie in `fault_kinds_later.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

Frame = pd.DataFrame
Planted = tuple[Frame, list[str]]  # the rows with the fault, the columns that are wrong
UNITS = (10, 0.1, 100, 1000, 0.001, 2.2046, 0.4536, 2.54, 18.02, 1 / 18.02, 88.4, 38.67, 12, 7)  # kg/lb, mmol/mg, ...


class Site(NamedTuple):
    """Where a fault is planted."""

    rows: Frame
    column: str  # may be the target
    table: Any  # the study
    rng: np.random.Generator

    @property
    def value(self) -> pd.Series:
        return self.rows[self.column]

    @property
    def y(self) -> pd.Series:
        return self.rows[self.table.target.column]

    def put(self, values: Any, *also: str) -> Planted:
        values = pd.Series(np.asarray(values), index=self.rows.index)
        whole = self.column == self.table.target.column and self.table.target.kind == "classes"
        rows = self.rows.copy()  # not by `assign`: a column may be called "self"
        rows[self.column] = values.astype(np.int64) if whole else values
        return rows, [self.column, *also]

    def some(self, share: float) -> Any:
        """[row] about this share of the rows, by lot."""
        return self.rng.random(len(self.rows)) < share

    def alike(self) -> list[str]:
        """The other columns of the same kind."""
        kinds = {n: f.kind for n, f in self.table.features.items()}
        return [n for n in kinds if n != self.column and kinds[n] == kinds[self.column]]


class Kind(NamedTuple):
    on: str  # numeric, binary, categorical, "label of classes", "label number"; several by commas
    plant: Callable[[Site], Planted | None]  # None: it cannot be planted here
    causes: tuple[str, ...] = ()  # of vitrail.quality.screening.result.CAUSES, any of which is right
    told: bool = False  # need not be called wrong: to be told is enough


def unit(s: Site) -> Planted:
    return s.put(s.value * s.rng.choice(UNITS))


def offset(s: Site) -> Planted:
    step = s.rng.choice([-2, -1.5, 1.5, 2, 3]) * s.value.std()
    return s.put(s.value + float(f"{step:.2g}"))


def sign(s: Site) -> Planted:
    return s.put(s.value.max() + s.value.min() - s.value)


def constant(s: Site) -> Planted:
    return s.put(s.value.where(s.value.isna(), s.rng.choice([0.0, float(s.value.median())])))


def code(s: Site) -> Planted:
    """Missing values written as a number: outside the range, or a zero."""
    v = s.value
    codes = [c for c in (-1.0, -9.0, 99.0, 999.0, 9999.0, 0.0) if not v.between(c - 1e-9, c + 1e-9).any()]
    return s.put(v.mask(s.some(s.rng.uniform(0.3, 0.6)), s.rng.choice(codes)))


def clip(s: Site) -> Planted:
    q = s.rng.uniform(0.3, 0.5)
    return s.put(
        s.value.clip(upper=s.value.quantile(q)) if s.rng.random() < 0.5 else s.value.clip(s.value.quantile(1 - q))
    )


def coarse(s: Site) -> Planted:
    step = s.value.std() * s.rng.choice([2, 3])
    step = float(f"{step:.1g}")
    return s.put((s.value / step).round() * step)


def swap(s: Site) -> Planted | None:
    others = [c for c in s.alike() if s.rows[c].notna().any()]
    if not others:
        return None
    other = str(s.rng.choice(others))
    rows, wrong = s.put(s.rows[other], other)
    rows[other] = s.value
    return rows, wrong


def recode(s: Site) -> Planted:
    """Each level under the name of another one."""
    levels = np.sort(s.value.dropna().unique())
    to = np.roll(levels, int(s.rng.integers(1, len(levels)))) if len(levels) > 1 else levels
    return s.put(s.value.map(dict(zip(levels, to, strict=True))))


def shuffle(s: Site) -> Planted:
    return s.put(s.rng.permutation(s.value.to_numpy()))


def flip_label(s: Site) -> Planted:
    """Two classes, or all of several, named in the reverse order; a number turned round."""
    if s.table.target.kind == "number":
        return sign(s)
    return s.put(len(s.table.target.levels) - 1 - s.y)


def spoil_label(s: Site) -> Planted:
    """30 to 40 % of the outcomes are another class, or another patient's number."""
    bad = s.some(s.rng.uniform(0.3, 0.4))
    if s.table.target.kind == "number":
        return s.put(np.where(bad, s.rng.permutation(s.y.to_numpy()), s.y))
    k = len(s.table.target.levels)
    return s.put(np.where(bad, (s.y + s.rng.integers(1, k, len(s.y))) % k, s.y))


def not_measured(s: Site) -> Planted:
    return s.put(np.full(len(s.rows), np.nan))


LABELS = "label of classes,label number"
KINDS: dict[str, Kind] = {
    "unit": Kind("numeric", unit, ("unit",)),
    "offset": Kind("numeric", offset, ("offset",)),
    "sign": Kind("numeric,binary", sign, ("sign",)),
    "constant": Kind("numeric", constant, ("constant",)),
    "code": Kind("numeric", code, ("code",)),
    "clip": Kind("numeric", clip, ("clipped",)),
    "round": Kind("numeric", coarse, ("rounded",)),
    "swap": Kind("numeric,binary", swap, ("swapped",)),
    "recode": Kind("categorical", recode, ("recoded",)),
    "shuffle": Kind("numeric,binary,categorical", shuffle, ("shuffled",)),
    "label flip": Kind(LABELS, flip_label, ("label flip",)),
    "label noise": Kind(LABELS, spoil_label, ("label noise",)),
    "not measured": Kind("numeric,binary,categorical", not_measured, ("not here",), told=True),
}

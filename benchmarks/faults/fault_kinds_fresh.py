"""Kinds of faults that neither the rule's first form nor its second had met, made up by its judge.

Their sha256 was committed before the second form was frozen (benchmarks/results/planted_faults/fresh.sha256). None was
taken out after its result was seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from fault_kinds import Kind, Planted, Site


def pick_other(s: Site) -> pd.Series | None:
    """Another column of the same kind with values in most rows, by lot."""
    others = [c for c in s.alike() if s.rows[c].notna().mean() > 0.5 and s.rows[c].nunique() > 1]
    return s.rows[str(s.rng.choice(others))] if others else None


def pick_group(s: Site) -> Any:
    """[row] a tenth to nine tenths of the patients: high in another column, or yes; None where no column parts them."""
    groups = []
    for name in s.table.features:
        v = s.rows[name]
        group = ((v > v.median()) if v.nunique() > 2 else (v == v.max())).to_numpy()
        if name != s.column and 0.1 < group.mean() < 0.9:
            groups.append(group)
    return groups[int(s.rng.integers(len(groups)))] if groups else None


def by_outcome(s: Site) -> pd.Series:
    """What is expected of the column in a row with this outcome."""
    v = s.value
    if s.table.target.kind != "number":
        return v.groupby(s.y).transform("mean")
    known = v.notna()
    slope = np.polyfit(s.y[known], v[known], 1) if known.sum() > 2 and s.y[known].nunique() > 1 else (0.0, v.mean())
    return pd.Series(np.polyval(slope, s.y), index=v.index)


def exchange_digits(s: Site) -> Planted:
    """Typed in a hurry: in half of the rows the first two digits have changed places (37 is 73, 0.14 is 0.41)."""
    v = s.value.to_numpy(float)
    size = np.abs(np.where(np.isnan(v) | (v == 0), 1.0, v))
    unit = 10.0 ** np.floor(np.log10(size) + 1e-12)
    first = np.floor(size / unit + 1e-9)
    second = np.floor((size / unit - first) * 10 + 1e-9)
    turned = np.sign(v) * unit * (size / unit + 0.9 * (second - first))
    return s.put(np.where(s.some(0.5) & (v != 0), np.round(turned, 10), v))


def add_other(s: Site) -> Planted | None:
    """A total in place of a part: another column is added."""
    other = pick_other(s)
    return s.put(s.value + other.fillna(0)) if other is not None else None


def change_since(s: Site) -> Planted:
    """The change since the patient before, not the value."""
    return s.put(s.value.ffill().diff().fillna(0.0).where(s.value.notna()))


def square(s: Site) -> Planted:
    """The area in place of the diameter."""
    return s.put(s.value * s.value.abs())


def invert(s: Site) -> Planted | None:
    """The period in place of the rate: sixty divided by the value."""
    if (s.value.dropna() <= 0).mean() > 0.05:
        return None
    return s.put((60 / s.value.where(s.value > 0)).where(s.value > 0, s.value))


def level_outcomes(s: Site) -> Planted:
    """Corrected for the batch, where each batch held one outcome: all outcomes have the same mean."""
    return s.put(s.value - by_outcome(s) + s.value.mean())


def treat_first(s: Site) -> Planted:
    """Measured after the treatment, which brought those who needed it to the other side of the usual."""
    return s.put(s.value - 2 * (by_outcome(s) - s.value.mean()))


def recalibrate(s: Site) -> Planted:
    """From somewhere on the instrument shows more, or less."""
    late = np.arange(len(s.rows)) > len(s.rows) * s.rng.uniform(0.3, 0.7)
    return s.put(s.value + late * s.rng.choice([-3.0, 3.0]) * s.value.std())


def wrap(s: Site) -> Planted:
    """A counter that begins again: the rest after division by about its middle."""
    low, round_trip = float(s.value.min()), float(s.value.quantile(s.rng.uniform(0.4, 0.6)) - s.value.min())
    return s.put(low + np.mod(s.value - low, round_trip)) if round_trip > 0 else s.put(s.value.clip(upper=low))


def grow_error(s: Site) -> Planted:
    """An error in proportion to the value."""
    return s.put(s.value * np.exp(s.rng.normal(0, 0.8, len(s.rows))))


def worse_of_two(s: Site) -> Planted | None:
    """The more striking of two columns, on the scale of the first."""
    other = pick_other(s)
    if other is None:
        return None
    mean, sd = s.value.mean(), max(1e-9, float(s.value.std()))
    if s.table.features[s.column].kind == "binary":
        return s.put(np.fmax(s.value, other).where(s.value.notna()))
    z = (other - other.mean()) / max(1e-9, float(other.std()))
    return s.put(np.fmax(s.value, mean + sd * z).where(s.value.notna()))


def turn_in_group(s: Site) -> Planted | None:
    """In one group of patients low is written as high, and yes as no."""
    group = pick_group(s)
    return s.put(s.value.mask(group, s.value.max() + s.value.min() - s.value)) if group is not None else None


def ask_one_group(s: Site) -> Planted | None:
    """Only one group of patients was asked; for the others the usual answer was ticked."""
    group = pick_group(s)
    return s.put(s.value.mask(group, s.value.mode().iloc[0]).where(s.value.notna())) if group is not None else None


def read_one_off(s: Site) -> Planted | None:
    """Half of the rows were read in the line below of the list of levels."""
    levels = np.sort(s.value.dropna().unique())
    if len(levels) < 3:
        return None
    after = dict(zip(levels, [*levels[1:], levels[-1]], strict=True))
    return s.put(s.value.mask(s.some(0.5), s.value.map(after)))


def count_suspected(s: Site) -> Planted:
    """Whoever looked like it was counted: half of those without the outcome, by the column that tells most."""
    ties = {n: abs(np.nan_to_num(s.rows[n].corr(s.y))) for n in s.table.features}
    name = max(ties, key=ties.__getitem__)
    v = s.rows[name] * (1 if s.rows[name].corr(s.y) > 0 else -1)
    alike = v.where(s.y == 0).rank(pct=True, method="first") > 0.5
    return s.put(s.y.mask(alike.to_numpy(), 1))


def ward_outcome(s: Site) -> Planted:
    """The ward's outcome in place of the patient's: the most frequent, or the mean, of seven rows around."""
    if s.table.target.kind == "number":
        return s.put(s.y.rolling(7, center=True, min_periods=1).mean())
    classes = range(len(s.table.target.levels))
    votes = pd.DataFrame({k: (s.y == k).rolling(7, center=True, min_periods=1).mean() for k in classes})
    return s.put(votes.to_numpy().argmax(1))


def merge_classes(s: Site) -> Planted | None:
    """Two of several classes are written as one."""
    found = np.sort(s.y.unique())
    if len(found) < 3:
        return None
    a, b = s.rng.choice(found, 2, replace=False)
    return s.put(s.y.mask(s.y == a, b))


def adjust_outcome(s: Site) -> Planted:
    """The outcome less what was expected from the column that tells most."""
    ties = {n: abs(np.nan_to_num(s.rows[n].corr(s.y))) for n in s.table.features}
    v = s.rows[max(ties, key=ties.__getitem__)]
    v = v.fillna(v.mean())
    return s.put(s.y - np.polyval(np.polyfit(v, s.y, 1), v) + s.y.mean())


def rank_outcome(s: Site) -> Planted:
    """The percentile among the site's patients in place of the outcome, on its scale."""
    return s.put(s.y.min() + (s.y.max() - s.y.min()) * s.y.rank(pct=True))


NUMBER, CLASSES = "label number", "label of classes"
FRESH_KINDS: dict[str, Kind] = {
    "digits exchanged": Kind("numeric", exchange_digits),
    "total for a part": Kind("numeric", add_other),
    "change since the row before": Kind("numeric", change_since),
    "area for diameter": Kind("numeric", square),
    "period for rate": Kind("numeric", invert),
    "levelled over outcomes": Kind("numeric", level_outcomes),
    "measured after treatment": Kind("numeric", treat_first),
    "recalibrated halfway": Kind("numeric", recalibrate),
    "counter begins again": Kind("numeric", wrap),
    "error grows with the value": Kind("numeric", grow_error),
    "worse of two": Kind("numeric,binary", worse_of_two),
    "turned round in a group": Kind("numeric,binary", turn_in_group),
    "one group asked": Kind("binary,categorical", ask_one_group),
    "read one level off": Kind("categorical", read_one_off),
    "suspected counted": Kind("label of two classes", count_suspected),
    "ward's outcome": Kind(f"{CLASSES},{NUMBER}", ward_outcome),
    "two classes as one": Kind(CLASSES, merge_classes),
    "outcome adjusted": Kind(NUMBER, adjust_outcome),
    "outcome's rank": Kind(NUMBER, rank_outcome),
}

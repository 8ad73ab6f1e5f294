"""Values that look like another unit, or like a decimal point that slipped."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.schema import Feature

FEW_ROWS = 20
SLIPPED = 0.2  # of all values are out of range: no outliers, but the column
EMPTY = 12.0  # so many values would be expected in a gap: that none lies there has a chance of exp(-12)
FILLED = 0.25  # of the agreed range is filled by a column whose decimal point is put right


class Conversion(NamedTuple):
    """A value in `other` times `factor` plus `offset` is the value in `unit`."""

    words: tuple[str, ...]  # what the feature is called; empty: the units alone decide
    unit: str
    other: str
    factor: float
    offset: float = 0.0

    def convert(self, values: Any) -> Any:
        return values * self.factor + self.offset

    def turn(self) -> Conversion:
        return Conversion(self.words, self.other, self.unit, 1 / self.factor, -self.offset / self.factor)

    def formula(self) -> str:
        if not self.other:
            return f"multiply by {self.factor:g}" if self.factor > 1 else f"divide by {1 / self.factor:g}"
        plus = f" {'+' if self.offset > 0 else '-'} {abs(self.offset):.4g}" if self.offset else ""
        return f"{self.unit} = {self.other} x {self.factor:.4g}{plus}"


_HAEMOGLOBIN = ("haemoglobin", "hemoglobin", "hgb", "hb")
_ONE_WAY = (
    Conversion(("cholesterol", "chol", "ldl", "hdl"), "mg/dL", "mmol/L", 38.67),
    Conversion(("glucose", "glyc", "sugar", "fbs"), "mg/dL", "mmol/L", 18.02),
    Conversion(("triglyceride", "trig"), "mg/dL", "mmol/L", 88.57),
    Conversion(("calcium",), "mg/dL", "mmol/L", 4.008),
    Conversion(("bun", "nitrogen"), "mg/dL", "mmol/L", 2.801),
    Conversion(("urea",), "mg/dL", "mmol/L", 6.006),
    Conversion(("creatinine", "creat"), "mg/dL", "umol/L", 1 / 88.4),
    Conversion(("bilirubin", "bili"), "mg/dL", "umol/L", 1 / 17.1),
    Conversion(_HAEMOGLOBIN, "g/dL", "g/L", 0.1),
    Conversion(_HAEMOGLOBIN, "g/dL", "mmol/L", 1.6114),
    Conversion(_HAEMOGLOBIN, "g/L", "mmol/L", 16.114),
    Conversion(("hba1c", "a1c", "glycated", "glycosylated"), "%", "mmol/mol", 0.09148, 2.152),
    Conversion((), "C", "F", 5 / 9, -160 / 9),
    Conversion((), "kg", "lb", 0.45359237),
    Conversion((), "kg", "g", 0.001),
    Conversion((), "g", "lb", 453.59237),
    Conversion((), "g", "oz", 28.349523),
    Conversion((), "cm", "in", 2.54),
    Conversion((), "cm", "m", 100.0),
    Conversion((), "cm", "mm", 0.1),
    Conversion((), "years", "months", 1 / 12),
    Conversion((), "years", "weeks", 7 / 365.25),
    Conversion((), "years", "days", 1 / 365.25),
    Conversion((), "months", "weeks", 7 * 12 / 365.25),
    Conversion((), "months", "days", 12 / 365.25),
    Conversion((), "weeks", "days", 1 / 7),
    Conversion((), "days", "hours", 1 / 24),
    Conversion((), "hours", "minutes", 1 / 60),
    Conversion((), "minutes", "seconds", 1 / 60),
    Conversion((), "mmHg", "kPa", 7.50062),
)
CONVERSIONS = _ONE_WAY + tuple(c.turn() for c in _ONE_WAY)
SLIPS = tuple(Conversion((), "", "", f) for f in (10.0, 100.0, 1000.0, 0.1, 0.01, 0.001))  # of the decimal point
SPELLINGS = (  # how else a unit is written, folded
    "c celsius degc|f fahrenheit degf|kg kgs kilogram kilograms|lb lbs pound pounds|in inch inches|"
    "g gram grams gr|oz ounce ounces|mm millimetre millimetres millimeter millimeters|"
    "cm centimetre centimetres centimeter centimeters|m metre metres meter meters|years year yr yrs y|"
    "months month mo|weeks week wk wks|days day d|hours hour hr hrs h|minutes minute min mins|"
    "seconds second sec secs s|% percent"
)
PLAIN = 5.0  # factors of single substances that are smaller than this say nothing of a column of something else


def is_outside(values: pd.Series, feature: Feature) -> pd.Series:
    low, high = feature.range or (-np.inf, np.inf)
    numbers = values.to_numpy()  # there may be many thousands of columns, and each step on a series is slow
    return pd.Series((numbers < low) | (numbers > high), index=values.index)


def spot_unit(values: pd.Series, name: str, feature: Feature) -> tuple[Conversion, pd.Series] | None:
    """The conversion that explains most of the values outside the range, and the rows it explains.

    Where none is, or no range is agreed, those apart from all others are looked at: drafted ranges hold every value.
    """
    present, outside = values.notna(), is_outside(values, feature)
    agreed = bool(outside.any())
    outside = outside if agreed else separate_cluster(values)
    rest = values[present & ~outside]
    low, high = feature.range if agreed and feature.range else (rest.min(), rest.max())
    most = outside.sum() > present.sum() / 2
    home = (low + high) / 2 if most else rest.median()
    ranked = []
    for conversion in (*choose_conversions(name, feature), *SLIPS) if outside.any() else ():
        converted = conversion.convert(values)
        fits = (converted >= low) & (converted <= high)
        whole = most and fits.sum() >= 0.95 * present.sum()  # then those inside by chance are meant as well
        which = fits if whole else fits & outside
        before, after = abs(values[which].median() - home), abs(converted[which].median() - home)
        explained = int((fits & outside).sum())
        guess = not conversion.other or not agreed  # neither unit nor range tell: it must come right home
        if guess and (most or after > 0.5 * (rest.quantile(0.9) - rest.quantile(0.1))):
            continue
        if guess and not _is_cluster(values[which], rest):  # else a few outliers, or the tail of real values
            continue
        # values just past the end of the range are outliers: another unit must bring them closer to the rest
        if explained >= min(3, present.sum()) and explained > outside.sum() / 2 and after < before:
            ranked.append((bool(conversion.other), explained, -after, conversion, which))
    return max(ranked, key=lambda r: r[:3])[3:] if ranked else _spot_slip(values, feature)


def _spot_slip(values: pd.Series, feature: Feature) -> tuple[Conversion, pd.Series] | None:
    """A decimal point that slipped in the whole column: the smallest move that brings all of it into the agreed range.
    Where a larger one does so as well, as with ranges from 0 on, it must then fill a good part of the range."""
    present = values.notna()
    if not feature.range or is_outside(values, feature).sum() < max(3, SLIPPED * present.sum()):
        return None
    moved = {slip: slip.convert(values[present]) for slip in sorted(SLIPS, key=lambda c: abs(np.log(c.factor)))}
    fits = {slip: to for slip, to in moved.items() if is_outside(to, feature).mean() <= 0.02}
    for slip, to in fits.items():
        wide = np.ptp(to.quantile([0.02, 0.98])) > FILLED * np.ptp(feature.range)
        return (slip, present) if wide or len(fits) == 1 else None
    return None


def _is_cluster(some: pd.Series, rest: pd.Series) -> bool:
    """Whether these values are a heap of their own and not the thin end of the others. If they were its end, values
    would lie in the gap between the two as well, about as densely as among these; that there is none must be so
    unlikely that it cannot be chance. Newborns of 246 to 435 g are the end of all newborns, and not ten times too
    light."""
    one, two = (np.sort(part.dropna().abs().to_numpy()) for part in (some, rest))
    if not len(one) or not len(two):
        return False
    low, high = (one, two) if one[0] < two[0] else (two, one)
    if not high[0] > 1.5 * low[-1] or low[-1] <= 0:
        return False
    gap, width = np.log(high[0] / low[-1]), np.log(one[-1] / max(one[0], 1e-300))
    below, middle, above = np.log(np.maximum(np.quantile(two, [0.01, 0.5, 0.99]), 1e-300))
    own, other = (middle - below, above - middle) if low is one else (above - middle, middle - below)
    needed = EMPTY * max(1.0, own / max(other, 1e-9))  # a tail that is long anyway may have gaps
    return bool(len(one) * gap > needed * max(width, gap / len(one)))


def separate_cluster(values: pd.Series) -> pd.Series:
    """The smaller of two groups with a wide gap between them; nobody where there is no such gap."""
    present, none = np.sort(values.dropna().to_numpy()), pd.Series(False, index=values.index)
    if len(present) < FEW_ROWS or present[0] <= 0:
        return none
    at = int(np.diff(np.log(present)).argmax())
    small, high = min(present[: at + 1], present[at + 1 :], key=len), at + 1 > len(present) / 2
    if present[at + 1] < 1.5 * present[at] or len(small) < 0.02 * len(present) or len(np.unique(small)) < 5:
        return none
    return pd.Series(values > present[at] if high else values <= present[at])


def choose_conversions(name: str, feature: Feature) -> list[Conversion]:
    """Those for the unit; where several substances share it, those for the one that is named, else all."""
    about = f"{name} {feature.description}".casefold()
    words = set(re.findall(r"[^\W_]+", about))
    fitting = [c for c in CONVERSIONS if not feature.unit or _fold_unit(c.unit) == _fold_unit(feature.unit)]
    named = [c for c in fitting if any(w in words or (len(w) > 3 and w in about) for w in c.words)]
    if not feature.unit:
        return named
    anything = [c for c in fitting if c.unit != "%" or not c.words]  # a percentage can be of anything
    return named or anything


def known_pairs(name: str, feature: Feature | None) -> tuple[list[Conversion], list[Conversion]]:
    """The pairs of units that a whole column may have been mixed up in: those of its own unit or substance; and, where
    the study says neither, all others by one factor. A decimal point may slip in any column (SLIPS)."""
    own = choose_conversions(name, feature) if feature else []
    if own or (feature and feature.unit):
        return own, []
    return [], [c for c in CONVERSIONS if not c.offset and (not c.words or abs(np.log(c.factor)) > np.log(PLAIN))]


def _fold_unit(unit: str) -> str:
    folded = re.sub(r"[\s°º.()]", "", unit.casefold().replace("µ", "u").replace("μ", "u"))
    return next((s.split()[0] for s in SPELLINGS.split("|") if folded in s.split()), folded)

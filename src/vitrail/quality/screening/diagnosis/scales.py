"""A number on another scale: in another unit, with a slipped decimal point, or with another zero point.

A factor is told as another unit only where a known pair of units, or a decimal point, has it: as near to it as the
column's own numbers, and the differences between the other sites, can tell. Where several have, all are named and none
is proposed as a repair. A factor that no pair has is told as what it is.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from vitrail.data.schema import Feature
from vitrail.data.units import SLIPS, Conversion, known_pairs
from vitrail.quality.screening.diagnosis.cell import Diagnosis, tell
from vitrail.quality.screening.diagnosis.differences import compared
from vitrail.quality.screening.schema import Flags, Numbers
from vitrail.quality.screening.text import short

CLOSE = 0.35  # widths that quantiles may be off, on average, for two distributions to be taken as one
OFF = 0.5  # widths from which on a column is looked at
EXACT = 0.03  # of the logarithm of a factor: nearer than this no two sites are
SURE = 2.5  # errors of sampling within which a conversion must be
FAR = float(
    np.log(2.5)
)  # a column in another unit of its own kind may differ by so much besides, if its factor is large
CLEARER = 4.0  # times as near to the factor: the other conversion is not meant
SMALL, FINE = 5.0, 20  # a factor below is told of a column of any kind only where it has so many values
NO_PAIR = "no known pair of units has this factor, and no decimal point explains it"


class NumberView(Protocol):
    """What is known of a number at a site and of the others: as published (Cell), or its own rows (PooledNumber)."""

    name: str
    feature: Feature | None
    q: Numbers  # [quantile], NaN where not published
    usual: Numbers  # the others'
    wide: float  # between their quartiles
    both: Flags
    share: float  # of the rows that hold the value that stands out
    between: float  # how much the other sites' medians differ, as a logarithm; NaN where that is not known
    apart: float  # how far another site's median lies from the usual one at most, in widths
    distinct: float  # different values; NaN where that is not known

    @property
    def known(self) -> float:
        """Rows that have a value."""
        ...

    def off(self, q: Numbers) -> float:
        """How far quantiles are from the others', on average, in widths."""
        ...


class Scale(NamedTuple):
    """How one factor, or one constant, brings the quantiles to the others'."""

    before: float  # widths off as they are
    factor: float  # about how many times as large as elsewhere
    scaled: float  # widths off once divided by it
    offset: float
    moved: float  # widths off once it is taken off
    spread: float  # how wide all quantiles lie, as a multiple of the others'


def scale_of(cell: NumberView) -> Scale | None:
    if not cell.both.any() or not np.isfinite(cell.wide):
        return None
    q, usual = cell.q, cell.usual
    if len(np.unique(usual[cell.both])) < min(4, cell.both.sum()):  # most rows hold one value: it tells of no scale
        return None
    offset = float(np.median((q - usual)[cell.both]))
    large = cell.both & (np.abs(usual) > 1e-9 * cell.wide)
    factor = float(np.median((q / np.where(large, usual, 1.0))[large])) if large.any() else 1.0
    scaled = cell.off(q / factor) if factor > 0 else float("inf")
    spread = float((q[cell.both].max() - q[cell.both].min()) / max(1e-12, np.ptp(usual[cell.both])))
    return Scale(cell.off(q), factor, scaled, offset, cell.off(q - offset), spread)


def has_true_zero(quantiles: Numbers) -> bool:
    """Whether all values lie on one side of zero, so that a factor between two sites says something: columns that are
    centred have medians near zero, of which one may well be many times the other."""
    finite = quantiles[np.isfinite(quantiles)]
    return bool(len(finite) and (finite.min() > 0 or finite.max() < 0))


def tolerance(cell: NumberView, between: float = 1.5) -> float:
    """How far the logarithm of a site's factor may be from that of the conversion that made it."""
    middle = abs(float(cell.usual[cell.both][cell.both.sum() // 2]))
    sampling = cell.wide / max(middle, 1e-12) / np.sqrt(max(cell.known, 1.0))
    unlike = cell.between if np.isfinite(cell.between) else 0.1
    return float(max(EXACT, min(SURE * sampling + between * unlike, 1.0)))


def conversions_of(cell: NumberView, scale: Scale) -> list[Conversion]:
    """Those that may have made the factor; of its own kind first, and one only where no other is as likely."""
    own, generic = known_pairs(cell.name, cell.feature)
    close = min(1.3 * CLOSE, 0.4 * scale.before)
    turned = [c for c in own if c.offset and cell.off(c.convert(cell.q)) < close]
    if turned:
        return [min(turned, key=lambda c: cell.off(c.convert(cell.q)))]
    if not scale.factor > 0 or not scale.scaled < close:
        return []
    log, near = float(np.log(scale.factor)), tolerance(cell)
    finely = not cell.distinct < FINE
    small = np.log(SMALL)
    fitting = [c for c in generic if abs(np.log(c.factor)) > small or (finely and near < 3 * EXACT)]

    def within(some: tuple[Conversion, ...] | list[Conversion], far: float) -> list[Conversion]:
        return [c for c in some if not c.offset and abs(log + np.log(c.factor)) <= far]

    fits = within(own, near)
    slips = [s for s in within(SLIPS, near) if not any(np.isclose(s.factor, c.factor) for c in fits)]
    fits += slips + [c for c in within(fitting, near) if not any(np.isclose(s.factor, c.factor) for s in slips)]
    fits = fits or within(own, min(FAR, abs(log) / 3))
    best = min((abs(log + np.log(c.factor)) for c in fits), default=0.0)
    return _different([c for c in fits if abs(log + np.log(c.factor)) <= max(near, CLEARER * best)])


def _different(conversions: list[Conversion]) -> list[Conversion]:
    """One of each factor."""
    out: list[Conversion] = []
    for c in conversions:
        if not any(np.isclose(c.factor, d.factor) and np.isclose(c.offset, d.offset) for d in out):
            out.append(c)
    return out


def moved(cell: NumberView, lam: float, error: float) -> Diagnosis | None:
    """In another unit, or offset: one factor, or one constant, brings the quantiles to the others'."""
    scale = scale_of(cell) if not cell.share > 0.5 else None
    if scale is None or scale.before < OFF:
        return None
    medians = compared("median", "value", cell.q[9], cell.usual[9])
    rather = scale.scaled < 1.3 * scale.moved or not 0.7 < scale.spread < 1.4  # a factor, and not a constant
    wide = scale.factor > 1.5 or 0 < scale.factor < 0.67
    some = conversions_of(cell, scale)
    if some and (some[0].offset or (wide and rather)):
        return _tell_unit(cell, scale, some, medians)
    close = min(CLOSE, 0.4 * scale.before)
    if scale.moved < close and not (wide and scale.scaled < 0.9 * scale.moved) and (lam > 0.2 or error > 0.4):
        text = (
            f"Its values are about {short(abs(scale.offset))} {'higher' if scale.offset > 0 else 'lower'}"
            f" than at the other sites, all of"
            " them alike: ask for the zero point."
        )
        return tell("offset", text, offset=-scale.offset, **medians)
    if wide and scale.scaled < close and rather:
        text = f"{_times(scale.factor)}{_medians(cell)}; {NO_PAIR}: ask how it is measured."
        return tell("other", text, ratio=scale.factor, **medians)
    return None


def _tell_unit(cell: NumberView, scale: Scale, some: list[Conversion], medians: dict[str, float | str]) -> Diagnosis:
    c, own = some[0], known_pairs(cell.name, cell.feature)[0]
    exact = abs(float(np.log(max(scale.factor * c.factor, 1e-300)))) <= tolerance(cell, 0.0)
    if len(some) > 1 or not (c in own or exact):  # of a column of no known unit, as near as its own numbers can tell
        words = "; or ".join(_as_if(c, own) for c in some[:4])
        text = f"{_times(scale.factor)}{_medians(cell)}, which is about as if {words}: ask for the unit."
        return tell("unit", text, ratio=scale.factor, **medians)
    unit = f"as if {_as_if(c, own)}"
    here, there = short(cell.q[9]), short(cell.usual[9])
    text = f"Its median is {here} here and {there} at the other sites, {unit}: ask for the unit."
    return tell("unit", text, factor=c.factor, offset=c.offset, unit=c.other, conversion=c.formula(), **medians)


def _as_if(c: Conversion, own: list[Conversion]) -> str:
    if c in own:
        return f"in {c.other} instead of {c.unit} ({c.formula()})"
    if not c.other:
        return f"the decimal point had slipped ({c.formula()})"
    way = f"{short(1 / c.factor)} times as large" if c.factor < 1 else f"{short(c.factor)} times as small"
    return f"{way}, as {c.other} are to {c.unit}"


def _times(factor: float) -> str:
    larger = f"Its values are about {short(factor)} times as large as at the other sites"
    return larger if factor > 1 else f"The values at the other sites are about {short(1 / factor)} times as large"


def _medians(cell: NumberView) -> str:
    if not (np.isfinite(cell.q[9]) and np.isfinite(cell.usual[9])):
        return ""
    return f" (median {short(cell.q[9])} here, {short(cell.usual[9])} there)"

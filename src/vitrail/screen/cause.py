"""What may have happened to a cell, from what was published of it, and how that is said."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vitrail.data.faults import CODES
from vitrail.data.units import SLIPS, Conversion, choose_conversions
from vitrail.screen.chance import median_known
from vitrail.screen.layout import Numbers
from vitrail.screen.levels import recode
from vitrail.screen.published import BELOW, BEYOND, KEPT, LOCATION, OUTCOME, PREDICTED, RELATED_TO, SIZE, VALUE
from vitrail.screen.shape import agreement
from vitrail.screen.weigh import Weighed

FLIPPED, FADED = -0.25, 0.75  # of how a column or the outcome follows the others: 1 as theirs, 0 not at all
CLOSE = 0.35  # widths that quantiles may be off, on average, for two distributions to be taken as one
SPIKE = 0.08  # of the rows hold one value that the others do not


class Told(NamedTuple):
    kind: str
    wrong: bool
    text: str
    numbers: dict[str, Any]


class Cell:
    """What was published of one column at one site, beside the others'."""

    def __init__(self, weighed: Weighed, site: int, column: int) -> None:
        self.weighed, self.site, self.column = weighed, site, column
        p = self.p = weighed.published
        self.name, self.kind = p.layout.columns[column], p.layout.kinds[column]
        fair = ~weighed.accused[:, column] & (np.nan_to_num(p.known[:, column]) > 0)
        fair[site] = False
        self.others = np.flatnonzero(fair)
        self.known = float(np.nan_to_num(p.known[site, column]))
        self.own = np.flatnonzero(self._own())
        beyond, family = weighed.beyond[site, self.own], weighed.family[self.own]
        self.loud = {f: float(beyond[family == f].max(initial=0.0)) for f in weighed.families}
        self.counted = float(beyond[weighed.marginal[self.own]].max(initial=0.0))
        # whether ties with the outcome tell of this column: not where the outcome itself is in doubt
        self.predictable = bool((weighed.reach[site][weighed.predicted] < 2.5).all())
        if self.kind == "numeric":
            self._read_number()

    def _own(self) -> Numbers:
        """[test]: its own, but for ties with columns of this site that are accused."""
        w, bad = self.weighed, [c for c in np.flatnonzero(self.weighed.accused[self.site]) if c != self.column]
        own = (w.first == self.column) | (w.second == self.column)
        return own & ~np.isin(w.first, bad) & ~np.isin(w.second, bad)

    def _read_number(self) -> None:
        p, i = self.p, int(np.searchsorted(self.p.layout.column[self.p.layout.numbers], self.column))
        self.q = p.quantiles[self.site, i]
        self.usual = median_known(p.quantiles[self.others, i])
        self.wide = float(median_known(p.widths[self.others, i]))
        grain = median_known(p.grain[self.others, i])
        self.both = np.isfinite(self.q) & np.isfinite(self.usual)
        self.wide = self.wide if self.wide > 0 else float("nan")
        values, same = p.values[i], p.same[:, i]
        here = same[self.site] / max(self.known, 1)
        there = np.nansum(same[self.others], 0) / max(1.0, np.nansum(p.known[self.others, self.column]))
        gap = np.nan_to_num(here - there, nan=-1.0)
        j = int(gap.argmax())
        self.value, self.share, self.share_elsewhere = float(values[j]), float(here[j]), float(there[j])
        self.gap = float(gap[j])
        held = p.held[self.site, i]
        full = held[0, 1] == self.known if self.known else False
        self.constant = float(held[0, 0]) if full else None
        self.least, self.greatest = held[1], held[2]
        self.grain, self.usual_grain = p.grain[self.site, i], grain
        self.number = i

    def off(self, q: Numbers, usual: Numbers | None = None) -> float:
        """How far quantiles are from the others', on average, in widths."""
        usual = self.usual if usual is None else usual
        return float(np.abs(q - usual)[self.both].mean() / self.wide) if self.both.any() else float("nan")

    def follows(self) -> tuple[float, float]:
        """How the ties of this column follow the others', and how surely: 1 as theirs, 0 none, -1 reversed."""
        w = self.weighed
        families = (PREDICTED,) if self.column == w.outcome else (OUTCOME, RELATED_TO)
        mine = self.own[np.isin(w.family[self.own], families) & (w.rows[self.site, self.own] > 0)]
        a, b, n = (x[self.site][mine] for x in (w.mine, w.theirs, w.rows))
        total = float((n * b * b).sum())
        return (float((n * a * b).sum() / total), float(1 / np.sqrt(total))) if total > 1 else (1.0, 9.0)


def explain(cell: Cell) -> Told:
    """The first cause that explains what is off; whether a cell is wrong at all is for the caller to say."""
    if cell.column == cell.weighed.outcome:
        return _explain_outcome(cell)
    if cell.kind == "numeric":
        return _explain_number(cell)
    return _explain_levels(cell)


def _told(kind: str, text: str, **numbers: Any) -> Told:
    return Told(kind, kind not in ("differs", "only here", "not here"), text, numbers)


def say_absent(kind: str, measured: float) -> Told:
    """`measured`: the share of rows with a value."""
    if kind == "only here":
        text = f"Only this site measures it ({measured:.0%} of its rows have a value): nobody can say whether it fits."
        return _told(kind, text, known=float(measured))
    text = f"It is not measured here ({measured:.0%} of the rows have a value): ask whether it can be added."
    return _told(kind, text, known=float(measured))


def differs(weighed: Weighed, site: int, column: int, usual: Numbers) -> Told:
    """What is said where nothing is held to be wrong. `usual`: [number] the sites' median."""
    p, at = weighed.published, weighed.published.layout
    seen = "its values are spread otherwise than at the other sites, or go otherwise with other columns"
    if at.kinds[column] == "numeric":
        i = int(np.searchsorted(at.column[at.numbers], column))
        here = p.quantiles[site, i, 9]
        if np.isfinite(here) and np.isfinite(usual[i]):
            seen = f"its median is {_n(here)} here and {_n(usual[i])} over the sites"
    what = "The outcome" if column == weighed.outcome else at.columns[column]
    return _told("differs", f"{what} differs: {seen}; sites differ as much in other columns, so it may be real.")


def _n(x: float) -> str:
    return f"{x:.4g}"


def _explain_outcome(cell: Cell) -> Told:
    lam, error = cell.follows()
    p, alike = cell.p, agreement(cell.p)
    voices = alike[cell.site, cell.others]
    if not (lam < FLIPPED and error < 0.5) and len(voices) and np.nanmax(voices, initial=-1.0) < FLIPPED:
        lam, error = float(np.nanmean(voices)), 0.0  # whatever the largest site says
    if lam < FLIPPED and error < 0.5:
        text = (
            f"What predicts the outcome at the other sites predicts its opposite here ({lam:.2f} of their strength): ask"
            " whether it is coded the other way round."
        )
        return _told("label flip", text, strength=lam)
    if cell.loud[PREDICTED] >= cell.counted or cell.loud[PREDICTED] > 2.5:
        share = float(np.clip((1 - lam) / 2, 0.0, 0.5))
        if lam < FADED:
            text = (
                f"The other sites' rows predict the outcomes here with {max(lam, 0):.2f} of their usual strength, as if about"
                f" {share:.0%} of them were wrong: ask how the outcome was established."
            )
            return _told("label noise", text, share=share)
    text = "The outcomes here are spread otherwise than at the other sites."
    if p.layout.table.target.kind == "classes":
        which = p.layout.outcome
        here = p.shares[cell.site, which]
        weight = np.nan_to_num(p.known[cell.others, -1])[:, None]
        there = (weight * np.nan_to_num(p.shares[cell.others][:, which])).sum(0) / max(1.0, float(weight.sum()))
        j = int(np.nan_to_num(np.abs(here - there)).argmax())
        level = p.layout.levels[-1][int(p.layout.level[which[j]])]
        text = f"{here[j]:.0%} of the outcomes here are {level}, {there[j]:.0%} at the other sites: ask who is in the table."
    return _told("other", text)


def _explain_levels(cell: Cell) -> Told:
    p, at = cell.p, cell.p.layout
    which = np.flatnonzero(at.column == cell.column)
    here = p.shares[cell.site, which]
    weight = np.nan_to_num(p.known[cell.others, cell.column])[:, None]
    there = (weight * np.nan_to_num(p.shares[cell.others][:, which])).sum(0) / max(1.0, float(weight.sum()))
    levels = at.levels[cell.column]
    lam, error = cell.follows()
    if np.nanmax(here, initial=0) == 1 or (cell.kind == "binary" and np.nanmin(here, initial=1) == 0):
        level = levels[int(at.level[which[int(np.nan_to_num(here).argmax())]])] if np.nanmax(here) == 1 else levels[0]
        text = f"Every row has {level}; at the other sites they vary: ask whether it was filled in at all."
        return _told("constant", text, value=level)
    if cell.kind == "binary":
        a, b = float(here[0]), float(there[0])
        reverse = abs(a - (1 - b)) < 0.5 * abs(a - b)
        if (lam < FLIPPED and error < 0.5) or (reverse and (lam < 0.3 or error > 0.5)):
            text = (
                f"{a:.0%} have {levels[1]} here and {b:.0%} at the other sites, and it goes the other way round with other"
                f" columns: ask whether {levels[0]} and {levels[1]} are swapped."
            )
            return _told("sign", text, levels={levels[0]: levels[1], levels[1]: levels[0]})
        if abs(lam) < 0.5 and error < 0.25 and abs(a - b) < 0.1:
            return _shuffled(lam)
        text = f"{a:.0%} have {levels[1]} here and {b:.0%} at the other sites: ask what is counted as {levels[1]}."
        return _told("other", text, share=a, elsewhere=b)
    mapping = recode(p, cell.site, cell.column, cell.others)
    if mapping:
        words = ", ".join(f"{levels[k]} for {levels[v]}" for k, v in mapping.items())
        text = (
            f"Shares and relations of its categories fit if they are read as others ({words}): ask for the code list."
        )
        return _told("recoded", text, levels={levels[k]: levels[v] for k, v in mapping.items()})
    if lam < 0.5 and error < 0.25:
        return _shuffled(lam)
    j = int(np.nan_to_num(np.abs(here - there)).argmax())
    text = (
        f"{here[j]:.0%} have {levels[j]} here and {there[j]:.0%} at the other sites: ask whether its categories mean the"
        " same."
    )
    return _told("other", text, level=levels[j], share=float(here[j]), elsewhere=float(there[j]))


def _shuffled(lam: float) -> Told:
    text = (
        f"It goes with other columns with {lam:.2f} of the strength that it has at the other sites, though its values look"
        " alike: ask whether the rows of this column were put in another order, or linked to other persons."
    )
    return _told("shuffled", text, strength=lam)


def _explain_number(cell: Cell) -> Told:
    if cell.constant is not None:
        known = cell.usual[np.isfinite(cell.usual)]
        if (
            cell.constant in CODES
            and len(known)
            and not known.min() - cell.wide <= cell.constant <= known.max() + cell.wide
        ):
            text = f"Every row has {_n(cell.constant)}, which no other site has: ask whether it stands for values not measured."
            return _told("code", text, code=cell.constant, share=1.0)
        text = f"Every row has {_n(cell.constant)}; at the other sites they vary: ask whether it was measured at all."
        return _told("constant", text, value=cell.constant)
    lam, error = cell.follows()
    related = max(cell.loud[OUTCOME], cell.loud[RELATED_TO], cell.loud[KEPT])
    counted = max(cell.loud[f] for f in (BELOW, BEYOND, VALUE, LOCATION, SIZE)) > 3
    other = _swapped_with(cell)
    if other:
        text = f"Its values look like those of {other} at the other sites, and the other way round: ask for the order of columns."
        return _told("swapped", text, other=other)
    if lam < FLIPPED and error < 0.45 and related > 2.5:
        text = (
            f"It goes the other way round with other columns ({lam:.2f} of the strength elsewhere): ask whether low and high"
            " are swapped, or the sign is lost."
        )
        return _told("sign", text, strength=lam)
    for cause in (_moved, _spiked) if counted else (_spiked,):
        told = cause(cell, lam, error)
        if told:
            return told
    told = _rounded(cell)
    if told:
        return told
    part = _moved_in_part(cell)
    if part:
        return part
    if lam < 0.5 and error < 0.3 and related > 2.5:
        return _shuffled(lam)
    if np.isfinite(cell.q[9]) and np.isfinite(cell.usual[9]):
        text = (
            f"Its median is {_n(cell.q[9])} here and {_n(cell.usual[9])} at the other sites: ask how and on whom it is"
            " measured."
        )
        return _told("other", text, median=float(cell.q[9]), elsewhere=float(cell.usual[9]))
    return _told("other", "Its values are spread otherwise than at the other sites: ask how it is measured.")


def _moved(cell: Cell, lam: float, error: float) -> Told | None:
    """In another unit, or offset: one factor, or one constant, brings the quantiles to the others'."""
    if not cell.both.any() or not np.isfinite(cell.wide) or cell.share > 0.5:
        return None
    q, usual = cell.q, cell.usual
    before = cell.off(q)
    if before < 0.5:
        return None
    table = cell.p.layout.table
    feature = table.features[cell.name]
    best: tuple[float, Conversion] | None = None
    for conversion in (*choose_conversions(cell.name, feature), *SLIPS):
        rest = cell.off(conversion.convert(q))
        if rest < (best[0] if best else min(CLOSE * 1.3, 0.4 * before)):
            best = (rest, conversion)
    offset = float(np.median((q - usual)[cell.both]))
    moved = cell.off(q - offset)
    large = np.abs(usual) > 1e-9 * cell.wide
    use = cell.both & large
    factor = float(np.median((q / np.where(large, usual, 1.0))[use])) if use.any() else 1.0
    scaled = cell.off(q / factor) if factor > 0 else float("inf")
    spread = float((q[cell.both].max() - q[cell.both].min()) / max(1e-12, np.ptp(usual[cell.both])))
    if best and (best[0] < 1.3 * moved or not 0.7 < spread < 1.4):
        c = best[1]
        unit = (
            f"as if in {c.other} instead of {c.unit} ({c.formula()})"
            if c.other
            else f"as if the point had slipped ({c.formula()})"
        )
        text = f"Its median is {_n(q[9])} here and {_n(usual[9])} at the other sites, {unit}: ask for the unit."
        return _told("unit", text, factor=c.factor, offset=c.offset, unit=c.other, conversion=c.formula())
    wide = factor > 1.5 or 0 < factor < 0.67
    if wide and scaled < min(CLOSE, 0.4 * before) and scaled < 0.9 * moved:
        text = (
            f"Its values are about {_n(factor)} times as large as at the other sites, as if in another unit: ask for the"
            " unit."
        )
        return _told("unit", text, factor=1 / factor, offset=0.0, unit="", conversion="")
    if moved < min(CLOSE, 0.4 * before) and (lam > 0.2 or error > 0.4):
        text = (
            f"Its values are about {_n(abs(offset))} {'higher' if offset > 0 else 'lower'} than at the other sites, all of"
            " them alike: ask for the zero point."
        )
        return _told("offset", text, offset=-offset)
    return None


def _spiked(cell: Cell, lam: float, error: float) -> Told | None:
    """One value where many rows hold it here and few elsewhere."""
    known = cell.usual[np.isfinite(cell.usual)]
    apart = len(known) and not known.min() - 0.25 * cell.wide <= cell.value <= known.max() + 0.25 * cell.wide
    if cell.gap < (SPIKE / 2 if apart else SPIKE) or (cell.loud[VALUE] <= 2.5 and not apart) or _is_coarse(cell):
        return None
    value, usual = cell.value, cell.usual
    shares = f"{cell.share:.0%} of the rows have {_n(value)}, {cell.share_elsewhere:.0%} at the other sites"
    end = [j for j, held in enumerate((cell.least, cell.greatest)) if held[0] == value]
    inside = np.isfinite(usual[[4, 14]]).all() and np.isfinite(usual).any()
    if end and inside:
        j = end[0]
        known = usual[np.isfinite(usual)]
        q = cell.q[np.isfinite(cell.q)]
        rest = q[q != value]
        near = abs(rest - value).min() if len(rest) else 0.0
        within = known.min() <= value <= known.max()
        if within and near < 1.0 * cell.wide:
            side = "above" if j else "below"
            text = f"{shares}, and none lies {side} it: ask whether values are cut off at that bound."
            return _told("clipped", text, value=value, share=cell.share)
    text = f"{shares}: ask whether it stands for values that were not measured."
    return _told("code", text, code=value, share=cell.share)


def _is_coarse(cell: Cell) -> bool:
    step, usual = cell.grain[1], cell.usual_grain[1]
    return bool(np.isfinite(step) and np.isfinite(usual) and step >= 4.9 * max(usual, 1e-9) and cell.off(cell.q) < 0.6)


def _rounded(cell: Cell) -> Told | None:
    if not _is_coarse(cell):
        return None
    step, usual = cell.grain[1], cell.usual_grain[1]
    finer = f"{_n(usual)}" if usual else "a finer one"
    text = f"Its values come in steps of {_n(step)}, at the other sites of {finer}: ask whether they were rounded or grouped."
    return _told("rounded", text, step=float(step))


def _moved_in_part(cell: Cell) -> Told | None:
    """Some quantiles as the others', some far beyond all of theirs."""
    known = cell.both
    if not known.any() or not np.isfinite(cell.wide):
        return None
    q, usual = cell.q[known], cell.usual[known]
    far = (q > usual.max() + 1.5 * cell.wide) | (q < usual.min() - 1.5 * cell.wide)
    if not 0.1 < far.mean() < 0.95:
        return None
    factor = float(np.median(q[far])) / float(np.median(usual) or 1.0)
    text = (
        f"About {far.mean():.0%} of the rows lie far beyond the other sites' values (about {_n(factor)} times their median):"
        " ask whether some rows are in another unit."
    )
    return _told("unit in part", text, factor=factor, share=float(far.mean()))


def _swapped_with(cell: Cell) -> str:
    """Another number whose values look like this one's elsewhere, and the other way round."""
    p, at = cell.p, cell.p.layout
    mine = cell.off(cell.q)
    if not mine > 0.6:
        return ""
    others = cell.others
    usual = median_known(p.quantiles[others])  # [number, quantile]
    wide = median_known(p.widths[others])
    wide = np.where(wide > 0, wide, np.nan)
    q = p.quantiles[cell.site]

    def off(a: Numbers, b: Numbers) -> Numbers:
        known = np.isfinite(a - b)
        return np.where(known.any(1), np.where(known, np.abs(a - b), 0.0).sum(1) / np.maximum(known.sum(1), 1), np.nan)

    like = off(cell.q[None], usual) / wide  # this one, as if it were another
    back = off(q, cell.usual[None]) / cell.wide  # another, as if it were this one
    theirs = off(q, usual) / wide
    inputs = at.column[at.numbers] != len(at.columns) - 1
    near = 0.45 if len(like) < 30 else 0.2  # among many, some look alike by chance
    fine = inputs & (like < near) & (back < near) & (np.maximum(mine, theirs) > 2.5 * np.maximum(like, back))
    fine[cell.number] = False
    if not fine.any():
        return ""
    j = int(np.where(fine, like + back, np.inf).argmin())
    return at.columns[int(at.column[at.numbers[j]])]

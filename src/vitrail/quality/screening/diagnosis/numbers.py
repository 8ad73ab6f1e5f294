"""What may have happened to a number."""

from __future__ import annotations

import numpy as np

from vitrail.data.missing_codes import CODES
from vitrail.quality.screening.diagnosis.cell import Cell, Diagnosis, tell, tell_misplaced, tell_shuffled
from vitrail.quality.screening.diagnosis.differences import compared, numbers_of, plainest
from vitrail.quality.screening.diagnosis.scales import CLOSE, NumberView, moved
from vitrail.quality.screening.schema import QUANTILES, Numbers
from vitrail.quality.screening.site_summaries import (
    BELOW,
    BEYOND,
    KEPT,
    LOCATION,
    OUTCOME,
    RATIO,
    RELATED_TO,
    SIZE,
    VALUE,
)
from vitrail.quality.screening.text import correlation, percent, short
from vitrail.stats.tests import median_known

FLIPPED = -0.25  # of how a column follows the others: 1 as theirs, 0 not at all
APART = 3.0  # widths beyond the others' 5 and 95 %: no patient's value
SPIKE = 0.08  # of the rows hold one value that the others do not
REST = 0.8  # widths that the rows without a code may be off
FULL, FAR = (
    0.9,
    5.0,
)  # of so many rows that hold a code the rest says nothing; and widths that it then lies from all others'


def explain_number(cell: Cell) -> Diagnosis:
    if cell.constant is not None:
        finite = cell.usual[np.isfinite(cell.usual)]
        apart = len(finite) and not finite.min() - cell.wide <= cell.constant <= finite.max() + cell.wide
        code = {"code": cell.constant} if apart and cell.constant in CODES else {}
        ask = "stands for values not measured" if code else "was measured at all"
        text = f"Every row has {short(cell.constant)}, while it varies at the other sites: ask whether it {ask}."
        return tell("constant", text, value=cell.constant, **code)
    coded = far_code(cell)
    if coded:
        return coded
    lam, error = cell.follows()
    related = max(cell.loud[OUTCOME], cell.loud[RELATED_TO], cell.loud[KEPT])
    counted = max(cell.loud[f] for f in (BELOW, BEYOND, VALUE, LOCATION, SIZE)) > 3
    part = _moved_in_part(cell) if counted else None
    if part and _has_gap(cell):  # rows in another unit turn the order of all rows, and so their relations
        return part
    measured = cell.column not in cell.p.layout.by_habit  # how long rows were followed is neither swapped nor turned
    other = _swapped_with(cell) if measured else ""
    if other:
        text = (
            f"Its values look like those of {other} at the other sites, and vice versa: ask for the order of the "
            "columns."
        )
        return tell("swapped", text, other=other)
    if measured and lam < FLIPPED and error < 0.45 and related > 2.5:
        text = (
            f"Its correlations with other columns are reversed ({correlation(lam)} of their strength at the other "
            "sites): ask whether low and high are swapped, or the sign is lost."
        )
        return tell("sign", text, strength=lam)
    first = (_spiked, moved) if _is_rest_as_usual(cell) else (moved, _spiked)
    for cause in first if counted else (_spiked,):
        diagnosis = cause(cell, lam, error)
        if diagnosis:
            return diagnosis
    seen = _rounded(cell) or part or _moved_in_part(cell)
    if seen:
        return seen
    if lam < 0.5 and error < 0.3 and related > 2.5:
        return tell_shuffled(lam)
    if cell.loud[RATIO] > max(2.5, cell.counted):
        return tell_misplaced(cell)
    _, shown = plainest(cell.weighed, cell.site, cell.column, cell.own)
    return tell("other", f"{shown.text}: ask how and on whom it is measured.", **numbers_of(shown))


def far_code(cell: Cell) -> Diagnosis | None:
    """The most frequent, the least or the greatest value is a usual code, far from all that other sites have. A site of
    30 rows publishes its most frequent value, and not how many rows hold another one."""
    finite = cell.usual[np.isfinite(cell.usual)]
    if not len(finite) or not cell.wide > 0:
        return None
    for value, rows in cell.p.held[cell.site, cell.number]:
        far = max(finite.min() - value, value - finite.max()) > APART * cell.wide
        share = float(np.nan_to_num(rows) / cell.known)
        if value in CODES and far and is_code(cell, value, share):
            text = f"{percent(share)} of the rows have {short(value)}, far from the other sites' values"
            ask = "ask whether it stands for values that were not measured"
            return tell("code", f"{text}: {ask}.", code=float(value), share=share)
    return None


def _spiked(cell: Cell, lam: float, error: float) -> Diagnosis | None:
    """One value where many rows hold it here and few elsewhere."""
    finite = cell.usual[np.isfinite(cell.usual)]
    apart = len(finite) and not finite.min() - 0.25 * cell.wide <= cell.value <= finite.max() + 0.25 * cell.wide
    if cell.gap < (SPIKE / 2 if apart else SPIKE) or (cell.loud[VALUE] <= 2.5 and not apart) or _coarse_step(cell):
        return None
    value, usual = cell.value, cell.usual
    # fewer rows than three are published as two
    shares = f"{percent(cell.share)} of the rows have {short(value)}, at most {percent(cell.share_elsewhere)} elsewhere"
    rows = compared(f"share with {short(value)}", "share", cell.share, cell.share_elsewhere)
    end = [j for j, held in enumerate((cell.least, cell.greatest)) if held[0] == value]
    inside = np.isfinite(usual[[4, 14]]).all() and np.isfinite(usual).any()
    if end and inside:
        j = end[0]
        finite = usual[np.isfinite(usual)]
        q = cell.q[np.isfinite(cell.q)]
        rest = q[q != value]
        near = abs(rest - value).min() if len(rest) else 0.0
        within = finite.min() <= value <= finite.max()
        if within and near < 1.0 * cell.wide:
            side = "above" if j else "below"
            text = f"{shares}, and none lies {side} it: ask whether values are cut off at that bound."
            return tell("clipped", text, value=value, share=cell.share, **rows)
    if not is_code(cell, value, cell.share):
        return None
    text = f"{shares}: ask whether it stands for values that were not measured."
    return tell("code", text, code=value, share=cell.share, **rows)


def _is_rest_as_usual(cell: Cell) -> bool:
    """Whether a value that stands out lies far from all others', and the rows that do not hold it are as theirs."""
    finite = cell.usual[np.isfinite(cell.usual)]
    if not len(finite) or not SPIKE < cell.gap < 0.9 or not cell.wide > 0:
        return False
    apart = not finite.min() - 0.25 * cell.wide <= cell.value <= finite.max() + 0.25 * cell.wide
    return apart and rest_off(cell, cell.value, cell.share) < CLOSE


def rest_off(cell: NumberView, value: float, share: float) -> float:
    """How far the rows that do not hold a value are from the others' rows, in widths; NaN where too few are left."""
    finite = np.isfinite(cell.usual)
    if not finite.any() or not share < 1 or not cell.wide > 0:
        return float("nan")
    at = np.where(cell.q < value, QUANTILES, QUANTILES - share) / (1 - share)
    rest = np.isfinite(cell.q) & (cell.q != value) & (at > 0) & (at < 1)
    usual = np.interp(at, QUANTILES[finite], cell.usual[finite])
    return float(np.abs(cell.q - usual)[rest].mean() / cell.wide) if rest.any() else float("nan")


def is_code(cell: NumberView, value: float, share: float) -> bool:
    """Whether a heap of one value may stand for what was not measured: only where the other rows are as elsewhere.
    Where hardly any are left, it must be a number that people write for that, far from all that others measured."""
    rest = rest_off(cell, value, share)
    if np.isfinite(rest) and share < FULL:
        return rest < REST
    finite = cell.usual[np.isfinite(cell.usual)]
    far = len(finite) and not finite.min() - FAR * cell.wide <= value <= finite.max() + FAR * cell.wide
    return bool(far and value in CODES)


def _coarse_step(cell: Cell) -> float:
    """By which values go, if the others' rounded to it are as these; 0 where they go as finely as the others'."""
    usual = cell.usual_grain[1]
    q = cell.q[cell.both]
    apart = np.diff(q)
    steps = [cell.grain[1], apart[apart > 0].min(initial=np.inf)]  # 30, 60, 90 also go by 10
    for step in steps if np.isfinite(steps[0]) and np.isfinite(usual) else []:
        even = step >= max(4.9 * usual, 1e-9) and np.allclose(q / step, np.round(q / step), atol=1e-6)
        if even and cell.off(np.round(cell.usual / step) * step, cell.q) < CLOSE:
            return float(step)
    return 0.0


def _rounded(cell: Cell) -> Diagnosis | None:
    step, usual = _coarse_step(cell), cell.usual_grain[1]
    if not step:
        return None
    finer = f"steps of {short(usual)}" if usual else "finer steps"
    text = (
        f"Its values come in steps of {short(step)}, at the other sites in {finer}: ask whether they were rounded or "
        "grouped."
    )
    return tell("rounded", text, step=step)


def _moved_in_part(cell: Cell) -> Diagnosis | None:
    """Some quantiles as the others', some far beyond all of theirs."""
    comparable = cell.both
    if not comparable.any() or not np.isfinite(cell.wide):
        return None
    q, usual = cell.q[comparable], cell.usual[comparable]
    far = (q > usual.max() + 1.5 * cell.wide) | (q < usual.min() - 1.5 * cell.wide)
    if not 0.1 < far.mean() < 0.95:
        return None
    factor = float(np.median(q[far])) / float(np.median(usual) or 1.0)
    text = (
        f"About {percent(far.mean())} of the rows lie far beyond the other sites' values (about"
        f" {short(factor)} times their median):"
        " ask whether some rows are in another unit."
    )
    return tell("unit in part", text, factor=factor, share=float(far.mean()))


def _has_gap(cell: Cell) -> bool:
    """Whether a wide gap parts the rows that lie beyond all others' from the rest."""
    q = cell.q[np.isfinite(cell.q)]
    steps = np.diff(q)
    at = int(steps.argmax()) if len(steps) else 0
    low, high = np.nanmin(cell.usual) - cell.wide, np.nanmax(cell.usual) + cell.wide
    if not len(steps) or steps[at] < 1.5 * cell.wide:
        return False
    own, far = (q[: at + 1], q[at + 1 :]) if q[at + 1] > high else (q[at + 1 :], q[: at + 1])
    return bool(((own >= low) & (own <= high)).all() and ((far < low) | (far > high)).all())


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
        comparable = np.isfinite(a - b)
        return np.where(
            comparable.any(1),
            np.where(comparable, np.abs(a - b), 0.0).sum(1) / np.maximum(comparable.sum(1), 1),
            np.nan,
        )

    like = off(cell.q[None], usual) / wide  # this one, as if it were another
    back = off(q, cell.usual[None]) / cell.wide  # another, as if it were this one
    theirs = off(q, usual) / wide
    inputs = ~np.isin(at.column[at.numbers], [len(at.columns) - 1, *at.by_habit])
    near = 0.45 if len(like) < 30 else 0.2  # among many, some look alike by chance
    fine = inputs & (like < near) & (back < near) & (np.maximum(mine, theirs) > 2.5 * np.maximum(like, back))
    fine[cell.number] = False
    if not fine.any():
        return ""
    j = int(np.where(fine, like + back, np.inf).argmin())
    return at.columns[int(at.column[at.numbers[j]])]

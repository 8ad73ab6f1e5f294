"""What needs no statistics to be held wrong, whether or not sites are alike: it goes against what the study agrees, or
no patients could make it so.

A site alone (`check --pooled`) and the coordinator (`screen`) ask the same functions, on the same published numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vitrail.data.missing_codes import CODES
from vitrail.quality.screening.diagnosis.cell import Cell, Diagnosis, tell
from vitrail.quality.screening.diagnosis.differences import MEDIAN, compared
from vitrail.quality.screening.diagnosis.numbers import is_code
from vitrail.quality.screening.diagnosis.scales import CLOSE, OFF, NumberView, has_true_zero, moved, scale_of
from vitrail.quality.screening.schema import FLOOR, QUARTILES, Flags, Numbers, Places
from vitrail.quality.screening.site_summaries import SiteSummaries
from vitrail.quality.screening.text import percent, short
from vitrail.stats.tests import median_known

HEAP = 0.05  # of the rows hold a code
OUTSIDE = 0.25  # of the values lie outside the agreed range
HOME = 0.9  # of them lie inside once they are converted
MANIFOLD = float(np.log(4.0))  # a factor that patients do not make
USUALLY = 0.3  # the logarithm by which sites' medians may differ, where it is not known
BEYOND = 4.0  # times that
AWAY, FARTHER = 3.0, 3.0  # widths from the others' median, and times as far as any other site
UNLIKELY = 1e-4  # that chance fills all rows with one value
HALF = 0.75  # of the rows at most hold one value where quartiles differ


def suspects(p: SiteSummaries) -> Places:
    """[cell, 2]: (site, column) where any of this may be found; wide tables have thousands where it may not."""
    at, may = p.layout, np.zeros((len(p.sites), len(p.layout.columns)), bool)
    number = at.column[at.numbers]
    table = at.table.features
    ranges = [table[n].range if (n := at.columns[c]) in table else None for c in number]
    low, high = np.array([r or (-np.inf, np.inf) for r in ranges]).reshape(-1, 2).T
    with np.errstate(all="ignore"):
        share = p.held[..., 1] / p.known[:, number][..., None]  # [site, number, 3]
        value, q = p.held[..., 0], p.quantiles
        off = (value < low[:, None]) | (value > high[:, None]) | np.isin(value, CODES)
        far = np.abs(np.log(np.abs(q[:, :, QUARTILES] / median_known(q[:, :, QUARTILES])))) > MANIFOLD / 2
        one_sided = (np.nan_to_num(q, nan=np.inf).min(2) > 0) | (np.nan_to_num(q, nan=-np.inf).max(2) < 0)
        far &= one_sided[:, :, None]
        away = np.isfinite(q) & ((q < low[:, None]) | (q > high[:, None]))
    may[:, number] = (share[..., 0] >= 1) | ((share >= HEAP) & off).any(2) | far.any(2) | away.any(2)
    full = (p.shares[:, at.yesno] >= 1) | (p.shares[:, at.yesno] <= 0)
    np.logical_or.at(may.T, at.column[at.yesno], full.T)
    if at.kinds[-1] != "numeric":
        may[:, -1] = False
    return np.argwhere(may)


def is_beyond_chance(share: float, rows: float) -> bool:
    """Whether chance can hardly fill all rows with what at most this share of rows holds elsewhere."""
    return share < 1 and rows * float(np.log(max(share, 1e-300))) < np.log(UNLIKELY)


def settle_number(view: NumberView, held: Iterable[tuple[float, float]]) -> Diagnosis | None:
    """`held`: values that many rows hold, and the share of each."""
    heaps = [(v, s) for v, s in held if np.isfinite(v) and np.isfinite(s) and s >= HEAP]
    for value, share in sorted(heaps, key=lambda heap: -heap[1]):
        if not view.known >= FLOOR:
            break
        if share >= 1:
            return settle_constant(view, value)
        if _against_the_study(view, value, share) or (_stands_apart(view, value) and is_code(view, value, share)):
            agreed = f", outside {_range(view)}" if outside(view, np.array([value])).any() else ""
            text = f"{percent(share)} of the rows have {short(value)}{agreed}, far from the other sites' values"
            text += ": ask whether it stands for values that were not measured."
            return tell("code", text, code=value, share=share)
    return _settle_scale(view)


def settle_constant(view: NumberView, value: float, elsewhere: float = HALF) -> Diagnosis | None:
    """`elsewhere`: the largest share of one value at any other site."""
    if not view.wide > 0 or not is_beyond_chance(elsewhere, view.known):
        return None
    return tell_constant(view, value)


def tell_constant(view: NumberView, value: float) -> Diagnosis:
    code = {"code": value} if _is_far_code(view, value) else {}
    ask = "stands for values not measured" if code else "was measured at all"
    text = f"Every row has {short(value)}, while it varies at the other sites: ask whether it {ask}."
    return tell("constant", text, value=value, **code)


def settle_levels(levels: tuple[str, ...], here: Numbers, rows: float, most: Numbers) -> Diagnosis | None:
    """One level in every row. `here`: the share of each level; `most`: its largest share at any other site."""
    full = np.flatnonzero(here >= 1)
    if not len(full) or rows < FLOOR or not is_beyond_chance(float(most[full[0]]), rows):
        return None
    level = levels[int(full[0])]
    text = f"Every row has {level}, while it varies at the other sites: ask whether it was recorded at all."
    return tell("constant", text, value=level)


def settle_cell(cell: Cell) -> Diagnosis | None:
    """The same of what was published of a cell."""
    p, at = cell.p, cell.p.layout
    if len(cell.others) < 2 or not cell.known:
        return None
    if cell.kind == "numeric":
        with np.errstate(all="ignore"):
            top = p.held[cell.others, cell.number, 0, 1] / p.known[cell.others, cell.column]
        if cell.constant is not None and cell.known >= FLOOR:
            return settle_constant(cell, cell.constant, float(np.fmax(np.nan_to_num(top).max(initial=0.0), 0.5)))
        held = p.held[cell.site, cell.number] / np.array([1.0, cell.known])
        return settle_number(cell, [(float(v), float(s)) for v, s in held])
    if cell.kind == "categorical" and not cell.weighed.alike:  # one ward, one way of testing: a house may have one
        return None
    which = np.flatnonzero(at.column == cell.column)
    own = np.nan_to_num(p.known[cell.others, cell.column])
    with np.errstate(all="ignore"):
        shares = (np.nan_to_num(p.shares[cell.others][:, which]) * own[:, None] + 1) / (own[:, None] + 2)
        few = (np.nan_to_num(1 - p.shares[cell.others][:, which]) * own[:, None] + 1) / (own[:, None] + 2)
    here, most = p.shares[cell.site, which], shares.max(0)
    if cell.kind == "binary":
        here, most = np.array([1 - here[0], here[0]]), np.array([few[:, 0].max(), most[0]])
    return settle_levels(at.levels[cell.column], here, cell.known, most)


def outside(view: NumberView, values: Numbers) -> Flags:
    low, high = view.feature.range if view.feature and view.feature.range else (-np.inf, np.inf)
    return np.asarray((values < low) | (values > high))


def _range(view: NumberView) -> str:
    assert view.feature is not None
    assert view.feature.range is not None
    low, high = view.feature.range
    return f"the agreed range {short(low)} to {short(high)} {view.feature.unit}".rstrip()


def _is_far_code(view: NumberView, value: float) -> bool:
    usual = view.usual[np.isfinite(view.usual)]
    return bool(len(usual) and value in CODES and not usual.min() - view.wide <= value <= usual.max() + view.wide)


def _stands_apart(view: NumberView, value: float) -> bool:
    """The same of some rows: where the study agrees on a range with a zero in it, some may be zero."""
    inside = view.feature is not None and view.feature.range is not None and not outside(view, np.array([value])).any()
    return _is_far_code(view, value) and not (inside and value == 0)


def _against_the_study(view: NumberView, value: float, share: float) -> bool:
    """A heap outside the agreed range, and the other rows inside: 999 where a range ends at 80 is no patient's."""
    rest = view.q[np.isfinite(view.q) & (view.q != value)]
    if not outside(view, np.array([value])).any() or not (value in CODES or share > 2 * HEAP):
        return False
    return bool(outside(view, rest).mean() < OUTSIDE) if len(rest) else value in CODES


def _settle_scale(view: NumberView) -> Diagnosis | None:
    q = view.q[np.isfinite(view.q)]
    away = float(outside(view, q).mean()) if len(q) else 0.0
    against = away > OUTSIDE and view.known >= FLOOR
    scale = scale_of(view) if not view.share > 0.5 else None
    seen = moved(view, 1.0, 9.0) if scale is not None and scale.before >= OFF else None
    if against:
        return seen if seen and seen.kind != "offset" and _comes_home(view, seen) else _tell_outside(view, q, away)
    if scale is not None and view.known >= FLOOR and _is_elsewhere(view, q):
        return seen or _tell_elsewhere(view)
    if scale is None or seen is None or seen.kind == "offset" or not scale.factor > 0:
        return None
    if not (has_true_zero(view.usual) and has_true_zero(q)):
        return None
    unlike = view.between if np.isfinite(view.between) else USUALLY
    manifold = abs(np.log(scale.factor)) > max(MANIFOLD, BEYOND * unlike) and scale.scaled < min(
        CLOSE, 0.4 * scale.before
    )
    return seen if manifold and view.known >= FLOOR else None


def _is_elsewhere(view: NumberView, q: Numbers) -> bool:
    """Whether nine in ten values lie beyond nine in ten of the others', and farther than sites lie from each other."""
    usual = view.usual[np.isfinite(view.usual)]
    if not (len(usual) and np.isfinite(view.q[MEDIAN]) and np.isfinite(view.usual[MEDIAN])):
        return False
    beyond = q.min() > usual.max() + view.wide or q.max() < usual.min() - view.wide
    gap = abs(view.q[MEDIAN] - view.usual[MEDIAN]) / view.wide
    return bool(beyond and np.isfinite(view.apart) and gap > max(AWAY, FARTHER * view.apart))


def _tell_elsewhere(view: NumberView) -> Diagnosis:
    medians = compared("median", "value", view.q[MEDIAN], view.usual[MEDIAN])
    text = f"Hardly any of its values is one that other sites have: its median is {short(view.q[MEDIAN])} here,"
    return tell("other", f"{text} {short(view.usual[MEDIAN])} at the other sites: ask how it is measured.", **medians)


def _comes_home(view: NumberView, seen: Diagnosis) -> bool:
    """Whether the conversion that was found brings the values into the agreed range."""
    factor = seen.numbers.get("factor")
    if factor is None:
        return "ratio" in seen.numbers
    q = view.q[np.isfinite(view.q)] * factor + seen.numbers.get("offset", 0.0)
    return bool(1 - outside(view, q).mean() >= HOME)


def _tell_outside(view: NumberView, q: Numbers, away: float) -> Diagnosis:
    text = (
        f"About {percent(away)} of its values lie outside {_range(view)}; nine in ten lie between {short(q.min())} and"
    )
    return tell("other", f"{text} {short(q.max())}: ask how it is measured, or whether the range is right.", share=away)

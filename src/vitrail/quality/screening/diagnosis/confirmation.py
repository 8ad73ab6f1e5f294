"""Whether a cause that was named is clear also where sites really differ.

Case mix moves means and shares, and does so smoothly; it keeps signs, ranges and relations. So a cause counts there
only if what it claims is seen at this site and at no other one: a gap far wider than any between the others, a value
that nobody else has, a relation that all others keep.
"""

from __future__ import annotations

import numpy as np

from vitrail.data.units import CONVERSIONS, SLIPS
from vitrail.quality.screening.diagnosis.categories import read_outcome
from vitrail.quality.screening.diagnosis.causes import unexplained
from vitrail.quality.screening.diagnosis.cell import Cell, Diagnosis
from vitrail.quality.screening.diagnosis.location_scale import agreement, locations, sizes
from vitrail.quality.screening.diagnosis.numbers import far_code
from vitrail.quality.screening.schema import HELD, Flags, Numbers, Places
from vitrail.stats.tests import arcsine, compare_counts, median_known

WIDER = 2.5  # times the widest gap among the others
AS_WIDE = 0.8  # of the logarithm: three of the spreads of site_spread.py
NEAREST = 3.0  # z against the most similar of the other sites
STEPS = 4.9  # times as coarse, and as few values
OTHERS_KEEP = 0.2  # of their relations, every other site


def is_clear(cell: Cell, diagnosis: Diagnosis) -> bool:
    if len(cell.others) < 2:
        return False
    test = {
        "constant": _is_constant,
        "unit": _is_unit,
        "offset": _is_far,
        "code": _is_foreign,
        "clipped": _is_cut,
        "rounded": _is_coarser,
        "sign": _is_reversed,
        "shuffled": _is_unrelated,
        "swapped": _is_swapped,
        "recoded": _is_other_code,
        "label flip": _is_flipped,
        "label noise": _is_faded,
        "unit in part": _is_two,
    }.get(diagnosis.kind)
    return bool(test and test(cell, diagnosis))


def _is_constant(cell: Cell, diagnosis: Diagnosis) -> bool:
    """Even at the most similar other site some rows have another value, and too many for chance."""
    p, at = cell.p, cell.p.layout
    if cell.kind == "numeric":
        i = cell.number
        held = np.nan_to_num(p.held[cell.others, i, 0, 1] / p.known[cell.others, cell.column])
        return bool(held.max(initial=0.0) < 0.9)
    if cell.kind == "categorical":  # one ward, one way of testing: what a house has may well be one of several
        return False
    which = np.flatnonzero(at.column == cell.column)
    j = which[int(np.nan_to_num(p.shares[cell.site, which]).argmax())]  # all rows, or of yes and no none
    same = np.nan_to_num(p.shares[:, j] * p.known[:, cell.column])
    observed = np.nan_to_num(p.known[:, cell.column])
    z = compare_counts(same[cell.site], observed[cell.site], same[cell.others], observed[cell.others])
    return bool(z.min() > NEAREST)


def _gaps(cell: Cell, measured: object) -> Numbers:
    """[site]: of one number, from the median of the others that are fair."""
    fair = np.zeros((len(cell.p.sites), 1), bool)
    fair[cell.others] = True
    x, _ = measured(cell.p, fair, np.array([cell.number]))  # type: ignore[operator]
    return np.asarray(np.abs(x[:, 0]))


def _is_far(cell: Cell, diagnosis: Diagnosis) -> bool:
    far = []
    for measured in (locations, sizes):
        gap = _gaps(cell, measured)
        widest = np.nanmax(gap[cell.others], initial=0.0)
        # two others say little of how wide gaps may be
        far.append(gap[cell.site] > max(WIDER * widest, 1.0) * (2 if len(cell.others) < 3 else 1))
    return bool(any(far))


def is_one_factor(cell: Cell, diagnosis: Diagnosis) -> bool:
    """Of a known pair of units, or a slip of the point (scales.py names no other): whether it is as much wider as it is
    larger. Patients who are iller have larger values, but not each of them by one factor."""
    numbers = diagnosis.numbers
    factor = float(numbers["ratio"]) if "ratio" in numbers else 1 / float(numbers["factor"])
    with np.errstate(all="ignore"):
        wider = np.log(float(cell.p.widths[cell.site, cell.number]) / cell.wide / factor)
    return bool(numbers.get("offset") or not np.isfinite(wider) or abs(wider) < AS_WIDE)


def as_unit(cell: Cell, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis; where sites differ, another unit is said of one factor only."""
    if diagnosis.kind == "unit" and not cell.weighed.alike and not is_one_factor(cell, diagnosis):
        return unexplained(cell, "ask how and on whom it is measured")
    return diagnosis


def _is_unit(cell: Cell, diagnosis: Diagnosis) -> bool:
    return is_one_factor(cell, diagnosis) and _is_far(cell, diagnosis)


def _stands_out(cell: Cell) -> bool:
    """Many rows hold one value, and at no other site a fifth as many hold any."""
    held, observed = cell.p.held[cell.others, cell.number, 0, 1], cell.p.known[cell.others, cell.column]
    most = np.nanmax(np.where(np.isfinite(held), held, HELD - 1) / observed, initial=0.0)
    return bool(cell.share > 0.3 and most < cell.share / 5)


def _is_coarser(cell: Cell, diagnosis: Diagnosis) -> bool:
    """Every other site's values go by far smaller steps, and are far more."""
    number, step = cell.p.grain[cell.others, cell.number].T
    comparable = np.isfinite(number) & np.isfinite(step)
    if comparable.sum() < 2:
        return False
    return bool(
        STEPS * step[comparable].max() <= diagnosis.numbers["step"]
        and STEPS * cell.grain[0] <= number[comparable].min()
    )


def _is_foreign(cell: Cell, diagnosis: Diagnosis) -> bool:
    """A value that many rows hold here, that lies outside of all other sites' usual range or stands apart."""
    if cell.kind != "numeric":  # a level that is named like a code
        return True
    p, i = cell.p, cell.number
    if far_code(cell) is None and (cell.share < 0.05 or _stands_out(cell)):
        return cell.share >= 0.05
    j = np.flatnonzero(p.values[i] == diagnosis.numbers["code"])
    same = p.same[cell.others, i][:, j[0]] / p.known[cell.others, cell.column] if len(j) else np.zeros(len(cell.others))
    free = cell.others[np.nan_to_num(same) < 0.02]  # a site that has it as well is no yardstick, and no excuse
    if len(free) < max(2, len(cell.others) / 2):
        return False
    q = p.quantiles[free, i]
    low, high = np.nanmin(q, initial=np.inf), np.nanmax(q, initial=-np.inf)
    wide = float(median_known(p.widths[free, i]))
    return bool(diagnosis.numbers["code"] < low - wide or diagnosis.numbers["code"] > high + wide)


def _is_cut(cell: Cell, diagnosis: Diagnosis) -> bool:
    """Other sites hold neither end so often, and have rows beyond the bound."""
    p, i = cell.p, cell.number
    ends = np.nan_to_num(p.held[cell.others, i, 1:, 1] / p.known[cell.others, cell.column][:, None])
    if cell.share < 0.15 or ends.max(initial=0.0) > 0.3 * cell.share:
        return False
    upper = cell.greatest[0] == cell.value
    q = p.quantiles[cell.others, i]
    beyond = (q > cell.value).sum(1) if upper else (q < cell.value).sum(1)
    beyond = beyond / np.maximum(np.isfinite(q).sum(1), 1)
    return bool((np.median(beyond) if _stands_out(cell) else beyond.min()) > 0.1)


def _relations(cell: Cell) -> list[tuple[float, float, Numbers]]:
    """How the site follows the others' relations, how surely, and how each other site follows those of the rest: as a
    whole, and without each related column in turn, which may be the one at fault.

    Each site has one voice, so that a large one does not outvote all.
    """
    t, at = cell.p.ties, cell.p.layout
    bad = [int(c) for c in np.flatnonzero(cell.weighed.accused[cell.site]) if c != cell.column]
    bad += [] if cell.predictable else [len(at.columns) - 1]
    first, second = at.column[t.first], at.column[t.second]
    own = ((first == cell.column) | (second == cell.column)) & ~np.isin(first, bad) & ~np.isin(second, bad)
    r, n = np.where(t.rows > 0, t.r, np.nan)[:, own], t.rows[:, own]
    partner = np.where(first == cell.column, second, first)[own]

    def follow(site: int, voices: Places, used: Flags) -> tuple[float, float]:
        finite = np.isfinite(r[voices])
        usual = np.where(finite, r[voices], 0.0).sum(0) / np.maximum(finite.sum(0), 1)
        weight = np.where(np.isfinite(r[site]) & finite.any(0) & used, n[site], 0.0) * usual
        strong, total = float((weight * usual).max(initial=0.0)), float((weight * usual).sum())
        return (float((weight * np.nan_to_num(r[site])).sum()) / total, strong**-0.5) if strong > 1 else (np.nan, 9.0)

    out = []
    for left_out in [-1, *np.unique(partner)]:
        used = partner != left_out
        mine, error = follow(cell.site, cell.others, used)
        if left_out >= 0 and not error < 0.35:
            continue  # too little is left to tell
        each = [follow(int(s), cell.others[cell.others != s], used) for s in cell.others]
        theirs = np.array([x for x, e in each if np.isfinite(x) and e < 0.5])
        if left_out < 0 or len(theirs) > 1:
            out.append((mine, error, theirs))
    return out


def _share_is_far(cell: Cell) -> bool:
    """Of yes or no: the share of yes is far from all others'."""
    share = cell.p.shares[:, np.flatnonzero(cell.p.layout.column == cell.column)[0]]
    mine, others = arcsine(share[[cell.site]]), arcsine(share[cell.others])
    others = others[np.isfinite(others)]
    if len(others) < 2 or not np.isfinite(mine).all():
        return False
    gap, widest = (np.abs(v - np.median(others)).max() for v in (mine, others))
    return bool(gap > max(WIDER * widest, 0.3))


def _is_mirrored(cell: Cell) -> bool:
    """Of yes or no: the share of no is as usual, and that of yes far from all others'."""
    share = cell.p.shares[:, np.flatnonzero(cell.p.layout.column == cell.column)[0]]
    low, high = np.nanmin(share[cell.others], initial=1.0), np.nanmax(share[cell.others], initial=0.0)
    return bool(low - 0.05 <= 1 - share[cell.site] <= high + 0.05) and _share_is_far(cell)


def _is_reversed(cell: Cell, diagnosis: Diagnosis) -> bool:
    if cell.kind == "binary" and _is_mirrored(cell):
        mine, error = cell.follows()  # a house may ask other people; their relations stay
        return mine + 2 * error < 1 and mine < 0.25
    return all(
        len(theirs) >= 2 and mine < -0.25 and mine + 2.5 * error < 0.5 and theirs.min() > 0 and theirs.mean() > 0.5
        for mine, error, theirs in _relations(cell)
    )


def _is_unrelated(cell: Cell, diagnosis: Diagnosis) -> bool:
    return all(
        len(theirs) >= 2 and mine + 2.5 * error < 0.5 and theirs.min() > 0.5 for mine, error, theirs in _relations(cell)
    )


def _is_swapped(cell: Cell, diagnosis: Diagnosis) -> bool:
    """Both lie much farther from their own than any other site does."""
    at = cell.p.layout
    other = Cell(cell.weighed, cell.site, at.columns.index(diagnosis.numbers["other"]))
    return all(_is_far(c, diagnosis) if c.kind == "numeric" else _share_is_far(c) for c in (cell, other))


def _is_other_code(cell: Cell, diagnosis: Diagnosis) -> bool:
    """Read as named, the shares are as near to the others' as those of the others are to each other."""
    p, at = cell.p, cell.p.layout
    which = np.flatnonzero(at.column == cell.column)
    levels = list(at.levels[cell.column])
    meant = np.array([levels.index(diagnosis.numbers["levels"].get(name, name)) for name in levels])
    shares = np.nan_to_num(p.shares[:, which])
    usual = np.median(shares[cell.others], axis=0)
    mine = np.zeros(len(which))
    mine[meant] = shares[cell.site]
    after, before = np.abs(mine - usual).sum(), np.abs(shares[cell.site] - usual).sum()
    widest = np.abs(shares[cell.others] - usual).sum(1).max()
    return bool(before > WIDER * widest and after < max(0.5 * before, 0.0) and after <= 1.2 * widest)


def _is_two(cell: Cell, diagnosis: Diagnosis) -> bool:
    """A gap among the site's own values that no other site has, and values close to each other beyond it."""

    def gap(q: Numbers) -> float:
        q = q[np.isfinite(q)]
        steps = np.diff(q)
        at = int(steps.argmax()) if len(steps) else 0
        rest = np.concatenate([steps[:at], steps[at + 1 :]])
        inside = 1 < at < len(steps) - 2 and rest.max(initial=0.0) < 0.4 * steps[at]
        return float(steps[at] / cell.wide) if inside else 0.0

    others = [gap(cell.p.quantiles[s, cell.number]) for s in cell.others]
    if gap(cell.q) <= max(WIDER * max(others), 1.5):
        return False
    # one conversion brings all that lie beyond to where the others are
    low, high = np.nanmin(cell.usual), np.nanmax(cell.usual)
    far = cell.q[(cell.q > high + 1.5 * cell.wide) | (cell.q < low - 1.5 * cell.wide)]
    back = [c.convert(far) for c in (*CONVERSIONS, *SLIPS)]
    return any(bool(((x >= low) & (x <= high)).mean() > 0.8) for x in back if len(x))


def _outcome(cell: Cell) -> tuple[float, float, Numbers]:
    """How well the outcome is predicted, as a multiple of how well elsewhere, its error, and the other sites'."""
    predicted = cell.weighed.predict(tuple(cell.weighed.without.get(cell.site, ())))[-1]
    r, rows = np.where(np.isfinite(cell.p.predicted[..., 0]), predicted, np.nan), cell.p.rows
    sites = [s for s in cell.others if np.isfinite(r[s]).all() and rows[s] >= 30]
    if len(sites) < 2 or not np.isfinite(r[cell.site]).all():
        return float("nan"), float("nan"), np.zeros(0)
    usual = np.median(r[sites], axis=0)
    size = float((usual**2).sum())
    follows = (r * usual).sum(1) / max(size, 1e-9)
    return float(follows[cell.site]), float(1 / np.sqrt(max(size * rows[cell.site], 1e-9))), follows[sites]


def _is_flipped(cell: Cell, diagnosis: Diagnosis) -> bool:
    if "levels" in diagnosis.numbers:  # several classes: all others are read best as they are
        return not any(read_outcome(cell.p, int(s), cell.others[cell.others != s]) for s in cell.others)
    alike = agreement(cell.p, cell.weighed.accused)
    with_me, among = alike[cell.site, cell.others], alike[np.ix_(cell.others, cell.others)]
    among = among[~np.eye(len(among), dtype=bool)]
    if np.nanmax(with_me, initial=-1.0) < -0.2 and np.nanmin(among, initial=1.0) > 0.2:
        return True
    mine, error, theirs = _outcome(cell)
    return len(theirs) >= 2 and mine < -0.2 and mine + 2.5 * error < 0.4 and bool(theirs.min() > OTHERS_KEEP)


def _is_faded(cell: Cell, diagnosis: Diagnosis) -> bool:
    mine, error, theirs = _outcome(cell)
    most = 0.6 if cell.weighed.without.get(cell.site) else 0.85  # what is reckoned from ties is less exact
    return len(theirs) >= 3 and mine < 0.75 and mine + 2 * error < most * float(theirs.min())

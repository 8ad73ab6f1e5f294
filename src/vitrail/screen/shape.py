"""Where a number lies and how wide it is, in its own units; and whether a column keeps to its relations.

Counts below a cut cannot say how far a site is off once all its rows lie beyond. These can: half a quartile range is
what hospitals differ by, a unit is tenfold. They only speak where the counts have spoken.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from vitrail.screen.layout import Numbers, Places
from vitrail.screen.published import RELATED_TO, Published

Flags = NDArray[np.bool_]


def median_of_others(x: Numbers, there: Flags) -> Numbers:
    """[site, ...]: of all other sites that count; NaN where there are none."""
    x = np.where(there, x, np.nan)
    out = np.full(x.shape, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nothing there is no median
        for i in range(len(x)):
            out[i] = np.nanmedian(np.delete(x, i, 0), axis=0)
    return out


def middle_of_sites(p: Published) -> Numbers:
    """[number]: the median of the sites' medians."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out: Numbers = np.nanmedian(p.quantiles[:, :, 9], axis=0)
    return out


def widths(p: Published) -> Numbers:
    """[site, number]: between quartiles, or what stands for it where half of the rows hold one value."""
    q = p.quantiles
    inner, outer = q[:, :, 14] - q[:, :, 4], (q[:, :, 18] - q[:, :, 0]) / 2.44
    return np.where(inner > 0, inner, np.where(np.isfinite(outer), outer, inner))


def locations(p: Published, fair: Flags, which: Places) -> tuple[Numbers, Numbers]:
    """[site, number]: the median, in widths from the others' median; and its variance by chance."""
    known = p.known[:, p.layout.column[p.layout.numbers[which]]]
    wide = median_of_others(widths(p)[:, which], fair)
    wide = np.where(wide > 0, wide, np.nan)
    middle = p.quantiles[:, which, 9]
    return (middle - median_of_others(middle, fair)) / wide, 0.9 / np.maximum(known, 1)


def sizes(p: Published, fair: Flags, which: Places) -> tuple[Numbers, Numbers]:
    """[site, number]: the logarithm of the width, as a multiple of the others'; and its variance by chance."""
    known = p.known[:, p.layout.column[p.layout.numbers[which]]]
    with np.errstate(all="ignore"):
        log = np.log(widths(p)[:, which])
    log = np.where(np.isfinite(log), log, np.nan)
    return log - median_of_others(log, fair & np.isfinite(log)), 2.5 / np.maximum(known, 1)


def keeping(p: Published, accused: Flags) -> tuple[Numbers, Numbers]:
    """[site, column]: how it follows the relations that the others have with their related columns: 1 as theirs, 0 not
    at all, -1 the other way round; and its variance by chance."""
    t, at = p.ties, p.layout
    which = np.flatnonzero(t.family == RELATED_TO)
    s, c = len(p.sites), len(at.columns)
    top, weight, best = np.zeros((s, c)), np.zeros((s, c)), np.zeros((s, c))
    if len(which):
        first, second = at.column[t.first[which]], at.column[t.second[which]]
        rows, r = t.rows[:, which], t.r[:, which]
        fair = (rows > 0) & ~accused[:, first] & ~accused[:, second]
        n = np.where(fair, rows, 0.0)
        others = n.sum(0) - n
        mean = ((n * r).sum(0) - n * r) / np.maximum(others, 1)
        w = np.where((rows > 0) & (others > 0), rows, 0.0)
        for columns in (first, second):
            for i in range(s):
                np.add.at(top[i], columns, w[i] * r[i] * mean[i])
                np.add.at(weight[i], columns, w[i] * mean[i] ** 2)
                np.maximum.at(best[i], columns, w[i] * mean[i] ** 2)
    there = best > 1  # else a tie too weak to be kept to
    with np.errstate(all="ignore"):
        # related columns say much the same: no surer than the strongest of them
        return np.where(there, top / weight, np.nan), np.where(there, 1 / best, 1.0)

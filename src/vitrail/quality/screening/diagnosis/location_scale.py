"""Where a number lies and how wide it is, in its own units; and whether a column keeps to its relations.

Counts below a cut cannot say how far a site is off once all its rows lie beyond. These can: half a quartile range is
what hospitals differ by, a unit is tenfold. They only speak where the counts have spoken.
"""

from __future__ import annotations

import numpy as np

from vitrail.quality.screening.schema import Flags, Numbers, Places
from vitrail.quality.screening.site_summaries import OUTCOME, RELATED_TO, SiteSummaries
from vitrail.stats.tests import median_known


def median_of_others(x: Numbers, there: Flags) -> Numbers:
    """[site, ...]: of all other sites that count; NaN where there are none."""
    x = np.where(there, x, np.nan)
    return np.stack([median_known(np.delete(x, i, 0)) for i in range(len(x))])


def locations(p: SiteSummaries, fair: Flags, which: Places) -> tuple[Numbers, Numbers]:
    """[site, number]: the median, in widths from the others' median; and its variance by chance."""
    observed = p.known[:, p.layout.column[p.layout.numbers[which]]]
    wide = median_of_others(p.widths[:, which], fair)
    wide = np.where(wide > 0, wide, np.nan)
    middle = p.quantiles[:, which, 9]
    return (middle - median_of_others(middle, fair)) / wide, 0.9 / np.maximum(observed, 1)


def sizes(p: SiteSummaries, fair: Flags, which: Places) -> tuple[Numbers, Numbers]:
    """[site, number]: the logarithm of the width, as a multiple of the others'; and its variance by chance."""
    observed = p.known[:, p.layout.column[p.layout.numbers[which]]]
    with np.errstate(all="ignore"):
        log = np.log(p.widths[:, which])
    log = np.where(np.isfinite(log), log, np.nan)
    return log - median_of_others(log, fair & np.isfinite(log)), 2.5 / np.maximum(observed, 1)


def keeping(p: SiteSummaries, accused: Flags, with_outcome: bool = False) -> tuple[Numbers, Numbers]:
    """[site, column]: how it follows the relations that the others have with their related columns: 1 as theirs, 0 not
    at all, -1 the other way round; and its variance by chance."""
    t, at = p.ties, p.layout
    which = np.flatnonzero(np.isin(t.family, (RELATED_TO, OUTCOME) if with_outcome else (RELATED_TO,)))
    s, c = len(p.sites), len(at.columns)
    top, weight, best = np.zeros((s, c)), np.zeros((s, c)), np.zeros((s, c))
    if len(which):
        first, second = at.column[t.first[which]], at.column[t.second[which]]
        rows, r = t.rows[:, which], t.r[:, which]
        fair = (rows > 0) & ~accused[:, first] & ~accused[:, second]
        n = np.where(fair, rows, 0.0)
        others = n.sum(0) - n
        mean = ((n * r).sum(0) - n * r) / np.maximum(others, 1)
        for columns, partners in ((first, second), (second, first)):
            # an accused partner says nothing of this one
            w = np.where((rows > 0) & (others > 0) & ~accused[:, partners], rows, 0.0)
            np.add.at(top.T, columns, (w * r * mean).T)
            np.add.at(weight.T, columns, (w * mean**2).T)
            np.maximum.at(best.T, columns, (w * mean**2).T)
    there = best > 1  # else a tie too weak to be kept to
    with np.errstate(all="ignore"):
        # related columns say much the same: no surer than the strongest of them
        return np.where(there, top / weight, np.nan), np.where(there, 1 / best, 1.0)


def agreement(p: SiteSummaries, accused: Flags) -> Numbers:
    """[site, site]: whether columns go with the outcome alike at two sites: 1 alike, -1 the other way round. Sites have
    one voice each; accused columns none; NaN where there are no two columns to compare."""
    which = np.flatnonzero(p.ties.family == OUTCOME)
    r = np.where(p.ties.rows[:, which] > 0, p.ties.r[:, which], 0.0)
    r = np.where(np.abs(r) > 2 / np.sqrt(np.maximum(p.ties.rows[:, which], 1)), r, 0.0)  # what is more than chance
    r = np.where(accused[:, p.layout.column[p.ties.first[which]]], 0.0, r)
    size = np.where((r != 0).sum(1) > 1, np.sqrt((r * r).sum(1)), np.nan)
    with np.errstate(all="ignore"):
        return np.asarray(r @ r.T / size[:, None] / size)

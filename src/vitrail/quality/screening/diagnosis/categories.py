"""Whether a site's categories fit the others' once they are read as others."""

from __future__ import annotations

import numpy as np

from vitrail.quality.screening.schema import Numbers, Places
from vitrail.quality.screening.site_summaries import SiteSummaries
from vitrail.stats.assignment import best_assignment
from vitrail.stats.tests import arcsine

CLEARLY = 8.0  # by so much the log likelihood of another reading must be higher


def recode(p: SiteSummaries, site: int, column: int, others: Places) -> dict[int, int]:
    """{level as written here: level as meant elsewhere}, of those that change; empty where they fit best as they are.

    Each level counts by its share and by how the outcome goes with it.
    """
    at = p.layout
    which = np.flatnonzero(at.column == column)
    counts = np.nan_to_num(p.shares[site, which] * p.known[site, column])  # [level]
    weight = np.nan_to_num(p.known[others, column])
    usual = (weight[:, None] * np.nan_to_num(p.shares[others][:, which])).sum(0) + 0.5
    usual /= usual.sum()
    fit = counts[:, None] * np.log(usual)[None]  # [as written, as meant]
    ties = [np.flatnonzero((p.ties.first == v) & np.isin(p.ties.second, at.outcome)) for v in which]
    for k in range(len(at.outcome)):
        test = np.array([t[k] for t in ties])
        table = p.ties.tables[:, test]  # [site, level, 4]
        if np.isfinite(table[site]).all():
            mine = table[site]
            theirs = np.nansum(table[others], 0)
            rate = (theirs[:, 3] + 0.5) / (theirs[:, 1] + 1)  # of the outcome, in each level
            yes, no = mine[:, 3], mine[:, 1] - mine[:, 3]
            fit += (yes[:, None] * np.log(rate) + no[:, None] * np.log(1 - rate)) / len(at.outcome)
        else:
            r, n = p.ties.r[:, test], p.ties.rows[:, test]
            theirs = (n[others] * r[others]).sum(0) / np.maximum(n[others].sum(0), 1)
            fit -= n[site][:, None] * (r[site][:, None] - theirs[None]) ** 2 / 2 / len(at.outcome)
    meant = best_assignment(-fit)
    gain = float(fit[np.arange(len(fit)), meant].sum() - np.trace(fit))
    if gain < CLEARLY:
        return {}
    return {coded: int(level) for coded, level in enumerate(meant) if coded != level}


def read_outcome(p: SiteSummaries, site: int, others: Places) -> dict[int, int]:
    """{class as written here: class as meant elsewhere} of three or more, by which columns go with each of them."""
    k = len(p.layout.outcome)
    if k < 3:
        return {}
    rows, r = (x[:, : len(p.layout.inputs) * k].reshape(len(p.sites), -1, k) for x in (p.ties.rows, p.ties.r))
    usual = _usual(rows, r, others)  # [input, class]
    away = (rows[site][:, :, None] * (r[site][:, :, None] - usual[:, None, :]) ** 2).sum(0)  # [as written, as meant]
    meant = best_assignment(away)
    before, after = float(np.trace(away)), float(away[np.arange(k), meant].sum())
    if (before - after) / 2 < CLEARLY or after > 0.5 * before:
        return {}
    return {written: int(level) for written, level in enumerate(meant) if written != level}


def swapped_with(p: SiteSummaries, site: int, column: int, others: Places) -> str:
    """Another yes-or-no column whose share and whose ties with the outcome this one has, and the other way round."""
    at, k = p.layout, len(p.layout.outcome)
    yesno = np.array([v for v in at.inputs if at.kinds[at.column[v]] == "binary"], np.int64)
    mine = np.flatnonzero(at.column[yesno] == column)
    if len(yesno) < 2 or not len(mine):
        return ""
    place = np.searchsorted(at.inputs, yesno)
    rows, r = (x[:, : len(at.inputs) * k].reshape(len(p.sites), -1, k)[:, place] for x in (p.ties.rows, p.ties.r))
    observed = np.nan_to_num(p.known[:, at.column[yesno]])
    share = np.nan_to_num(p.shares[:, yesno])
    usual = (observed[others] * share[others]).sum(0) / np.maximum(observed[others].sum(0), 1)
    tied = _usual(rows, r, others)  # [column, class]

    def away(share: Numbers, r: Numbers) -> Numbers:
        """[as written, as meant]: squared deviates, of the share and of the ties."""
        gap = 2 * (arcsine(share)[:, None] - arcsine(usual)[None])
        return np.asarray(
            observed[site][:, None] * gap**2 + (rows[site][:, None] * (r[:, None] - tied[None]) ** 2).sum(2)
        )

    own, turned = away(share[site], r[site]), away(1 - share[site], -r[site])
    a = int(mine[0])
    as_it_is, back = np.diag(own), own[a] + own[:, a]
    # it alone, or this one and the other, might have yes for no
    rest = np.minimum(as_it_is, np.diag(turned))
    rival = np.minimum(as_it_is[a], turned[a, a]) + rest
    fine = (back < rival - 2 * CLEARLY) & (np.maximum(own[a], own[:, a]) < (1 + k) * CLEARLY)
    fine[a] = False
    if not fine.any():
        return ""
    j = int(np.where(fine, back, np.inf).argmin())
    return at.columns[int(at.column[yesno[j]])]


def _usual(rows: Numbers, r: Numbers, others: Places) -> Numbers:
    """[...]: the others' mean of ties, by rows."""
    return np.asarray((rows[others] * r[others]).sum(0) / np.maximum(rows[others].sum(0), 1))

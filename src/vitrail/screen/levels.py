"""Whether a site's categories fit the others' once they are read as others."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from vitrail.screen.layout import Places
from vitrail.screen.published import Published

CLEARLY = 8.0  # by so much the log likelihood of another reading must be higher


def recode(p: Published, site: int, column: int, others: Places) -> dict[int, int]:
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
    rows, meant = linear_sum_assignment(-fit)
    gain = float(fit[rows, meant].sum() - np.trace(fit))
    if gain < CLEARLY:
        return {}
    return {int(a): int(b) for a, b in zip(rows, meant, strict=True) if a != b}

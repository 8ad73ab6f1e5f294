"""What a difference would do to a model: by how much the others' answers would be off at this site, column by column.

From what was published alone. A model of one column answers with the column's usual correlation with the outcome (the
median over sites), in standard deviations. Where the column lies elsewhere at a site, these answers move by correlation
times shift, and the squared error by the square of that; where the column goes with the outcome otherwise, the squared
error grows by the square of the difference of correlations, less what chance does; where more values are missing, the
square of the correlation is lost for these rows. All of it as a share of the outcome's variance. It is an estimate, and
columns that say the same count twice: it orders findings, and judges none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitrail.quality.screening.diagnosis.location_scale import median_of_others
from vitrail.quality.screening.result import EFFECT, Finding
from vitrail.quality.screening.schema import Numbers
from vitrail.quality.screening.site_summaries import OUTCOME, SiteSummaries
from vitrail.stats.tests import median_known

NORMAL = 1.349  # widths of the middle half in a standard deviation
MOST_SHIFT = 3.0  # standard deviations, as models see extreme values


def weights_of(p: SiteSummaries) -> Numbers:
    """[variable, outcome]: how each usually goes with the outcome; 0 where that is not known."""
    out = np.zeros((len(p.layout.column), len(p.layout.outcome)))
    which = np.flatnonzero(p.ties.family == OUTCOME)
    r = np.where(p.ties.rows[:, which] > 0, p.ties.r[:, which], np.nan)
    out[p.ties.first[which], np.searchsorted(p.layout.outcome, p.ties.second[which])] = np.nan_to_num(median_known(r))
    return out


def shifts_of(p: SiteSummaries) -> Numbers:
    """[site, variable]: how far each lies from the other sites', in standard deviations."""
    at = p.layout
    out = np.zeros((len(p.sites), len(at.column)))
    with np.errstate(all="ignore"):
        middle, wide = p.quantiles[:, :, 9], p.widths
        there = np.isfinite(middle)
        usual, width = median_of_others(middle, there), median_of_others(wide, np.isfinite(wide))
        out[:, at.numbers] = (middle - usual) / (width / NORMAL)
        share = p.shares[:, at.yesno]
        others = median_of_others(share, np.isfinite(share))
        out[:, at.yesno] = (share - others) / np.sqrt(np.maximum(others * (1 - others), 0.01))
    return np.clip(np.nan_to_num(out, posinf=0.0, neginf=0.0), -MOST_SHIFT, MOST_SHIFT)


def effects_of(p: SiteSummaries) -> Numbers:
    """[site, column]"""
    at = p.layout
    weights, shifts = weights_of(p), shifts_of(p)
    by_shift = ((shifts[:, :, None] * weights[None]) ** 2).mean(-1)  # [site, variable]
    with np.errstate(all="ignore"):
        missing = np.nan_to_num(1 - p.known / p.rows[:, None])  # [site, column]
    more = np.clip(missing - np.median(missing, axis=0), 0.0, 1.0)[:, at.column]
    by_shift += more * (weights**2).mean(-1)[None]
    by_shift[:, at.outcome] = shifts[:, at.outcome] ** 2  # another base rate, or another mean
    which = np.flatnonzero(p.ties.family == OUTCOME)
    n = p.ties.rows[:, which]
    r = np.where(n > 0, p.ties.r[:, which], np.nan)
    gap = (
        np.nan_to_num(r - median_of_others(r, np.isfinite(r))) ** 2 - 1 / np.maximum(n, 1) - 1 / np.maximum(n.sum(0), 1)
    )
    by_tie = np.zeros((len(p.sites), len(at.column), len(at.outcome)))
    level = np.searchsorted(at.outcome, p.ties.second[which])
    by_tie[:, p.ties.first[which], level] = np.where(n > 0, np.maximum(gap, 0.0), 0.0)
    out = np.zeros((len(p.sites), len(at.columns)))
    np.add.at(out.T, at.column, (by_shift + by_tie.mean(-1)).T)
    return out


def with_effects(p: SiteSummaries, findings: Sequence[Finding]) -> list[Finding]:
    """What may be real, each with its effect and the largest first; the likely wrong stay as and where they are."""
    effect = effects_of(p) if any(not f.wrong for f in findings) else np.zeros((0, 0))
    maybe = []
    for f in findings:
        if not f.wrong:
            x = float(effect[p.sites.index(f.site), p.layout.columns.index(f.feature)])
            maybe.append(f._replace(numbers={**f.numbers, EFFECT: float(f"{x:.3g}")}))
    absent = [f for f in maybe if f.kind in ("only here", "not here")]
    rest = sorted((f for f in maybe if f not in absent), key=lambda f: -f.numbers[EFFECT])
    return [*(f for f in findings if f.wrong), *absent, *rest]

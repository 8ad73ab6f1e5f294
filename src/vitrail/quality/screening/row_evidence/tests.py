"""Whether a column's values belong to their rows, at each site against the others: tests of `row_ratios`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vitrail.quality.screening.schema import FLOOR, Numbers, Places
from vitrail.quality.screening.site_summaries import RATIO
from vitrail.stats.tests import skewed_as_z

if TYPE_CHECKING:
    from vitrail.quality.screening.statistics import SiteTests

LEAST_SCATTER = 1e-3  # of a row's log ratio: below that it tells nothing
TOLD = 0.02  # by so much the mean must grow if all values were another row's: else a column tells nothing of the others
OWN = 0.25  # weight of a site's own scatter, where it is larger: rows that add much are few, and some sites have more


def weigh_ratios(tests: SiteTests, place: Places) -> None:
    """Whether values belong to their rows; only one that belongs less than elsewhere speaks. At a site where a
    column was accused the others lack it, so that theirs say nothing."""
    if not len(place):
        return
    column, p = tests.first[place], tests.published
    mean, moved, scatter, third, *_ = np.moveaxis(p.ratios[:, column], 2, 0)
    rows = np.where(np.isfinite(mean), np.nan_to_num(p.known[:, column]), 0.0)
    disturbed = np.asarray(tests.accused.any(1))[:, None] & ~tests.accused[:, column]
    fair = ~tests.accused[:, column]
    if (~tests.accused.any(1)).sum() > 2:
        fair &= ~disturbed
    weight = np.where((rows > 0) & fair, rows, 0.0)
    scatter, third = (_with_own(x, weight) for x in (scatter, third))
    tests.compare(place, mean, rows, scatter, rows, fair, plain=True)
    reported = moved - tests.theirs[:, place] > TOLD
    less = (tests.mine[:, place] > tests.theirs[:, place]) & ~disturbed & reported
    # a mean of few rows, of which some add much, is skewed
    skewness = third / np.maximum(rows, 1) ** 2 / np.maximum(tests.variance[:, place], 1e-12) ** 1.5
    tests.z[:, place] = np.minimum(tests.z[:, place], skewed_as_z(tests.plain[:, place], skewness))
    for loud in (tests.z, tests.plain):
        loud[:, place] = np.where(less, loud[:, place], 0.0)
    tests.effect[:, place] = _misplaced(tests, place)


def _with_own(x: Numbers, weight: Numbers) -> Numbers:
    """[site, test]: of the other sites' rows, or between that and the site's own where this is larger."""
    own = np.nan_to_num(x)
    theirs = ((weight * own).sum(0) - weight * own) / np.maximum(weight.sum(0) - weight, 1)
    return np.asarray(np.maximum(theirs, (1 - OWN) * theirs + OWN * own).clip(min=0.0))


def misplaced(tests: SiteTests, site: int, column: int) -> float:
    """The share of a column's values that are as if of other rows: 0 as at the other sites, 1 all of them."""
    return float(_misplaced(tests, np.flatnonzero((tests.family == RATIO) & (tests.first == column)))[site, 0])


def without_outcome(tests: SiteTests, site: int, column: int) -> tuple[float, float]:
    """How far a column's values are from fitting the other features of their rows, in units of chance, and how far
    they would be if the column were what is wrong; (0, 0) where nothing tells."""
    p, fair = tests.published, ~tests.accused[:, column] & np.isfinite(tests.published.ratios[:, column, 4])
    fair[site] = False
    n = float(np.nan_to_num(p.known[site, column]))
    mean, moved, variance = p.ratios[:, column, 4:7].T
    if not fair.any() or not np.isfinite(mean[site]) or n < FLOOR:
        return 0.0, 0.0
    rows = np.where(fair, np.nan_to_num(p.known[:, column]), 0.0)
    usual = float(np.nan_to_num(mean) @ rows / rows.sum())
    spread = max(LEAST_SCATTER, float(np.nan_to_num(variance) @ rows / rows.sum()), float(variance[site]))
    error = float(np.sqrt(spread * (1 / n + 1 / rows.sum())))
    expected = misplaced(tests, site, column) * max(0.0, float(moved[site]) - usual)
    return (float(mean[site]) - usual) / error, expected / error


def _misplaced(tests: SiteTests, place: Places) -> Numbers:
    here, usual, whole = tests.mine[:, place], tests.theirs[:, place], tests.published.ratios[:, tests.first[place], 1]
    reported = (whole > usual) & (tests.rows[:, place] > 0)
    return np.where(reported, np.clip((here - usual) / np.where(reported, whole - usual, 1.0), 0.0, 1.0), 0.0)

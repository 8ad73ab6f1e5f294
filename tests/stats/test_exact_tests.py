"""Exact tests are scipy's, and calibrated."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, hypergeom, norm

from vitrail.stats.tests import as_z, compare_counts, compare_odds, median_known, more_than, t_as_z


def two_sided(a: int, n: int, b: int, m: int) -> float:
    law = hypergeom(n + m, a + b, n)
    return min(1.0, 2 * min(law.sf(a - 1), law.cdf(a)))


@pytest.mark.parametrize("counts", [(0, 20, 5, 60), (8, 20, 5, 60), (12, 15, 20, 90), (1, 40, 30, 90), (5, 5, 3, 80)])
def test_small_counts_are_compared_exactly(counts: tuple[int, int, int, int]) -> None:
    z = float(compare_counts(*map(np.array, counts)))
    assert 2 * norm.sf(z) == pytest.approx(two_sided(*counts), rel=1e-6)


def test_large_counts_are_compared_nearly_exactly() -> None:
    for a in range(60, 141, 5):
        z = float(compare_counts(np.array(a), np.array(400), np.array(1000), np.array(4000)))
        assert z == pytest.approx(norm.isf(two_sided(a, 400, 1000, 4000) / 2), abs=0.06)


def test_a_rare_level_that_is_absent_by_chance_is_silent() -> None:
    assert float(compare_counts(np.array(0), np.array(20), np.array(4), np.array(200))) < 1


def test_a_searched_value_pays_for_the_search() -> None:
    few, many = (float(more_than(*map(np.array, (6, 30, 2, 200, tried)))) for tried in (1, 50))
    assert many < few
    tail = hypergeom.sf(5, 230, 8, 30)
    assert 2 * norm.sf(many) == pytest.approx(min(1, 50 * tail), rel=1e-6)


@pytest.mark.parametrize("mine", [(30, 12, 14, 10), (30, 12, 14, 1), (25, 5, 20, 4)])
def test_odds_are_compared_exactly(mine: tuple[int, int, int, int]) -> None:
    others = (90, 40, 45, 30)
    (n, r, c, a), (m, p, q, b) = mine, others
    x = np.arange(max(0, r + c - n), min(r, c) + 1)
    weight = hypergeom(n, c, r).pmf(x) * hypergeom(m, q, p).pmf(a + b - x)
    weight /= weight.sum()
    tail = 2 * min(weight[x <= a].sum(), weight[x >= a].sum())
    z = compare_odds(np.array(mine, float), np.array(others, float))
    assert 2 * norm.sf(z) == pytest.approx(min(1.0, tail), rel=1e-6)


def test_a_small_probability_is_not_lost() -> None:
    assert float(as_z(np.array(1e-30), np.array(11.5))) == 11.5
    assert float(t_as_z(np.array(50.0), np.array(10.0))) < float(t_as_z(np.array(50.0), np.array(100.0)))


def test_the_exact_test_keeps_its_level() -> None:
    rng = np.random.default_rng(0)
    a, b = binom.rvs(25, 0.08, size=4000, random_state=rng), binom.rvs(150, 0.08, size=4000, random_state=rng)
    z = compare_counts(a, np.full(4000, 25), b, np.full(4000, 150))
    assert (z > norm.isf(0.025)).mean() <= 0.055


def test_medians_of_what_is_known() -> None:
    x = np.array([[1.0, np.nan], [3.0, np.nan], [2.0, 5.0], [np.nan, 7.0], [9.0, np.nan]])
    assert median_known(x).tolist() == np.nanmedian(x, axis=0).tolist()
    assert np.isnan(median_known(np.full((2, 1), np.nan))).all()

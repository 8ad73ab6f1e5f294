"""Intervals over seeds against scipy and simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vitrail.stats.intervals import interval


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20))
def test_interval_without_shared_rows_is_students(scores: list[float]) -> None:
    mean, low, high = interval(scores, 0.0)
    half = stats.t.ppf(0.975, len(scores) - 1) * stats.sem(scores)
    assert mean == pytest.approx(np.mean(scores), abs=1e-9)
    assert (low, high) == (pytest.approx(mean - half, abs=1e-9), pytest.approx(mean + half, abs=1e-9))


def test_interval_passes_over_what_is_undefined() -> None:
    assert interval([0.1, math.nan, 0.3], 0.3) == interval([0.1, 0.3], 0.3)
    assert interval([0.2, math.nan], 0.3)[0] == 0.2
    assert all(math.isnan(v) for v in interval([0.2, math.nan], 0.3)[1:])
    assert all(math.isnan(v) for v in interval([math.nan, math.nan], 0.3))
    assert all(math.isnan(v) for v in interval([], 0.3))


def test_coverage_over_repeated_splits() -> None:
    """Truth is the expected error of a model of 60 rows. Five random splits of the same 90 rows: the widened interval
    holds it about as often as it says, the usual one far less."""
    rng = np.random.default_rng(0)
    trials, n, tested = 1000, 90, 30
    truth = 1 + 1 / (n - tested)  # squared error of predicting the mean of 60 draws of variance 1
    held = {0.0: 0, tested / n: 0}
    for _ in range(trials):
        rows, scores = rng.normal(0, 1, n), []
        for _ in range(5):
            order = rng.permutation(n)
            test, train = rows[order[:tested]], rows[order[tested:]]
            scores.append(float(((test - train.mean()) ** 2).mean()))
        for share in held:
            _, low, high = interval(scores, share)
            held[share] += low <= truth <= high
    assert held[tested / n] / trials > 0.90
    assert held[0.0] / trials < held[tested / n] / trials - 0.05


def test_the_level_may_lie_more_on_one_end() -> None:
    """Of all of it `below` is below the lower end, the rest above the upper one."""
    scores = [0.1, 0.5, 0.3, 0.2]
    mean, low, high = interval(scores, 0.0, level=0.05, below=0.4)
    assert (mean - low) / stats.sem(scores) == pytest.approx(stats.t.ppf(0.98, 3))
    assert (high - mean) / stats.sem(scores) == pytest.approx(stats.t.ppf(0.97, 3))

"""benchmarks/verdicts/stopping_rules.py: its controls are what they are called; rules change nothing but the end."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.scripts import load_script

load_script("worlds")
load_script("choose")
bench = load_script("stopping_rules")
SMALL = bench.World(2, sites=4, rows=(30, 30))
SHORT = bench.Form("local updates", "local", 6)


def run(given: dict, watched: bool = False):
    return bench.trained(SMALL, bench.sites_of(SMALL, 1), SHORT, {"p_d": 0.01, **given}, 0.5, 1, watched)


@pytest.fixture(scope="module")
def plain():
    return run({}, watched=True)


def test_watching_changes_nothing(plain) -> None:
    last = run({})
    assert plain.loss.shape == (7, 4)
    np.testing.assert_array_equal(last.loss, plain.loss[-1:])
    assert not plain.stopped.any()


@pytest.mark.parametrize("cone", [1e-9, 0.2, 0.4, 0.6])
def test_a_course_that_is_cut_is_that_of_the_option(plain, cone: float) -> None:
    """Scores and rounds of every user, of those who stop as of those who do not."""
    real, cut = run({"cone": cone}), plain.cut(cone)
    np.testing.assert_array_equal(real.stopped, cut.stopped)
    np.testing.assert_array_equal(real.loss, cut.loss)
    np.testing.assert_array_equal(real.right, cut.right)
    assert cut.stopped.any() or cone < 0.3


def test_the_control_is_at_least_as_good_as_any_round(plain) -> None:
    at = plain.loss.argmin(0)
    assert (plain.loss[at, np.arange(4)] <= plain.loss).all()


def test_rows_that_are_set_aside_and_never_looked_at_only_cost(plain) -> None:
    aside = run({"validation": 0.2, "patience": 10**6})
    assert not aside.stopped.any()
    assert not np.array_equal(aside.loss, plain.loss[-1:])

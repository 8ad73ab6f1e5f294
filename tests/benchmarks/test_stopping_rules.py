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


def run(given: dict, every: bool = True):
    return bench.trained(SMALL, bench.sites_of(SMALL, 1), SHORT, {"p_d": 0.01, **given}, 0.5, 1, every)


@pytest.fixture(scope="module")
def plain():
    return run({})


def test_scores_of_the_last_round_are_the_same_alone(plain) -> None:
    last = run({}, every=False)
    assert plain.loss.shape == (6, 4)
    np.testing.assert_array_equal(last.loss, plain.loss[-1:])
    assert not plain.stopped.any()


def test_a_user_that_stops_keeps_the_model_of_that_round(plain) -> None:
    """And its course until then is that without a rule: a user's model does not depend on who else has stopped."""
    cone = run({"cone": 0.5})
    assert cone.stopped[-1].any()
    for site in range(4):
        trained = int((cone.stopped[:, site] == 0).sum())
        np.testing.assert_array_equal(cone.loss[:trained, site], plain.loss[:trained, site])
        assert len(set(cone.loss[max(trained - 1, 0) :, site])) <= 2


def test_the_control_is_at_least_as_good_as_any_round(plain) -> None:
    at = plain.loss.argmin(0)
    assert (plain.loss[at, np.arange(4)] <= plain.loss).all()


def test_rows_that_are_set_aside_and_never_looked_at_only_cost(plain) -> None:
    aside = run({"validation": 0.2, "patience": 10**6})
    assert not aside.stopped.any()
    assert not np.array_equal(aside.loss, plain.loss)

"""A run of Influence: its weights round by round, in the order of the run's sites, and on its page."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.small import opposed_tables
from vitrail.core.facts import OWN
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.sections.learning.sources import read_learned
from vitrail.runs.setup import MAJORITY

ROWS = {"small": 60, "large": 150, "middle": 100}


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return opposed_tables(ROWS)


@pytest.fixture(scope="module")
def study(tables: dict[str, pd.DataFrame]) -> vt.Study:
    training = {"rounds": 12, "batch": 32, "total": "mean", "lr": 0.1}
    drawn = vt.Study.infer(tables, target="sick")
    return drawn.with_changes(network={"kind": "linear"}, training=training, method={"name": "influence"})


def test_the_page_shows_its_weights(study: vt.Study, tables: dict[str, pd.DataFrame]) -> None:
    run = vt.federate(study, tables, seed=3)
    trust = run.trust()
    assert trust.alpha.shape == (12, 3, 3)
    assert np.isnan(trust.alpha[0]).all()
    assert np.allclose(trust.alpha[1:].sum(2), 1)
    assert np.allclose(trust.mean, run.influence().loc[run.sites, run.sites])
    odd = run.sites.index("middle")
    assert trust.mean[odd, odd] > 0.9, "the flipped site has nobody to learn from"
    for user in range(3):
        if user != odd:
            assert trust.mean[user, odd] < 0.01 < trust.mean[user, 3 - odd - user]
    learned = read_learned(run)
    assert learned is not None
    assert set(learned.curves["model"]) == {OWN, MAJORITY}
    assert learned.weights is not None
    assert set(learned.weights["model"]) == {OWN}
    html = render(page_of(run))
    assert "Mean weight over all rounds" in html
    assert f"large: {trust.mean[run.sites.index('large')][run.sites.index('large')]:.2f} its own" in html
    assert "Trust after the last round" not in html


def test_one_round_has_nothing_to_weigh(study: vt.Study, tables: dict[str, pd.DataFrame]) -> None:
    run = vt.federate(study, tables, seed=3, rounds=1)
    assert read_learned(run) is None
    assert "Whom each site learned from" not in render(page_of(run))

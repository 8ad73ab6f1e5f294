"""benchmarks/verdicts/fixed_budget.py: what Ndoye top-k is charged is what crosses, and nobody overspends."""

from __future__ import annotations

import pytest

from tests.support.scripts import load_script
from vitrail.data.encoding import prepare

load_script("worlds")
load_script("whom_to_learn_from")
bench = load_script("fixed_budget")


@pytest.fixture(scope="module")
def heart():
    study, sites = bench.loaded("heart", 1)
    return study, sites, {s.name: len(s.train_y) for s in prepare(sites, study, 1)}


def test_ndoye_is_charged_for_its_ranking_and_every_training(heart) -> None:
    study, sites, rows = heart
    now = bench.with_rounds(study, 2).with_changes(metrics=("balanced_accuracy", "f1", "auc"))
    crossed = bench.top_k(now, sites, 1, [1], 0.1, 0.1)[1]["bytes"]
    assert bench.cost(study, "ndoye", 1, 2, rows).bytes * len(rows) == crossed


@pytest.mark.parametrize("way", ["local", "gradient", "ndoye"])
def test_one_round_more_would_be_too_much(heart, way: str) -> None:
    study, _, rows = heart
    spent = bench.cost(study, "global", 0, 40, rows)
    for budget in (bench.FixedBudget(bytes=spent.bytes), bench.FixedBudget(steps=spent.steps)):
        rounds = bench.affordable(study, way, 1, rows, budget)
        assert rounds == bench.MOST or not budget.pays(bench.cost(study, way, 1, rounds + 1, rows))
        assert rounds == 0 or budget.pays(bench.cost(study, way, 1, rounds, rows))
        assert rounds > 0

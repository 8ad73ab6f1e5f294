"""Comparisons under a fixed budget: what a round costs is what crosses and what is computed, and nobody overspends."""

from __future__ import annotations

from typing import Any

import pandas.testing as pdt
import pytest

import vitrail as vt
from vitrail.data.encoding import clean_sites, prepare
from vitrail.engine.local import Engine
from vitrail.report.pages.builder import write_report
from vitrail.runs.setup import build_task, resolve, standardise_lines, training_of, training_rows
from vitrail.studies.compare.budget import FixedBudget, rounds_within, spent_by
from vitrail.studies.compare.execution import load_comparison

METHODS = [name for name, kind in vt.methods.TABLE.items() if not kind.catalogue.required_net]


@pytest.fixture(scope="module")
def study() -> vt.Study:
    agreed = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    return agreed.with_changes(training={"rounds": 6, "batch": 32}, network={"hidden": [6]})


class CountedNet:
    """Counts what goes back through the network of an engine, at the site with the most rows."""

    def __init__(self, engine: Engine) -> None:
        self.steps = 0
        net = engine.task.net
        inner = net.backward

        def backward(params: Any, *given: Any, **named: Any) -> None:
            self.steps += 1
            inner(params, *given, **named)

        object.__setattr__(net, "backward", backward)


@pytest.mark.parametrize("name", METHODS)
def test_a_round_costs_what_crosses_and_what_is_computed(study, name: str) -> None:
    """Against the ledger and the gradients of a training. Trust does not vanish, so that no gradient is left out."""
    given = {"p_d": 1e-6} if name == "weight_erosion" else {}
    agreed, method = resolve(study.with_changes(method={"name": name, **given}), None, None)
    data = prepare(vt.datasets.heart_disease(), agreed, 1)
    rows = {s.name: len(s.train_y) for s in data}
    spent = spent_by(agreed, name, 6, rows)
    engine = Engine(
        build_task(agreed, method, 1), method, training_rows(data, agreed, method, "cpu"), training_of(agreed), 1
    )
    counted = CountedNet(engine)
    list(engine.run())
    assert spent.steps == counted.steps
    crossed = sum(row["bytes"] for row in engine.ledger.rows()) / len(rows)
    crossed += sum(line.bytes * line.rounds for line in standardise_lines(agreed))
    if not method.catalogue.pools_rows:
        assert spent.bytes == crossed
    else:
        assert spent.bytes >= max(rows.values()) * 4 * (data[0].train_x.shape[1] + 1)


@pytest.mark.parametrize("budget", [FixedBudget(bytes=40_000), FixedBudget(steps=60), FixedBudget(40_000, 60)])
def test_rounds_are_the_most_that_the_budget_pays(study, budget: FixedBudget) -> None:
    cleaned, names = clean_sites(vt.datasets.heart_disease(), study), ["local", "fedavg", "ditto", "fedper"]
    longer = study.with_changes(training={"rounds": 50})
    spent = rounds_within(longer, cleaned, names, 1, 3, budget)
    rows = {n: round(len(f) * 2 / 3) for n, f in cleaned.items()}
    for name, mine in spent.items():
        assert budget.pays(mine)
        more = spent_by(longer, name, mine.rounds + 1, rows)
        assert mine.rounds == 50 or not budget.pays(more)
    assert spent["fedavg"].rounds > spent["ditto"].rounds or budget.steps is None


def test_who_cannot_make_a_single_round_is_refused_in_words(study) -> None:
    sites = vt.datasets.heart_disease()
    with pytest.raises(vt.VitrailError) as caught:
        vt.compare(study, sites, ["local", "fedavg", "weight_erosion"], [1], folds=2, budget_bytes=10_000)
    words = str(caught.value)
    assert "Weight Erosion takes" in words
    assert "the budget is 10,000" in words
    assert "Local" not in words
    with pytest.raises(vt.VitrailError) as caught:
        vt.compare(study, sites, ["local", "fedavg"], [1], folds=2, budget_steps=1, budget_bytes=1)
    assert "Local takes" in str(caught.value)
    assert "FedAvg takes" in str(caught.value)
    with pytest.raises(vt.VitrailError) as caught:
        vt.compare(study, sites, ["local"], [1], budget_steps=0, budget_bytes=-1, leave_one_site_out=True)
    assert all(key in str(caught.value) for key in ("budget_bytes", "budget_steps", "leave_one_site_out"))


def test_a_comparison_says_how_many_rounds_each_had(study, tmp_path) -> None:
    """The scores are those of so many rounds; the folder and the page say what the budget paid."""
    sites, names = vt.datasets.heart_disease(), ["local", "ditto"]
    result = vt.compare(study, sites, names, [1], folds=2, budget_steps=30, out=tmp_path / "c")
    assert {n: s.rounds for n, s in result.spent.items()} == {"local": 6, "ditto": 3}
    plain = vt.compare(study, sites, ["ditto"], [1], folds=2, rounds=3)
    mine = result.scores[result.scores.method == "ditto"].reset_index(drop=True)
    pdt.assert_frame_equal(mine, plain.scores)
    loaded = load_comparison(tmp_path / "c")
    assert (loaded.budget, loaded.spent) == (result.budget, result.spent)
    page = write_report(loaded, tmp_path / "page.html").read_text()
    assert "30 gradient steps" in page
    assert "6 rounds" not in page
    with pytest.raises(vt.VitrailError, match="budget"):
        vt.compare(study, sites, names, [1], folds=2, budget_steps=60, out=tmp_path / "c", resume=True)

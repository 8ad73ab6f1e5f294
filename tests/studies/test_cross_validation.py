"""Cross-validation of a federation: every row judged once, by models that never saw it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail as vt
from vitrail.data.readers.tables import clean
from vitrail.studies import cross_validation
from vitrail.studies.cross_validation import cross_validate, same_loss
from vitrail.studies.folds import whole_folds

FEATURES = {"x": {"kind": "numeric"}, "z": {"kind": "numeric"}}
CLASSES = {"column": "y", "classes": [0, 1]}
NUMBER = {"column": "y", "kind": "number"}


def study(target=CLASSES, **changes) -> vt.Study:
    given = {"network": {"hidden": [4]}, "training": {"rounds": 3, "batch": 8}, "target": target, "features": FEATURES}
    return vt.Study.parse({**given, **changes})


def tables(rows=(40, 23, 30), number: bool = False) -> dict[str, pd.DataFrame]:
    out = {}
    for i, n in enumerate(rows):
        rng = np.random.default_rng(i)
        x, z, e = rng.normal(size=(3, n))
        y = 3 * x - z + e
        out[f"site {i}"] = pd.DataFrame({"x": x, "z": z, "y": y if number else (y > 0).astype(int)})
    return out


def crossed_of(agreed: vt.Study, sites: dict[str, pd.DataFrame], method: str = "fedavg", folds: int = 5):
    return cross_validate(agreed, {n: clean(f, agreed) for n, f in sites.items()}, method, 7, folds)


@pytest.mark.parametrize("method", ["local", "fedavg", "centralized", "fedper", "fine_tune"])
def test_no_model_sees_the_rows_it_is_judged_by(method: str) -> None:
    """One row is spoilt. All rows of its fold, at every site, are judged by models that never saw it: nothing of them
    changes, not even by standardising. Rows of other folds are judged by models that did."""
    agreed, sites = study(standardise="global"), tables()
    before = crossed_of(agreed, sites, method)
    at = 11
    sites["site 0"].loc[at, ["x", "z"]] = 40.0, -70.0
    after = crossed_of(agreed, sites, method)
    assert before["lots"] == after["lots"]
    mine = before["lots"]["site 0"][at]
    for name, lots in before["lots"].items():
        one, two, fold = np.array(before["losses"][name]), np.array(after["losses"][name]), np.array(lots) == mine
        fold[at] &= name != "site 0"
        assert np.array_equal(one[fold], two[fold])
        others = np.array(lots) != mine
        assert (one[others] != two[others]).any() or (method == "local" and name != "site 0")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 90), min_size=1, max_size=5), st.integers(2, 12), st.integers(0, 99))
def test_folds(sizes: list[int], folds: int, seed: int) -> None:
    """The same number at every site, none empty, of nearly equal size, every class spread as evenly."""
    agreed, sites = study(), tables(sizes)
    cut = whole_folds({n: clean(f, agreed) for n, f in sites.items()}, agreed, seed, folds)
    assert cut.folds == min(folds, *sizes)
    for name, lots in cut.lots.items():
        y = sites[name]["y"].to_numpy()
        counts = np.bincount(lots, minlength=cut.folds)
        assert len(counts) == cut.folds
        assert counts.min() >= 1
        assert counts.max() - counts.min() <= 1
        for k in (0, 1):
            of = np.bincount(lots[y == k], minlength=cut.folds)
            assert of.max() - of.min() <= 1


def test_a_site_with_one_row_is_told_by_name() -> None:
    agreed = study()
    with pytest.raises(vt.VitrailError, match="site 1"):
        whole_folds({n: clean(f, agreed) for n, f in tables((20, 1)).items()}, agreed, 1, 5)


def test_losses_and_scores_are_of_the_same_answers() -> None:
    """Without class weights the mean loss is the log loss; its pseudo-values' mean too."""
    agreed = study(training={"rounds": 3, "batch": 8, "class_weights": "none"}, metrics=["log_loss", "auc"])
    part = crossed_of(agreed, tables())
    score = {n: v for n, m, v, split in part["scores"] if (m, split) == ("log_loss", "test")}
    for name, of in part["losses"].items():
        assert np.mean(of) == pytest.approx(score[name])
        folds = [v for n, m, _, v in part["folds"] if (n, m) == (name, "log_loss")]
        assert np.mean(folds) == pytest.approx(score[name], rel=0.05)
    ends = [row for row in part["curve"] if row[0] == 3]
    assert {(n, m): v for _, n, m, v in ends} == {(n, m): v for n, m, v, s in part["scores"] if s == "test"}


def test_the_brier_score_stands_beside() -> None:
    """Of the same answers as the log loss, in the verdicts and in what is kept; none of numbers."""
    agreed = study(training={"rounds": 3, "batch": 8}, metrics=["brier", "auc"])
    part = crossed_of(agreed, tables())
    score = {n: v for n, m, v, split in part["scores"] if (m, split) == ("brier", "test")}
    assert part["brier"] == pytest.approx(score)
    told = vt.compare(agreed, tables(), ["local", "fedavg"], [1, 2], folds=3, every_seed=True)
    for v in told.verdicts().itertuples():
        for method, found in (("local", v.brier_alone), ("fedavg", v.brier_joined)):
            assert found == pytest.approx(told.means("brier")[method, v.site])
    number = study({"column": "y", "kind": "number"}, metrics=["rmse"])
    assert all(math.isnan(v) for v in crossed_of(number, tables(number=True))["brier"].values())


@pytest.mark.parametrize("weights", ["none", "inverse"])
def test_losses_are_of_stated_risks_also_where_training_weighs_classes(weights: str) -> None:
    """The best single answer is the share of each class; one half for both loses more."""
    agreed, y = study(training={"rounds": 3, "class_weights": weights}), np.array([0] * 90 + [1] * 10)
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert same_loss(agreed, y) == pytest.approx(entropy)
    assert cross_validation.row_losses(agreed, y, np.tile([0.9, 0.1], (100, 1))).mean() == pytest.approx(entropy)
    assert cross_validation.row_losses(agreed, y, np.full((100, 2), 0.5)).mean() == pytest.approx(np.log(2))


def test_numbers_are_judged_by_squared_error() -> None:
    agreed, sites = study(NUMBER, metrics=["rmse"]), tables(number=True)
    part = crossed_of(agreed, sites)
    score = {n: v for n, m, v, split in part["scores"] if split == "test"}
    for name, of in part["losses"].items():
        assert np.sqrt(np.mean(of)) == pytest.approx(score[name])
        assert part["same"][name] == pytest.approx(sites[name]["y"].var(ddof=0))


def test_folds_that_do_not_fit_memory_come_after(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = crossed_of(study(), tables())
    monkeypatch.setattr(cross_validation, "HELD", 1)
    parted = crossed_of(study(), tables())
    for k in ("lots", "sites", "ledger", "same"):
        assert whole[k] == parted[k]
    for name, of in whole["losses"].items():
        assert np.allclose(of, parted["losses"][name], atol=1e-5)


def test_ledger_is_of_one_training() -> None:
    agreed, sites = study(screen={"ask": False}), tables()
    part = crossed_of(agreed, sites)
    run = vt.federate(agreed, sites, "fedavg")
    columns = ["site", "stage", "direction", "messages", "bytes"]
    one, two = (pd.DataFrame(t)[columns].sort_values(columns).to_numpy() for t in (part["ledger"], run.ledger))
    assert (one == two).all()

"""benchmarks/verdicts/whom_to_learn_from.py and its report: what it counts, and how it tunes, chooses and compares."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail as vt
from tests.support.scripts import load_script

load_script("worlds")  # of which it takes some
bench = load_script("whom_to_learn_from")
report = load_script("whom_to_learn_from_report")
ROUNDS = 2


@pytest.fixture(scope="module")
def heart() -> tuple[vt.Study, bench.Sites]:
    study, sites = bench.load("heart", 5)
    changes = {"training": {"rounds": ROUNDS}, "network": {"hidden": [4]}, "standardise": "local"}  # no sums cross
    return study.with_changes(**changes), sites


def trained(heart: tuple[vt.Study, bench.Sites], method: str, **given: object) -> bench.Case:
    return bench.trained(*heart, vt.methods.build(method, given), 5)


def test_gradients_are_counted_by_row_and_model(heart: tuple[vt.Study, bench.Sites]) -> None:
    whole = trained(heart, "fedavg")
    rows = sum(train for train, _ in whole["sizes"].values())
    assert whole["gradients"] == ROUNDS * rows
    assert whole["evaluations"] == 0
    assert trained(heart, "local")["bytes"] == 0 < whole["bytes"]
    assert trained(heart, "ditto")["gradients"] == trained(heart, "apfl")["gradients"] == 2 * ROUNDS * rows
    assert trained(heart, "ifedavg")["gradients"] == ROUNDS * rows
    assert trained(heart, "fine_tune", epochs=3)["gradients"] == (ROUNDS + 3) * rows
    eroded = trained(heart, "weight_erosion", update="local", beside=False, p_d=0.0)
    assert eroded["gradients"] == len(heart[1]) * ROUNDS * rows
    weighed = trained(heart, "influence", share=0.5)
    aside = rows - weighed["gradients"] / ROUNDS  # rows that are judged by are not trained on
    assert weighed["evaluations"] == ROUNDS * (len(heart[1]) + 1) * aside > 0


def test_scored_is_the_model_a_site_predicts_with_and_none_beside_it(heart: tuple[vt.Study, bench.Sites]) -> None:
    alone, whole = (trained(heart, name, lr=0.3)["scores"] for name in ("local", "fedavg"))
    assert alone != whole
    for alpha, same in ((0.0, whole), (1.0, alone)):
        assert trained(heart, "centres", lr=0.3, alpha=alpha, groups=1, constant=False)["scores"] == same


def test_top_k_with_all_others_is_global(heart: tuple[vt.Study, bench.Sites]) -> None:
    n, whole = len(heart[1]), trained(heart, "fedavg", lr=0.1)
    case = bench.top_k(*heart, 5, [1, n - 1], 0.1, 0.1)[n - 1]
    assert case["scores"] == whole["scores"]
    rows = sum(train for train, _ in whole["sizes"].values())
    ranking = ROUNDS * rows * bench.RANKING_FOLDS  # one model on all rows, and the folds' on all but their own
    assert case["gradients"] == ranking + n * whole["gradients"]
    assert case["bytes"] > n * whole["bytes"]


def test_the_best_setting_is_that_of_all_seeds_and_never_one_that_diverged() -> None:
    one = [
        {"lr": 1.0, "epochs": 5, "mean": 0.9},
        {"lr": 0.1, "epochs": 5, "mean": 0.7},
        {"lr": 3.0, "epochs": 1, "mean": 0.99},
    ]
    two = [
        {"lr": 0.1, "epochs": 5, "mean": 0.8},
        {"lr": 1.0, "epochs": 5, "mean": 0.5},
        {"lr": 3.0, "epochs": 1, "mean": math.nan},
    ]
    found = bench.best([{"table": one}, {"table": two}])
    assert found == {"lr": 0.1, "epochs": 5}
    assert isinstance(found["epochs"], int)


def test_gains_are_paired_and_the_worst_user_is_each_methods_own() -> None:
    noise = np.array([0.0, 0.2, 0.4])  # over seeds, the same for both: a paired gain does not see it
    ours, theirs = noise[:, None] + [0.3, 0.2], noise[:, None] + [0.1, 0.25]
    scores = {("ditto", "auc"): ours, ("global", "auc"): theirs}
    r = report.Result("heart", {"a": [20, 10], "b": [20, 10]}, [1, 2, 3], scores, {})
    for user, gain in (("mean", 0.075), ("worst", 0.1), (0, 0.2), (1, -0.05)):
        told = r.gain("ditto", "global", user, "auc")
        assert told.mean == pytest.approx(gain) == told.low
        assert told.sure == told.here == np.sign(gain)
    rough = r._replace(scores={**scores, ("ditto", "auc"): theirs + np.array([[-0.1], [0.3], [0.1]])})
    assert rough.gain("ditto", "global", "mean", "auc").sure == 0


def peak(monkeypatch: pytest.MonkeyPatch, **at: float) -> None:
    """Instead of training: the nearer on every ladder, the better."""

    def made_up(job: dict[str, Any], folder: Path) -> None:
        grid = job["grid"]
        away = [
            [abs(rungs.index(v) - rungs.index(at[k])) for v in grid[k]]
            for k in grid
            for rungs in [bench.LADDERS[k].rungs]
        ]
        settings = [dict(zip(grid, values, strict=True)) for values in bench.itertools.product(*grid.values())]
        means = [-float(sum(steps)) for steps in bench.itertools.product(*away)]
        table = [{**setting, "mean": mean} for setting, mean in zip(settings, means, strict=True)]
        bench.place(job, folder).write_text(json.dumps({**job, "table": table}))

    monkeypatch.setattr(bench, "work", made_up)


def searched(folder: Path, way: str) -> Any:
    return bench.search({"step": "search", "data": "heart", "way": way, "seed": [1, 2]}, folder, run=True)


def test_search_goes_on_until_nothing_next_to_the_best_is_untried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak(monkeypatch, lr=10.0, p_d=0.001, p_s=0.0)
    job = {"step": "search", "data": "heart", "way": "weight_erosion", "seed": [1, 2]}
    assert bench.search(job, tmp_path) is None  # nothing is there yet
    found = searched(tmp_path, "weight_erosion")
    assert found == bench.search(job, tmp_path)
    assert found.best == {"lr": 10.0, "p_d": 0.001, "p_s": 0.0}
    assert not found.left
    for name, values in {"lr": (3.0, 30.0), "p_d": (0.0003, 0.003), "p_s": (0.1,)}.items():
        assert all({**found.best, name: v} in found.tried for v in values)
    assert len(found.tried) < 0.1 * np.prod([len(bench.LADDERS[k].rungs) for k in found.best])
    assert len(found.cases) % 2 == 0  # each grid under both seeds
    assert report.at_an_end({"weight_erosion": found}) == []


def test_a_tuned_value_with_nothing_beyond_or_something_untried_beside_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak(monkeypatch, lr=100.0, epochs=1)
    found = searched(tmp_path, "fine_tune")
    assert report.at_an_end({"fine_tune": found}) == ["Fine-tuning lr 100 (the ladder's end)"]
    monkeypatch.setattr(bench, "WIDENINGS", 1)
    short = searched(tmp_path, "fine_tune")
    said = report.at_an_end({"fine_tune": short})
    assert said == [f"Fine-tuning {at} (after {report.WIDENINGS} widenings)" for at in ("lr 10", "epochs 3")]


def test_a_grid_under_which_everything_diverges_has_no_score() -> None:
    job = {"step": "tune", "data": "titanic_strict", "way": "local", "seed": 1, "grid": {"lr": [3e38]}}
    (row,) = bench.tuned(job)["table"]
    assert math.isnan(row["mean"])


def test_in_the_control_a_site_trains_on_60_rows_of_its_groups_truth() -> None:
    study, sites = bench.load("control", 4)
    case = bench.trained(study.with_changes(training={"rounds": 1}), sites, vt.methods.build("local"), 4)
    assert set(map(tuple, case["sizes"].values())) == {(60, bench.TEST)}
    again, other = (bench.load("control", seed)[1] for seed in (4, 5))
    assert again["site 3"].equals(sites["site 3"])
    assert not other["site 3"].equals(sites["site 3"])


def test_worlds_of_their_own_are_not_taken_for_draws_from_the_same_rows() -> None:
    sizes, apart = {"a": [60, 3000], "b": [60, 3000]}, np.array([0.04, 0.05, 0.06])
    scores = {("ditto", "auc"): apart[:, None] + [0.7, 0.7], ("global", "auc"): np.full((3, 2), 0.7)}
    told = {
        d: report.Result(d, sizes, [1, 2, 3], scores, {}).gain("ditto", "global", "mean", "auc") for d in bench.DATA
    }
    assert told["control"].sure == 1
    assert not any(gain.sure for d, gain in told.items() if d != "control")
    assert all(gain.here == 1 for gain in told.values())


def test_k_is_tuned_in_the_control_by_training_rows_alone() -> None:
    ks = bench.DATA["control"].ks
    job = {"step": "tune", "data": "control", "way": "ndoye", "seed": 1, "lr": 0.3, "ranking_lr": 0.3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bench.DATA, "control", bench.DATA["control"]._replace(rounds=2, folds=1))
        patch.setattr(bench, "load", bench.load.__wrapped__)
        said = bench.tuned(job)["table"]
    assert [row["k"] for row in said] == list(ks)
    assert all(0.3 < row["mean"] < 1 for row in said)


def test_better_than_both_means_than_each_of_them_and_brackets_say_on_these_rows_only() -> None:
    noise = np.array([0.001, 0.0, -0.001])[:, None] * [1, 1]
    made = {"global": 0.7 + 0 * noise, "local": 0.72 + 0 * noise, "centres": 0.74 + noise, "influence": 0.71 + noise}
    made |= {"weight_erosion": 0.69 + noise, "ndoye": 0.73 + 3 * noise}
    scores = {(w, bench.METRICS[0]): values for w, values in made.items()}
    r = report.Result("heart", {"a": [20, 10], "b": [20, 10]}, [1, 2, 3], scores, {})
    assert report.who_beats_both(r, "mean", report.CHOOSE) == "Centres and (Ndoye top-k)"


def test_beside_fine_tuning_local_has_as_many_epochs_which_are_not_counted_as_its_cost() -> None:
    job = {"step": "compare", "data": "heart", "way": "fine_tune", "seed": 5, "settings": {"lr": 0.1, "epochs": 3}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bench.DATA, "heart", bench.DATA["heart"]._replace(rounds=ROUNDS))
        patch.setattr(bench, "load", bench.load.__wrapped__)
        case, (study, sites) = bench.compared(job), bench.load("heart", 5)
    longer = study.with_changes(training={"rounds": ROUNDS + 3})
    alone = bench.trained(longer, sites, vt.methods.build("local", {"lr": 0.1}), 5)
    assert case["alone"] == alone["scores"][bench.METRICS[0]]
    assert case["gradients"] == alone["gradients"]

"""benchmarks/whom_to_learn_from.py: what it counts, and how it chooses and compares."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vitrail as vt
from scripts import load_script

load_script("worlds")  # of which it takes some
bench = load_script("whom_to_learn_from")
ROUNDS = 2


@pytest.fixture(scope="module")
def heart() -> tuple[vt.Study, bench.Sites]:
    study, sites = bench.load("heart", 5)
    return study.with_changes(training={"rounds": ROUNDS}, network={"hidden": [4]}), sites


def trained(heart: tuple[vt.Study, bench.Sites], method: str, **given: object) -> bench.Case:
    return bench.trained(*heart, vt.methods.build(method, given), 5)


def test_gradients_are_counted_by_row_and_model(heart: tuple[vt.Study, bench.Sites]) -> None:
    whole = trained(heart, "fedavg")
    rows = sum(train for train, _ in whole["sizes"].values())
    assert whole["gradients"] == ROUNDS * rows
    assert whole["evaluations"] == 0
    assert trained(heart, "local")["bytes"] == 0 < whole["bytes"]
    assert trained(heart, "ditto")["gradients"] == 2 * ROUNDS * rows
    assert trained(heart, "fine_tune", epochs=3)["gradients"] == (ROUNDS + 3) * rows
    eroded = trained(heart, "weight_erosion", update="local", beside=False, p_d=0.0)
    assert eroded["gradients"] == len(heart[1]) * ROUNDS * rows
    weighed = trained(heart, "influence", share=0.5)
    aside = rows - weighed["gradients"] / ROUNDS  # rows that are judged by are not trained on
    assert weighed["evaluations"] == ROUNDS * (len(heart[1]) + 1) * aside > 0


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
    r = bench.Result("heart", {"a": [20, 10], "b": [20, 10]}, [1, 2, 3], scores, {})
    for user, gain in (("mean", 0.075), ("worst", 0.1), (0, 0.2), (1, -0.05)):
        told = r.gain("ditto", "global", user, "auc")
        assert told.mean == pytest.approx(gain) == told.low
        assert told.sure == told.here == np.sign(gain)
    rough = r._replace(scores={**scores, ("ditto", "auc"): theirs + np.array([[-0.1], [0.3], [0.1]])})
    assert rough.gain("ditto", "global", "mean", "auc").sure == 0


def test_a_tuned_value_at_an_end_of_its_grid_is_named_unless_nothing_is_beyond() -> None:
    given = {w: {"lr": 0.1} for w in bench.WAYS}
    given |= {"fine_tune": {"lr": 0.01, "epochs": 1}, "weight_erosion": {"lr": 0.1, "p_d": 0.3, "p_s": 0.0}}
    given["ndoye"] = {"k": 1, "lr": 0.1, "ranking_lr": 3}
    r = bench.Result("heart", {}, [1], {}, {w: [{"settings": s}] for w, s in given.items()})
    assert bench.at_an_end(r) == ["Weight Erosion p_d 0.3", "Ndoye top-k ranking_lr 3", "Fine-tuning lr 0.01"]


def test_in_the_control_a_site_trains_on_60_rows_of_its_groups_truth() -> None:
    study, sites = bench.load("control", 4)
    case = bench.trained(study.with_changes(training={"rounds": 1}), sites, vt.methods.build("local"), 4)
    assert set(map(tuple, case["sizes"].values())) == {(60, bench.TEST)}
    again, other = (bench.load("control", seed)[1] for seed in (4, 5))
    assert again["site 3"].equals(sites["site 3"])
    assert not other["site 3"].equals(sites["site 3"])

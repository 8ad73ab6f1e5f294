"""Is joining worth it? Comparisons made by hand, where the answer is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vitrail.core.declarations import Catalogue
from vitrail.methods import TABLE, FedAvg
from vitrail.studies.compare.result import SCORES, Comparison
from vitrail.study.model import Study

SEEDS = (1, 2, 3, 4, 5)
Scores = Mapping[str, Mapping[str, Sequence[float]]]  # site -> method -> one score per seed


def compared(scores: Scores, metric: str = "auc", train: int = 67, test: int = 33) -> Comparison:
    """A comparison that holds these scores; train scores and other metrics are there to be passed over."""
    number = metric in ("rmse", "mae", "r2")
    target: dict[str, Any] = {"column": "y", "kind": "number"} if number else {"column": "y", "classes": [0, 1]}
    other = "r2" if number and metric != "r2" else "mae" if number else "f1"
    study = Study.parse({"target": target, "features": {"x": {"kind": "numeric"}}, "metrics": [metric, other]})
    rows = []
    for site, by_method in scores.items():
        for method, values in by_method.items():
            for seed, value in zip(SEEDS, values, strict=False):
                rows.append((method, seed, site, "test", metric, value))
                rows.append((method, seed, site, "train", metric, -value))
                rows.append((method, seed, site, "test", other, -value))
    methods = list(dict.fromkeys(m for by_method in scores.values() for m in by_method))
    seeds = list(SEEDS[: max(len(v) for by_method in scores.values() for v in by_method.values())])
    sites = pd.DataFrame({"site": list(scores), "train_rows": train, "test_rows": test})
    needed = [f.name for f in dataclasses.fields(Comparison) if f.default_factory is f.default is dataclasses.MISSING]
    filled: dict[str, Any] = dict.fromkeys(needed)
    filled |= {"study": study, "methods": methods, "seeds": seeds, "sites": sites, "info": {}}
    filled["scores"] = pd.DataFrame(rows, columns=SCORES)
    filled |= {k: pd.DataFrame() for k, v in filled.items() if v is None}
    return Comparison(**filled)


def noise(mean: float, sd: float = 0.01, seed: int = 0, n: int = 5) -> list[float]:
    return np.random.default_rng(seed).normal(mean, sd, n).tolist()


CASES: Scores = {
    "gains": {"local": noise(0.70, seed=1), "fedavg": noise(0.85, seed=2), "ditto": noise(0.80, seed=3)},
    "loses": {"local": noise(0.85, seed=4), "fedavg": noise(0.60, seed=5), "ditto": noise(0.70, seed=6)},
    "noise": {"local": noise(0.75, 0.1, 7), "fedavg": noise(0.75, 0.1, 8), "ditto": noise(0.75, 0.1, 9)},
}


def test_known_truths() -> None:
    found = compared(CASES).verdicts().set_index("site")
    assert found["verdict"].to_dict() == {"gains": "yes", "loses": "no", "noise": "cannot tell"}
    assert found["method"]["gains"] == "fedavg"
    assert found["method"]["loses"] == "ditto"  # the best of those that lose
    assert (found["low"] <= found["gain"]).all()
    assert (found["gain"] <= found["high"]).all()
    gain = np.mean(CASES["gains"]["fedavg"]) - np.mean(CASES["gains"]["local"])
    assert found["gain"]["gains"] == pytest.approx(gain)
    assert found["alone"]["gains"] == pytest.approx(np.mean(CASES["gains"]["local"]))
    assert found["joined"]["gains"] == pytest.approx(np.mean(CASES["gains"]["fedavg"]))


def test_reasons_say_the_numbers() -> None:
    found = compared(CASES).verdicts().set_index("site")
    assert f"lifts auc by {found['gain']['gains']:.3f}" in found["why"]["gains"]
    assert TABLE["fedavg"].catalogue.title in found["why"]["gains"]
    assert f"loses {-found['gain']['loses']:.3f} of auc" in found["why"]["loses"]
    assert "too close to zero to decide from 33 test rows" in found["why"]["noise"]


def test_interval_by_hand() -> None:
    """Gains 0.1, 0.2, 0.3 over three seeds; a third of the rows is tested, so variance * (1/3 + 1/2)."""
    scores = {"a": {"local": [0.5, 0.5, 0.5], "fedavg": [0.6, 0.7, 0.8]}}
    row = compared(scores, train=200, test=100).verdicts().iloc[0]
    half = 4.3026527 * 0.1 * math.sqrt(1 / 3 + 1 / 2)
    assert (row["low"], row["high"]) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))
    assert row["verdict"] == "cannot tell"


def test_more_test_rows_per_training_row_make_it_less_sure() -> None:
    scores = {"a": {"local": [0.5, 0.5, 0.5, 0.5], "fedavg": [0.6, 0.62, 0.57, 0.6]}}
    wide = [compared(scores, train=t, test=100).verdicts().iloc[0] for t in (1000, 300, 100)]
    assert wide[0]["low"] > wide[1]["low"] > wide[2]["low"]


def test_one_seed_cannot_tell() -> None:
    row = compared({"a": {"local": [0.5], "fedavg": [0.99]}}).verdicts().iloc[0]
    assert row["verdict"] == "cannot tell"
    assert "One seed" in row["why"]
    assert row["gain"] == pytest.approx(0.49)
    assert math.isnan(row["low"])


def test_undefined_everywhere() -> None:
    nan = [math.nan] * 3
    row = compared({"a": {"local": nan, "fedavg": nan}}).verdicts().iloc[0]
    assert row["verdict"] == "cannot tell"
    assert "The auc is not defined at this site" in row["why"]


def test_a_method_without_scores_is_not_chosen() -> None:
    scores = {"a": {"local": noise(0.5), "fedavg": [math.nan] * 5, "ditto": noise(0.8)}}
    row = compared(scores).verdicts().iloc[0]
    assert row["method"] == "ditto"
    assert row["verdict"] == "yes"


def test_no_gain_at_all_cannot_tell() -> None:
    same = [0.8, 0.7, 0.9, 0.8, 0.8]
    row = compared({"a": {"local": same, "fedavg": same}}).verdicts().iloc[0]
    assert (row["gain"], row["verdict"]) == (0, "cannot tell")


@pytest.mark.parametrize("methods", [("fedavg", "ditto"), ("local",), ("local", "centralized")])
def test_nothing_to_compare(methods: tuple[str, ...]) -> None:
    """Without Local or without a federated method there is no verdict; pooling rows is no way of joining."""
    assert len(compared({"a": {m: noise(0.5) for m in methods}}).verdicts()) == 0


def test_who_is_alone_is_declared_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The yardstick under another name gives the same verdicts; a method that only bears its old name gives none."""
    right = compared(CASES).verdicts()
    monkeypatch.setitem(TABLE, "solo", TABLE["local"])
    monkeypatch.setitem(TABLE, "local", FedAvg)
    renamed = {
        site: {"solo" if m == "local" else m: values for m, values in by_method.items()}
        for site, by_method in CASES.items()
    }
    pd.testing.assert_frame_equal(compared(renamed).verdicts(), right)
    assert compared(CASES).verdicts().empty


def test_centralized_is_never_the_method() -> None:
    scores = {"a": {"local": noise(0.5), "centralized": noise(0.99), "fedavg": noise(0.6)}}
    row = compared(scores).verdicts().iloc[0]
    assert row["method"] == "fedavg"
    assert row["gain"] < 0.2


@pytest.mark.parametrize("metric", ["log_loss", "rmse", "mae"])
def test_lower_is_better(metric: str) -> None:
    found = compared(CASES, metric).verdicts().set_index("site")
    assert found["verdict"].to_dict() == {"gains": "no", "loses": "yes", "noise": "cannot tell"}
    assert found["gain"]["loses"] > 0
    assert found["method"]["loses"] == "fedavg"  # 0.60 is lower than 0.70
    assert found["method"]["gains"] == "ditto"


def test_higher_is_better_for_r2() -> None:
    found = compared(CASES, "r2").verdicts().set_index("site")
    assert found["verdict"].to_dict() == {"gains": "yes", "loses": "no", "noise": "cannot tell"}


def test_the_first_metric_decides() -> None:
    """The second one holds the opposite."""
    found = compared(CASES).verdicts()
    assert set(found["metric"]) == {"auc"}


def test_choosing_among_many_is_not_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 methods of pure noise at 150 sites. The best of 50 looks good on the rows it was chosen by; chosen by the
    other seeds, a "yes" is as rare as the interval promises."""
    names = [f"noise-{i}" for i in range(50)]
    for name in names:
        monkeypatch.setitem(TABLE, name, type("Noise", (FedAvg,), {"catalogue": Catalogue(title=name)}))
    rng = np.random.default_rng(1)
    draws = rng.normal(0.7, 0.05, (150, 51, 5))
    scores = {f"s{i}": dict(zip(["local", *names], draws[i].tolist(), strict=True)) for i in range(150)}
    found = compared(scores).verdicts()
    # had each site kept the method that came out best over all seeds, most would have "gained"
    naive = (draws[:, 1:].mean(2).max(1) - draws[:, 0].mean(1)).mean()
    assert naive > 0.04
    assert abs(found["gain"].mean()) < 0.01
    assert (found["verdict"] == "yes").mean() < 0.05
    assert (found["verdict"] == "no").mean() < 0.05


def test_one_lucky_seed_is_not_a_gain() -> None:
    """A method that shone once is judged where it did not shine."""
    scores = {"a": {"local": [0.7] * 5, "fedavg": [0.69] * 5, "ditto": [1.0, 0.6, 0.6, 0.6, 0.6]}}
    row = compared(scores).verdicts().iloc[0]
    assert row["gain"] < 0
    assert row["verdict"] != "yes"


# --- summary ---


def test_summary_by_hand() -> None:
    scores = {
        "a": {"local": [0.9, 0.7], "fedavg": [0.60, 0.61]},
        "b": {"local": [0.5, 0.7], "fedavg": [0.9, 0.9]},
    }
    found = compared(scores).summary().set_index(["method", "metric"])
    assert found["mean"]["local", "auc"] == pytest.approx(0.7)
    assert found["worst_site"]["local", "auc"] == "b"
    assert found["worst"]["local", "auc"] == pytest.approx(0.6)
    assert found["worst_site"]["fedavg", "auc"] == "a"
    assert found["worst"]["fedavg", "auc"] == pytest.approx(0.605)
    assert found["worst_site"]["fedavg", "f1"] == "b"  # the other metric is the negative
    # local, mean over sites: 0.7 and 0.7, no spread; fedavg: 0.75 and 0.755; t is 12.7062, 33 of 100 rows are tested
    assert found["mean_low"]["local", "auc"] == pytest.approx(0.7)
    half = 12.7062047 * math.sqrt(2 * 0.0025**2 * (1 / 2 + 33 / 67))
    assert found["mean_low"]["fedavg", "auc"] == pytest.approx(0.7525 - half)
    assert found["mean_high"]["fedavg", "auc"] == pytest.approx(0.7525 + half)


def test_summary_of_a_share_stays_within_0_and_1() -> None:
    scores = {"a": {"local": [0.1, 0.9]}, "b": {"local": [0.1, 0.9]}}
    share, number = (compared(scores, m).summary().iloc[0] for m in ("auc", "rmse"))
    assert (share["mean_low"], share["mean_high"]) == (0, 1)
    assert number["mean_low"] < 0
    assert number["mean_high"] > 1


@pytest.mark.parametrize("metric", ["log_loss", "rmse", "mae"])
def test_worst_site_where_lower_is_better(metric: str) -> None:
    found = compared({"a": {"local": [0.2, 0.2]}, "b": {"local": [0.3, 0.4]}}, metric).summary()
    row = found[found["metric"] == metric].iloc[0]
    assert row["worst_site"] == "b"
    assert row["worst"] == pytest.approx(0.35)


def test_summary_passes_over_sites_without_a_score() -> None:
    scores = {"a": {"local": [math.nan, math.nan]}, "b": {"local": [0.6, 0.8]}}
    row = compared(scores).summary().iloc[0]
    assert row["mean"] == pytest.approx(0.7)
    assert row["worst_site"] == "b"
    none = compared({"a": {"local": [math.nan, math.nan]}}).summary().iloc[0]
    assert math.isnan(none["mean"])
    assert none["worst_site"] == ""

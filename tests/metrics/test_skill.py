"""The site that is served worst is the one with the least improvement over its own baseline, wherever it is named."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.command import vitrail
from vitrail.metrics.skill import no_better, skill, standings, worst_site
from vitrail.report.live.watcher import curve_of
from vitrail.report.pages.builder import page_of
from vitrail.runs.result import HISTORY
from vitrail.runs.setup import MAJORITY
from vitrail.studies.baseline_warning import setting_caution


def test_skill_goes_from_the_baseline_to_a_perfect_score_in_both_directions() -> None:
    assert skill(0.5, 0.5, lower=False) == skill(2.0, 2.0, lower=True) == 0
    assert skill(1.0, 0.7, lower=False) == skill(0.0, 0.7, lower=True) == 1
    assert skill(0.6, 0.8, lower=False) == pytest.approx(-1)
    assert skill(3.0, 2.0, lower=True) == pytest.approx(-0.5)
    assert math.isnan(skill(1.0, 1.0, lower=False)), "nothing is left to gain"
    assert [no_better(1.0, 1.0, lower) for lower in (True, False)] == [True, True]
    assert not no_better(0.4, math.nan, lower=True)


def test_the_worst_site_by_error_is_not_the_one_whose_values_spread_most() -> None:
    errors, baselines = {"wide": 9.0, "narrow": 2.0}, {"wide": 30.0, "narrow": 2.5}
    assert worst_site(errors, baselines, lower=True) == "narrow"
    assert worst_site(errors, {}, lower=True) == "wide", "without baselines, by the score itself"
    assert worst_site({**errors, "constant": 5.0}, {**baselines, "constant": 0.0}, lower=True) == "narrow"
    assert standings({"a": math.nan, "b": 0.6}, {"a": 0.5, "b": 0.5}, lower=False) == pytest.approx({"b": 0.2})
    assert worst_site({"a": math.nan}, {}, lower=False) is None


def wide_and_narrow() -> dict[str, pd.DataFrame]:
    """Two sites whose numbers spread much and are nearly known, and one whose numbers spread little and are noise."""
    out = {}
    for i, (site, spread, noise) in enumerate((("wide", 20.0, 3.0), ("middle", 10.0, 2.0), ("narrow", 0.1, 1.0))):
        rng = np.random.default_rng(i)
        x = rng.normal(size=120)
        out[site] = pd.DataFrame({"x": x * spread, "y": x * spread + noise * rng.normal(size=120)})
    return out


STUDY = {
    "target": {"column": "y", "kind": "number", "scale": 10.0},
    "features": {"x": {"kind": "numeric"}},
    "network": {"kind": "linear"},
    "training": {"rounds": 20, "lr": 0.01},
    "standardise": "global",
    "screen": {"ask": False},
}


def test_run_compare_tune_and_live_name_the_site_with_the_least_skill() -> None:
    study, sites = vt.Study.parse(STUDY), wide_and_narrow()
    run = vt.federate(study, sites)
    error = run.scores().query("metric == 'rmse'").set_index("site")["value"]
    r2 = run.scores().query("metric == 'r2'").set_index("site")["value"]
    assert error.idxmax() != "narrow" == r2.idxmin(), "the largest error is where values spread most"
    page = page_of(run)
    assert page.metric == "rmse"
    assert page.table.worsts[0][0] == "narrow"
    assert next(site for site, scores in page.table.rows if scores[0].worst) == "narrow"
    curve = curve_of(run.history, "rmse", run.sites)
    assert curve is not None
    assert (curve["worst_site"], curve["worst"][-1]) == ("narrow", pytest.approx(error["narrow"]))
    compared = vt.compare(study, sites, ["local", "fedavg"], [1, 2], folds=2)
    assert set(compared.summary().query("metric == 'rmse'")["worst_site"]) == {"narrow"}
    tuned = vt.tune(study, sites, "fedavg", {"lr": [0.01]})
    assert tuned.table["worst_site"].tolist() == ["narrow"]
    assert tuned.table["worst_baseline"][0] == pytest.approx(sites["narrow"]["y"].std(), rel=0.2)


def test_a_run_under_way_ranks_sites_against_their_baselines() -> None:
    told = [(0, 0, site, f"test:{MAJORITY}", "accuracy", v) for site, v in (("a", 0.9), ("b", 0.5))]
    told += [(0, 1, "a", "test", "accuracy", 0.85), (0, 1, "b", "test", "accuracy", 0.7)]
    curve = curve_of(pd.DataFrame(told, columns=HISTORY), "accuracy", ["a", "b"])
    assert curve is not None
    assert (curve["worst_site"], curve["worst"]) == ("a", [0.85])


def test_tune_says_where_its_best_setting_does_not_beat_the_baseline(tmp_path: Path) -> None:
    best = {"mean": 0.60, "worst": 0.70, "worst_site": "b", "worst_baseline": 0.45}
    assert setting_caution("log_loss", best, 0.59).startswith("No setting is better than the baseline")
    at_b = setting_caution("log_loss", best, 0.69)
    assert at_b.startswith("At site b, which it serves worst, the best setting is no better than the baseline")
    assert at_b.endswith("its log loss is 0.700, that of the baseline 0.450.")
    assert setting_caution("log_loss", {**best, "worst": 0.4}, 0.69) == ""
    assert setting_caution("auc", {**best, "worst": 0.4}, 0.5).startswith("At site b")
    noise = {
        s: pd.DataFrame(np.random.default_rng(i).normal(size=(60, 2)), columns=["x", "y"]) for i, s in enumerate("ab")
    }
    (tmp_path / "data").mkdir()
    for site, frame in noise.items():
        frame.to_csv(tmp_path / "data" / f"{site}.csv", index=False)
    study = vt.Study.parse(STUDY).with_changes(target={"scale": 1.0}, training={"rounds": 4, "lr": 1.0})
    (tmp_path / "study.toml").write_text(study.to_toml())
    done = vitrail("tune", tmp_path / "study.toml", "--data", tmp_path / "data", "--grid", "lr=0.5", "--workers", "1")
    assert done.returncode == 0
    assert "its baseline" in done.stdout
    assert "No setting is better than the baseline" in done.stdout

"""Tuning: within the training rows, by every site's own model, and never a look at the hold-out."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

import vitrail as vt
from tests.support.command import vitrail
from tests.support.small import spoil_hold_out
from vitrail.data.splitting import split_rows
from vitrail.engine.local import Engine
from vitrail.metrics.recalibration import PENALTY
from vitrail.metrics.scores import score
from vitrail.runs.setup import build_task, training_of, training_rows
from vitrail.studies import tune as module
from vitrail.studies.folds import folds_of
from vitrail.studies.tune import Tuning
from vitrail.studies.tuning_grid import parse_grid

FEATURES = {f"x{i}": {"kind": "numeric"} for i in range(3)}


def make_sites(kind: str = "number") -> dict[str, pd.DataFrame]:
    out = {}
    for i, n in enumerate((40, 33, 27)):
        rng = np.random.default_rng(i)
        x = rng.normal(size=(n, 3))
        y = 2 * x[:, 0] - x[:, 1] + 0.2 * rng.normal(size=n)
        out["abc"[i]] = pd.DataFrame(x, columns=list(FEATURES)).assign(y=y if kind == "number" else (y > 0).astype(int))
    return out


def make_study(kind: str = "number", **more: object) -> vt.Study:
    target = {"column": "y", "kind": "number"} if kind == "number" else {"column": "y", "classes": [0, 1]}
    training = {"rounds": 8, "batch": 8, "lr": 0.01}
    network = {"kind": "linear"}
    raw = {"target": target, "features": FEATURES, "network": network, "training": training, "split": {"at_least": 5}}
    return vt.Study.parse({**raw, **more})


def test_it_picks_the_obviously_right_learning_rate() -> None:
    found = vt.tune(make_study(), make_sites(), "fedavg", {"lr": [1e-6, 0.01, 10.0], "weights": ["uniform", "rows"]})
    assert found.settings["lr"] == 0.01
    assert list(found.table.columns) == ["lr", "weights", "mean", "sd", "worst", "worst_site", "worst_baseline"]
    assert found.table["mean"].dropna().is_monotonic_increasing, "rmse: the lower the better, best first"
    wild = found.table[found.table.lr == 10.0]
    assert wild["mean"].isna().all(), "a model that diverged has no score"
    assert list(found.table.index[-2:]) == list(wild.index)
    assert len(found.scores) == 6 * 3 * 3
    assert found.same.mean > found.table["mean"].min(), "a linear model of a linear relation is better than its mean"
    assert set(found.few) == set("abc"), "no site has 50 rows"
    better = vt.tune(make_study("classes"), make_sites("classes"), "local", {"lr": [1e-6, 0.05]}, metric="auc")
    assert better.settings == {"lr": 0.05}, "auc: the higher the better"
    assert better.table["mean"].is_monotonic_decreasing
    assert better.same[:2] == (0.5, 0.0), "what ranks all alike ranks nobody"
    assert better.same.worst_site == "", "one answer to every row is the baseline itself"


def test_the_score_is_that_of_each_sites_own_model_on_the_fold() -> None:
    """Again by hand: for one setting, every fold's federation, every site's predictions, the mean of means."""
    study, sites, folds = make_study(), make_sites(), 3
    found = vt.tune(study, sites, "ditto", {"lam": [0.5, 2.0], "momentum": [0.0, 0.9]}, folds, seed=4)
    row = found.table[(found.table.lam == 2.0) & (found.table.momentum == 0.9)].iloc[0]
    method = vt.methods.Ditto(lam=2.0, momentum=0.9)
    told, baselines = np.empty((folds, 3)), np.empty((folds, 3))
    for k, data in enumerate(folds_of(sites, study, 4, folds)):
        task = build_task(study, method, 4)
        engine = Engine(task, method, training_rows(data, study, method, "cpu"), training_of(study), 4, looped=True)
        *_, last = engine.run()
        params = engine.settled(last).params
        for j, site in enumerate(data):
            at = engine.sites.names.index(site.name)
            weight, bias = (params[f"head.{part}"][at].double().numpy() for part in ("weight", "bias"))
            short = site.train_y[:, None] - (site.train_x @ weight + bias)  # what the site's own constant makes up for
            p = site.test_x @ weight + bias + short.sum() / (len(short) + PENALTY)
            told[k, j], baselines[k, j] = score(("rmse",), site.test_y, p)["rmse"], site.test_y.std()
    assert row["mean"] == pytest.approx(told.mean(1).mean(), rel=1e-5)
    assert row["sd"] == pytest.approx(told.mean(1).std(ddof=1), rel=1e-4)
    at = (told.mean(0) / baselines.mean(0)).argmax()
    assert row["worst_site"] == "abc"[at]
    assert row["worst"] == pytest.approx(told.mean(0)[at], rel=1e-5)
    assert row["worst_baseline"] == pytest.approx(baselines.mean(0)[at], rel=1e-5)


def test_hold_out_rows_are_not_touched() -> None:
    study, sites = make_study(), make_sites()
    garbage = spoil_hold_out(study, sites)
    grid = {"lr": [0.001, 0.01], "mu": [0.0, 1.0]}
    one, other = (vt.tune(study, tables, "fedprox", grid) for tables in (sites, garbage))
    pdt.assert_frame_equal(one.scores, other.scores)
    pdt.assert_frame_equal(one.table, other.table)
    trained = split_rows(sites["a"].y.to_numpy(), study, study.seeds[0], "a")[0]
    sites["a"].iloc[trained[:3], 0] = 5.0
    assert not vt.tune(study, sites, "fedprox", grid).table.equals(one.table), "training rows do matter"


def test_settings_go_where_they_belong(tmp_path) -> None:
    study = make_study(network={"kind": "mlp", "hidden": [4], "dropout": 0.0}, method={"name": "fedprox", "mu": 0.3})
    grid = {"mu": [0.1], "lr": [0.02], "rounds": [3, 5], "batch": [4], "dropout": [0.1], "hidden": [[6], [3]]}
    found = vt.tune(study, make_sites(), None, grid, folds=2)
    best = found.best
    assert (best.method["mu"], best.method["lr"], best.training.batch, best.network.dropout) == (0.1, 0.02, 4, 0.1)
    assert best.training.rounds == found.settings["rounds"]
    assert list(best.network.hidden) == found.settings["hidden"]
    said = tomllib.loads(found.section())
    assert set(said) == {"network", "training", "method"}
    assert said["method"] == {"name": "fedprox", "lr": 0.02, "weights": "uniform", "mu": 0.1}
    assert study.with_changes(**said) == best, "the section pasted is the best study"
    found.save(tmp_path / "t.json")
    told = json.loads((tmp_path / "t.json").read_text())
    assert told["best"]["rounds"] == best.training.rounds
    assert len(told["table"]) == 4
    assert len(told["scores"]) == 4 * 2 * 3


def test_a_metric_without_meaning_on_a_fold_is_left_out() -> None:
    """AUC at a site of one class means nothing under any setting; the others still tell the settings apart."""
    sites = make_sites("classes")
    sites["c"] = sites["c"].assign(y=0)
    found = vt.tune(make_study("classes"), sites, "fedavg", {"lr": [1e-6, 0.05]}, metric="auc")
    assert found.scores[found.scores.site == "c"].value.isna().all()
    assert found.table["mean"].notna().all()
    assert found.settings["lr"] == 0.05


def test_one_model_that_diverged_takes_the_setting_out(tmp_path) -> None:
    """One site in one fold is enough: the mean of the others would make such a setting the best."""
    study, sites, out = make_study(), make_sites(), tmp_path / "tuned"
    grid = {"lr": [0.005, 0.01]}
    whole = vt.tune(study, sites, "fedavg", grid, folds=2, out=out)
    best = whole.settings["lr"]
    place = out / "trials" / f"{grid['lr'].index(best)}-1.json"
    trial = json.loads(place.read_text())
    place.write_text(json.dumps({**trial, "values": {**trial["values"], "b": None}}))
    again = vt.tune(study, sites, "fedavg", grid, folds=2, out=out, resume=True)
    assert again.settings["lr"] != best
    assert again.table[again.table.lr == best]["mean"].isna().all()
    assert again.table["mean"].notna().sum() == 1


def test_all_mistakes_at_once() -> None:
    grid = {"lrr": [1], "muu": [2], "mu": [-1.0, "x"], "batch": [0], "lr": [0.1, 0.1], "loss": ["sum", "median"]}
    with pytest.raises(vt.VitrailError) as caught:
        vt.tune(make_study(), make_sites(), "fedprox", grid, metric="auc")
    text = str(caught.value)
    words = [
        "'lrr'",
        "Did you mean 'lr'",
        "'muu'",
        "got -1.0",
        "got 'x'",
        "at least 1, got 0",
        "twice",
        "median",
        "auc",
    ]
    assert [w for w in words if w not in text] == []
    assert len(caught.value.problems) == 8


@pytest.mark.parametrize(
    ("grid", "more", "words"),
    [
        ({}, {}, "expected at least one setting"),
        ({"lr": []}, {}, "expected at least one setting"),
        ({"lr": [0.1]}, {"folds": 1}, "at least 2"),
        ({"lr": [0.1]}, {"folds": 22}, "22 folds"),
        ({"lr": [1e9]}, {}, "diverged"),
    ],
)
def test_mistakes_are_told(grid, more, words) -> None:
    with pytest.raises(vt.VitrailError, match=words):
        vt.tune(make_study(), make_sites(), "fedavg", grid, **more)


def test_grids_on_the_command_line() -> None:
    assert parse_grid(["lr=0.1, 1", "adaptive=true,false"]) == {"lr": [0.1, 1], "adaptive": [True, False]}
    with pytest.raises(vt.VitrailError) as caught:
        parse_grid(["lr", "mu=", "a=1", "a=2"])
    assert len(caught.value.problems) == 3


GRID = {"lr": [0.001, 10.0, 0.01]}  # the second diverges


def stopped(out: Path, after: int, **more: Any) -> None:
    def stop(words: str, done: int, of: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vt.tune(make_study(), make_sites(), "fedavg", GRID, folds=2, out=out, progress=stop, **more)


def same(one: Tuning, other: Tuning) -> None:
    pdt.assert_frame_equal(one.scores, other.scores)
    pdt.assert_frame_equal(one.table, other.table)
    assert one.best == other.best


def test_stop_and_resume_is_as_if_it_had_not_stopped(tmp_path, monkeypatch) -> None:
    study, sites, out = make_study(), make_sites(), tmp_path / "tuned"
    whole = vt.tune(study, sites, "fedavg", GRID, folds=2)
    computed: list[tuple[float, int]] = []
    judged = module._judged

    def counted(job: Any, *given: Any) -> list[float]:
        computed.append((job.setting["lr"], job.fold))
        return judged(job, *given)

    monkeypatch.setattr(module, "_judged", counted)
    stopped(out, 3)
    assert computed == [(0.001, 0), (0.001, 1), (10.0, 0)]
    assert sorted(p.name for p in out.glob("trials/*")) == ["0-0.json", "0-1.json", "1-0.json"]
    assert not (out / "tuning.json").exists()
    calls: list[int] = []
    resumed = {"folds": 2, "out": out, "resume": True}
    again = vt.tune(study, sites, "fedavg", GRID, **resumed, progress=lambda words, done, of: calls.append(done))
    assert computed[3:] == [(10.0, 1), (0.01, 0), (0.01, 1)], "what was done is not done again"
    assert calls == [4, 5, 6]
    same(again, whole)
    (out / "trials" / "2-0.json").unlink()
    same(vt.tune(study, sites, "fedavg", GRID, **resumed), whole)
    assert computed[6:] == [(0.01, 0)]
    told = json.loads((out / "tuning.json").read_text())
    assert told["best"] == whole.settings
    assert len(told["scores"]) == 3 * 2 * 3


def test_two_processes_give_the_same_and_resume(tmp_path) -> None:
    calls: list[int] = []
    given = {"study": make_study(), "sites": make_sites(), "method": "fedavg", "grid": GRID, "folds": 2}
    one = vt.tune(**given, progress=lambda words, done, of: calls.append(done))
    assert calls == [1, 2, 3, 4, 5, 6]
    stopped(tmp_path / "tuned", 2)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("tuned/trials/*")}
    same(vt.tune(**given, workers=2, out=tmp_path / "tuned", resume=True), one)
    after = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("tuned/trials/*")}
    assert len(after) == 6
    assert {name: after[name] for name in before} == before, "these were not done again"


def test_another_tuning_is_not_mixed_in(tmp_path) -> None:
    study, sites, out = make_study(), make_sites(), tmp_path / "tuned"
    stopped(out, 1)
    others: list[tuple[Any, Any, Any, Any, dict[str, Any], list[str]]] = [
        (study, sites, "fedavg", {"lr": [0.001, 0.02]}, {}, ["grid"]),
        (study, sites, "fedprox", GRID, {}, ["study, method or rounds"]),
        (study, sites, "fedavg", GRID, {"rounds": 3}, ["study, method or rounds"]),
        (study, {k: f.head(20) for k, f in sites.items()}, "fedavg", GRID, {"seed": 1}, ["seed", "data"]),
        (study, sites, "fedavg", GRID, {"folds": 3, "metric": "mae"}, ["folds", "metric"]),
    ]
    for changed, tables, method, grid, more, where in others:
        given = {"folds": 2, **more}
        with pytest.raises(vt.VitrailError, match="another tuning") as caught:
            vt.tune(changed, tables, method, grid, **given, out=out, resume=True)
        assert [p.where.removeprefix(f"{out}, ") for p in caught.value.problems] == where
    assert len(list(out.glob("trials/*"))) == 1
    with pytest.raises(vt.VitrailError, match="nothing was overwritten"):
        vt.tune(study, sites, "fedavg", GRID, folds=2, out=out)
    with pytest.raises(vt.VitrailError, match=r"expected a folder with tune\.json"):
        vt.tune(study, sites, "fedavg", GRID, folds=2, out=tmp_path / "none", resume=True)
    with pytest.raises(vt.VitrailError, match="expected the folder of the earlier tuning"):
        vt.tune(study, sites, "fedavg", GRID, folds=2, resume=True)


@pytest.mark.parametrize("method", ["centralized", "ifedavg", "influence"])
def test_any_method_can_be_tuned(method: str) -> None:
    found = vt.tune(make_study(), make_sites(), method, {"lr": [1e-6, 0.01]}, folds=2)
    assert found.settings["lr"] == 0.01
    assert len(list(itertools.product(*found.grid.values()))) == len(found.table)


def test_models_carried_beside_are_not_tuned() -> None:
    """Weight Erosion judges Global and Local beside a site's own model; the settings are the own model's."""
    study, sites, grid = make_study("classes"), make_sites("classes"), {"lr": [0.01, 0.3], "p_d": [0.01, 0.3]}
    with_them, without = (
        vt.tune(study, sites, vt.methods.WeightErosion(beside=beside), grid, 2, metric="log_loss")
        for beside in (True, False)
    )
    pdt.assert_frame_equal(with_them.table, without.table)
    pdt.assert_frame_equal(with_them.scores, without.scores)


def test_on_the_command_line(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    for name, frame in make_sites().items():
        frame.to_csv(tmp_path / "data" / f"{name}.csv", index=False)
    make_study().save(tmp_path / "study.toml")
    words = ["tune", "study.toml", "--data", "data", "--method", "fedprox"]
    words += ["--grid", "lr=0.000001,0.01", "--grid", "mu=0.1", "--folds", "2", "--out", "tuned", "--workers", "1"]
    done = vitrail(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pasted = tomllib.loads(done.stdout.split("# the best settings, for the study file")[1].split("Written:")[0])
    assert (pasted["method"]["lr"], pasted["method"]["mu"]) == (0.01, 0.1)
    assert json.loads((tmp_path / "tuned" / "tuning.json").read_text())["best"] == {"lr": 0.01, "mu": 0.1}
    again = vitrail(*words, "--resume", cwd=tmp_path)
    assert again.stdout == done.stdout

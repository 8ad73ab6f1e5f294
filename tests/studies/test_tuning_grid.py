"""What `vitrail tune` tries where nobody says: every method declares it, and every value of it can be used."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pandas as pd
import pytest
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app
from vitrail.methods import TABLE, build, problems
from vitrail.studies.tune import Tuning, tune
from vitrail.studies.tuning_grid import usual_grid

MOST = 20  # settings, one key after the other: more take hours


@pytest.mark.parametrize("name", TABLE)
def test_what_a_method_declares_can_be_used(name: str, study: vt.Study) -> None:
    method = build(name)
    grid = usual_grid(study, method)
    assert 3 <= 1 + sum(len(values) - 1 for values in grid.values()) <= MOST
    for key, values in grid.items():
        assert len({*map(repr, values)}) == len(values), key
    for key in method.catalogue.tuning_grid:
        assert grid[key][0] == getattr(method, key)
        assert [problem for v in grid[key] for problem in problems(name, {key: v}, "method")] == [], key
    if TABLE[name].catalogue.tune_first:
        assert method.catalogue.tuning_grid, "it is no use before its own settings are tuned"


def test_what_matters_in_training_is_tried(study: vt.Study) -> None:
    """Each key's value as it is now comes first."""
    grid = usual_grid(study.with_changes(training={"lr": 0.02, "weight_decay": 0.4, "rounds": 30}), build("fedavg"))
    assert grid == {
        "kind": ["mlp", "linear"],
        "lr": [0.02, 0.0067, 0.06],
        "weight_decay": [0.4, 0.1, 1.6],
        "rounds": [30, 60],
        "standardise": ["global", "local"],
    }
    without = study.with_changes(training={"weight_decay": 0.0}, network={"kind": "linear"})
    less = usual_grid(without, build("fedavg"), rounds=5)
    assert less["weight_decay"][0] == 0
    assert less["kind"] == ["linear", "mlp"]
    assert "rounds" not in less, "they are given"
    own = usual_grid(study.with_changes(training={"weight_decay_alone": 2.0}), build("local"))
    assert own["weight_decay_alone"] == [2.0, 0.5, 8.0]
    assert "weight_decay" not in own, "nothing heeds it"


def test_a_setting_of_the_study_is_among_what_is_tried(study: vt.Study) -> None:
    grid = usual_grid(study, build("fedprox", {"mu": 0.3}))
    assert grid["mu"] == [0.3, 0.001, 0.01, 0.1, 1.0]
    assert grid["lr"][0] == study.training.lr


def test_tune_without_a_grid(study: vt.Study, sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key after the other, each with the best of those before it; by log loss, and not by the first metric."""
    catalogue = replace(TABLE["fedprox"].catalogue, tuning_grid={"mu": (0.1, 1.0)})
    monkeypatch.setattr(TABLE["fedprox"], "catalogue", catalogue)
    small = {name: frame[:60] for name, frame in sites.items()}
    found = tune(study, small, "fedprox", folds=2, rounds=2)
    assert study.metrics[0] != "log_loss"
    assert found.metric == "log_loss"
    assert list(found.grid) == ["kind", "lr", "weight_decay", "standardise", "mu"]
    settings, tried = found.table[list(found.grid)], set()
    assert len(settings) == 1 + sum(len(values) - 1 for values in found.grid.values())
    best = {key: values[0] for key, values in found.grid.items()}
    for key, values in found.grid.items():
        stage = [{**best, key: value} for value in values]
        best = min(stage, key=lambda setting: mean_of(found, setting))
        tried |= {tuple(setting.values()) for setting in stage}
    assert tried == set(settings.itertuples(index=False, name=None))
    assert mean_of(found, found.settings) == mean_of(found, best) == found.table["mean"].min()
    changed = study.with_changes(**tomllib.loads(found.section()))
    assert (changed.standardise, changed.method["lr"]) == (found.settings["standardise"], found.settings["lr"])


def mean_of(found: Tuning, setting: dict[str, object]) -> float:
    table = found.table
    return float(table.loc[(table[list(setting)] == pd.Series(setting)).all(axis=1), "mean"].iloc[0])


def test_scales_share_their_folds(study: vt.Study, sites) -> None:
    """A setting's score does not depend on what else is tried, also where columns are standardised otherwise."""
    small = {name: frame[:60] for name, frame in sites.items()}
    both = tune(study, small, "fedavg", {"standardise": ["local", "global"]}, folds=2, rounds=2)
    for scale in ("local", "global"):
        one = tune(study, small, "fedavg", {"standardise": [scale]}, folds=2, rounds=2).table["mean"][0]
        other = tune(study.with_changes(standardise=scale), small, "fedavg", {"rounds": [2]}, folds=2).table["mean"][0]
        assert one == other == mean_of(both, {"standardise": scale})
    assert both.table["mean"].nunique() == 2


@pytest.mark.parametrize(("kind", "metric"), [("number", "rmse"), ("time", "time_log_loss")])
def test_other_targets_are_judged_by_a_proper_score(kind: str, metric: str) -> None:
    frame = pd.DataFrame({"x": range(40), "y": [0, 1] * 20, "t": [1.0, 2.0, 3.0, 4.0] * 10})
    target = {"column": "t", "kind": "number"}
    if kind == "time":
        target = {"event": "y", "time": "t", "kind": "time", "horizon": 4.0, "intervals": 4}
    raw = {"target": target, "features": {"x": {"kind": "numeric"}}, "split": {"at_least": 5}}
    agreed = vt.Study.parse({**raw, "network": {"kind": "linear"}, "training": {"rounds": 1}})
    assert tune(agreed, {"a": frame, "b": frame}, "fedavg", {"lr": [0.001]}, folds=2).metric == metric


def test_help_says_what_is_tried_without_a_grid() -> None:
    told = CliRunner().invoke(app, ["tune", "--help"], env={"COLUMNS": "200"}).output
    assert "values that the method declares" in " ".join(told.replace("│", " ").split())

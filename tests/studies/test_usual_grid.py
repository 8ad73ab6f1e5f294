"""What `vitrail tune` tries where nobody says: every method declares it, and every value of it can be used."""

from __future__ import annotations

import math

import pytest
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app
from vitrail.methods import TABLE, build, problems
from vitrail.studies.tune import tune, usual_grid

MOST = 36  # settings: more take hours


@pytest.mark.parametrize("name", TABLE)
def test_what_a_method_declares_can_be_used(name: str, study: vt.Study) -> None:
    method = build(name)
    grid = usual_grid(study, method)
    assert 3 <= math.prod(map(len, grid.values())) <= MOST
    for key, values in grid.items():
        assert len({*map(repr, values)}) == len(values), key
        assert values[0] == (method.lr or study.training.lr if key == "lr" else getattr(method, key))
        assert [problem for v in values for problem in problems(name, {key: v}, "method")] == [], key
    if TABLE[name].tune_first:
        assert len(grid) > 1, "it is no use before its own settings are tuned"


def test_a_setting_of_the_study_is_among_what_is_tried(study: vt.Study) -> None:
    grid = usual_grid(study, build("fedprox", {"mu": 0.3}))
    assert grid["mu"] == [0.3, 0.001, 0.01, 0.1, 1.0]
    assert grid["lr"][0] == study.training.lr


def test_tune_without_a_grid(study: vt.Study, sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TABLE["fedprox"], "tries", {"mu": (0.1, 1.0)})
    small = {name: frame[:60] for name, frame in sites.items()}
    found = tune(study, small, "fedprox", folds=2, rounds=1)
    assert list(found.grid) == ["lr", "mu"]
    assert len(found.table) == 6


def test_help_says_what_is_tried_without_a_grid() -> None:
    told = CliRunner().invoke(app, ["tune", "--help"], env={"COLUMNS": "200"}).output
    assert "values that the method declares" in " ".join(told.replace("│", " ").split())

"""After scoring, all sites train once more on all rows: that model is used, and the scores stay those of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.export.safe_file import read_safe
from vitrail.export.writer import export_model
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.sections.cost import traffic_words
from vitrail.runs.plan import Plan
from vitrail.runs.setup import refits
from vitrail.runs.verdict_wire import REFIT


def tables() -> dict[str, pd.DataFrame]:
    """Three columns that decide together, with chance."""
    out = {}
    for s, name in enumerate(("north", "south", "west")):
        rng = np.random.default_rng(s)
        x = rng.normal(size=(90, 3)).round(3)
        sick = (x @ [1.5, -1.0, 0.5] + rng.normal(size=90) > 0).astype(int)
        frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(sick=sick)
        frame.index = frame.index + 2
        out[name] = frame
    return out


def study_of(refit: bool = True, **changes: object) -> vt.Study:
    study = vt.Study.infer(tables(), target="sick", network={"hidden": (6,)}, screen={"ask": False})
    study = study.with_changes(split={"stratify": False})  # which rows are held out does not depend on outcomes
    return study.with_changes(training={"rounds": 8, "lr": 0.02, "refit": refit}, **changes)


@pytest.fixture(scope="module")
def runs() -> dict[bool, vt.Run]:
    return {refit: vt.federate(study_of(refit), tables(), seed=1) for refit in (False, True)}


def test_scores_are_those_of_models_that_never_saw_the_held_out_rows(runs: dict[bool, vt.Run]) -> None:
    pd.testing.assert_frame_equal(runs[True].history, runs[False].history)
    for site in runs[True].sites:
        for name, tensor in runs[True].models[site].items():
            assert tensor.equal(runs[False].models[site][name])
    assert runs[False].final == {}
    assert set(runs[True].final) == set(tables())


def test_the_final_model_depends_on_held_out_rows_and_the_scored_one_does_not(runs: dict[bool, vt.Run]) -> None:
    """The outcomes of the held-out rows are turned round: only the final model can notice."""
    held, changed = runs[True].held_out(), tables()
    for site, frame in changed.items():
        rows = held[held.site == site].row
        frame.loc[rows, "sick"] = 1 - frame.loc[rows, "sick"]
    other = vt.federate(study_of(), changed, seed=1)
    pd.testing.assert_frame_equal(other.held_out(), held)
    for site, frame in tables().items():
        scored = [run.model_of(site).predict(frame) for run in (runs[True], other)]
        final = [run.final_model(site).predict(frame) for run in (runs[True], other)]
        pd.testing.assert_frame_equal(*scored)
        assert np.abs(final[0] - final[1]).to_numpy().max() > 0.05


def test_it_is_the_training_on_all_rows(runs: dict[bool, vt.Run]) -> None:
    """A study that holds out next to nothing comes to nearly the same model, and the scored one is further away."""
    little = study_of(False, split={"test": 0.012, "at_least": 0})
    whole = vt.federate(little, tables(), seed=1)
    far = {"final": 0.0, "scored": 0.0}
    for site, frame in tables().items():
        wanted = whole.model_of(site).predict(frame)["1"]
        far["final"] += float(np.abs(runs[True].final_model(site).predict(frame)["1"] - wanted).mean())
        far["scored"] += float(np.abs(runs[True].model_of(site).predict(frame)["1"] - wanted).mean())
    assert far["final"] < 0.5 * far["scored"]


def test_who_uses_the_model_uses_the_final_one(runs: dict[bool, vt.Run], tmp_path: Path) -> None:
    run, frame = runs[True], tables()["west"]
    run.save(tmp_path / "run")
    loaded = vt.Run.load(tmp_path / "run")
    wanted = run.final_model("west").predict(frame)
    pd.testing.assert_frame_equal(loaded.predict("west", frame), wanted)
    export_model(loaded.final_model("west"), "west", "run", tmp_path / "west.vitrail")
    pd.testing.assert_frame_equal(read_safe(tmp_path / "west.vitrail").model.predict(frame), wanted)
    assert not loaded.model_of("west").predict(frame).equals(wanted)
    explained = [r.explain("west", frame, rows=5).values for r in (runs[True], runs[False])]
    assert not np.allclose(*explained)


def test_the_page_says_which_model_was_scored(runs: dict[bool, vt.Run]) -> None:
    assert "trained once more on all rows" in render(page_of(runs[True]))
    assert "trained once more on all rows" not in render(page_of(runs[False]))


def test_what_crosses_is_listed_and_counted(runs: dict[bool, vt.Run]) -> None:
    study, run = study_of(), runs[True]
    lines = Plan(study, run.method, sites=3).later_wire()
    assert {x.stage for x in lines} == {f"{REFIT}train"}
    declared = sum(x.bytes * x.rounds for x in lines)
    assert run.info["refit"]["crossed"] == dict.fromkeys(tables(), declared)
    assert "and the training on all rows after them" in traffic_words(Plan(study, run.method, sites=3))
    assert Plan(study_of(False), run.method, sites=3).later_wire() == []


def test_a_method_that_needs_held_out_rows_keeps_them() -> None:
    """Otherwise it would judge models by no rows at all."""
    holding = [name for name, kind in vt.methods.TABLE.items() if any(e.needs.holdout for e in _exchanges(kind()))]
    assert holding
    for name in holding:
        assert not refits(study_of(), vt.methods.build(name))


def _exchanges(method: vt.methods.AnyMethod) -> list[object]:
    return [ex for stage in method.plan(2) for ex in stage.exchanges]


@pytest.mark.parametrize("budget", ["rows", "sites"])
def test_noise_is_not_spent_twice(budget: str) -> None:
    with pytest.raises(VitrailError, match=f"spend the budget of protect.{budget} twice"):
        study_of(protect={budget: {"epsilon": 4.0}})


def test_resumed_after_a_kill_it_comes_to_the_same(runs: dict[bool, vt.Run], tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done == 11:  # of 8 + 8: in the training on all rows
            raise KilledError

    given = {"seed": 1, "out": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(KilledError):
        vt.federate(study_of(), tables(), progress=kill, **given)
    run = vt.federate(study_of(), tables(), resume=True, **given)
    for site, frame in tables().items():
        pd.testing.assert_frame_equal(run.predict(site, frame), runs[True].predict(site, frame))


@pytest.mark.parametrize(("method", "matters"), [("local", True), ("centralized", False), ("fedavg", False)])
def test_the_penalty_of_sites_that_train_alone_is_theirs_alone(method: str, matters: bool) -> None:
    """All rows in one place are the yardstick above; with the penalty of a single site it would be held back."""
    predictions = []
    for penalty in (0.0, 2.0):
        study = study_of(False).with_changes(training={"weight_decay_alone": penalty})
        predictions.append(vt.federate(study, tables(), method=method, seed=1).predict("west", tables()["west"]))
    assert predictions[0].equals(predictions[1]) is not matters

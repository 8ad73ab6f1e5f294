"""Comparisons: tidy, resumable, the same in one process or two."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

import vitrail as vt
from vitrail.studies.compare import execution as module
from vitrail.studies.compare.execution import load_comparison, seeds_of
from vitrail.studies.transfer import train_together


@pytest.fixture(scope="module")
def study() -> vt.Study:
    agreed = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    return agreed.with_changes(training={"rounds": 3}, network={"hidden": [8]})


def test_comparison_is_tidy_and_resumes(study, tmp_path, monkeypatch) -> None:
    sites = vt.datasets.heart_disease()
    whole = vt.compare(study, sites, ["local", "fedavg"], [1, 2], folds=3)
    assert list(whole.scores.columns) == ["method", "seed", "site", "split", "metric", "value"]
    assert len(whole.scores) == 2 * 2 * 4 * 2 * 4
    real, calls = module.cross_validate, []

    def stop_after_three(*args):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(args[2])
        return real(*args)

    monkeypatch.setattr(module, "cross_validate", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        vt.compare(study, sites, ["local", "fedavg"], [1, 2], folds=3, out=tmp_path / "c")
    calls.clear()
    again = vt.compare(study, sites, ["local", "fedavg"], [1, 2], folds=3, out=tmp_path / "c", resume=True)
    assert len(calls) == 1, "only the missing part is run"
    pdt.assert_frame_equal(again.scores, whole.scores)
    pdt.assert_frame_equal(pd.read_csv(tmp_path / "c" / "comparison.csv")[whole.scores.columns], whole.scores)
    loaded = load_comparison(tmp_path / "c")
    pdt.assert_frame_equal(loaded.scores, whole.scores)
    pdt.assert_frame_equal(loaded.verdicts(), whole.verdicts())
    with pytest.raises(vt.VitrailError, match="another comparison"):
        vt.compare(study.with_changes(training={"lr": 0.1}), sites, ["local"], [1], out=tmp_path / "c", resume=True)


def test_seeds_are_the_studys_then_derived(study) -> None:
    seeds = seeds_of(study, 8)
    assert tuple(seeds[:5]) == study.seeds
    assert len(set(seeds)) == 8
    assert seeds_of(study, 2) == list(study.seeds[:2])


def test_wrong_names_are_told_together(study) -> None:
    with pytest.raises(vt.VitrailError) as caught:
        vt.compare(study, vt.datasets.heart_disease(), ["fedavgg", "dito"], [1])
    assert "fedavg" in str(caught.value)
    assert "ditto" in str(caught.value)


def test_two_processes_give_the_same_and_progress_counts_rounds(study) -> None:
    results, methods = [], ["local", "apfl"]
    for workers in (1, 2):
        told: list[tuple[str, int, int]] = []
        tell = lambda *step, told=told: told.append(step)  # noqa: E731
        sites = vt.datasets.heart_disease()
        results.append(vt.compare(study, sites, methods, [1], workers=workers, folds=2, progress=tell))
        assert {of for _, _, of in told} == {2 * 3}
        assert [n for _, n, _ in told] == ([1, 2, 3, 4, 5, 6] if workers == 1 else [3, 6])
        assert {words for words, _, _ in told} == {"Local, seed 1", "APFL, seed 1"}
    one, two = results
    pdt.assert_frame_equal(one.scores, two.scores)
    pdt.assert_frame_equal(one.curves, two.curves)


@pytest.fixture
def table():
    """The table of methods, to be changed; its order too is put back."""
    before = dict(vt.methods.TABLE)
    yield vt.methods.TABLE
    vt.methods.TABLE.clear()
    vt.methods.TABLE.update(before)


def test_no_study_knows_a_method_by_name(study, table, monkeypatch) -> None:
    """Every method under another name: the same numbers come out."""
    sites = vt.datasets.heart_disease()
    compared, carried = (
        vt.compare(study, sites, ["local", "fedavg"], [1, 2], folds=3),
        vt.transfer(study, sites, folds=2),
    )
    verdicts, chosen = compared.verdicts(), train_together(carried, sites, "top:1", ["va"])
    monkeypatch.setattr(vt.methods, "DEFAULT", "M-fedavg")
    for name in list(table):
        table[f"M-{name}"] = table.pop(name)
    other = study.with_changes(method={"name": "M-fedavg"})
    again, anew = vt.compare(other, sites, ["M-local", "M-fedavg"], [1, 2], folds=3), vt.transfer(other, sites, folds=2)
    for one, two in ((verdicts, again.verdicts()), (compared.scores, again.scores)):
        pdt.assert_frame_equal(one.assign(method="M-" + one.method), two)
    pdt.assert_frame_equal(carried.table, anew.table)
    pdt.assert_frame_equal(chosen, train_together(anew, sites, "top:1", ["va"]))


def test_no_more_seeds_than_it_takes(study) -> None:
    """Where every site's answer is clear after two seeds, no more are trained; with every_seed all are. What is spent
    on the first look is written down, so that a comparison that was read back gives the same verdicts."""
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=(2, 480))
    table = pd.DataFrame({"x": x, "z": z, "sick": np.where(x > 0, "yes", "no")})
    flipped = table.assign(sick=np.where(x > 0, "no", "yes"))
    sites = {"a": table[:160], "b": flipped[160:320], "c": table[320:]}
    clear = vt.Study.infer(sites, "sick", network={"kind": "linear"}, training={"rounds": 4, "lr": 0.05})
    early = vt.compare(clear, sites, ["local", "fedavg"], [1, 2, 3])
    assert (early.seeds, early.look) == ([1, 2], (1, 2))
    assert set(early.verdicts()["verdict"]) == {"no"}
    whole = vt.compare(clear, sites, ["local", "fedavg"], [1, 2, 3], every_seed=True)
    assert (whole.seeds, whole.look) == ([1, 2, 3], (1, 1))


def test_a_comparison_by_hold_outs_is_still_read(study, tmp_path) -> None:
    """Parts that were written before rows were judged out of their folds."""
    sites = vt.datasets.heart_disease()
    vt.compare(study, sites, ["local", "fedavg"], [1, 2], folds=2, out=tmp_path / "c")
    for part in (tmp_path / "c" / "parts").glob("*.json"):
        plain = json.loads(part.read_text())
        kept = {k: v for k, v in plain.items() if k not in ("losses", "lots", "same", "folds", "chance")}
        part.write_text(json.dumps(kept))
    old = load_comparison(tmp_path / "c")
    assert set(old.verdicts()["metric"]) == {study.metrics[0]}
    assert not set(old.verdicts()["verdict"]) - {"yes", "no", "cannot tell"}
    assert len(old.summary()) == 2 * len(study.metrics)

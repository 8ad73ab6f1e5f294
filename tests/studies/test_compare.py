"""Comparisons: tidy, resumable, the same in one process or two."""

from __future__ import annotations

import sys

import pandas as pd
import pandas.testing as pdt
import pytest

import vitrail as vt
from vitrail.studies.compare import load_comparison, seeds_of
from vitrail.studies.transfer import train_together


@pytest.fixture(scope="module")
def study() -> vt.Study:
    agreed = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    return agreed.with_changes(training={"rounds": 3}, network={"hidden": [8]})


def test_comparison_is_tidy_and_resumes(study, tmp_path, monkeypatch) -> None:
    sites = vt.datasets.heart_disease()
    whole = vt.compare(study, sites, ["local", "fedavg"], [1, 2])
    assert list(whole.scores.columns) == ["method", "seed", "site", "split", "metric", "value"]
    assert len(whole.scores) == 2 * 2 * 4 * 2 * 4
    module = sys.modules["vitrail.studies.compare"]  # vitrail.studies.compare is the function
    real, calls = module.cross_validate, []

    def stop_after_three(*args):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(args[2])
        return real(*args)

    monkeypatch.setattr(module, "cross_validate", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        vt.compare(study, sites, ["local", "fedavg"], [1, 2], out=tmp_path / "c")
    calls.clear()
    again = vt.compare(study, sites, ["local", "fedavg"], [1, 2], out=tmp_path / "c", resume=True)
    assert len(calls) == 1, "only the missing part is run"
    pdt.assert_frame_equal(again.scores, whole.scores)
    pdt.assert_frame_equal(pd.read_csv(tmp_path / "c" / "comparison.csv")[whole.scores.columns], whole.scores)
    loaded = load_comparison(tmp_path / "c")
    pdt.assert_frame_equal(loaded.scores, whole.scores)
    pdt.assert_frame_equal(loaded.verdicts(), whole.verdicts())
    with pytest.raises(vt.VitrailError, match="another comparison"):
        vt.compare(study.with_changes(training={"lr": 0.1}), sites, ["local"], [1], out=tmp_path / "c", resume=True)


def test_two_processes_give_the_same(study) -> None:
    sites = vt.datasets.heart_disease()
    one = vt.compare(study, sites, ["local", "apfl"], [1])
    two = vt.compare(study, sites, ["local", "apfl"], [1], workers=2)
    pdt.assert_frame_equal(one.scores, two.scores)
    pdt.assert_frame_equal(one.curves, two.curves)


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


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_counts_rounds(study, workers) -> None:
    told: list[tuple[str, int, int]] = []
    vt.compare(
        study,
        vt.datasets.heart_disease(),
        ["local", "fedavg"],
        [1],
        workers=workers,
        progress=lambda *step: told.append(step),
    )
    assert {of for _, _, of in told} == {2 * 3}
    assert [n for _, n, _ in told] == ([1, 2, 3, 4, 5, 6] if workers == 1 else [3, 6])
    assert {words for words, _, _ in told} == {"Local, seed 1", "FedAvg, seed 1"}


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
    compared, carried = vt.compare(study, sites, ["local", "fedavg"], [1, 2]), vt.transfer(study, sites, folds=2)
    verdicts, chosen = compared.verdicts(), train_together(carried, sites, "top:1", ["va"])
    monkeypatch.setattr(vt.methods, "DEFAULT", "M-fedavg")
    for name in list(table):
        table[f"M-{name}"] = table.pop(name)
    other = study.with_changes(method={"name": "M-fedavg"})
    again, anew = vt.compare(other, sites, ["M-local", "M-fedavg"], [1, 2]), vt.transfer(other, sites, folds=2)
    for one, two in ((verdicts, again.verdicts()), (compared.scores, again.scores)):
        pdt.assert_frame_equal(one.assign(method="M-" + one.method), two)
    pdt.assert_frame_equal(carried.table, anew.table)
    pdt.assert_frame_equal(chosen, train_together(anew, sites, "top:1", ["va"]))

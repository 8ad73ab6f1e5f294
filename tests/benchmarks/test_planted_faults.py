"""benchmarks/faults/planted_faults.py: faults do what they say, harm is independent of the rule, and the report."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.scripts import load_script, script_path
from vitrail.core.errors import VitrailError
from vitrail.data.readers.tables import clean
from vitrail.quality.screening.result import CAUSES, LABEL

sources = load_script("fault_sources")
fresh_tables = load_script("fault_tables_fresh")
third_tables = load_script("fault_tables_third")
tables = load_script("fault_tables")
design = load_script("fault_kinds")
harm = load_script("fault_harm")
rivals = load_script("fault_rivals")
later = load_script("fault_kinds_later")
fresh = load_script("fault_kinds_fresh")
joint = load_script("fault_kinds_joint")
third = load_script("fault_kinds_third")
cases = load_script("fault_cases")
counted = load_script("planted_faults_count")
printed = load_script("planted_faults_report")
bench = load_script("planted_faults")
KINDS = cases.ALL_KINDS


def site(kind: str, seed: int = 3) -> Any:
    """A site of heart disease or of the Titanic, with a column that the fault can be planted in."""
    what = KINDS[kind]
    name = "heart" if what.on != "categorical" else "titanic"
    table, rows = tables.study_of(name), tables.by_lot(name, seed)["site-02"]
    if "label number" in what.on and "classes" not in what.on:
        whole = tables.whole("heart").drop(columns="_site").head(100)
        table = vt.Study.infer({"all": whole}, "oldpeak")
        rows = clean(whole, table)
    if kind == "two classes as one":  # needs more than two
        whole = tables.whole("heart").drop(columns="_site").head(100)
        table = vt.Study.infer({"all": whole.assign(cp=whole.cp.astype(str))}, "cp")
        rows = clean(whole, table)
    column = cases.fitting(what, table)[0]
    return design.Site(rows, column, table, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_changes_its_own_columns_and_no_row_is_lost(kind: str) -> None:
    at = site(kind)
    before = at.rows.copy()
    after, wrong = KINDS[kind].plant(at)
    if kind in ("survivors only", "duplicated rows"):  # rows are what is wrong
        assert len(after) != len(before)
        pd.testing.assert_frame_equal(at.rows, before)
        return
    changed = [c for c in before if not before[c].equals(after[c])]
    assert changed
    assert {*changed} <= {*wrong}
    assert list(after.index) == list(before.index)
    pd.testing.assert_frame_equal(at.rows, before)  # in place is nothing
    if at.table.target.kind == "classes":
        assert after[at.table.target.column].isin(range(len(at.table.target.levels))).all()
    assert {*KINDS[kind].causes} <= {*CAUSES}


def test_some_faults_by_hand() -> None:
    at = site("unit")
    known = at.value.dropna()
    factor = (KINDS["unit"].plant(at)[0][at.column] / at.value)[known[known != 0].index]
    assert factor.nunique() <= 2  # one factor, rounding apart
    assert factor.iloc[0] in design.UNITS or np.isclose(design.UNITS, factor.iloc[0]).any()
    at = site("label flip")
    assert (KINDS["label flip"].plant(at)[0][at.column] == 1 - at.y).all()
    at = site("label noise")
    assert 0.2 < (KINDS["label noise"].plant(at)[0][at.column] != at.y).mean() < 0.5
    at = site("shuffle")
    assert sorted(KINDS["shuffle"].plant(at)[0][at.column].dropna()) == sorted(at.value.dropna())
    assert KINDS["not measured"].plant(at)[0][at.column].isna().all()


def test_a_flipped_label_harms_and_no_fault_costs_nothing() -> None:
    rows, table = tables.by_lot("heart", 5), tables.study_of("heart")
    flipped = {**rows, "site-01": rows["site-01"].assign(disease=1 - rows["site-01"].disease)}
    assert harm.measure_harm(rows, flipped, table, "site-01", 1, {})[0] > 0.3
    assert harm.measure_harm(rows, rows, table, "site-01", 1, {})[0] == 0


def test_the_stand_in_finds_what_is_there() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    y = (rng.random(2000) < 1 / (1 + np.exp(-(x @ [2.0, -1.0, 0.0])))).astype(float)
    b = harm.fit_logistic(np.column_stack([np.ones(2000), x]), y, np.ones(2000))
    assert np.allclose(b, [0, 2, -1, 0], atol=0.25)


def test_the_rivals_see_a_unit_and_a_flipped_label() -> None:
    rows, table = tables.by_lot("heart", 5), tables.study_of("heart")
    tenfold = {**rows, "site-03": rows["site-03"].assign(age=rows["site-03"].age * 10)}
    flipped = {**rows, "site-01": rows["site-01"].assign(disease=1 - rows["site-01"].disease)}
    for score in rivals.RIVALS.values():
        first, second = rivals.step_down(score, tenfold, table, 2)
        assert first[:2] == ["site-03", "age"]
        assert second[2] < first[2] / 3  # left out, it makes no other site look odd
    assert rivals.step_down(rivals.summaries, flipped, table, 1)[0][:2] == ["site-01", LABEL]


def test_cases_are_their_seeds_and_nothing_is_guilty_without_a_fault() -> None:
    job = {"part": "design", "cut": "lot", "data": "heart", "seed": 700, "kinds": ["sign", "label flip"]}
    one, again = cases.plant(job), cases.plant(job)
    assert [f[:2] for f in one[2]] == [f[:2] for f in again[2]]
    assert len({site for site, _, _ in one[2]}) == 2
    assert cases.plant(job | {"kinds": []})[2] == []
    tags = [cases.tag(j) for j in cases.jobs()]
    assert len(tags) == len({*tags})
    assert tables.LABEL == LABEL


def test_what_is_counted() -> None:
    low, high = counted.wilson(0, 300)
    assert low == pytest.approx(0)
    assert high == pytest.approx(0.0126, abs=1e-4)
    told = {"guilty": [["a", ["age"]]], "harmful": True}
    case = counted.Case("test|lot|x|1|unit", [["a", "age", "unit", 3.0], ["b", "age", "unit", 2.0]], ["a"], told, [])
    assert case.first
    assert case.found(KINDS)
    assert case.cause(KINDS)
    assert case.others() == [["b", "age", "unit", 2.0]]
    quiet = counted.Case("test|lot|x|1|unit", [], ["b"], told, [["a", "age", "differs"]])
    assert not quiet.first
    assert not quiet.found(KINDS)  # told as differing is not found ...
    absent = counted.Case("test|lot|x|1|not measured", [], ["b"], told, [["a", "age", "not here"]])
    assert absent.found(KINDS)  # ... but where a column is not measured, that is what there is to tell
    assert absent.cause(KINDS)


def test_the_report_prints_what_is_committed() -> None:
    written = bench.RESULTS.with_suffix(".md").read_text()
    assert written == bench.print_report()


@pytest.mark.parametrize("name", ["later.sha256", "fresh.sha256", "../relations/third.sha256"])
def test_what_was_put_aside_before_the_rule_was_frozen_is_what_it_was_judged_by(name: str) -> None:
    lines = [line.split() for line in (bench.RESULTS / name).read_text().splitlines()]
    assert lines
    for said, file in lines:
        assert hashlib.sha256(script_path(Path(file).stem).read_bytes()).hexdigest() == said, file


def test_what_is_fresh_is_nowhere_else() -> None:
    assert len(later.LATER) >= 10
    assert len(fresh.FRESH_KINDS) >= 10
    assert not {*fresh.FRESH_KINDS} & {*design.KINDS, *later.LATER}
    assert not {*later.LATER} & {*design.KINDS}
    assert not {*fresh_tables.FRESH} & {*tables.DESIGN, *tables.TEST, *tables.ONLY_NATURAL}
    every = list(cases.jobs())
    new = [j for j in every if j["part"] == "fresh"]
    assert new == every[: len(new)]  # they count most, and come first
    assert {j["data"] for j in new if j["cut"] != "small"} == {*fresh_tables.FRESH}
    others = {k for j in every if j["part"] != "fresh" for k in j["kinds"]}
    assert not others & {*fresh.FRESH_KINDS}


def test_a_package_that_is_not_there_is_told() -> None:
    with pytest.raises(VitrailError, match="pip install --no-deps no-such"):
        sources.package_file("no_such_package", "x.csv", "no-such")


def test_agreement() -> None:
    yes = np.array([True, True, False, False])
    assert counted.kappa(yes, yes, np.ones(4)) == pytest.approx((1, 1))
    assert counted.kappa(yes, ~yes, np.ones(4)) == pytest.approx((0, -1))
    assert counted.kappa(yes, np.array([True, False, True, False]), np.ones(4)) == pytest.approx((0.5, 0))
    # the weights say how many others each case stands for
    assert counted.kappa(yes, np.array([True, True, True, False]), np.array([1, 1, 1, 9]))[0] == pytest.approx(11 / 12)
    assert counted.mean_interval(np.array([0, 1, 1, 1])) == pytest.approx(counted.wilson(3, 4))
    low, high = counted.mean_interval(np.array([3.0, 5.0, 3.0, 5.0]))
    assert (low + high) / 2 == pytest.approx(4)
    assert high - low == pytest.approx(2 * 1.96 * (4 / 3) ** 0.5 / 2, abs=1e-3)


def test_the_last_judgement_of_a_case_counts_and_only_one_version_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [("a", "old"), ("b", "old"), ("c", "old"), ("a", "new")]
    (tmp_path / "screen.jsonl").write_text("".join(f'{{"tag": "{t}", "judge": "{j}"}}\n' for t, j in lines) + '{"tag')
    assert bench.load(tmp_path, "screen")["a"] == {"judge": "new"}
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "out")
    bench.pack(tmp_path)
    assert bench.load(tmp_path / "out", "screen") == {"a": {"judge": "new"}}

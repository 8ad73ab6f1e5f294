"""Drafted studies, with tables as people have them: what is left out, what is taken for one, what is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from vitrail.cli.runs import init
from vitrail.core.errors import VitrailError
from vitrail.data.drafting.features import infer_table
from vitrail.data.drafting.persons import StudyDraft
from vitrail.data.readers.tables import clean, read_table
from vitrail.quality.checks.table import find_faults

N = 60


def clinic(seed: int, n: int = N, **more: object) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.normal(60, 9, n).round(), "sick": rng.integers(0, 2, n)})
    return frame.assign(**more)


def told(draft: StudyDraft, start: str) -> str:
    (note,) = [note for note in draft.notes if note.startswith(start)]
    return note


@pytest.mark.parametrize(
    ("name", "values", "left"),
    [
        ("PatientID", 900_000 + 7 * np.arange(N), True),
        ("row", np.arange(N) + 1, True),  # by its name anything; it counts on
        ("Pat-Nr.", np.r_[np.arange(N - 1) * 13, 0], True),  # nearly unique
        ("platelets", np.random.default_rng(0).choice(90_000, N, replace=False), False),  # unique, and a quantity
        ("pat_nr", np.arange(N) / 4, False),  # no whole numbers
    ],
)
def test_numbers_of_people_are_left_out(name: str, values: np.ndarray, left: bool) -> None:
    draft = infer_table({"a": clinic(1, **{name: values}), "b": clinic(2, **{name: values})}, "sick")
    assert (name not in draft.content["features"]) == left
    words = [f"Left out (identifiers{how}): {name}." for how in ("", " that repeat")]
    assert any(note in words for note in draft.notes) == left


def test_ids_that_repeat_are_left_out() -> None:
    """Each twice: visits of somebody, or wards; nothing else shows whose they are, and an id is no quantity."""
    twice = np.repeat(np.arange(N // 2), 2)
    draft = infer_table({"a": clinic(1, case_no=twice), "b": clinic(2, case_no=twice)}, "sick")
    assert "case_no" not in draft.content["features"]
    assert "person" not in draft.content
    assert "Left out (identifiers that repeat): case_no." in draft.notes


def test_spellings_are_one_category() -> None:
    cases = [
        "Évolution favorable",
        "evolution  favorable",
        "EVOLUTION FAVORABLE",
        "Évolution favorable",
        "stable",
        "mort",
    ]
    frame = clinic(1, course=np.resize(cases, N), grade=np.resize(["Yes", "YES", "yes ", "no"], N))
    draft = infer_table({"a": frame}, "sick")
    assert draft.content["features"]["course"]["categories"] == ["mort", "stable", "Évolution favorable"]
    assert draft.content["features"]["grade"]["kind"] == "binary"
    study = vt.Study.infer({"a": frame}, "sick")
    assert clean(frame, study)["course"].value_counts().to_dict() == {2.0: 40, 1.0: 10, 0.0: 10}
    frame["sick"] = np.resize(["Dead", "dead", "Alive", "alive "], N)
    assert [str(c).casefold() for c in vt.Study.infer({"a": frame}, "sick").target.classes] == ["alive", "dead"]


def test_names_in_other_languages_are_one_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {
        "a": clinic(1, Schulbildung=np.resize(["low", "high"], N)).rename(columns={"age": "Alter"}),
        "b": clinic(2, Education=np.resize(["high", "low"], N)).rename(columns={"age": "Age (years)"}),
        "c": clinic(3, education=np.resize(["high", "low"], N)),
    }
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    out = tmp_path / "study.toml"
    init([tmp_path / f"{n}.csv" for n in tables], target="sick", out=out)
    printed = capsys.readouterr().out
    study = vt.Study.load(out)
    assert study.features["Alter"].aliases == ("Age (years)", "age")
    assert study.features["Schulbildung"].aliases == ("Education", "education")
    assert "Treated as one column: Alter, Age (years), age." in printed
    assert "# Treated as one column: Alter" in out.read_text()
    for name, table in tables.items():
        read = read_table(tmp_path / f"{name}.csv", study)
        assert {"Alter", "Schulbildung"} <= set(read.columns)
        assert not [f for f in find_faults(read, study) if f.column]
        pd.testing.assert_frame_equal(
            clean(table, study).reset_index(drop=True), clean(read, study).reset_index(drop=True)
        )
    assert vt.federate(study, tables, "fedavg", rounds=1).scores().site.nunique() == 3


def test_columns_of_some_sites_are_told_and_not_used() -> None:
    a, b = clinic(1, creat=np.linspace(0, 1, N), bnp=np.linspace(3, 9, N)), clinic(2, creatinine=np.linspace(1, 2, N))
    draft = infer_table({"a": a, "b": b}, "sick")
    assert list(draft.content["features"]) == ["age"]
    assert "Left out (not at b): creat, bnp." in draft.notes
    assert "'creat' at a and 'creatinine' at b" in told(draft, "Perhaps the same column")
    both = a.assign(creatinine=1.0)  # a site that has both says that they are two
    assert "aliases" not in infer_table({"a": both, "b": b}, "sick").content["features"].get("creat", {})


def test_two_names_at_one_site_are_two_columns() -> None:
    a, b = clinic(1, Alter=np.linspace(20, 80, N)), clinic(2, Alter=np.linspace(30, 70, N))
    assert set(infer_table({"a": a, "b": b}, "sick").content["features"]) == {"age", "Alter"}


def test_follow_up_time_is_told_as_a_leak() -> None:
    rng, tables = np.random.default_rng(0), {}
    for name in "ab":
        died = rng.integers(0, 2, N)
        tables[name] = clinic(1).assign(
            sick=died,
            fu_months=np.where(died, rng.uniform(0, 30, N), rng.uniform(20, 90, N)).round(1),
            months_since_onset=rng.uniform(0, 30, N).round(1),
            lactate=(died + rng.normal(0, 0.1, N)).round(3),
        )
    draft = infer_table(tables, "sick")
    assert "fu_months" not in draft.content["features"]
    assert "known only afterwards" in told(draft, "Left out: fu_months")
    assert "--target sick --time fu_months" in told(draft, "To predict when")
    assert "months_since_onset" in draft.content["features"]
    assert "lactate" in draft.content["features"]
    assert "Is it known before the outcome?" in told(draft, "Look at this: lactate")


def test_an_event_and_its_time_are_drafted_as_such() -> None:
    rng = np.random.default_rng(0)
    tables = {n: clinic(1).assign(sick=rng.integers(0, 2, N), fu_days=rng.integers(0, 1000, N)) for n in "ab"}
    draft = infer_table(tables, "sick", time="fu_days")
    target = vt.Study.parse(draft.content).target
    assert (target.kind, target.time, target.event, target.horizon) == ("time", "fu_days", "sick", 730.0)
    assert "fu_days" not in draft.content["features"]
    assert "by 730" in told(draft, "The outcome is whether sick = 1")
    for column, time, says in (("sick", "age_", "no column 'age_'"), ("age", "fu_days", "event was seen; got")):
        with pytest.raises(VitrailError, match=says):
            infer_table(tables, column, time=time)
    with pytest.raises(VitrailError, match="as numbers of at least 0"):
        infer_table({k: t.assign(fu_days=-t.fu_days) for k, t in tables.items()}, "sick", time="fu_days")


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%d %H:%M"])
def test_dates_and_free_text_are_told(form: str) -> None:
    days = pd.date_range("2019-03-01", periods=N, freq="31h").strftime(form)
    draft = infer_table({"a": clinic(1, admitted=days, note=[f"patient came with {i}" for i in range(N)])}, "sick")
    assert list(draft.content["features"]) == ["age"]
    assert told(draft, "Left out (dates").endswith("admitted.")
    assert told(draft, "Left out (free text").endswith("note.")


@pytest.mark.parametrize("alias", ["chol", "sick", "old"])
def test_an_alias_has_one_meaning(alias: str) -> None:
    study = vt.Study.infer({"a": clinic(1, chol=np.linspace(1, 2, N), bmi=np.linspace(1, 2, N))}, "sick")
    features = {n: f.model_dump() for n, f in study.features.items()}
    features["age"]["aliases"] = (alias,)
    features["bmi"]["aliases"] = ("old",)
    with pytest.raises(VitrailError, match=f"the alias '{alias}' names more than one column"):
        study.with_changes(features=features)


def test_a_site_with_a_column_and_its_alias_is_refused() -> None:
    study = vt.Study.infer({"a": clinic(1)}, "sick")
    named = study.with_changes(features={"age": {**study.features["age"].model_dump(), "aliases": ("Alter",)}})
    with pytest.raises(VitrailError, match="there is more than one"):
        clean(clinic(1, Alter=1.0), named)

"""What is said of rows: those without an outcome, those unlike what was agreed, and those that two sites share."""

from __future__ import annotations

import io
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.picture_sites import frame_of, soft, vitrail
from vitrail.quality.checks.duplicate_sites import digest_table, find_twins
from vitrail.report.pages.builder import write_report

N = 60
STUDY = {
    "target": {"column": "died", "classes": [0, 1], "positive": 1},
    "features": {
        "age": {"kind": "numeric", "range": [18.0, 100.0], "unit": "years"},
        "ward": {"kind": "categorical", "categories": ["A", "B", "C"]},
        "sex": {"kind": "binary", "categories": ["f", "m"]},
    },
}


def clinic(seed: int, n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(60, 9, n).round(3),
            "ward": rng.choice(["A", "B", "C"], n),
            "sex": rng.choice(["f", "m"], n),
            "died": rng.integers(0, 2, n),
        }
    )


@pytest.fixture
def say(capsys: Any, monkeypatch: Any) -> Any:
    return partial(vitrail, capsys, monkeypatch)


def study_file(folder: Path, sites: dict[str, pd.DataFrame]) -> tuple[Path, Path]:
    (folder / "data").mkdir()
    for name, frame in sites.items():
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    vt.Study.parse(STUDY | {"name": "three"}).save(folder / "study.toml")
    return folder / "study.toml", folder / "data"


def told(act: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        out = act()
    return out, [str(w.message) for w in seen if issubclass(w.category, UserWarning)]


def test_rows_without_an_outcome_are_said_by_a_run_and_its_page(tmp_path: Path, say: Any) -> None:
    sites = {name: clinic(i) for i, name in enumerate("abc")}
    sites["a"].loc[:14, "died"] = None
    study, data = study_file(tmp_path, sites)
    code, said = say("run", study, "--data", data, "--out", tmp_path / "run", "--rounds", 1, "--method", "fedavg")
    assert code == 0
    assert f"a: 15 of {N} rows have no outcome (died) and are left out." in said
    assert "b: " not in said
    assert f"15 of {N} rows have no outcome (died) and are left out" in (tmp_path / "run" / "report.html").read_text()
    agreed = vt.Study.load(study)
    act = partial(vt.compare, agreed, sites, ["local"], [1], rounds=1, folds=2)
    assert any("15 of 60 rows have no outcome" in note for note in told(act)[1])
    whole = {name: clinic(i) for i, name in enumerate("abc")}
    run, notes = told(partial(vt.federate, agreed, whole, "fedavg", rounds=1))
    assert notes == []
    assert "have no outcome" not in write_report(run, tmp_path / "clean.html").read_text()


def test_predict_marks_rows_unlike_what_was_agreed(tmp_path: Path, say: Any, capsys: Any) -> None:
    sites = {name: clinic(i) for i, name in enumerate("abc")}
    study, data = study_file(tmp_path, sites)
    assert say("run", study, "--data", data, "--out", tmp_path / "run", "--rounds", 1, "--method", "fedavg")[0] == 0
    new = clinic(9, 6).drop(columns="died")
    new.loc[1, "age"], new.loc[2, "ward"], new.loc[3, ["age", "sex"]] = 999, "D", [-4, "x"]
    new.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "out.csv"
    code, said = say("predict", tmp_path / "run", tmp_path / "new.csv", "--site", "a", "--out", out)
    assert code == 0
    assert "3 of 6 rows have values outside what the study agreed on" in said
    assert "age is outside 18 to 100 years in 2 of 6 rows" in said
    assert "ward is not one of its categories (D) in 1 of 6 rows" in said
    answers = pd.read_csv(out)
    assert answers["outside"].fillna("").tolist() == ["", "age", "ward", "age; sex", "", ""]
    assert answers["1"].between(0, 1).all()
    # an unknown category is read as missing
    empty = new.assign(ward=new.ward.replace("D", None), sex=new.sex.replace("x", None))
    run = vt.Run.load(tmp_path / "run")
    ours, notes = told(partial(run.predict, "a", new))
    assert len(notes) == 4
    assert "outside" not in ours
    pd.testing.assert_frame_equal(ours, told(partial(run.predict, "a", empty))[0])
    assert told(partial(run.predict, "a", clinic(9, 6)))[1] == []
    code, said = say("predict", tmp_path / "run", data / "a.csv", "--site", "a")
    assert code == 0
    assert "unlike" not in said
    assert pd.read_csv(io.StringIO(said[said.index("line,") :]), nrows=N)["outside"].isna().all()


def test_the_same_file_at_two_sites_is_noticed(tmp_path: Path, say: Any) -> None:
    sites = {"a": clinic(1), "b": clinic(1).sample(frac=1, random_state=0), "c": clinic(3)}
    study, data = study_file(tmp_path, sites)
    code, said = say("run", study, "--data", data, "--out", tmp_path / "run", "--rounds", 1, "--method", "fedavg")
    assert code == 0
    assert f"Sites a and b have the same {N} rows" in said
    code, said = say("check", study, data / "a.csv", data / "b.csv", data / "c.csv", "--json")
    assert code == 1
    found = {c["file"]: [f["text"] for f in c["findings"] if f["kind"] == "same_rows"] for c in json.loads(said)}
    expected = {"a.csv": [f"{N} of {N} rows are also in b.csv"], "b.csv": [f"{N} of {N} rows are also in a.csv"]}
    assert found == {**expected, "c.csv": []}
    act = partial(vt.compare, vt.Study.load(study), sites, ["local"], [1], rounds=1, folds=2)
    assert any("Sites a and b have the same" in note for note in told(act)[1])


def test_nearly_the_same_file_is_noticed_and_coarse_rows_are_not() -> None:
    coded = {name: f.assign(**{c: f[c].astype("category").cat.codes.astype(float) for c in ("ward", "sex")})
             for name, f in {"a": clinic(1), "b": clinic(1), "c": clinic(2)}.items()}  # fmt: skip
    coded["b"].loc[:2, "age"] = 50.0 + np.arange(3)
    (pair,) = find_twins(coded)
    assert (pair.one, pair.other, pair.shared, pair.rows) == ("a", "b", N - 3, N)
    rng = np.random.default_rng(0)
    coarse = {name: pd.DataFrame(rng.integers(0, 2, (300, 4)).astype(float), columns=list("wxyz")) for name in "abc"}
    assert find_twins(coarse) == []
    few = {**coarse, "small": coarse["a"].drop_duplicates()}
    assert find_twins(few) == [], "each of few answers is given at a large site"
    (pair,) = find_twins({**coarse, "again": coarse["b"].sample(frac=1, random_state=0)})
    assert (pair.one, pair.other, pair.shared) == ("b", "again", 300), "all rows of both are the same"
    pictures = {
        name: frame_of(soft(20, seed=seed)).drop(columns="class") for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    assert [(p.one, p.other) for p in find_twins(pictures)] == [("a", "b")]


def test_the_mark_of_a_table_tells_sameness_in_one_run_only() -> None:
    rows = clinic(1)[["age", "died"]].astype(float)
    mark = digest_table(rows, "run 1")
    assert (mark == digest_table(rows.sample(frac=1, random_state=3), "run 1")).all()
    assert (mark != digest_table(rows, "run 2")).all()
    changed = rows.copy()
    changed.iloc[7, 0] += 1e-9
    assert (mark != digest_table(changed, "run 1")).all()
    assert ((mark >= 0) & (mark < 2**48) & (mark == np.round(mark))).all()

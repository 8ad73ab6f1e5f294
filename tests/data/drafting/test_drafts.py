"""Drafted studies do not legalise mistakes: far values, codes, words for missing, leaks, columns under two names; and
how often something is asked where nothing is wrong."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.picture_sites import soft, vitrail, write_folder
from vitrail.core.errors import VitrailError
from vitrail.data.drafting.features import infer_table
from vitrail.data.drafting.persons import StudyDraft
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.data.units import spot_unit
from vitrail.quality.checks.missing_by_class import depends_on_class
from vitrail.quality.checks.table import find_faults

N = 200


@pytest.fixture
def say(capsys: Any, monkeypatch: Any) -> Any:
    return partial(vitrail, capsys, monkeypatch)


def clinic(seed: int, n: int = N) -> pd.DataFrame:
    """A hospital without a fault: columns of many shapes, of which age alone has a little to do with the outcome."""
    rng = np.random.default_rng(seed)
    age = rng.normal(62, 12, n).clip(18, 97).round()
    return pd.DataFrame(
        {
            "age": age,
            "crp": rng.lognormal(2, 1.1, n).round(1),
            "sodium": rng.normal(139, 4, n).round(),
            "base_excess": rng.normal(-1, 4, n).round(1),
            "troponin": rng.exponential(20, n).round(1),
            "drinks": rng.poisson(2, n),
            "stay": np.where(rng.random(n) < 0.8, 0, rng.gamma(2, 3, n)).round(1),  # mostly 0
            "birthweight": np.where(rng.random(n) < 0.07, rng.uniform(400, 2000, n), rng.normal(3400, 450, n)).round(),
            "sex": rng.choice(["f", "m"], n),
            "ward": rng.choice(["A", "B", "C"], n),
            "died": (rng.random(n) < 1 / (1 + np.exp(-(age - 70) / 12))).astype(int),
        }
    )


def sites(*changes: Any, seed: int = 1, n: int = N) -> dict[str, pd.DataFrame]:
    """Three hospitals; each change is made at the first."""
    out = {name: clinic(10 * seed + i, n) for i, name in enumerate("abc")}
    for change in changes:
        out["a"] = change(out["a"])
    return out


def note(draft: StudyDraft, *words: str) -> str:
    (found,) = [n for n in draft.notes if all(word in n for word in words)]
    return found


def put(column: str, value: object, rows: int = 8) -> Any:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame[column] = frame[column].astype(object)
        frame.iloc[:rows, frame.columns.get_loc(column)] = value
        return frame

    return change


@pytest.mark.parametrize(
    ("column", "code"),
    [("age", -9), ("age", 999), ("crp", -9999), ("sodium", 9999), ("sodium", -1), ("drinks", 99), ("troponin", 9998)],
)
def test_codes_are_taken_as_missing_with_their_counts(column: str, code: int) -> None:
    draft = infer_table(sites(put(column, code)), "died")
    feature = draft.content["features"][column]
    assert feature["missing"] == [code]
    assert not feature["range"][0] <= code <= feature["range"][1]
    assert f"{column} in 8 of {3 * N} rows" in note(draft, f"Probably a code for missing: {code},")
    clean = infer_table(sites(), "died").content["features"][column]
    assert "missing" not in clean
    assert clean["range"] == pytest.approx(feature["range"], rel=0.2, abs=2)


def test_codes_among_grades_are_no_grade() -> None:
    rng = np.random.default_rng(0)
    tables = sites(lambda f: f.assign(asa=rng.choice([1, 2, 3, 4, 9], N), smoker=rng.choice([0, 1, -9], N)))
    for name in "bc":
        tables[name] = tables[name].assign(asa=rng.choice([1, 2, 3, 4], N), smoker=rng.choice([0, 1], N))
    features = infer_table(tables, "died").content["features"]
    assert (features["asa"]["categories"], features["asa"]["missing"]) == ([1, 2, 3, 4], [9])
    assert (features["smoker"]["kind"], features["smoker"]["missing"]) == ("binary", [-9])
    rating = {k: t.assign(rating=rng.integers(1, 10, N), shift=rng.choice([-1, 0, 1], N)) for k, t in sites().items()}
    features = infer_table(rating, "died").content["features"]  # a scale that ends at 9, and a sign
    assert "missing" not in features["rating"] | features["shift"]


def test_a_value_far_from_the_rest_is_listed_and_checked() -> None:
    tables = sites(put("age", 640, 1))
    draft = infer_table(tables, "died")
    assert draft.content["features"]["age"]["range"][1] < 130
    assert "1 of 600 values" in note(draft, "Outside the drafted range: age", "640")
    study = vt.Study.parse(draft.content)
    found = [(f.kind, f.count) for f in find_faults(tables["a"], study) if f.column == "age"]
    assert found == [("out_of_range", 1)]
    assert not [f for f in find_faults(tables["b"], study) if f.kind == "out_of_range"]


def test_a_site_in_another_unit_does_not_widen_the_range() -> None:
    draft = infer_table(sites(lambda f: f.assign(birthweight=(f.birthweight / 453.6).round(2))), "died")
    assert draft.content["features"]["birthweight"]["range"][1] < 10_000
    assert "at a and" in note(draft, "Another unit? The median of birthweight")
    temperature = {k: t.assign(temp=np.random.default_rng(1).normal(37, 0.6, N).round(1)) for k, t in sites().items()}
    temperature["b"]["temp"] = (temperature["b"].temp * 1.8 + 32).round(1)
    draft = infer_table(temperature, "died")
    assert draft.content["features"]["temp"]["range"][1] < 50
    assert note(draft, "Another unit? The median of temp", "at b and")


def test_none_is_a_category_where_it_is_frequent_or_goes_with_the_outcome(tmp_path: Path, say: Any) -> None:
    rng = np.random.default_rng(0)
    tables = sites()
    for frame in tables.values():
        reacts = np.where(rng.random(N) < np.where(frame.died == 1, 0.5, 0.1), "None", rng.choice(["Both", "One"], N))
        frame["pupils"] = reacts
        frame["rare"] = np.where(np.arange(N) == 3, "None", rng.choice(["x", "y"], N))
        frame["gap"] = np.where(rng.random(N) < 0.2, "NA", rng.choice(["x", "y"], N))
    (tmp_path / "d").mkdir()
    for name, frame in tables.items():
        frame.to_csv(tmp_path / "d" / f"{name}.csv", index=False)
    code, said = say("init", tmp_path / "d", "--target", "died", "--out", tmp_path / "study.toml")
    assert code == 0
    study = vt.Study.load(tmp_path / "study.toml")
    assert set(study.features["pupils"].categories) == {"Both", "None", "One"}
    assert set(study.features["rare"].categories) == {"x", "y"}
    rows = sum(int((f.pupils == "None").sum()) for f in tables.values())
    assert f"pupils is 'None' in {rows} rows" in said
    assert "of them have the event" in said
    assert "'None' in 3 cells" in said  # those of `rare`
    assert "'NA' in" in said
    assert "gap is" not in said  # frequent, and nothing to do with the outcome: missing, as everywhere
    assert not [f for f in find_faults(tables["a"], study) if f.column == "pupils"]


def test_unknown_in_a_column_of_numbers_leaves_it_a_number() -> None:
    tables = sites(put("crp", "unknown", 5))
    draft = infer_table(tables, "died")
    assert draft.content["features"]["crp"]["kind"] == "numeric"
    assert draft.content["features"]["crp"]["missing"] == ["unknown"]
    assert "'unknown' in 5 cells" in note(draft, "Read as missing")
    run = vt.federate(vt.Study.parse(draft.content), tables, "fedavg", rounds=1)
    assert len(run.scores())


def follow_up(frame: pd.DataFrame, factor: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(len(frame))
    days = np.where(frame.died == 1, rng.uniform(1, 400, len(frame)), rng.uniform(300, 1500, len(frame)))
    return frame.assign(fu_days=(days * factor).round(2))


def test_a_fault_at_one_site_hides_no_leak() -> None:
    tables = {k: follow_up(t, 1 / 365.25 if k == "a" else 1.0) for k, t in sites().items()}
    tables["a"]["fu_days"] = tables["a"].fu_days.to_numpy()[::-1]  # and mixed up
    pooled = pd.concat(tables.values())
    assert pooled.fu_days[pooled.died == 1].median() > 0
    draft = infer_table(tables, "died")
    assert "fu_days" not in draft.content["features"]
    assert "at b" in note(draft, "Left out: fu_days") or "at c" in note(draft, "Left out: fu_days")


@pytest.mark.parametrize("kind", ["numeric", "binary"])
def test_a_column_that_tells_the_outcome_at_one_site_is_named(kind: str) -> None:
    rng, tables = np.random.default_rng(0), sites()
    for name, frame in tables.items():
        strong = frame.died if name == "b" else rng.integers(0, 2, N)
        frame["result"] = (strong + rng.normal(0, 0.5, N)).round(2) if kind == "numeric" else strong
    draft = infer_table(tables, "died")
    assert "result (an AUC of" in note(draft, "Look at this", "at b)", "known before the outcome")
    assert "result" in draft.content["features"]


@pytest.mark.parametrize(("one", "other", "same"), [("maternal age", "age", True), ("age", "wage", False)])
def test_columns_that_may_be_one_are_told(one: str, other: str, same: bool) -> None:
    tables = sites()
    tables["a"] = tables["a"].rename(columns={"age": one})
    tables["b"] = tables["b"].rename(columns={"age": other})
    tables["c"] = tables["c"].rename(columns={"age": other})
    draft = infer_table(tables, "died")
    assert any(f'aliases = ["{other}"]' in n for n in draft.notes) == same
    far = {k: t.assign(age=t["age"] * 1000) if "age" in t else t for k, t in tables.items()}
    assert not any("Perhaps the same column" in n for n in infer_table(far, "died").notes)  # the values say no


def test_rows_without_an_outcome_are_counted() -> None:
    draft = infer_table(sites(put("died", None, 39)), "died")
    assert f"39 of {N} rows at a" in note(draft, "No outcome")


def test_clean_tables_are_asked_about_seldom() -> None:
    """Three clean hospitals with ten columns, 60 times: a question in at most a tenth of the drafts, and almost never
    a code or a unit."""
    asked = [q for seed in range(60) for q in infer_table(sites(seed=100 + seed, n=120), "died").questions]
    wrong = [q for q in asked if not q.startswith("Outside the drafted range")]
    assert len(wrong) <= 1, wrong
    assert len(asked) <= 6, asked


def test_clean_tables_have_nothing_to_check() -> None:
    """Drafted from themselves, of 30 clean federations at most three have a finding at any of their sites."""
    found = []
    for seed in range(30):
        tables = sites(seed=200 + seed, n=120)
        study = vt.Study.parse(infer_table(tables, "died").content)
        found.append([f for t in tables.values() for f in find_faults(t, study)])
    assert sum(map(bool, found)) <= 3, [(f.kind, f.column, f.text) for fs in found for f in fs]


def newborns(seed: int, tiny: int, n: int = 400) -> pd.Series:
    rng = np.random.default_rng(seed)
    early = rng.uniform(700, 2200, n // 12)
    return pd.Series(np.r_[rng.uniform(246, 435, tiny), early, rng.normal(3350, 450, n)].round())


@pytest.mark.parametrize("agreed", [None, (500.0, 6000.0)])
def test_real_newborns_are_not_multiplied_by_ten(agreed: tuple[float, float] | None) -> None:
    feature = Feature(kind="numeric", unit="g", range=agreed)
    proposed = [tiny for tiny in range(3, 12) for s in range(10) if spot_unit(newborns(s, tiny), "weight", feature)]
    assert proposed == []
    slipped = newborns(0, 0)
    slipped = slipped[slipped > 2000].reset_index(drop=True)
    slipped[:20] /= 10
    conversion, which = spot_unit(slipped, "weight", feature) or (None, pd.Series(dtype=bool))
    assert conversion is not None
    assert (conversion.factor, int(which.sum())) == (10, 20)


def test_missing_by_class_knows_the_number_of_rows() -> None:
    """Chance alone is told in at most 1 % of tables; 15 points of difference are found in 400 rows, and not in 40."""
    rng = np.random.default_rng(0)

    def depends(n: int, more: float) -> bool:
        event = np.arange(n) % 2 == 0
        return depends_on_class(rng.random(n) < 0.1 + more * event, [event, ~event], tests=1)

    assert sum(depends(200, 0.0) for _ in range(1000)) <= 15
    assert np.mean([depends(400, 0.15) for _ in range(100)]) > 0.7
    assert np.mean([depends(40, 0.15) for _ in range(100)]) < 0.3
    many = np.arange(100_000) % 2 == 0
    assert not depends_on_class(rng.random(100_000) < 0.1 + 0.01 * many, [many, ~many])  # true, and of no use


def test_check_reports_missing_by_class_by_that_test() -> None:
    table = TableSchema(
        target=Target(column="died", classes=(0, 1), positive=1), features={"crp": Feature(kind="numeric")}
    )
    frame = sites(n=600)["a"][["crp", "died"]]
    frame["crp"] = frame.crp.mask((frame.died == 1) & (np.arange(600) % 6 == 0))
    (found,) = [f for f in find_faults(frame, table) if f.kind == "missing_by_class"]
    assert "in 1" in found.text
    few = frame[:40]
    assert not [f for f in find_faults(few, table) if f.kind == "missing_by_class"]


def test_folders_of_pictures_need_no_target(tmp_path: Path, say: Any) -> None:
    for i, name in enumerate(("north", "south")):
        write_folder(tmp_path / "pictures" / name, soft(30, seed=i))
    code, said = say("init", tmp_path / "pictures", "--out", tmp_path / "study.toml")
    assert code == 0
    assert "target class: ill 30, well 30" in said
    assert say("check", tmp_path / "study.toml", tmp_path / "pictures" / "north")[0] == 0
    clinic(1).to_csv(tmp_path / "a.csv", index=False)
    code, said = say("init", tmp_path / "a.csv", "--out", tmp_path / "other.toml")
    assert code == 2
    assert "--target" in said
    assert "age, crp, sodium" in said


def test_one_frame_with_a_site_column() -> None:
    whole = pd.concat([t.assign(hospital=k) for k, t in sites(n=60).items()], ignore_index=True)
    study = vt.Study.infer(whole, "died", site="hospital")
    assert study.site_column == "hospital"
    assert "hospital" not in study.features
    assert vt.Study.infer(whole, "died", site_column="hospital") == study
    parts = {k: t.drop(columns="hospital").reset_index(drop=True) for k, t in whole.groupby("hospital")}
    run = vt.federate(study, whole, "fedavg", rounds=2)
    apart = vt.federate(study, parts, "fedavg", rounds=2)
    assert run.sites == ["a", "b", "c"]
    pd.testing.assert_frame_equal(run.scores(), apart.scores())
    bare = study.with_changes(site_column="")
    named = vt.federate(bare, whole, "fedavg", rounds=2, site="hospital")
    pd.testing.assert_frame_equal(named.scores(), apart.scores())
    found = vt.compare(study, whole, ["local"], [1], rounds=1, folds=2)
    assert set(found.scores.site) >= {"a", "b", "c"}


@pytest.mark.parametrize(
    ("given", "site", "says"),
    [
        ("frame", "", "the column that holds each row's site"),
        ("frame", "hospitl", "hospital"),
        ("gaps", "hospital", "expected a site in every row, but 2 have none"),
        ("list", "", "got list"),
        ("sites", "hospital", "already one frame for each site"),
        ("paths", "", "expected a DataFrame, got str"),
    ],
)
def test_what_is_no_table_is_told(given: str, site: str, says: str) -> None:
    whole = clinic(1, 60).assign(hospital=np.resize(["a", "b"], 60))
    gaps = whole.assign(hospital=whole.hospital.where(whole.index > 1))
    what: Any = {"frame": whole, "gaps": gaps, "list": [whole], "sites": {"a": whole}, "paths": {"a": "a.csv"}}[given]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = vt.Study.infer({"a": whole}, "died")
    for act in (partial(vt.federate, study), partial(vt.Study.infer, target="died")):
        with pytest.raises(VitrailError, match=says):
            act(what, site=site)


def test_questions_are_warnings_in_python() -> None:
    with pytest.warns(UserWarning, match="Probably a code for missing: 999"):
        vt.Study.infer(sites(put("age", 999)), "died")

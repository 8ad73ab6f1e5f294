"""Every kind of finding: a table where it must be said, and one close to it where it must not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import ROOT
from vitrail.data import missing_codes as codes
from vitrail.data.findings import CheckFinding
from vitrail.data.readers.cells import repeats
from vitrail.data.readers.tables import read_table
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.data.units import CONVERSIONS
from vitrail.quality.checks.columns import CHECKS
from vitrail.quality.checks.table import find_faults, to_json, to_text

FILES = ROOT / "src" / "vitrail" / "data" / "datasets" / "files"
HEART = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
]
ROWS = 120
TABLE = TableSchema(
    target=Target(column="sick", classes=("no", "yes"), positive="yes"),
    features={
        "age": Feature(kind="numeric", range=(18.0, 100.0), unit="years", description="age at admission"),
        "chol": Feature(kind="numeric", range=(80.0, 650.0), unit="mg/dL", description="serum cholesterol"),
        "oldpeak": Feature(kind="numeric", range=(0.0, 8.0), unit="mm", description="ST depression"),
        "lab": Feature(kind="numeric", missing=(-9,)),
        "sex": Feature(kind="binary", categories=("f", "m")),
        "pain": Feature(kind="categorical", categories=(1, 2, 3, 4), description="chest pain type"),
    },
    site_column="site",
)
Change = Callable[[pd.DataFrame], object]


def good() -> pd.DataFrame:
    """A table with nothing to say about: the rows of every change below."""
    rng = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "age": rng.integers(30, 80, ROWS),
            "chol": rng.normal(240, 40, ROWS).clip(130, 400).round(),
            "oldpeak": np.where(rng.random(ROWS) < 0.4, 0, rng.gamma(2, 0.7, ROWS).clip(0.1, 6)).round(1),
            "lab": rng.normal(50, 10, ROWS).round(1),
            "sex": rng.choice(["f", "m"], ROWS),
            "pain": rng.integers(1, 5, ROWS),
            "sick": ["no", "yes"] * (ROWS // 2),
        },
        dtype=object,
        index=range(2, ROWS + 2),
    )


def put(column: str, values: object, rows: slice = slice(None)) -> Change:
    def change(frame: pd.DataFrame) -> None:
        frame.iloc[rows, frame.columns.get_loc(column)] = values

    return change


def times(column: str, factor: float, rows: slice = slice(None), plus: float = 0.0) -> Change:
    def change(frame: pd.DataFrame) -> None:
        place = frame.columns.get_loc(column)
        frame.iloc[rows, place] = (frame.iloc[rows, place].astype(float) * factor + plus).round(2)

    return change


def rename(old: str, new: str) -> Change:
    return lambda frame: frame.rename(columns={old: new})


def swap(one: str, two: str) -> Change:
    return lambda frame: frame.rename(columns={one: two, two: one})


def first(number: int) -> slice:
    return slice(0, number)


def found(change: Change | None = None, table: TableSchema = TABLE) -> list[CheckFinding]:
    frame = good()
    changed = change(frame) if change else None
    return find_faults(changed if isinstance(changed, pd.DataFrame) else frame, table)


def test_a_good_table_has_nothing_to_say() -> None:
    assert found() == []


# name: (kind, severity, column, change, what the text or the hint must say)
FIRES: dict[str, tuple[str, str, str, Change, str]] = {
    "column gone": (
        "missing_column",
        "error",
        "age",
        lambda f: f.drop(columns="age"),
        "Add the column 'age'",
    ),
    "target gone": (
        "missing_column",
        "error",
        "sick",
        lambda f: f.drop(columns="sick"),
        "the study's target 'sick'",
    ),
    "misspelt": ("missing_column", "error", "oldpeak", rename("oldpeak", "old_peak"), "Is it 'old_peak'?"),
    "capitals": ("missing_column", "error", "age", rename("age", "AGE"), "Is it 'AGE'?"),
    "longer name": (
        "missing_column",
        "error",
        "chol",
        rename("chol", "serum_total_cholesterol"),
        "Is it 'serum_total",
    ),
    "described name": (
        "missing_column",
        "error",
        "pain",
        rename("pain", "angina (chest)"),
        "Is it 'angina (chest)'?",
    ),
    "extra": (
        "extra_column",
        "warning",
        "zip",
        lambda f: f.assign(zip=range(ROWS)),
        "'zip' is not in the study",
    ),
    "twice": ("extra_column", "error", "age", lambda f: pd.concat([f, f[["age"]]], axis=1), "more than once"),
    "a word": ("wrong_type", "error", "age", put("age", "old", slice(3, 4)), "got 'old' (1 of 120"),
    "an infinite": ("wrong_type", "error", "lab", put("lab", float("inf"), first(2)), "2 of 120"),
    "a year": (
        "out_of_range",
        "warning",
        "age",
        put("age", 1960, first(1)),
        "1 of 120 values are outside 18 to 100",
    ),
    "outliers": (
        "out_of_range",
        "warning",
        "chol",
        put("chol", [660, 671, 700], first(3)),
        "from 660 to 700",
    ),
    "negative": (
        "out_of_range",
        "warning",
        "oldpeak",
        put("oldpeak", -0.5, first(1)),
        "1 of 120 values are outside 0",
    ),
    "divers": (
        "unknown_category",
        "error",
        "sex",
        put("sex", "x", first(7)),
        "expected one of f, m, got 'x' (7",
    ),
    "fifth pain": (
        "unknown_category",
        "error",
        "pain",
        put("pain", 5, first(1)),
        "expected one of 1, 2, 3, 4",
    ),
    "all mmol/L": (
        "unit_mixup",
        "error",
        "chol",
        times("chol", 1 / 38.67),
        "120 of 120 values look as if they were in mmol/L",
    ),
    "some mmol/L": (
        "unit_mixup",
        "error",
        "chol",
        times("chol", 1 / 38.67, first(37)),
        "37 of 120 values look as if they were in mmol",
    ),
    "months": ("unit_mixup", "error", "age", times("age", 12), "120 of 120 values look as if they were in months"),
    "days": (
        "unit_mixup",
        "error",
        "age",
        times("age", 365.25, first(10)),
        "10 of 120 values look as if they were in days",
    ),
    "ten times too small": (
        "unit_mixup",
        "error",
        "chol",
        times("chol", 0.1, first(20)),
        "20 of 120 values look 10 times too small",
    ),
    "decimal slip, no range": ("unit_mixup", "warning", "lab", times("lab", 100, first(12)), "divide by 100"),
    "cut at 45": (
        "clipped",
        "warning",
        "lab",
        lambda f: f.assign(lab=f["lab"].clip(upper=45.0)),
        "values are 45, the largest",
    ),
    "cut at 50 years": (
        "clipped",
        "warning",
        "age",
        lambda f: f.assign(age=f["age"].clip(lower=50)),
        "values are 50, the smallest",
    ),
    "filled with the mean": (
        "filled_in",
        "warning",
        "chol",
        put("chol", 241.7, first(40)),
        "40 of 120 values are 241.7",
    ),
    "all zero": ("disguised_missing", "error", "chol", put("chol", 0), "120 of 120 values are 0"),
    "some zero": ("disguised_missing", "error", "chol", put("chol", 0, first(30)), "30 of 120 values are 0"),
    "999": (
        "disguised_missing",
        "error",
        "age",
        put("age", 999, first(4)),
        "4 of 120 values are 999, outside 18 to 100",
    ),
    "minus one": (
        "disguised_missing",
        "error",
        "oldpeak",
        put("oldpeak", -1, first(9)),
        "9 of 120 values are -1",
    ),
    "own code": (
        "disguised_missing",
        "error",
        "chol",
        put("chol", 777, first(12)),
        "12 of 120 values are 777",
    ),
    "no range": (
        "disguised_missing",
        "warning",
        "lab",
        put("lab", 9999, first(9)),
        "write missing = [9999] for lab",
    ),
    "no range heap": (
        "disguised_missing",
        "warning",
        "lab",
        put("lab", 500, first(50)),
        "50 of 120 values are 500",
    ),
    "61 missing": (
        "much_missing",
        "warning",
        "lab",
        put("lab", None, first(61)),
        "61 of 120 values are missing (51%)",
    ),
    "all missing": (
        "much_missing",
        "warning",
        "pain",
        put("pain", "?"),
        "120 of 120 values are missing (100%)",
    ),
    "listed code": (
        "much_missing",
        "warning",
        "lab",
        put("lab", -9.0, first(80)),
        "80 of 120 values are missing",
    ),
    "healthy not measured": (
        "missing_by_class",
        "warning",
        "lab",
        put("lab", None, slice(0, 50, 2)),
        "42% in no, 0% in yes",
    ),
    "a row twice": (
        "duplicate_rows",
        "warning",
        "",
        lambda f: pd.concat([f, f.iloc[:3]]),
        "3 of 123 rows repeat",
    ),
    "ten times, the whole column": (
        "unit_mixup",
        "error",
        "chol",
        times("chol", 10),
        "120 of 120 values look 10 times too large",
    ),
    "a tenth, the whole column": ("unit_mixup", "error", "chol", times("chol", 0.1), "--cause unit --factor 10"),
    "ten times, from 0 on": ("unit_mixup", "error", "oldpeak", times("oldpeak", 10), "--cause unit --factor 0.1"),
    "age in the place of cholesterol": (
        "swapped_columns",
        "error",
        "age",
        swap("age", "chol"),
        "it looks swapped with 'chol': 0% of its cells fit its own description (18 to 100 years), and 100% fit that",
    ),
    "sex in the place of pain": (
        "swapped_columns",
        "error",
        "pain",
        swap("sex", "pain"),
        "--feature pain --cause swapped --other sex",
    ),
    "all women": ("constant_column", "warning", "sex", put("sex", "f"), "120 of 120 values are f"),
    "all the same age": ("constant_column", "warning", "age", put("age", 50), "120 of 120 values are 50"),
    "all healthy": ("one_class", "warning", "sick", put("sick", "no"), "all 120 rows are of class no"),
    "dead": (
        "unknown_class",
        "error",
        "sick",
        put("sick", "dead", first(6)),
        "expected one of no, yes, got 'dead' (6",
    ),
    "no target": (
        "target_missing",
        "warning",
        "sick",
        put("sick", None, first(3)),
        "3 of 120 rows have no target",
    ),
    "no target at all": (
        "target_missing",
        "error",
        "sick",
        put("sick", "NA"),
        "120 of 120 rows have no target",
    ),
    "19 rows": ("too_few_rows", "warning", "", lambda f: f.iloc[:19], "19 rows can be used, fewer than 20"),
    "19 with a target": (
        "too_few_rows",
        "warning",
        "",
        put("sick", None, slice(19, None)),
        "19 rows can be used",
    ),
    "no rows": ("too_few_rows", "error", "", lambda f: f.iloc[:0], "0 rows can be used"),
    "4 sick": (
        "class_too_small",
        "warning",
        "sick",
        put("sick", "no", slice(8, None)),
        "4 of 120 rows are of class yes",
    ),
}


@pytest.mark.parametrize("case", FIRES)
def test_it_is_said(case: str) -> None:
    kind, severity, column, change, fragment = FIRES[case]
    said = [f for f in found(change) if f.kind == kind and f.column == column]
    assert len(said) == 1, found(change)
    assert said[0].severity == severity
    assert fragment in f"{said[0].text}. {said[0].hint}"
    assert len(said[0].rows) <= 5
    assert said[0].hint


NEAR: dict[str, tuple[str, Change]] = {
    "all there": ("missing_column", lambda f: f[sorted(f.columns)]),
    "the site column": ("extra_column", lambda f: f.assign(site="lyon")),
    "decimal commas": (
        "wrong_type",
        lambda f: f.assign(lab=f["lab"].map(lambda v: str(v).replace(".", ","))),
    ),
    "spaces and signs": ("wrong_type", lambda f: f.assign(age=f["age"].map(lambda v: f" +{v} "))),
    "at the ends": ("out_of_range", put("age", [18, 100], first(2))),
    "no range to leave": ("out_of_range", put("lab", 1e6, first(1))),
    "told as missing": ("out_of_range", put("chol", 0, first(30))),
    "told as another unit": ("out_of_range", times("chol", 1 / 38.67, first(37))),
    "capital": ("unknown_category", lambda f: f.assign(sex=f["sex"].str.upper())),
    "1.0 for 1": ("unknown_category", lambda f: f.assign(pain=f["pain"].map(lambda v: f"{v}.0"))),
    "outliers": ("unit_mixup", put("chol", [660, 671, 700, 702], first(4))),
    "just too old": ("unit_mixup", put("age", [101, 102, 103, 104], first(4))),
    "two odd values": ("unit_mixup", put("chol", [5.2, 6.1], first(2))),
    "no such unit": ("unit_mixup", times("lab", 10)),
    "a high group of no known factor": ("unit_mixup", times("lab", 4, first(30))),
    "the scale ends there": ("clipped", lambda f: f.assign(oldpeak=[8.0] * 40 + list(f["oldpeak"][40:]))),
    "a fine scale ends there": ("clipped", put("chol", 650, first(40))),
    "cut at the end of the agreed scale": ("clipped", lambda f: f.assign(chol=(f["chol"] + 400).clip(upper=650))),
    "zeros at the low end": ("clipped", put("oldpeak", 0, first(90))),
    "few at the end": ("clipped", lambda f: f.assign(lab=f["lab"].clip(upper=66.0))),
    "digits people like": ("filled_in", put("chol", [200, 220, 240, 260] * 10, first(40))),
    "low but inside": ("unit_mixup", times("chol", 0.62)),
    "heap of natural zeros": ("disguised_missing", put("oldpeak", 0, first(90))),
    "all natural zeros": ("disguised_missing", put("oldpeak", 0)),
    "listed code": ("disguised_missing", put("lab", -9, first(40))),
    "one typo": ("disguised_missing", put("age", 999, first(1))),
    "99 among the old": ("disguised_missing", put("age", [95, 96, 97, 98, 99, 99, 99, 100], first(8))),
    "a heap in the middle": ("disguised_missing", put("lab", 50.0, first(50))),
    "mmol/L that repeats": ("disguised_missing", put("chol", 5.2, first(12))),
    "60 missing": ("much_missing", put("lab", None, first(60))),
    "both classes not measured": ("missing_by_class", put("lab", None, first(50))),
    "five of 60": ("missing_by_class", put("lab", None, slice(0, 10, 2))),
    "too few of a class": (
        "missing_by_class",
        lambda f: f.iloc[:38].assign(lab=f["lab"].where(f["sick"] == "no")),
    ),
    "same but for one": ("duplicate_rows", lambda f: pd.concat([f, f.iloc[:1].assign(lab=-1.5)])),
    "coarse rows": ("duplicate_rows", lambda f: f[["sex", "pain", "sick"]]),
    "in each other's range": ("swapped_columns", lambda f: f.assign(chol=f["lab"] + 100)),
    "in another unit, and another would fit": ("swapped_columns", times("age", 12)),
    "a rare yes that nobody has": ("constant_column", lambda f: f.iloc[:60].assign(sex="f")),
    "real values beyond a range from 0 on": ("unit_mixup", put("oldpeak", np.linspace(0, 12, ROWS).round(1))),
    "one woman": ("constant_column", lambda f: f.assign(sex=["f"] + ["m"] * (ROWS - 1))),
    "one other": ("one_class", lambda f: f.assign(sick=["yes"] + ["no"] * (ROWS - 1))),
    "capital class": ("unknown_class", lambda f: f.assign(sick=f["sick"].str.upper())),
    "missing is not unknown": ("unknown_class", put("sick", "NA", first(3))),
    "unknown is not missing": ("target_missing", put("sick", "dead", first(3))),
    "20 rows": ("too_few_rows", lambda f: f.iloc[:20]),
    "5 sick": ("class_too_small", put("sick", "no", slice(10, None))),
    "one class is said otherwise": ("class_too_small", put("sick", "no")),
}


@pytest.mark.parametrize("case", NEAR)
def test_it_is_not_said(case: str) -> None:
    kind, change = NEAR[case]
    assert [f for f in found(change) if f.kind == kind] == []


@pytest.mark.parametrize("change", [swap("age", "chol"), swap("sex", "pain")])
def test_swapped_columns_have_no_other_fault(change: Change) -> None:
    """Not that 55 means not measured, nor that cholesterol is in another unit."""
    assert [f.kind for f in found(change)] == ["swapped_columns"] * 2


def test_every_kind_has_both_cases() -> None:
    kinds = {look.__name__.removeprefix("find_") for look in CHECKS}
    assert kinds == {case[0] for case in FIRES.values()} == {case[0] for case in NEAR.values()}


def test_a_name_alone_is_no_rename_where_the_values_do_not_fit() -> None:
    frame = good().rename(columns={"chol": "serum sodium"})
    frame["serum sodium"] = 3.5
    hints = [f.hint for f in find_faults(frame, TABLE) if f.kind == "missing_column"]
    assert hints == ["Add the column 'chol'."]


def test_rows_are_those_of_the_file() -> None:
    finding = next(f for f in found(put("age", "old", slice(3, 10))) if f.kind == "wrong_type")
    assert finding.rows == (5, 6, 7, 8, 9)
    assert finding.count == 7


def kinds_of(values: object, feature: Feature) -> list[str]:
    """What is said of one numeric column alone."""
    table = TableSchema(target=Target(column="y", kind="number"), features={"x": feature})
    return [f.kind for f in find_faults(pd.DataFrame({"x": values, "y": np.arange(ROWS)}), table)]


def test_a_code_beside_the_measured_values() -> None:
    insulin = np.r_[np.zeros(50), np.linspace(14, 800, 70)]  # a heap that nearly touches the rest
    assert kinds_of(insulin, Feature(kind="numeric", range=(10.0, 900.0))) == ["disguised_missing"]
    children = np.r_[[-1, -1], np.linspace(0.1, 17, 118)]  # few, but no age is negative
    assert kinds_of(children, Feature(kind="numeric", range=(0.0, 18.0))) == ["disguised_missing"]
    old = np.r_[[99, 99], np.linspace(20, 95, 118)]  # few, and two more years are no wonder
    assert kinds_of(old, Feature(kind="numeric", range=(18.0, 96.0))) == ["out_of_range"]


def test_zero_is_a_value_where_the_study_says_so() -> None:
    gain = np.r_[np.zeros(50), np.linspace(300, 500, 70)]
    assert kinds_of(gain, Feature(kind="numeric", range=(0.0, 900.0))) == []
    assert kinds_of(gain, Feature(kind="numeric")) == ["disguised_missing"]


def test_outliers_are_no_months_though_they_would_fit() -> None:
    old = np.r_[[101, 102, 103, 104], np.linspace(40, 98, 116)]
    assert kinds_of(old, Feature(kind="numeric", range=(0.0, 100.0), unit="years")) == ["out_of_range"]
    old[:4] *= 8  # 800 months and more: 67 to 69 years
    assert kinds_of(old, Feature(kind="numeric", range=(0.0, 100.0), unit="years")) == ["unit_mixup"]


def test_another_unit_must_explain_most_of_what_is_outside() -> None:
    chol = np.r_[[4.9, 5.2, 5.5, 6.1], np.linspace(700, 900, 10), np.linspace(150, 350, 106)]
    feature = Feature(kind="numeric", range=(80.0, 650.0), unit="mg/dL")
    assert kinds_of(chol, feature) == ["out_of_range"]
    assert kinds_of(np.r_[chol[:4], chol[14:], np.linspace(150, 350, 10)], feature)[0] == "unit_mixup"


def test_values_that_are_right_are_not_counted_with_the_others() -> None:
    weight = np.r_[np.linspace(60, 110, 72) / 0.45359237, np.linspace(60, 65, 24), np.linspace(70, 110, 24)]
    feature = Feature(kind="numeric", range=(30.0, 120.0), unit="kg")
    table = TableSchema(target=Target(column="y", kind="number"), features={"x": feature})
    said = find_faults(pd.DataFrame({"x": weight, "y": np.arange(ROWS)}), table)
    assert [(f.kind, f.count) for f in said] == [("unit_mixup", 72)]


# --- units ---

UNITS = {  # description, unit, range, usual values, how a site writes them, what it looks like
    "glucose": ("mg/dL", (40.0, 500.0), (70, 180), lambda v: v / 18.02, "mmol/L"),
    "triglycerides": ("mg/dL", (30.0, 1500.0), (60, 400), lambda v: v / 88.57, "mmol/L"),
    "creatinine": ("mg/dL", (0.2, 15.0), (0.5, 3), lambda v: v * 88.4, "umol/L"),
    "creatinine in umol": ("µmol/L", (20.0, 1300.0), (40, 250), lambda v: v / 88.4, "mg/dL"),
    "bilirubin": ("mg/dL", (0.1, 5.0), (0.4, 2), lambda v: v * 17.1, "umol/L"),
    "urea": ("mg/dL", (10.0, 300.0), (15, 40), lambda v: v / 6.006, "mmol/L"),
    "calcium": ("mg/dL", (5.0, 16.0), (8, 11), lambda v: v / 4.008, "mmol/L"),
    "haemoglobin": ("g/dL", (4.0, 22.0), (9, 17), lambda v: v * 10, "g/L"),
    "haemoglobin in g/L": ("g/L", (60.0, 220.0), (90, 170), lambda v: v / 16.114, "mmol/L"),
    "HbA1c": ("%", (3.0, 18.0), (5, 10), lambda v: (v - 2.152) / 0.09148, "mmol/mol"),
    "temperature": ("°C", (30.0, 43.0), (36, 40), lambda v: v * 1.8 + 32, "F"),
    "temperature in F": ("Fahrenheit", (86.0, 110.0), (97, 104), lambda v: (v - 32) / 1.8, "C"),
    "weight": ("kg", (30.0, 120.0), (60, 110), lambda v: v / 0.45359237, "lb"),
    "height": ("cm", (120.0, 220.0), (150, 195), lambda v: v / 2.54, "in"),
    "tall": ("cm", (120.0, 220.0), (150, 195), lambda v: v / 100, "m"),
    "pressure": ("mmHg", (60.0, 260.0), (95, 180), lambda v: v / 7.50062, "kPa"),
}


@pytest.mark.parametrize("part", [1.0, 0.3])
@pytest.mark.parametrize("name", UNITS)
def test_units(name: str, part: float) -> None:
    unit, bounds, (low, high), written, other = UNITS[name]
    values = np.random.default_rng(1).uniform(low, high, ROWS)
    table = TableSchema(
        target=Target(column="sick", classes=("no", "yes")),
        features={"x": Feature(kind="numeric", unit=unit, range=bounds, description=name)},
    )
    frame = pd.DataFrame({"x": values, "sick": ["no", "yes"] * (ROWS // 2)})
    assert [f.kind for f in find_faults(frame, table)] == []
    frame.loc[: ROWS * part - 1, "x"] = written(values[: int(ROWS * part)])
    said = [f for f in find_faults(frame, table) if f.kind == "unit_mixup"]
    assert len(said) == 1, find_faults(frame, table)
    assert f"values look as if they were in {other}:" in said[0].text
    outside = int(((frame["x"] < bounds[0]) | (frame["x"] > bounds[1])).sum())
    assert said[0].count == (ROWS if part == 1 else outside)
    assert said[0].severity == "error"


def test_a_percentage_of_something_else_is_not_hba1c() -> None:
    feature = Feature(kind="numeric", unit="%", range=(5.0, 60.0), description="haematocrit")
    table = TableSchema(target=Target(column="y", kind="number"), features={"x": feature})
    frame = pd.DataFrame({"x": np.linspace(100, 500, 40), "y": np.arange(40)})
    (said,) = find_faults(frame, table)
    assert "mmol" not in said.text
    assert "10 times too large" in said.text


def test_conversions_go_both_ways() -> None:
    for there, back in zip(CONVERSIONS, CONVERSIONS[len(CONVERSIONS) // 2 :], strict=False):
        assert (there.unit, there.other) == (back.other, back.unit)
        assert back.convert(there.convert(37.0)) == pytest.approx(37.0)
    fever = next(c for c in CONVERSIONS if c.other == "F")
    assert fever.convert(98.6) == pytest.approx(37.0)
    assert fever.formula() == "C = F x 0.5556 - 17.78"


# --- the four hospitals ---


def heart(tmp_path: Path, site: str, missing: tuple[int, ...] = (), bounds: bool = True) -> list[CheckFinding]:
    content = (FILES / f"processed.{site}.data").read_text()
    path = tmp_path / f"{site}.csv"
    path.write_text(",".join([*HEART, "num"]) + "\n" + content)
    ranges = {
        "age": (18.0, 100.0),
        "trestbps": (70.0, 250.0),
        "chol": (80.0, 650.0),
        "thalach": (50.0, 230.0),
    }
    ranges |= {"oldpeak": (-3.0, 8.0), "ca": (0.0, 3.0)}
    codes = {"sex": (0, 1), "fbs": (0, 1), "exang": (0, 1), "cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}
    codes |= {"slope": (1, 2, 3), "thal": (3, 6, 7)}
    features = {n: Feature(kind="categorical", categories=c) for n, c in codes.items()}
    features |= {n: Feature(kind="numeric", range=r if bounds else None) for n, r in ranges.items()}
    features["chol"] = features["chol"].model_copy(update={"missing": missing, "unit": "mg/dL"})
    table = TableSchema(target=Target(column="num", classes=(0, 1, 2, 3, 4)), features=features)
    return find_faults(read_table(path, table), table)


@pytest.mark.parametrize("bounds", [True, False])
def test_switzerland_measured_no_cholesterol(tmp_path: Path, bounds: bool) -> None:
    said = [f for f in heart(tmp_path, "switzerland", bounds=bounds) if f.kind == "disguised_missing"]
    assert [(f.column, f.count, f.rows) for f in said] == [("chol", 123, (2, 3, 4, 5, 6))]
    assert "123 of 123 values are 0" in said[0].text
    assert "missing = [0] for chol" in said[0].hint


def test_switzerland_with_the_code_in_the_study(tmp_path: Path) -> None:
    said = heart(tmp_path, "switzerland", missing=(0,))
    assert [f for f in said if f.kind == "disguised_missing"] == []
    assert "123 of 123 values are missing" in next(f for f in said if f.column == "chol").text


def test_the_other_hospitals(tmp_path: Path) -> None:
    assert heart(tmp_path, "cleveland") == []
    va = {(f.kind, f.column): f for f in heart(tmp_path, "va")}
    assert va["disguised_missing", "chol"].count == 49
    assert va["out_of_range", "trestbps"].rows == (35,)
    assert ("disguised_missing", "oldpeak") not in va  # 0 is a natural ST depression
    hungarian = {(f.kind, f.column) for f in heart(tmp_path, "hungarian")}
    assert {("much_missing", "ca"), ("much_missing", "thal"), ("missing_by_class", "slope")} <= hungarian
    assert not {kind for kind, _ in hungarian} & {
        "disguised_missing",
        "out_of_range",
        "unit_mixup",
        "wrong_type",
    }


# --- telling it ---


def test_to_text_is_plain_and_whole() -> None:
    findings = found(lambda f: put("sex", "f")(f) or put("age", "old", first(7))(f))
    text = to_text(findings, "lyon.csv", ROWS)
    assert text.splitlines() == [
        "lyon.csv: 120 rows, 1 error, 1 warning",
        "  error    age: expected numbers, got 'old' (7 of 120 cells) (rows 2, 3, 4, 5, 6, ...) [wrong_type]",
        "           Correct or empty them (1,234 could mean 1234 or 1.234).",
        "  warning  sex: 120 of 120 values are f [constant_column]",
        "           It carries no information here.",
    ]
    assert to_text([], "lyon.csv", 1) == "lyon.csv: 1 row, 0 errors, 0 warnings"


def test_to_json_says_the_same() -> None:
    findings = found(put("chol", 0, first(30)))
    told = json.loads(to_json(findings, "lyon.csv", ROWS))
    assert (told["file"], told["rows"], told["errors"], told["warnings"]) == ("lyon.csv", 120, 1, 0)
    assert CheckFinding(**{**told["findings"][0], "rows": tuple(told["findings"][0]["rows"])}) == findings[0]


def test_many_values_that_come_twice_are_not_each_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a million rows took a minute: each value as frequent as the most frequent one was compared with all."""
    weighed: list[float] = []
    monkeypatch.setattr(codes, "_is_code", lambda code, *given: bool(weighed.append(code)))
    values = pd.Series([*np.repeat(np.arange(0.5, 3000.5), 2), -9.0, -9.0, 0.0, 0.0])
    for feature in (
        Feature(kind="numeric", range=(0, 4000)),
        Feature(kind="numeric", range=(0, 2)),
        Feature(kind="numeric"),
    ):
        weighed.clear()
        codes.spot_codes(values, "x", feature)
        assert sorted(weighed) == [-9.0, 0.0]
    codes.spot_codes(pd.Series([1.5, 1.5, 2.5, 3.5]), "x", Feature(kind="numeric"))
    assert weighed[-1] == 1.5


@given(st.lists(st.tuples(*[st.sampled_from([1, 2.0, "1", None, "x", (1,), float("nan")])] * 2), max_size=12))
def test_rows_that_repeat(rows: list[tuple[object, object]]) -> None:
    found = repeats({str(i): pd.Series([r[i] for r in rows], dtype=object) for i in (0, 1)}, len(rows))
    seen = [tuple(map(str, r)) for r in rows]
    assert found.tolist() == [r in seen[:i] for i, r in enumerate(seen)]

"""Tables as hospitals write them: what is read, what is refused, and that nothing else ever comes out."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import ROOT
from vitrail.core.errors import VitrailError
from vitrail.data.drafting.features import infer_table
from vitrail.data.readers.cells import as_levels, as_numbers
from vitrail.data.readers.delimited_text import decode
from vitrail.data.readers.tables import clean, pick_rows, read_sites, read_table
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.quality.checks.table import find_faults, to_json, to_text

FILES = ROOT / "src" / "vitrail" / "data" / "datasets" / "files"
TABLE = TableSchema(
    target=Target(column="sick", classes=("no", "yes"), positive="yes"),
    features={
        "age": Feature(kind="numeric", range=(18.0, 100.0), unit="years"),
        "chol": Feature(kind="numeric", range=(80.0, 650.0), unit="mg/dL", missing=(0, "unknown")),
        "sex": Feature(kind="binary", categories=("f", "m")),
        "smoking": Feature(kind="categorical", categories=("None", "past", "now"), missing=(9,)),
    },
    site_column="site",
)
GOOD = "age,chol,sex,smoking,sick\n63,233,m,None,no\n41,204,f,past,yes\n?,0,m,now,no\n"


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def message(path: Path, table: TableSchema | None = None) -> str:
    with pytest.raises(VitrailError) as caught:
        read_table(path, table)
    return str(caught.value)


# --- reading: every dialect gives the same table ---

NAMES = ["naïve", "chol"]
ROWS = [["müßig, kurz", "3,5"], ["a; b | c", None]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_dialects(tmp_path: Path, delimiter: str, encoding: str, newline: str) -> None:
    lines = ["naïve;chol", '"müßig, kurz";"3,5"', '"a; b | c";NA', ""]
    lines = [line.replace('";', f'"{delimiter}').replace("e;c", f"e{delimiter}c") for line in lines]
    frame = read_table(write(tmp_path, newline.join(lines).encode(encoding)))
    assert list(frame.columns) == NAMES
    assert frame.astype(object).where(frame.notna(), None).to_numpy().tolist() == ROWS
    assert list(frame.index) == [2, 3]


@pytest.mark.parametrize(
    ("text", "names", "first"),
    [
        ("a;b\n1,5;2,5\n3,5;4,5\n", ["a", "b"], ["1,5", "2,5"]),
        ("a;b, mg\n1,5;2,5\n3,5;4\n", ["a", "b, mg"], ["1,5", "2,5"]),
        ('name;"note, x"\nbob;"a, b"\n', ["name", "note, x"], ["bob", "a, b"]),
        ('a,b\n"1;2;3","x|y"\n', ["a", "b"], ["1;2;3", "x|y"]),
        ('a, b\n1, "x, y"\n', ["a", "b"], ["1", "x, y"]),
        ('a,b\n"say ""hi""",2\n', ["a", "b"], ['say "hi"', "2"]),
        ("chol\n3,5\n4,5\n", ["chol"], ["3,5"]),
        ("\n\n a , b \n 1 , 2 \n", ["a", "b"], ["1", "2"]),
        ("a,b\n1,2\x1a", ["a", "b"], ["1", "2"]),
    ],
)
def test_delimiter_is_found(tmp_path: Path, text: str, names: list[str], first: list[str]) -> None:
    frame = read_table(write(tmp_path, text))
    assert list(frame.columns) == names
    assert frame.iloc[0].tolist() == first


def test_study_names_decide_an_undecided_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path, "age|x,y\n1|2,3\n")
    assert list(read_table(path).columns) == ["age|x", "y"]
    table = TableSchema(target=Target(column="x,y", kind="number"), features={"age": Feature(kind="numeric")})
    assert list(read_table(path, table).columns) == ["age", "x,y"]


@pytest.mark.parametrize("word", ["NA", "N/A", "NaN", "null", "None", "?", ".", "-", "", "  ", " na ", "NULL"])
def test_missing_words(tmp_path: Path, word: str) -> None:
    frame = read_table(write(tmp_path, f"a,b\n{word},1\nNAD,-1\n"))
    assert frame["a"].isna().tolist() == [True, False]
    assert frame["b"].tolist() == ["1", "-1"]


def test_a_category_called_none_is_no_missing_cell(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, GOOD), TABLE)
    assert frame["smoking"].tolist() == ["None", "past", "now"]
    assert read_table(write(tmp_path, GOOD))["smoking"].isna().tolist() == [True, False, False]


def test_row_numbers_stay_true(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, 'a,b\n1,2\n\n,\n"two\nlines",4\n  \n5,6\n'))
    assert list(frame.index) == [2, 5, 8]
    assert frame.loc[5, "a"] == "two\nlines"


def test_gzip_and_endings(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.TSV.GZ", "c.data.gz", "d.txt.gz"):
        assert len(read_table(write(tmp_path, gzip.compress(GOOD.encode()), name))) == 3
    for name in ("a.csv", "b.tsv", "c.data", "d.TXT"):
        assert len(read_table(write(tmp_path, GOOD, name))) == 3


def test_titanic_with_its_bom_and_quoted_names() -> None:
    frame = read_table(FILES / "titanic3.csv.gz")
    assert frame.columns[0] == "pclass"
    assert frame.loc[2, "name"] == "Allen, Miss. Elisabeth Walton"
    assert len(frame) == 1309


def test_parquet(tmp_path: Path) -> None:
    source = pd.DataFrame({"a": [1.5, None], "b": ["x", " NA "], "c": [True, False], "d": [7, 8]}, index=[10, 3])
    source.to_parquet(tmp_path / "a.parquet")
    frame = read_table(tmp_path / "a.parquet")
    assert list(frame.columns) == ["a", "b", "c", "d"]
    assert list(frame.index) == [2, 3]
    assert frame.loc[2].tolist() == ["1.5", "x", "True", "7"]
    assert frame.loc[3].isna().tolist() == [True, True, False, False]


# --- reading: what is not a table ---

BROKEN = {
    "empty": ("a.csv", b"", "got an empty file"),
    "blank lines": ("a.csv", b"\n \n\r\n", "got an empty file"),
    "only delimiters": ("a.csv", b",,\n,,\n", "got an empty file"),
    "only a byte order mark": ("a.csv", b"\xff\xfe", "got an empty file"),
    "header only": ("a.csv", b"a,b,c\n", "expected rows below the header"),
    "header and blanks": ("a.csv", b"a,b\n,\n\n", "expected rows below the header"),
    "zeros": ("a.csv", b"\x00\x01\x02" * 50, "binary data"),
    "png": ("a.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "binary data"),
    "excel called csv": ("a.csv", b"PK\x03\x04\x14\x00\x06\x00", "an Excel file is not text"),
    "gzip called csv": ("a.csv", gzip.compress(b"a,b\n1,2\n"), "binary data"),
    "utf-16 without mark": ("a.csv", "a,b\n1,2\n".encode("utf-16-le"), "binary data"),
    "cut utf-16": ("a.csv", "a,b\n1,2\n".encode("utf-16")[:-1], "binary data"),
    "csv called gzip": ("a.csv.gz", b"a,b\n1,2\n", "cannot be read"),
    "cut gzip": ("a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 99)[:-9], "cannot be read"),
    "damaged gzip": ("a.csv.gz", gzip.compress(b"a,b\n" * 99)[:12] + b"\xff" * 30, "cannot be read"),
    "empty in gzip": ("a.csv.gz", gzip.compress(b""), "got an empty file"),
    "xlsx": ("a.xlsx", b"PK\x03\x04", "expected an Excel workbook, got something else or part of one"),
    "no ending": ("table", b"a,b\n1,2\n", "expected a table ending in .csv"),
    "gzipped parquet": ("a.parquet.gz", gzip.compress(b"PAR1"), "expected a table ending in"),
    "csv called parquet": ("a.parquet", b"a,b\n1,2\n", "expected a Parquet file"),
    "cut parquet": ("a.pq", b"PAR1\x15\x04\x15", "expected a Parquet file"),
    "empty parquet": ("a.parquet", b"", "expected a Parquet file"),
    "same name twice": ("a.csv", b"a,b,a\n1,2,3\n", "one name for each column, got 'a' for 2"),
    "same name but for spaces": ("a.csv", b"a, a \n1,2\n", "got 'a' for 2"),
    "no name": ("a.csv", b",a,b\n0,1,2\n", "got '' for 1. Rename or remove them (row labels"),
    "trailing comma": ("a.csv", b"a,b,\n1,2,\n", "got '' for 1"),
    "no header": (
        "a.data",
        b"63.0,1.0,?,233\n67,1,4,286\n",
        "expected column names, got numbers ('63.0', '1.0', '?'",
    ),
    "too many fields": (
        "a.csv",
        b"a,b\n1,2\n1,2,3\n1,2\n",
        "a.csv, row 3: expected 2 fields as in the header, got 3",
    ),
    "too few fields": (
        "a.csv",
        b"a,b,c\n1,2,3\n\n1,2\n",
        "a.csv, row 4: expected 3 fields as in the header, got 2",
    ),
    "many uneven": ("a.csv", b"a,b\n1,2\n" + b"1\n" * 7 + b"1,2\n" * 9, "rows 3, 4, 5, 6, 7 and 2 more"),
    "uneven both ways": (
        "a.csv",
        b"a,b\n1\n1,2,3\n1,2\n",
        "rows 2, 3: expected 2 fields as in the header, got 1, 3",
    ),
    "unquoted comma": ("a.csv", b"name,x\nDoe, Jo,1\nRoe,2\n", "row 2: expected 2 fields"),
    "open quote": ("a.csv", b'a,b\n1,2\n3,"x\n4,5\n', "row 3: expected quoted fields to end"),
    "text after quote": ("a.csv", b'a,b\n"1"2,3\n', "row 2: expected quoted fields to end"),
    "endless field": (
        "a.csv",
        b"a,b\n1,2\n" + b"x" * 140_000 + b",1\n",
        "row 3: expected quoted fields to end",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_explained(tmp_path: Path, case: str) -> None:
    name, content, fragment = BROKEN[case]
    said = message(write(tmp_path, content, name))
    assert fragment in said
    assert str(tmp_path / name) in said


def test_no_file_folder_or_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is none" in message(tmp_path / "nothing.csv")
    assert "there is none" in message(tmp_path / "no" / "folder.csv")
    assert "cannot be read" in message(tmp_path / ("long" * 100 + ".csv"))
    (tmp_path / "folder.csv").mkdir()
    assert "got a folder" in message(tmp_path / "folder.csv")

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, GOOD)
    monkeypatch.setattr("vitrail.data.readers.delimited_text.read_regular", refuse)
    assert "Permission denied" in message(path)
    assert "Check its permissions" in message(path)


# --- numbers ---


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["3,5", "4"], [3.5, 4]),
        (["1.234,5", "2,25"], [1234.5, 2.25]),
        (["1,234.5", "12"], [1234.5, 12]),
        (["1,234", "12.5"], [1234, 12.5]),
        (["1,234", "12,5"], [1.234, 12.5]),
        (["1,234,567", "3"], [1234567, 3]),
        (["1.234.567", "3"], [1234567, 3]),
        (["0,125", "0,250"], [0.125, 0.25]),
        (["1.234", "5.678"], [1.234, 5.678]),
        (["1,234", "5,678"], [None, None]),  # 1234 or 1.234: nobody can tell
        (["1,5", "2,5", "1.5"], [1.5, 2.5, None]),
        ([" 7 ", "+7", "-7", "\u22127", ".5", "5."], [7, 7, -7, -7, 0.5, 5]),
        (["1e3", "1.5E-2"], [1000, 0.015]),
        (["1'234.5", "1\u00a0234"], [1234.5, 1234]),
        (["1 234", "1_000", "0x10", "12a", "--1", "1..2", "٣"], [None] * 7),
        (["inf", "-Infinity", "1e999", "5"], [None, None, None, 5]),
        ([1, 2.5, "3,5", True], [1, 2.5, 3.5, 1]),
        ([10**400, 1], [None, 1]),
        ([[1], {"a": 2}, 3], [None, None, 3]),
        ([1 + 2j, 3], [None, 3]),
        ([pd.Timestamp("2020-01-01"), 3], [None, 3]),
    ],
)
def test_as_numbers(cells: list[object], expected: list[float | None]) -> None:
    values, wrong = as_numbers(pd.Series(cells, dtype=object))
    assert wrong.tolist() == [e is None for e in expected]
    np.testing.assert_array_equal(values, np.array(expected, dtype=float))
    assert values.dtype == "float64"


@pytest.mark.parametrize(
    "kind", ["int8", "float32", "Int64", "Float64", "bool", "boolean", "int64[pyarrow]", "category"]
)
def test_as_numbers_takes_typed_columns(kind: str) -> None:
    values, wrong = as_numbers(pd.Series([1, 0, 1], index=[5, 5, 6]).astype(kind))
    assert values.tolist() == [1.0, 0.0, 1.0]
    assert not wrong.any()
    assert list(values.index) == [5, 5, 6]


def test_as_numbers_missing_is_not_wrong_and_infinite_is() -> None:
    values, wrong = as_numbers(pd.Series([1.0, np.nan, np.inf]))
    assert wrong.tolist() == [False, False, True]
    assert values.isna().tolist() == [False, True, True]
    for column in (pd.Series([1, None], dtype="Int64"), pd.Series(["1", None, "?", pd.NA], dtype=object)):
        assert not as_numbers(column)[1].any()
        assert as_numbers(column)[0].isna().sum() == len(column) - 1
    assert as_numbers(pd.Series([1.0, np.inf], name="kept"))[0].isna().tolist() == [False, True]


def test_as_numbers_leaves_the_column_alone() -> None:
    column = pd.Series([1.0, np.inf])
    as_numbers(column)
    assert np.isinf(column[1])


# --- levels ---


@pytest.mark.parametrize(
    ("cells", "levels", "expected"),
    [
        (["1", "1.0", 1, 1.0, True, "true", "1,0"], ["0", "1"], [1] * 7),
        (["F", " m", "M "], ["f", "m"], [0, 1, 1]),
        (["a", "A"], ["a", "A"], [0, 1]),
        (["B", "b"], ["a", "b", "B"], [2, 1]),
        (["none", "NONE", "None"], ["None", "past"], [0, 0, 0]),
        (["?", None, "", float("nan")], ["0", "1"], [None] * 4),
        (["007", "7"], ["7"], ["wrong", 0]),
        (["2", "x"], ["0", "1"], ["wrong", "wrong"]),
    ],
)
def test_as_levels(cells: list[object], levels: list[str], expected: list[object]) -> None:
    values, wrong = as_levels(pd.Series(cells, dtype=object), levels, ())
    assert wrong.tolist() == [e == "wrong" for e in expected]
    wanted = [np.nan if e in (None, "wrong") else e for e in expected]
    np.testing.assert_array_equal(values, np.array(wanted, dtype=float))


def test_case_does_not_decide_between_two_levels() -> None:
    assert as_levels(pd.Series(["YES"]), ["yes", "Yes"], ())[1].tolist() == [True]


# --- clean ---


def test_clean_from_text(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, GOOD + "50,Unknown,F,9,\n51,0.0,F,9.0,YES\n"), TABLE)
    seen = clean(frame, TABLE)
    assert list(seen.columns) == ["age", "chol", "sex", "smoking", "sick"]
    assert list(seen.index) == [2, 3, 4, 6]  # row 5 has no target
    np.testing.assert_array_equal(seen["age"], [63, 41, np.nan, 51])
    np.testing.assert_array_equal(seen["chol"], [233, 204, np.nan, np.nan])
    np.testing.assert_array_equal(seen["sex"], [1, 0, 1, 0])
    np.testing.assert_array_equal(seen["smoking"], [0, 1, 2, np.nan])
    assert seen["sick"].tolist() == [0, 1, 0, 1]
    assert [str(d) for d in seen.dtypes] == ["float64"] * 4 + ["int64"]


def test_clean_from_a_typed_frame_with_odd_labels() -> None:
    frame = pd.DataFrame(
        {
            "sick": pd.Categorical(["yes", None, "no"]),
            " age ": pd.array([30, None, 500], dtype="Int64"),
            "chol": [0, 200.5, np.nan],
            "sex": ["m", "f", None],
            "smoking": ["None", "now", 9],
            "more": [[1], [2], [3]],
        },
        index=["a", "a", "b"],
    )
    seen = clean(frame, TABLE)
    assert list(seen.index) == ["a", "b"]
    np.testing.assert_array_equal(seen["age"], [30, 500])  # out of range is for check to say
    assert seen["chol"].isna().all()
    np.testing.assert_array_equal(seen["smoking"], [0, np.nan])
    assert seen["sick"].tolist() == [1, 0]


def test_positive_class_is_last() -> None:
    table = TABLE.model_copy(update={"target": Target(column="sick", classes=("yes", "no"), positive="yes")})
    frame = pd.DataFrame({"age": [1], "chol": [1], "sex": ["f"], "smoking": ["now"], "sick": ["yes"]})
    assert clean(frame, table)["sick"].tolist() == [1]


def test_a_number_as_target() -> None:
    table = TableSchema(target=Target(column="days", kind="number", center=5.0, scale=2.0), features=TABLE.features)
    frame = pd.DataFrame({"age": [1, 2], "chol": 1, "sex": "f", "smoking": "now", "days": ["3,5", None]})
    assert clean(frame, table)["days"].tolist() == [3.5]
    frame["days"] = ["soon", "3"]
    with pytest.raises(VitrailError, match=r"column days, row 0: expected numbers, got 'soon' \(1 of 2"):
        clean(frame, table)


def test_target_may_be_absent_when_not_needed() -> None:
    frame = pd.DataFrame({"age": [1, 2], "chol": 1, "sex": "f", "smoking": "now"})
    with pytest.raises(VitrailError, match="column sick: expected one such column, but there is none"):
        clean(frame, TABLE)
    assert list(clean(frame, TABLE, need_target=False).columns) == list(TABLE.features)
    assert clean(frame.assign(sick=None), TABLE, need_target=False).shape == (2, 4)
    assert clean(frame.assign(sick=["yes", None]), TABLE, need_target=False).shape == (1, 5)


def test_clean_tells_everything_at_once(tmp_path: Path) -> None:
    rows = "".join(f"x{i},200,q,perhaps\n" for i in range(7))
    frame = read_table(write(tmp_path, "Age_years,Chols,sex,sick\n" + rows), TABLE)
    with pytest.raises(VitrailError) as caught:
        clean(frame, TABLE)
    said = [str(problem) for problem in caught.value.problems]
    assert said[0].startswith("a.csv, column age: expected one such column, but there is none.")
    assert "Did you mean 'Chols'?" in said[1]
    assert said[2] == (
        "a.csv, column sex, rows 2, 3, 4, 5, 6 and 2 more: expected one of f, m, got 'q' (7 of 7 cells). "
        "Correct these cells or the study."
    )
    assert "column smoking" in said[3]
    assert "column sick, rows 2, 3, 4, 5, 6 and 2 more: expected one of no, yes, got 'perhaps'" in said[4]
    assert len(said) == 5


CELLS = {
    "a word for a number": ("age", "old", "column age, row 2: expected numbers, got 'old'"),
    "a range for a number": ("age", "60-69", "got '60-69'"),
    "a sign for a number": ("chol", "<200", "got '<200'"),
    "infinite": ("age", "inf", "got 'inf'"),
    "a date": ("age", "1960-01-01", "got '1960-01-01'"),
    "an unclear thousand": ("age", '"1,234"', "1,234 could mean"),
    "a long cell": ("age", "x" * 90, "got '" + "x" * 40 + "' (1"),
    "another category": ("sex", "divers", "expected one of f, m, got 'divers'"),
    "a code the study does not list": ("smoking", "8", "expected one of None, past, now, got '8'"),
    "another class": ("sick", "dead", "expected one of no, yes, got 'dead'"),
    "a number for a class": ("sick", "1", "got '1'"),
}


@pytest.mark.parametrize("case", CELLS)
def test_broken_cell_is_explained(tmp_path: Path, case: str) -> None:
    column, cell, fragment = CELLS[case]
    row = {"age": "50", "chol": "200", "sex": "f", "smoking": "now", "sick": "no"}
    text = ",".join(row) + "\n" + ",".join((row | {column: cell}).values()) + "\n" + ",".join(row.values()) + "\n"
    frame = read_table(write(tmp_path, text), TABLE)
    with pytest.raises(VitrailError) as caught:
        clean(frame, TABLE)
    assert len(caught.value.problems) == 1
    assert fragment in str(caught.value)


def test_a_column_twice_is_refused() -> None:
    frame = pd.DataFrame([[1, 1, 2, "f", "now", "no"]], columns=["age", "age", "chol", "sex", "smoking", "sick"])
    with pytest.raises(VitrailError, match="column age: expected one such column, but there is more than one"):
        clean(frame, TABLE)


def test_clean_is_fast() -> None:
    rng = np.random.default_rng(0)
    names = [f"n{i}" for i in range(20)] + [f"c{i}" for i in range(9)]
    features = {n: Feature(kind="numeric", missing=(0,)) for n in names[:20]}
    features |= {n: Feature(kind="categorical", categories=("a", "b", "c")) for n in names[20:]}
    data = {n: rng.normal(size=40_000).astype(str) for n in names[:20]}  # every cell is another one
    data |= {n: rng.choice(["a", "B", "c", ""], 40_000) for n in names[20:]} | {"y": rng.choice(["0", "1"], 40_000)}
    table = TableSchema(target=Target(column="y", classes=(0, 1)), features=features)
    frame = pd.DataFrame(data, dtype=object)
    start = time.process_time()
    assert clean(frame, table).shape == (40_000, 30)
    assert time.process_time() - start < 1.0


def test_numbers_taken_together_are_judged_like_each_alone() -> None:
    """Also where some do not fit: the same problems, in the order of the study."""
    rng, names = np.random.default_rng(0), [f"n{i}" for i in range(9)]
    table = TableSchema(
        target=Target(column="y", classes=(0, 1)),
        features={n: Feature(kind="numeric", missing=(9,) if n == "n3" else ()) for n in reversed(names)},
    )
    frame = pd.DataFrame({n: rng.integers(0, 10, 12) for n in names}, index=range(30, 42)).assign(y=[0, 1, np.nan] * 4)
    frame["n1"], frame["n2"] = frame["n1"].astype(bool), frame["n2"].astype(np.float32).where(frame["n2"] > 4)
    frame["n5"] = frame["n5"].astype("Int8")
    alone = frame.astype({n: object for n in names if n != "n5"})
    pd.testing.assert_frame_equal(clean(frame, table), clean(alone, table))
    assert clean(frame, table).columns.tolist() == [*reversed(names), "y"]
    assert clean(frame, table).index.tolist() == [i for i in range(30, 42) if i % 3 < 2]
    frame = frame.astype({"n6": float, "n8": float}).drop(columns="n7")
    frame.loc[33, "n6"], frame.loc[[30, 41], "n8"] = np.inf, -np.inf
    told = []
    for each in (frame, frame.astype({n: object for n in frame if n not in ("n5", "y")})):
        with pytest.raises(VitrailError) as caught:
            clean(each, table)
        told.append([str(p) for p in caught.value.problems])
    assert told[0] == told[1]
    assert [line.split(":")[0].removeprefix("table, column ") for line in told[0]] == [
        "n8, rows 30, 41",
        "n7",
        "n6, row 33",
    ]


def make_wide(columns: int) -> tuple[pd.DataFrame, TableSchema]:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(50, columns)))
    frame = frame.rename(columns="gene {}".format).assign(y=[0, 1] * 25)
    features = {n: Feature(kind="numeric") for n in frame.columns[:-1]}
    return frame, TableSchema(target=Target(column="y", classes=(0, 1)), features=features)


def test_many_columns(tmp_path: Path) -> None:
    """Time grows with the columns, not with their square: read, drafted, cleaned, and refused."""
    frame, table = make_wide(10_000)
    start = time.process_time()
    assert clean(frame, table).shape == (50, 10_001)
    assert len(infer_table({"a": frame, "b": frame}, "y").content["features"]) == 10_000
    other = frame.rename(columns=lambda name: name.replace("gene", "genes"))
    with pytest.raises(VitrailError) as caught:
        clean(other, table)
    assert len(caught.value.problems) == 10_000
    assert "Did you mean 'genes " in caught.value.problems[0].hint
    frame.iloc[:2].to_csv(tmp_path / "a.csv", index=False)
    frame.iloc[:2].to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.csv").shape == read_table(tmp_path / "a.parquet").shape == (2, 10_001)
    assert time.process_time() - start < 10.0


# --- sites ---


def test_sites_from_a_folder(tmp_path: Path) -> None:
    for name in (
        "b.csv",
        "processed.a.data",
        "c.csv.gz",
        "README.txt",
        "LICENSE",
        "x.md",
        "study.toml",
        ".hid.csv",
    ):
        write(tmp_path, gzip.compress(GOOD.encode()) if name.endswith("gz") else GOOD, name)
    (tmp_path / "runs").mkdir()
    sites = read_sites(tmp_path, TABLE)
    assert list(sites) == ["b", "c", "processed.a"]
    assert list(sites["c"].index) == [2, 3, 4]


def test_sites_from_one_file(tmp_path: Path) -> None:
    path = write(tmp_path, "site,age\nlyon,1\nbasel,2\nlyon,3\n")
    sites = read_sites(path, TABLE)
    assert list(sites) == ["basel", "lyon"]
    assert list(sites["lyon"].index) == [2, 4]
    assert sites["lyon"].attrs["file"] == "a.csv"


def test_all_files_are_judged_at_once(tmp_path: Path) -> None:
    for name, text in {
        "a.csv": GOOD,
        "a.tsv": GOOD,
        "b.csv": "",
        "c.csv": "x,x\n1,2\n",
        "d.xlsx": "?",
    }.items():
        write(tmp_path, text, name)
    with pytest.raises(VitrailError) as caught:
        read_sites(tmp_path, TABLE)
    said = str(caught.value)
    assert "expected one file per site, got 'a.csv', 'a.tsv' for site 'a'" in said
    assert "b.csv: expected a table, got an empty file" in said
    assert "c.csv, header: expected one name for each column" in said
    assert "d.xlsx: expected an Excel workbook" in said


SITES = {
    "none asked for": ("", "site,age\na,1\n", 'Write site_column = "..."'),
    "another name": ("site", "sites,age\na,1\n", "Did you mean 'sites'?"),
    "no such name": ("site", "age,chol\n1,2\n", "Valid: age, chol."),
    "empty": (
        "site",
        "site,age\na,1\n,2\nNA,3\n",
        "column site, rows 3, 4: expected a site in every row, but 2 have none",
    ),
    "broken": ("site", "site,age\na\n", "row 2: expected 2 fields"),
}


@pytest.mark.parametrize("case", SITES)
def test_broken_sites_are_explained(tmp_path: Path, case: str) -> None:
    column, text, fragment = SITES[case]
    with pytest.raises(VitrailError) as caught:
        read_sites(write(tmp_path, text), TABLE.model_copy(update={"site_column": column}))
    assert fragment in str(caught.value)


def test_folder_without_tables(tmp_path: Path) -> None:
    write(tmp_path, "hello", "README.md")
    with pytest.raises(VitrailError, match="expected one table per site"):
        read_sites(tmp_path, TABLE)
    with pytest.raises(VitrailError, match="there is none"):
        read_sites(tmp_path / "nowhere", TABLE)


# --- whatever comes ---

LETTERS = st.text(alphabet=',;\t|"\n\r.-?0159ex \u00e9\u2028', max_size=60)
VALUES = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | st.dates(),
    st.text(max_size=8) | st.binary(max_size=4) | st.lists(st.integers(), max_size=2),
    st.sampled_from(["63", "f", "None", "yes", "0", "999", "5,2"]),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good table with a few bytes replaced, removed, doubled or swapped."""
    content = bytearray(GOOD * draw(st.integers(1, 3)), "utf-8")
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        new = draw(st.one_of(st.binary(max_size=3), LETTERS.map(str.encode)))
        content[at : at + draw(st.integers(0, 4))] = new
    return bytes(content)


def attempt(do: Callable[[], pd.DataFrame]) -> pd.DataFrame | VitrailError:
    try:
        return do()
    except VitrailError as error:
        return error


def go_through(frame: pd.DataFrame) -> None:
    findings = find_faults(frame, TABLE)
    assert to_text(findings, "a.csv", len(frame))
    assert to_json(findings, "a.csv", len(frame))
    cleaned = attempt(lambda: clean(frame, TABLE))
    if isinstance(cleaned, VitrailError):
        assert cleaned.problems
        assert any(finding.severity == "error" for finding in findings)  # check must foresee it
    else:
        assert list(cleaned.columns) == [*TABLE.features, "sick"]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    content=st.one_of(
        st.binary(max_size=80), LETTERS.map(str.encode), mutated(), LETTERS.map(lambda t: t.encode("utf-16"))
    ),
    name=st.sampled_from(["a.csv", "a.csv", "a.data", "a.csv.gz", "a.parquet"]),
)
def test_no_table_breaks_us(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = write(tmp_path_factory.mktemp("any"), content, name)
    frame = attempt(lambda: read_table(path, TABLE))
    if isinstance(frame, VitrailError):
        assert frame.problems
        assert all(problem.where and problem.what and problem.hint for problem in frame.problems)
    else:
        go_through(frame)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.lists(VALUES, min_size=5, max_size=5), max_size=8),
    names=st.lists(st.sampled_from([*TABLE.features, "sick", "site", "x", " age"]), min_size=5, max_size=5),
)
def test_no_frame_breaks_us(rows: list[list[object]], names: list[str]) -> None:
    go_through(pd.DataFrame(rows, columns=names, dtype=object))
    go_through(pd.DataFrame(rows, columns=[*TABLE.features, "sick"], dtype=object, index=[0] * len(rows)))


def test_a_row_is_called_by_its_line_in_the_file() -> None:
    """Or, where rows have names, by the line that it would have below a header."""
    mask = np.array([False, True, True])
    assert pick_rows(pd.Index([2, 5, 6]), mask) == [5, 6]
    assert pick_rows(pd.Index(["p1", "p2", "p3"]), mask) == [3, 4]


def test_letters_of_western_programs_are_read_as_written() -> None:
    whole = decode(Path("a.csv"), "name;price\nMüller;12 €\n".encode("cp1252"))
    assert (whole.text, whole.encoding) == ("name;price\nMüller;12 €\n", "cp1252")
    assert whole.encode(whole.text) == "name;price\nMüller;12 €\n".encode("cp1252")

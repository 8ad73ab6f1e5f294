"""Files people have: workbooks, files of other programs, databases, OMOP folders. Each gives what the CSV gives; what
cannot be read is told in words, and nobody learns a password."""

from __future__ import annotations

import datetime
import re
import sqlite3
import warnings
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest

from vitrail.core.errors import VitrailError
from vitrail.data.readers import sql
from vitrail.data.readers.source import PassedOverWarning, Query, to_place
from vitrail.data.readers.tables import clean, read_sites, read_table
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.quality.repair.table_writer import load_sheet

TABLE = TableSchema(
    target=Target(column="sick", classes=("no", "yes"), positive="yes"),
    features={
        "age": Feature(kind="numeric", range=(18.0, 100.0)),
        "crea": Feature(kind="numeric"),
        "sex": Feature(kind="binary", categories=("f", "m")),
    },
    site_column="site",
)
ROWS = pd.DataFrame(
    {
        "id": ["007", "008", "009", "010"],
        "age": [63.0, 41.0, np.nan, 55.0],
        "crea": [1.1, 0.30000000000000004, 1.5, np.nan],
        "sex": ["m", "f", "m", "f"],
        "sick": ["no", "yes", "no", "yes"],
    }
)
WANTED = clean(ROWS, TABLE)


def same(frame: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(clean(frame, TABLE), WANTED.set_axis(frame.index), rtol=1e-14)


def refused(place: Path | str, table: TableSchema | None = TABLE) -> str:
    with pytest.raises(VitrailError) as caught:
        read_table(to_place(place), table)
    return str(caught.value)


def write_book(path: Path, sheets: dict[str, list[list[object]]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def as_rows(frame: pd.DataFrame) -> list[list[object]]:
    return [list(frame.columns), *frame.astype(object).where(frame.notna(), None).to_numpy().tolist()]


# --- workbooks ---


def test_first_or_named_sheet(tmp_path: Path) -> None:
    path = write_book(tmp_path / "a.xlsx", {"Visits": as_rows(ROWS), "Other": [["x"], [1]]})
    with pytest.warns(PassedOverWarning, match="sheet 'Visits' was read; not read: 'Other'"):
        same(read_table(path, TABLE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(tmp_path / "a.xlsx#Other").x.tolist() == ["1"]
    assert "there is no sheet 'Visit'. Did you mean 'Visits'?" in refused(f"{path}#Visit")


def test_cells_as_a_person_sees_them(tmp_path: Path) -> None:
    day = datetime.datetime(2020, 1, 31)
    cells = [0.1 + 0.2, 63.0, 7, day, day.replace(hour=8), True, "#N/A", " x ", datetime.time(8, 5)]
    path = write_book(tmp_path / "a.xlsx", {"S": [[None], [], ["c", "d"], *[[cell, 1] for cell in cells]]})
    book = openpyxl.load_workbook(path)
    book["S"]["A6"].number_format = "0000"
    book["S"]["B4"].value = None
    book.save(path)
    frame = read_table(path)
    seen = ["0.3", "63", "0007", "2020-01-31", "2020-01-31 08:00:00", "TRUE", None, "x", "08:05:00"]
    assert frame.c.tolist() == seen
    assert frame.d.tolist()[:2] == [None, "1"]
    assert frame.index.tolist() == list(range(4, 13))  # rows of the sheet


def test_hidden_and_open_workbooks(tmp_path: Path) -> None:
    path = write_book(tmp_path / "a.xlsx", {"Notes": [["n"], [1]], "Data": as_rows(ROWS)})
    book = openpyxl.load_workbook(path)
    book["Notes"].sheet_state = "hidden"
    book.save(path)
    same(read_table(path, TABLE))
    (tmp_path / "~$a.xlsx").write_bytes(b"lock")
    with pytest.warns(PassedOverWarning, match=r"file ~\$a.xlsx"):
        assert list(read_sites(tmp_path, TABLE)) == ["a"]


def test_broken_workbooks(tmp_path: Path) -> None:
    good = write_book(tmp_path / "good.xlsx", {"S": as_rows(ROWS)}).read_bytes()
    for name, raw in {"cut.xlsx": good[: len(good) // 2], "zero.xlsx": b"", "text.xlsx": b"a,b\n1,2\n"}.items():
        (tmp_path / name).write_bytes(raw)
        assert "expected an Excel workbook, got something else or part of one" in refused(tmp_path / name)
    (tmp_path / "locked.xlsx").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600)
    assert "got one with a password or in the old format" in refused(tmp_path / "locked.xlsx")
    (tmp_path / "old.xls").write_bytes(b"x")
    assert "Save it as .xlsx" in refused(tmp_path / "old.xls")
    assert "the sheet 'S' is empty" in refused(write_book(tmp_path / "empty.xlsx", {"S": [[None, " "]]}))
    assert "expected rows below the header" in refused(write_book(tmp_path / "head.xlsx", {"S": [["a", "b"]]}))
    formula = write_book(tmp_path / "formula.xlsx", {"S": [["a", "b"], [1, "=A2*2"], [2, "=A3*2"]]})
    assert "got formulas without any (B2, B3)" in refused(formula)


# --- files of other programs ---


def test_spss_and_its_labels(tmp_path: Path) -> None:
    coded = ROWS.assign(sex=[1.0, 2.0, 1.0, 2.0], sick=[0.0, 1.0, 0.0, 1.0], day=[datetime.date(2020, 1, 31)] * 4)
    labels = {"sex": {1: "m", 2: "f"}, "sick": {0: "no", 1: "yes"}, "age": {999: "refused"}}
    pyreadstat.write_sav(coded, str(tmp_path / "a.sav"), variable_value_labels=labels)
    with pytest.warns(PassedOverWarning) as told:
        frame = read_table(tmp_path / "a.sav", TABLE)
    same(frame)
    assert frame.id.tolist() == ROWS.id.tolist()
    assert frame.day.tolist() == ["2020-01-31"] * 4
    said = " ".join(str(w.message) for w in told)
    assert "column sex: value labels (1 = m, 2 = f); the labels were read" in said
    assert "column age: value labels (999 = refused); the codes were read" in said
    by_code = TABLE.model_copy(update={"features": {"sex": Feature(kind="binary", categories=(2, 1))}})
    with pytest.warns(PassedOverWarning, match="column sex.*the codes were read"):
        assert read_table(tmp_path / "a.sav", by_code).sex.tolist() == ["1", "2", "1", "2"]


def test_codes_that_have_one_word_stay_codes(tmp_path: Path) -> None:
    labels = {"smoker": {1: "yes", 2: "yes", 3: "no"}}
    pyreadstat.write_sav(
        pd.DataFrame({"smoker": [1.0, 2.0, 3.0]}), str(tmp_path / "a.sav"), variable_value_labels=labels
    )
    with pytest.warns(PassedOverWarning, match="column smoker.*the codes were read"):
        assert read_table(tmp_path / "a.sav").smoker.tolist() == ["1", "2", "3"]


def test_stata_and_sas(tmp_path: Path) -> None:
    coded = ROWS.assign(sex=pd.Categorical(ROWS.sex), sick=pd.Categorical(ROWS.sick), crea32=ROWS.crea.astype("f4"))
    coded.to_stata(tmp_path / "a.dta", write_index=False)
    with pytest.warns(PassedOverWarning, match="column sex: value labels"):
        frame = read_table(tmp_path / "a.dta", TABLE)
    same(frame)
    assert frame.crea32.tolist() == ["1.1", "0.3", "1.5", None]
    pyreadstat.write_xport(ROWS.rename(columns=str.upper), str(tmp_path / "a.xpt"), file_format_version=5)
    transported = read_table(tmp_path / "a.xpt")
    assert transported.ID.tolist() == ROWS.id.tolist()
    same(transported.rename(columns=str.lower))


@pytest.mark.parametrize(("ending", "program"), [("sav", "SPSS"), ("zsav", "SPSS"), ("dta", "Stata"),
                                                 ("sas7bdat", "SAS"), ("xpt", "SAS transport")])  # fmt: skip
def test_broken_files_of_programs(tmp_path: Path, ending: str, program: str) -> None:
    for raw in (b"", b"$FL2@(#) nobody knows" + b"\0" * 200, b"\x80" * 5000):
        (tmp_path / f"a.{ending}").write_bytes(raw)
        assert f"expected a file of {program}, got something else or part of one" in refused(tmp_path / f"a.{ending}")


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = write_book(tmp_path / "a.xlsx", {"S": as_rows(ROWS)})
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert "the package openpyxl is not installed here. Install what reads it: pip install 'vitrail[files]'" in refused(
        path
    )


# --- databases ---


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "clinic.db") as base:
        ROWS.to_sql("visits", base, index=False)
    base.close()
    return tmp_path / "clinic.db"


def test_queries(sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    with duckdb.connect(str(tmp_path / "duck.db")) as base:
        base.register("rows", ROWS)
        base.execute("create table visits as select * from rows")
    asked = "?sql=SELECT * FROM visits WHERE id <> '%20' ORDER BY id"
    same(read_table(to_place(f"duckdb:///{tmp_path}/duck.db{asked}"), TABLE))
    frame = read_table(to_place(f"sqlite:///{sqlite}{asked}"), TABLE)
    same(frame)
    assert frame.id.tolist() == ROWS.id.tolist()
    assert frame.attrs["file"].startswith("clinic.db, query ")
    monkeypatch.chdir(tmp_path)
    Path("visits.sql").write_text("SELECT * FROM visits", encoding="utf-8")
    same(read_table(to_place("sqlite:///clinic.db?sql=@visits.sql"), TABLE))
    same(read_table(to_place("sqlite:///clinic.db?sql=SELECT%20*%20FROM%20visits"), TABLE))
    monkeypatch.setattr("vitrail.data.readers.sql._open_sqlite", sql._open_any)
    same(read_table(to_place("sqlite:///clinic.db?sql=SELECT * FROM visits"), TABLE))  # through SQLAlchemy


def test_nothing_is_written_to_a_database(sqlite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are not sent; and were one to slip through, the connection cannot write."""
    before = sqlite.read_bytes()
    commands = [
        "DELETE FROM visits",
        "DROP TABLE visits",
        "SELECT 1; DROP TABLE visits",
        "-- a\nUPDATE visits SET age = 1",
    ]
    commands += ["/* SELECT */ DROP TABLE visits"]
    for asked in commands:
        for scheme in ("sqlite", "sqlite+pysqlite", "duckdb", "postgresql"):
            assert "expected one query that reads" in refused(f"{scheme}:///{sqlite}?sql={asked}", None)
    monkeypatch.setattr("vitrail.data.readers.sql._READS", re.compile(""))
    for scheme in ("sqlite", "sqlite+pysqlite"):
        assert "attempt to write a readonly database" in refused(f"{scheme}:///{sqlite}?sql=DROP TABLE visits", None)
    assert sqlite.read_bytes() == before
    same(read_table(to_place(f"sqlite:///{sqlite}?sql=-- all\nSELECT * FROM visits WHERE id <> 'a;b';"), TABLE))


def test_refused_queries(sqlite: Path, tmp_path: Path) -> None:
    assert "OperationalError: no such table: nowhere" in refused(f"sqlite:///{sqlite}?sql=SELECT * FROM nowhere")
    assert "expected a query, got none" in refused(f"sqlite:///{sqlite}")
    assert "there is none" in refused(f"duckdb:///{tmp_path}/no.db?sql=SELECT 1")
    assert "expected rows below the header" in refused(f"sqlite:///{sqlite}?sql=SELECT * FROM visits WHERE 0")
    (tmp_path / "text.db").write_text("not a database " * 99, encoding="utf-8")
    for scheme in ("sqlite", "duckdb"):
        assert "the database refused" in refused(f"{scheme}:///{tmp_path}/text.db?sql=SELECT * FROM a")
    assert "the database refused: NoSuchModuleError" in refused("nosuch://host/db?sql=SELECT 1")


SECRET = "postgresql://dr.eve:p%40ss-wörd@db.example/trial?password=hunter2&sslkey=mine&sql=SELECT 'sec-ret' FROM a"


def test_no_password_is_ever_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever a driver says, and wherever the place is printed, logged, pickled or kept."""
    import pickle

    import sqlalchemy

    place = to_place(SECRET)
    assert isinstance(place, Query)

    def fail(url: str) -> None:
        raise RuntimeError(f"cannot connect by {url}: dr.eve may not, p@ss-wörd or hunter2 is wrong. {place.sql}")

    monkeypatch.setattr(sqlalchemy, "create_engine", fail)
    with pytest.raises(VitrailError) as caught:
        read_table(place)
    shown = [str(caught.value), str(place), repr(place), place.name, str(place.resolve()), f"{place.with_name('x')}"]
    shown += [str(place.parent), repr(pickle.dumps(place)), str(vars(caught.value))]
    for text in shown:
        for secret in ("dr.eve", "p%40ss", "p@ss", "hunter2", "mine", "sec-ret"):
            assert secret not in text
    assert caught.value.__suppress_context__
    assert "db.example" in str(place)
    assert to_place(SECRET + " b") != place  # two queries are two places
    assert to_place(SECRET) == place


def test_driver_is_named() -> None:
    assert "the driver of this database is not installed here (pymysql" in refused(
        "mysql+pymysql://a:b@host/db?sql=SELECT 1"
    )


def test_corrected_copy_of_what_is_no_text(sqlite: Path, tmp_path: Path) -> None:
    book = write_book(tmp_path / "a.xlsx", {"S": [[], *as_rows(ROWS)[:3], [], *as_rows(ROWS)[3:]]})
    for place in (book, to_place(f"sqlite:///{sqlite}?sql=SELECT * FROM visits")):
        sheet = load_sheet(place, TABLE)
        line = int(sheet.frame.index[-1])
        assert sheet.path.suffix == ".csv"
        copy = tmp_path / sheet.path.name
        copy.write_bytes(sheet.with_cells({"crea": {line: "2,5"}}))
        back = read_table(copy, TABLE)
        wanted = sheet.frame.copy()
        wanted.loc[line, "crea"] = "2,5"
        assert back.to_dict() == wanted.to_dict()
        assert "repaired" not in copy.name


# --- OMOP ---

MAPPING = """
folder = "cdm"
site = "care_site"
[columns.birth]
table = "person"
value = "year_of_birth"
[columns.sex]
table = "person"
value = "gender_concept_id"
words = { 8507 = "m", 8532 = "f" }
"""
TAKEN = '[columns.{0}]\ntable = "measurement"\nconcept_id = [1, 2]\ntake = "{0}"\n'
DIABETES = '[columns.diabetes]\ntable = "condition_occurrence"\nconcept_id = 201826\ntake = "any"\n'


@pytest.fixture
def omop(tmp_path: Path) -> Path:
    cdm = tmp_path / "cdm"
    cdm.mkdir()
    person = {"person_id": [1, 2, 3], "gender_concept_id": [8507, 8532, 0], "year_of_birth": [1950, 1960, 1970]}
    pd.DataFrame({**person, "care_site_id": [10, 11, 10]}).to_csv(cdm / "PERSON.csv", index=False)
    pd.DataFrame({"care_site_id": [10], "care_site_name": ["Basel"]}).to_csv(cdm / "care_site.csv", index=False)
    told = [(1, 1, "2020-03-01", 5.0), (1, 2, "2020-01-01", 3.0), (1, 9, "2020-09-01", 99.0)]
    told += [(2, 1, "2020-01-01", None), (2, 1, "2019-01-01", 4.5)]
    names = ["person_id", "measurement_concept_id", "measurement_date", "value_as_number"]
    pd.DataFrame(told, columns=names).to_parquet(cdm / "measurement.parquet")
    conditions = {"person_id": [3, 3], "condition_concept_id": [201826, 5], "condition_start_date": ["2020-01-01"] * 2}
    pd.DataFrame(conditions).to_csv(cdm / "condition_occurrence.csv", index=False)
    path = tmp_path / "clinic.omop.toml"
    ways = "".join(TAKEN.format(way) for way in ("first", "last", "mean", "min", "max", "count", "any"))
    path.write_text(MAPPING + ways + DIABETES, encoding="utf-8")
    return path


def test_omop(omop: Path) -> None:
    frame = read_table(omop)
    assert frame.to_dict("list") == {
        "person_id": ["1", "2", "3"],
        "care_site": ["Basel", "11", "Basel"],
        "birth": ["1950", "1960", "1970"],
        "sex": ["m", "f", "0"],
        "first": ["3.0", "4.5", None],
        "last": ["5.0", "4.5", None],
        "mean": ["4", "4.5", None],
        "min": ["3", "4.5", None],
        "max": ["5", "4.5", None],
        "count": ["2", "2", "0"],
        "any": ["1", "1", "0"],
        "diabetes": ["0", "0", "1"],
    }
    table = TableSchema(target=Target(column="diabetes", classes=(0, 1)), site_column="care_site", features={})
    assert {site: len(rows) for site, rows in read_sites(omop, table).items()} == {"11": 1, "Basel": 2}
    with pytest.warns(PassedOverWarning, match="folder cdm"):  # a folder of sites may hold such a file too
        assert list(read_sites(omop.parent, table)) == ["clinic"]


def test_omop_tells_all_that_is_wrong(omop: Path) -> None:
    (omop.parent / "cdm" / "measurement.parquet").unlink()
    wrong = '[columns.a]\ntable = "visits"\n[columns.b]\ntable = "person"\nvalue = "year_of_brith"\n'
    more = '[columns.c]\ntable = "observation"\n[columns.d]\ntable = "condition_occurrence"\ntake = "last"\n'
    omop.write_text(MAPPING + wrong + more + TAKEN.format("mean"), encoding="utf-8")
    said = refused(omop, None)
    for words in ("expected a table 'measurement'", "no table 'visits'", "no column 'year_of_brith'. Did you mean",
                  "expected a table 'observation'", "columns.d: expected `concept_id` and `take`",
                  "columns.d: the table 'condition_occurrence' has no column 'value_as_number'"):  # fmt: skip
        assert words in said
    omop.write_text(MAPPING + '[columns.x]\ntabel = "person"\ntake = "median"\n', encoding="utf-8")
    said = refused(omop, None)
    assert "columns.x.tabel" in said
    assert "columns.x.take" in said
    omop.write_text("folder = ", encoding="utf-8")
    assert "expected TOML" in refused(omop, None)


# --- what is passed over ---


def test_what_is_not_read_is_told(tmp_path: Path) -> None:
    for name in ("a.csv", ".old.csv", "notes.md"):
        ROWS.to_csv(tmp_path / name, index=False)
    (tmp_path / "more").mkdir()
    (tmp_path / ".git").mkdir()
    with pytest.warns(PassedOverWarning) as told:
        assert list(read_sites(tmp_path, TABLE)) == ["a"]
    said = sorted(str(w.message).partition(": ")[2] for w in told)
    assert said == ["not read, because sites are files here: folder more.",
                    "not read, because these are not tables of sites: files .old.csv, notes.md."]  # fmt: skip
    (tmp_path / "b.csv").mkdir()
    (tmp_path / "c.xlsx").mkdir()
    with pytest.raises(VitrailError) as caught:
        read_sites(tmp_path, TABLE)
    assert [p.what for p in caught.value.problems] == ["expected a table, got a folder of this name."] * 2

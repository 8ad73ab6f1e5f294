"""Repairs: each takes a planted fault back, keeps the file as it is written, is never done in place, and is refused
where it cannot be done."""

from __future__ import annotations

import gzip
import hashlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app
from vitrail.data.readers.cells import as_numbers
from vitrail.data.readers.tables import clean, read_table
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.quality.repair.corrected_copy import correct, write_copy
from vitrail.quality.repair.own_rows import own_cause
from vitrail.quality.repair.plan import plan, write_number
from vitrail.quality.repair.remedies import ASKS, TAKES, Repair, repair_of
from vitrail.quality.repair.table_writer import load_sheet, split_cells
from vitrail.quality.screening import screen
from vitrail.quality.screening.result import CAUSES, LABEL, Finding, Screening
from vitrail.runs.screening import save_screening

ROWS = 240
TABLE = TableSchema(
    target=Target(column="sick", classes=("no", "yes"), positive="yes"),
    features={
        "age": Feature(kind="numeric", range=(18.0, 100.0), unit="years"),
        "chol": Feature(kind="numeric", range=(80.0, 650.0), unit="mg/dL", description="serum cholesterol"),
        "lab": Feature(kind="numeric", description="a number without a range"),
        "depth": Feature(kind="numeric", range=(0.0, 30.0)),
        "grade": Feature(kind="numeric", range=(1.0, 5.0)),
        "smoker": Feature(kind="binary", categories=("no", "yes")),
        "pain": Feature(kind="categorical", categories=(1, 2, 3, 4)),
    },
)


def site(seed: int) -> pd.DataFrame:
    """Columns that go with one another and with the outcome, alike at every site."""
    rng = np.random.default_rng(seed)
    ill = rng.normal(size=ROWS)
    return pd.DataFrame(
        {
            "age": (55 + 9 * (ill + rng.normal(size=ROWS))).clip(20, 95).round().astype(int),
            "chol": (220 + 30 * (ill + rng.normal(size=ROWS))).clip(110, 400).round(),
            "lab": np.where(rng.random(ROWS) < 0.25, np.nan, (50 + 6 * (ill + rng.normal(size=ROWS))).round(1)),
            "depth": (12 + 3 * (ill + rng.normal(size=ROWS))).clip(0.1, 29).round(1),
            "grade": (3 + ill + rng.normal(size=ROWS)).round().clip(1, 5).astype(int),
            "smoker": np.where(ill + rng.normal(size=ROWS) > 0.7, "yes", "no"),
            "pain": (1 + (ill + rng.normal(size=ROWS) > -0.9) + 2 * (ill > 0.5)).astype(int),
            "sick": np.where(ill + 0.7 * rng.normal(size=ROWS) > 0, "yes", "no"),
        }
    )


SITES = {name: site(seed) for seed, name in enumerate(["lyon", "basel", "kyiv", "oslo", "here"], 1)}
Change = Callable[[pd.DataFrame], pd.DataFrame]
FAULTS: dict[str, tuple[str, Change]] = {  # what is wrong, with which column
    "unit": ("chol", lambda f: f.assign(chol=(f.chol / 38.67).round(3))),
    "unit in part": ("chol", lambda f: f.assign(chol=np.where(f.index < 90, (f.chol / 38.67).round(3), f.chol))),
    "offset": ("depth", lambda f: f.assign(depth=(f.depth + 15).round(1))),
    "sign": ("smoker", lambda f: f.assign(smoker=f.smoker.map({"no": "yes", "yes": "no"}))),
    "code": ("lab", lambda f: f.assign(lab=f.lab.fillna(999))),
    "swapped": ("age", lambda f: f.rename(columns={"age": "chol", "chol": "age"})[f.columns]),
    "recoded": ("pain", lambda f: f.assign(pain=f.pain.map({1: 2, 2: 4, 3: 3, 4: 1}))),
    "label flip": (LABEL, lambda f: f.assign(sick=f.sick.map({"no": "yes", "yes": "no"}))),
}


def screen_with(here: pd.DataFrame) -> Screening:
    return screen({name: clean(frame, TABLE) for name, frame in {**SITES, "here": here}.items()}, TABLE)


def screened(here: pd.DataFrame) -> list[Finding]:
    """What is likely wrong at this site."""
    return [f for f in screen_with(here).wrong if f.site == "here"]


def test_without_a_fault_nothing_is_likely_wrong() -> None:
    assert screened(SITES["here"]) == []


@pytest.mark.parametrize("kind", FAULTS)
def test_planted_found_repaired_silent(kind: str, tmp_path: Path) -> None:
    feature, plant = FAULTS[kind]
    path = tmp_path / "ours.csv"
    plant(SITES["here"]).to_csv(path, index=False)
    faulty = read_table(path, TABLE)
    found = screened(faulty)
    named = [f for f in found if f.feature == feature]
    assert [f.kind for f in named] == [kind], found
    _, repair = own_cause(named[0], faulty, TABLE)
    assert repair is not None
    write_copy(correct(path, TABLE, [repair]), tmp_path / "ours.repaired.csv", "me")
    again = read_table(tmp_path / "ours.repaired.csv", TABLE)
    assert screened(again) == []


def test_each_repair_has_a_round_trip_and_each_cause_a_repair_or_words() -> None:
    assert set(FAULTS) == set(TAKES)
    assert set(ASKS) == set(CAUSES)


HEADER = "age;chol;lab;smoker;pain;grade;depth;name;sick"
DIALECTS = {
    "decimal commas": (HEADER + "\n55;5,25;1,5;yes;1;2;3;Jos\u00e9;no\n60;6,00;2;no;2;2;3;x;yes\n", "utf-8"),
    "windows": (HEADER + "\r\n55;5.25;1.5;yes;1;2;3;Jos\u00e9;no\r\n60;6;2;no;2;2;3;x;yes\r\n", "cp1252"),
    "marked utf-8": ("\ufeff" + HEADER.replace(";", ",") + "\n55,5.25,,yes,1,2,3,a,no\n60,6,2,no,2,2,3,x,yes", "utf-8"),
    "utf-16": (
        HEADER.replace(";", "\t") + "\n55\t5.25\t1\tyes\t1\t2\t3\ta\tno\n60\t6\t2\tno\t2\t2\t3\tx\tyes\n",
        "utf-16",
    ),
    "quoted": (
        HEADER.replace(";", ",") + '\n55,"5,25",1,yes,1,2,3,"a ""b"", c\nd",no\n\n 60 , "6,5", 2,no,2,2,3,x ,yes\n',
        "utf-8",
    ),
    "DOS": (HEADER + "\n55;5.25;1.5;yes;1;2;3;a;no\n60;6;2;no;2;2;3;x;yes\n\x1a", "latin-1"),
    "old Mac": (HEADER + "\r55;5.25;1.5;yes;1;2;3;a;no\r60;6;2;no;2;2;3;x;yes\r", "utf-8"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_the_cells_change(dialect: str, tmp_path: Path) -> None:
    text, encoding = DIALECTS[dialect]
    path = tmp_path / "ours.csv"
    path.write_bytes(text.encode(encoding))
    told = correct(path, TABLE, [Repair("chol", "unit", factor=40.0)])
    after = told.raw.decode(encoding)
    olds = [c for c in ("5,25", "5.25", "6,00", "6,5", "6") if c in read_table(path, TABLE).chol.tolist()]
    for old in olds:
        new = {"5,25": "210", "5.25": "210", "6,00": "240", "6,5": "260", "6": "240"}[old]
        assert new in after
        after = after.replace(new, old)
    assert after == text, "byte for byte but for the cells"
    same = load_sheet(path, TABLE)
    assert same.with_cells({}) == path.read_bytes()


def test_a_number_is_written_as_the_column_or_the_file_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "ours.csv"
    path.write_text(HEADER + "\n55;6;1,5;yes;1;2;3;a;no\n60;7;2,5;no;2;2;3;x;yes\n")
    told = correct(path, TABLE, [Repair("chol", "unit", factor=38.671)])
    assert told.changes[0].after.tolist() == ["232,0260", "270,6970"]
    back = tmp_path / "back.csv"
    back.write_bytes(told.raw)
    assert as_numbers(read_table(back, TABLE).chol)[0].tolist() == [232.026, 270.697], "no thousands"


@given(
    value=st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 4)),
    factor=st.sampled_from([0.001, 0.1, 38.67, 1000.0, 0.0113, -1.0]),
    offset=st.sampled_from([0.0, -5.0, 17.78]),
    point=st.sampled_from([".", ","]),
)
def test_written_numbers_are_read_back(value: float, factor: float, offset: float, point: str) -> None:
    text = write_number(value, factor, offset, point)
    told = "0.5" if point == "." else "0,5"  # so that the column says which mark it has
    read, wrong = as_numbers(pd.Series([text, told, told], dtype=object))
    assert not wrong.any()
    assert read[0] == pytest.approx(value * factor + offset, rel=1e-9, abs=1e-9)


CELL = st.text(st.characters(blacklist_categories=("Cs", "Cc")) | st.sampled_from('";,\n'), max_size=6)


@settings(max_examples=60)
@given(
    rows=st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=4), delimiter=st.sampled_from(",;\t|")
)
def test_a_row_is_cut_as_csv_cuts_it(rows: list[list[str]], delimiter: str) -> None:
    import csv
    import io

    for row in rows:
        out = io.StringIO()
        csv.writer(out, delimiter=delimiter).writerow(row)
        pieces, end = split_cells(out.getvalue(), delimiter)
        assert delimiter.join(pieces) + end == out.getvalue()
        assert end == "\r\n"
        assert len(pieces) == 3


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    path = tmp_path / "ours.csv"
    SITES["here"].to_csv(path, index=False)
    return path


def refused(path: Path, *repairs: Repair) -> str:
    with pytest.raises(vt.VitrailError, match="cannot repair") as caught:
        correct(path, TABLE, repairs)
    return str(caught.value)


REFUSED: dict[str, tuple[Repair, str]] = {
    "factor 0": (Repair("chol", "unit", factor=0.0), "above 0"),
    "negative": (Repair("chol", "unit", factor=-1.0), "'sign'"),
    "factor 1": (Repair("chol", "unit", factor=1.0), "changes nothing"),
    "not a number": (Repair("chol", "unit", factor=float("nan")), "expected a number"),
    "no factor": (Repair("chol", "unit"), "--factor"),
    "too much": (Repair("chol", "unit", factor=2.0, code="9"), "does not use it"),
    "no column": (Repair("chole", "unit", factor=2.0), "Did you mean 'chol'"),
    "no cause": (Repair("chol", "units", factor=2.0), "Did you mean 'unit'"),
    "no code": (Repair("lab", "code", code="999"), "no cell of lab holds 999"),
    "a word": (Repair("lab", "code", code="x"), "expected a number"),
    "itself": (Repair("lab", "swapped", other="lab"), "got the same one"),
    "other": (Repair("lab", "swapped", other="labs"), "Did you mean 'lab'"),
    "no level": (Repair("pain", "recoded", levels={"1": "7"}), "Valid: 1, 2, 3, 4"),
    "no levels": (Repair("lab", "recoded", levels={"1": "7"}), "has no codes"),
    "a unit of codes": (Repair("pain", "unit", factor=2.0), "has no unit"),
    "four codes": (Repair("pain", "sign"), "4 codes, not two"),
    "which rows": (Repair("lab", "unit in part", factor=10.0), "--below X or --above X"),
    "below nothing": (Repair("lab", "unit in part", factor=10.0, below=0.0), "no value of lab lies in this range"),
    "turned about what": (Repair("lab", "sign"), "--offset"),
    "no outcome": (Repair("smoker", "label flip"), "is not the outcome"),
    "the outcome": (Repair("sick", "code", code="no"), "cannot be emptied"),
    "two on one": (Repair("chol", "offset", offset=1.0), "two repairs change this column"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_told(case: str, ours: Path) -> None:
    repair, words = REFUSED[case]
    assert words in refused(ours, *([repair] * (2 if case == "two on one" else 1)))


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - set(TAKES)))
def test_what_is_lost_is_asked_for(cause: str, ours: Path) -> None:
    said = refused(ours, Repair("lab", cause))
    assert "cannot be repaired from the column itself" in said
    assert ASKS[cause] in said


def test_all_problems_at_once(ours: Path) -> None:
    said = refused(ours, Repair("cholx", "unt", factor=0.0), Repair("lab", "code", code="77"))
    assert said.count("\n  - ") == 4


def test_a_turned_number(ours: Path) -> None:
    frame = read_table(ours, TABLE)
    turned = plan([Repair("grade", "sign")], frame, TABLE)[1]
    assert (turned.grade.astype(float) == 6 - SITES["here"].grade.to_numpy()).all(), "a scale from 1 to 5"
    lost = frame.assign(depth=[f"-{v}" for v in frame.depth])
    assert (
        plan([Repair("depth", "sign")], lost, TABLE)[1].depth.astype(float).to_list() == SITES["here"].depth.to_list()
    )
    said = plan([Repair("lab", "sign", offset=100.0)], frame, TABLE)[1]
    assert said.lab.dropna().astype(float).to_list() == (100 - SITES["here"].lab.dropna()).round(1).to_list()


def test_codes_keep_the_files_spelling(tmp_path: Path) -> None:
    path = tmp_path / "ours.csv"
    path.write_text("age,chol,lab,smoker,pain,grade,depth,sick\n50,200,1,YES,1.0,2,3,No\n60,210,2,No,2.0,2,3,Yes\n")
    told = correct(path, TABLE, [Repair("smoker", "sign"), Repair("pain", "recoded", levels={"1": "2", "2": "3"})])
    lines = told.raw.decode().splitlines()
    assert [line.split(",")[3:5] for line in lines[1:]] == [["No", "2.0"], ["YES", "3"]]


def test_never_in_place_and_never_over_anything(ours: Path) -> None:
    before = ours.read_bytes()
    told = correct(ours, TABLE, [Repair("chol", "offset", offset=1.0)])
    note = ours.with_name("copy.note.md")
    for place in (ours, ours.with_name("copy.csv")):
        if place != ours:
            note.write_text("mine")
        with pytest.raises(vt.VitrailError, match="nothing was written"):
            write_copy(told, place, "me")
    assert ours.read_bytes() == before
    assert note.read_text() == "mine"
    assert not ours.with_name("copy.csv").exists(), "both or neither"
    link = ours.with_name("link.csv")
    link.symlink_to(ours.with_name("nowhere.csv"))
    with pytest.raises(vt.VitrailError, match="the file exists already"):
        write_copy(told, link, "me")
    with pytest.raises(vt.VitrailError, match=r"ends in \.csv"):
        write_copy(told, ours.with_name("copy.parquet"), "me")
    with pytest.raises(vt.VitrailError, match="cannot be written"):
        write_copy(told, ours.parent / "nowhere" / "copy.csv", "me")


def test_both_or_neither(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = correct(ours, TABLE, [Repair("chol", "offset", offset=1.0)])
    really = Path.open

    def full(self: Path, *given: Any, **more: Any) -> Any:
        if self.name.endswith(".note.md"):
            raise OSError(28, "No space left on device")
        return really(self, *given, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(vt.VitrailError, match="No space left"):
        write_copy(told, ours.with_name("copy.csv"), "me")
    assert [p.name for p in ours.parent.iterdir()] == ["ours.csv"]


def test_a_copy_that_is_not_read_as_meant_is_refused(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last look, whatever the file's dialect does to a cell."""
    torn = load_sheet(ours, TABLE).with_cells({"lab": {2: "7"}})
    monkeypatch.setattr("vitrail.quality.repair.table_writer.TableFile.with_cells", lambda self, changes: torn)
    assert "would be read back with other values" in refused(ours, Repair("chol", "offset", offset=1.0))


def test_a_command_is_no_more_than_its_words() -> None:
    """Names and codes come from files, and the command is copied into a shell."""
    evil = "x; $(reboot) `reboot` '"
    flags = Repair(evil, "recoded", other=evil, code=evil, levels={evil: evil}).flags()
    assert shlex.split(flags) == [
        *("--feature", evil, "--cause", "recoded", "--code", evil, "--other", evil, "--map", f"{evil}={evil}")
    ]


def test_the_note_says_what_why_when_and_on_whose_word(ours: Path) -> None:
    told = correct(ours, TABLE, [Repair("lab", "offset", offset=-5.0)])
    copy, note = write_copy(told, ours.with_name("ours.repaired.csv"), "Dr. `rm`|\nWeber", "the manual")
    said = note.read_text()
    assert note.name == "ours.repaired.note.md"
    for file in (ours, copy):
        assert hashlib.sha256(file.read_bytes()).hexdigest() in said
        assert vt.data.encoding.fingerprint_rows(clean(read_table(file, TABLE), TABLE)) in said
    assert "Confirmed by: Dr. ?rm???Weber" in said
    assert "Why: the manual" in said
    assert "value - 5" in said
    known = SITES["here"].lab.notna()
    assert f"{known.sum()} of {known.sum()} values change" in said
    assert "Rows: " in said


def test_packed_and_parquet(ours: Path) -> None:
    packed = ours.with_name("ours.csv.gz")
    packed.write_bytes(gzip.compress(ours.read_bytes()))
    told = correct(packed, TABLE, [Repair("lab", "offset", offset=-5.0)])
    copy, note = write_copy(told, ours.with_name("copy.csv.gz"), "me")
    assert gzip.decompress(copy.read_bytes()) == told.raw
    assert note.name == "copy.note.md"
    SITES["here"].to_parquet(ours.with_suffix(".parquet"))
    typed = correct(ours.with_suffix(".parquet"), TABLE, [Repair("lab", "offset", offset=-5.0)])
    copy, note = write_copy(typed, ours.with_name("typed.csv"), "me")
    assert "the table as CSV (SHA-256)" in note.read_text()
    same = [clean(frame, TABLE).lab.to_numpy() for frame in (read_table(copy, TABLE), SITES["here"])]
    np.testing.assert_allclose(same[0], same[1] - 5.0, rtol=1e-12)


def test_a_code_among_other_values_is_emptied_alone() -> None:
    frame = site(9).assign(lab=lambda f: f.lab.where(f.index % 3 > 0, 50.0))
    (change,) = plan([Repair("lab", "code", code="50")], frame, TABLE)[0]
    assert change.before.tolist() == [50.0] * len(change.before)
    assert set(change.after) == {""}
    assert len(change.after) == (frame.lab == 50).sum() >= ROWS / 3


def test_codes_that_become_one_are_told() -> None:
    frame = site(9)
    (merged,) = plan([Repair("pain", "recoded", levels={"1": "2"})], frame, TABLE)[0]
    (exchanged,) = plan([Repair("pain", "recoded", levels={"1": "2", "2": "1"})], frame, TABLE)[0]
    assert "two codes become one, which cannot be undone" in merged.numbers
    assert "become one" not in exchanged.numbers


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown first, written when asked; all findings of a screening at once; what has no repair is told."""
    monkeypatch.chdir(tmp_path)
    here = FAULTS["unit"][1](FAULTS["label flip"][1](SITES["here"]))
    Path("data").mkdir()
    Path("run").mkdir()
    here.to_csv("data/here.csv", index=False)
    save_screening(Path("run/screen.json"), screen_with(here))
    Path("study.toml").write_text(vt.Study.parse(TABLE.model_dump(exclude_defaults=True)).to_toml())

    def ask(*words: str) -> str:
        done = CliRunner().invoke(app, list(words))
        if isinstance(done.exception, vt.VitrailError):
            return str(done.exception)
        assert done.exit_code in (0, 1), done.output
        return done.output

    words = ["repair", "study.toml", "data/here.csv", "--from", "run", "--site", "here"]
    said = ask(*words)
    assert "Nothing was written. To make a corrected copy, add --write data/here.repaired.csv" in said
    assert "chol: in another unit. Repair: value x 38.67" in said
    assert "sick: the outcome is coded the other way round" in said
    assert [p.name for p in Path("data").iterdir()] == ["here.csv"], "nothing was written"
    assert "was not touched" in ask(*words, "--write", "data/here.repaired.csv", "--word", "Dr. Weber")
    assert "Its median is" in Path("data/here.repaired.note.md").read_text(), "why: in the finding's words"
    back = read_table(Path("data/here.repaired.csv"), TABLE)
    assert back.sick.tolist() == SITES["here"].sick.tolist()
    assert "the file exists already" in ask(*words, "--write", "data/here.repaired.csv")
    assert "it is taken from the findings" in ask(*words, "--cause", "unit")
    assert "Did you mean 'here'" in ask(*words[:-1], "her")
    assert "nothing is likely wrong there with 'pain'" in ask(*words, "--feature", "pain")
    assert "not a file of Vitrail" in ask(*words[:4], "study.toml", "--site", "here")
    SITES["here"].assign(lab=50.0).to_csv("data/here.csv", index=False)
    save_screening(Path("run/screen.json"), screen_with(SITES["here"].assign(lab=50.0)))
    done = CliRunner().invoke(app, words)
    assert "lab: one value in every row: 240 of 240 values are 50.\n  No repair." in done.output
    assert "no finding has a repair" in str(done.exception)
    alone = ["repair", "study.toml", "data/here.csv"]
    assert "--cause: no value is given" in ask(*alone, "--feature", "chol")
    assert "is given two meanings" in ask(
        *alone, "--feature", "pain", "--cause", "recoded", "--map", "1=2", "--map", "1=3"
    )
    assert "expected WRITTEN=MEANT" in ask(*alone, "--feature", "pain", "--cause", "recoded", "--map", "1")


def test_check_against_what_all_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finding in the words of `check`, with the own rows and the command; nothing but the file is needed."""
    monkeypatch.chdir(tmp_path)
    found = [
        Finding("here", "chol", "unit", True, 9.0, "Its median is 5.7 here.", {"factor": 38.67}),
        Finding("here", LABEL, "label noise", True, 9.0, "Outcomes are predicted badly.", {"share": 0.3}),
    ]
    monkeypatch.setattr(
        "vitrail.quality.screening.pooled_check.compare_with_pooled", lambda rows, table, pooled, site: found
    )
    FAULTS["unit"][1](SITES["here"]).to_csv("ours.csv", index=False)
    Path("study.toml").write_text(vt.Study.parse(TABLE.model_dump(exclude_defaults=True)).to_toml())
    Path("pooled.json").write_text('{"pooled": {"rows": 1000}}')
    done = CliRunner().invoke(app, ["check", "study.toml", "ours.csv", "--pooled", "pooled.json"])
    assert done.exit_code == 1, done.exception
    assert "chol: likely wrong: in another unit. Its median is 5.7 here (rows 2, 3, 4, 5, 6, ...)" in done.output
    assert "To try: vitrail repair study.toml ours.csv --feature chol --cause unit --factor 38.67" in done.output
    assert "sick: likely wrong: a share of the outcomes is wrong" in done.output
    for text in ("[]", "{}", "no", '{"pooled": {}}'):
        Path("pooled.json").write_text(text)
        done = CliRunner().invoke(app, ["check", "study.toml", "ours.csv", "--pooled", "pooled.json"])
        assert "expected the pooled summaries" in str(done.exception)
    done = CliRunner().invoke(app, ["check", "study.toml", "ours.csv", "--pooled", "none.json"])
    assert "cannot be read" in str(done.exception)


@pytest.mark.parametrize("numbers", [{}, {"factor": "x"}, {"factor": []}, {"factor": None}])
def test_numbers_that_are_none_are_no_repair(numbers: dict[str, object]) -> None:
    assert repair_of(Finding("here", "chol", "unit", True, 1.0, "", numbers), TABLE) is None


def test_a_column_that_holds_a_usual_code_in_every_row_can_be_emptied() -> None:
    found = Finding("here", "chol", "constant", True, 1.0, "", {"value": 0.0, "code": 0.0})
    assert repair_of(found, TABLE) == Repair("chol", "code", code="0")
    assert repair_of(found._replace(numbers={"value": 7.0}), TABLE) is None, "no code: ask"

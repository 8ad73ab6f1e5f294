"""Cells of ours that a spreadsheet program would run are written as text, and read back as they were."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import vitrail as vt
from tests.support.small import opposed_tables
from vitrail.cli import app
from vitrail.storage import csv_files
from vitrail.storage.csv_files import as_written, from_csv, harmless, to_csv

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
EVIL = "=HYPERLINK(0,1)"


def runs(text: str, delimiter: str) -> list[str]:
    """Cells of a CSV that a program, which separates by this, would take for a formula."""
    cells = [cell for row in csv.reader(io.StringIO(text), delimiter=delimiter) for cell in row]
    return [cell for cell in cells if cell[:1] in tuple("=+-@\t\r\n") and cell and not NUMBER.fullmatch(cell)]


@pytest.mark.parametrize("text", ["=1+1", "+1-1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "a;=1", "a;b;-c", "\uff1d1"])
def test_formulas_become_text(text: str) -> None:
    assert harmless(text) != text
    assert as_written(harmless(text)) == text


@pytest.mark.parametrize("cell", ["-5", "+3.5", "-1e-9", "a-b", "", "x=1", "a;-5", "O'Brien", "'tis", -5, 2.5, None])
def test_what_is_no_formula_stays(cell: object) -> None:
    assert harmless(cell) == cell


@settings(max_examples=300, deadline=None)
@given(st.text("=+-@'\t\r\n;,\"a1.e ", max_size=8))
def test_every_text_comes_back(text: str) -> None:
    assert as_written(harmless(text)) == text
    text = re.sub(r"[\r\n]", "", text)  # readers of CSV change line ends
    table = pd.DataFrame({"site": [text, "x"], "value": [1.5, -2.0]})
    written = to_csv(table)
    read = from_csv(pd.read_csv(io.StringIO(written, newline=""), dtype={"site": str}, keep_default_na=False))
    assert read["site"].tolist() == [text, "x"]
    assert read["value"].tolist() == [1.5, -2.0]
    assert not runs(written, ",")


def test_predictions_of_classes_and_sites_named_to_do_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class, a site and an id are called like formulas. The control: as they are, a program would run them."""
    sites = opposed_tables({EVIL: 60, "b;@x": 60, "c": 60})
    for frame in sites.values():
        frame["sick"] = frame["sick"].replace({"yes": EVIL, "no": "-5"})
    study = vt.Study.infer(sites, "sick", training={"rounds": 2})
    run = vt.federate(study, sites, out=tmp_path / "run")
    new = sites["c"].drop(columns="sick").assign(patient=EVIL)
    new.to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--site", "c", "--id", "patient"]

    def written() -> list[str]:
        out = tmp_path / "answers.csv"
        out.unlink(missing_ok=True)
        assert CliRunner().invoke(app, [*command, "--out", str(out)]).exit_code == 0
        texts = [out.read_text(), *(f.read_text() for f in (tmp_path / "run").glob("*.csv"))]
        return [cell for text in texts for delimiter in ",;" for cell in runs(text, delimiter)]

    assert not written()
    loaded = vt.Run.load(tmp_path / "run")
    assert set(loaded.scores()["site"]) == set(run.scores()["site"]) == set(sites)
    answers = pd.read_csv(tmp_path / "answers.csv")
    assert "-5" in answers.columns, "numbers stay"
    with monkeypatch.context() as patch:
        patch.setattr(csv_files, "harmless", lambda cell: cell)
        assert EVIL in written()

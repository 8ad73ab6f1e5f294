"""A study over what people have, on the command line: a database that holds all sites, ids beside predictions, a
workbook that is checked and repaired. No password is in any file or line."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from vitrail.cli import app

SECRETS = ("hunter2", "sec-ret")


def vitrail(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, pd.DataFrame]:
    """A study drafted and run from a query; where, what was printed, and the rows."""
    root = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"hospital": np.repeat(["Basel", "Bern"], 60), "pid": [f"{i:05d}" for i in range(120)]})
    rows["age"] = rng.integers(30, 80, 120)
    rows["crea"] = rng.normal(1, 0.2, 120).round(3)
    rows["sick"] = np.where(rows.crea + rng.normal(0, 0.2, 120) > 1, "yes", "no")
    with sqlite3.connect(root / "clinic.db") as base:
        rows.to_sql("visits", base, index=False)
    base.close()
    place = f"sqlite:///{root / 'clinic.db'}?password=hunter2&sql=SELECT * FROM visits WHERE 'sec-ret' <> ''"
    study = root / "study.toml"
    said = vitrail("init", place, "--target", "sick", "--site-column", "hospital", "--out", study)
    ran = vitrail("run", study, "--data", place, "--out", root / "run", "--method", "local", "--rounds", "2")
    assert (said.exit_code, ran.exit_code) == (0, 0), said.output + ran.output
    rows[rows.hospital == "Bern"].to_excel(root / "bern.xlsx", index=False)
    return root, said.output + ran.output, rows


def test_no_secret_is_kept(done: tuple[Path, str, pd.DataFrame]) -> None:
    root, said, _ = done
    place = f"sqlite:///{root / 'clinic.db'}?password=hunter2&sql=SELECT 'sec-ret' AS x"
    for verb in (("check", root / "study.toml", place), ("screen", root / "study.toml", "--data", place),
                 ("predict", root / "run", place, "--site", "Bern"), ("repair", root / "study.toml", place),
                 ("look", root / "run", "--data", place, "--site", "Bern")):  # fmt: skip
        told = vitrail(*verb)
        said += told.output + str(told.exception)
    kept = [p for p in root.rglob("*") if p.is_file() and p.name != "clinic.db"]
    assert len(kept) > 5
    for secret in SECRETS:
        assert secret not in said
        assert not [p for p in kept if secret.encode() in p.read_bytes()]


def test_ids_beside_predictions(done: tuple[Path, str, pd.DataFrame], tmp_path: Path) -> None:
    root, _, rows = done
    asked = ("predict", root / "run", root / "bern.xlsx", "--site", "Bern")
    told = vitrail(*asked, "--id", "pid", "--out", tmp_path / "p.csv")
    assert told.exit_code == 0, told.output
    found = pd.read_csv(tmp_path / "p.csv", dtype=str)
    assert list(found.columns[:2]) == ["line", "pid"]
    assert found.pid.tolist() == rows.pid[60:].tolist()
    bare = vitrail(*asked, "--out", tmp_path / "q.csv")
    assert bare.exit_code == 0
    assert pd.read_csv(tmp_path / "q.csv", dtype=str).equals(found.drop(columns="pid"))
    shuffled = rows[60:].assign(pid=rows.pid[60:].tolist()[::-1])  # the model does not look at it
    shuffled.to_csv(tmp_path / "other.csv", index=False)
    vitrail(
        "predict", root / "run", tmp_path / "other.csv", "--site", "Bern", "--id", "pid", "--out", tmp_path / "r.csv"
    )
    other = pd.read_csv(tmp_path / "r.csv", dtype=str)
    assert other.pid.tolist() == found.pid.tolist()[::-1]
    assert other.drop(columns="pid").equals(found.drop(columns="pid"))


@pytest.mark.parametrize(("column", "words"), [("pidd", "Did you mean 'pid'"), ("age", "is a feature"),
                                               ("sick", "is the target")])  # fmt: skip
def test_what_is_no_id(done: tuple[Path, str, pd.DataFrame], column: str, words: str) -> None:
    root, _, _ = done
    told = vitrail("predict", root / "run", root / "bern.xlsx", "--site", "Bern", "--id", column)
    assert words in str(told.exception)


def test_workbook_is_checked_and_repaired(done: tuple[Path, str, pd.DataFrame], tmp_path: Path) -> None:
    root, _, rows = done
    rows[60:].assign(crea=rows.crea * 88.4).to_excel(tmp_path / "bern.xlsx", index=False)
    checked = vitrail("check", root / "study.toml", tmp_path / "bern.xlsx")
    assert checked.exit_code == 1
    assert "bern.xlsx: 60 rows" in checked.output
    asked = ("repair", root / "study.toml", tmp_path / "bern.xlsx", "--feature", "crea", "--cause", "unit", "--factor",
             1 / 88.4)  # fmt: skip
    shown = vitrail(*asked)
    copy = re.search(r"--write (\S+)", shown.output.replace("\n", ""))
    assert copy
    assert copy[1].endswith("bern.repaired.csv")
    assert vitrail(*asked, "--write", copy[1]).exit_code == 0
    np.testing.assert_allclose(pd.read_csv(copy[1]).crea, rows.crea[60:], rtol=1e-6)

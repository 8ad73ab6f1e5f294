"""A file against what all sites once published, from end to end: nothing stands in."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import vitrail as vt
from tests.support.screened import draw
from vitrail.cli import app


def test_a_column_times_ten_is_told_before_anything_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    raw = {f"site-{k}": draw(150, k) for k in range(4)}
    for name, frame in raw.items():
        frame.to_csv(f"data/{name}.csv", index=False)
    Path("study.toml").write_text(vt.Study.infer(raw, "y").to_toml())
    done = CliRunner().invoke(app, ["screen", "study.toml", "--data", "data", "--out", "out"])
    assert not done.exception, done.output
    new = draw(150, 9)
    new.to_csv("fine.csv", index=False)
    new.assign(pressure=10 * new.pressure).to_csv("bad.csv", index=False)
    fine, bad = (
        CliRunner().invoke(app, ["check", "study.toml", f"{name}.csv", "--pooled", "out/screen.json"])
        for name in ("fine", "bad")
    )
    assert "likely wrong" not in fine.output
    assert bad.exit_code == 1
    assert "pressure: likely wrong: in another unit" in bad.output
    assert "vitrail repair study.toml bad.csv --feature pressure --cause unit --factor 0.1" in bad.output

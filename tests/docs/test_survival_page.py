"""Every block of docs/time_to_event.md runs, in this process."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import vitrail as vt
from tests.support import ROOT
from vitrail.cli import app

PAGE = ROOT / "docs" / "time_to_event.md"
BLOCK = re.compile(r"^```(python|sh|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session: dict[str, Any] = {}
    for kind, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            exec(code, session)
        for line in code.splitlines() if kind == "sh" else ():
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, (line, done.output)
    target = vt.Study.load("study.toml").target
    assert (target.kind, target.time, target.event) == ("time", "days", "died")
    assert "Did those at high risk fare worse?" in Path("run/report.html").read_text()

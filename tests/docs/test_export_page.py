"""docs/export.md does what it says; its shell blocks are called in this process."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support import ROOT
from vitrail.cli import app

PAGE = ROOT / "docs" / "export.md"


def test_export_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, "export.md", "exec"), names)
            continue
        for line in code.splitlines():
            verb, *words = shlex.split(line)
            assert verb == "vitrail"
            done = CliRunner().invoke(app, words, catch_exceptions=False)
            assert done.exit_code == 0, done.output
    for made in ("va.vitrail", "va.onnx", "answers.csv", "va-card.html", "va-card.md", "report.html"):
        assert (tmp_path / made).exists(), made

"""docs/files.md says what the code does: its blocks run, in order, in this process."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support import ROOT
from vitrail.cli import app
from vitrail.data.readers.omop import CONCEPTS, OmopMapping
from vitrail.data.readers.source import ENDING

PAGE = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|sh|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {}
    for kind, code in BLOCK.findall(PAGE):
        if kind == "python":
            exec(code, session)
        for line in code.splitlines() if kind == "sh" else ():
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, done.output + str(done.exception)


def test_page_names_what_is_read() -> None:
    (mapping,) = (code for kind, code in BLOCK.findall(PAGE) if kind == "toml")
    assert OmopMapping.model_validate(tomllib.loads(mapping.replace("[3004249]", "3004249"))).site == "care_site"
    assert all(table in PAGE for table in CONCEPTS)
    for ending in re.findall(r"`(?:clinic)?(\.[a-z0-9.]+)`", PAGE.partition("\n\n`files`")[0].partition("A folder")[0]):
        assert ending == ".gz" or ENDING.search(f"a{ending}"), ending

"""docs/first_hour.md: clone to first finding in at most six commands, each block run here, in this process."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from tests.support import ROOT
from vitrail.cli import app


@pytest.fixture(scope="module")
def walk() -> ModuleType:
    spec = importlib.util.spec_from_file_location("time_walk", ROOT / "scripts" / "time_walk.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def walked(walk: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder in which it was walked, and what each command printed."""
    folder, told = tmp_path_factory.mktemp("walk"), {}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for block in walk.blocks():
            if block.install:
                continue
            if block.kind == "python":
                exec(block.code, {})
                continue
            for line, code in block.lines:
                program, *words = shlex.split(line)
                if program == "cp":
                    shutil.copy(*words)
                    continue
                assert program == "vitrail", line
                done = CliRunner().invoke(app, words)
                assert done.exit_code == code, f"{line}: {done.output} {done.exception!r}"
                told[line] = done.output
    return folder, told


def test_at_most_six_commands(walk: ModuleType) -> None:
    """To the look at one's own rows; the first finding comes before."""
    page = walk.PAGE.read_text(encoding="utf-8")
    before = page.split("## And then")[0]
    commands = [code for _, kind, code in walk.BLOCK.findall(before) if kind == "sh"]
    assert all(len(code.strip().splitlines()) == 1 for code in commands)
    assert len(commands) <= 6
    assert [int(n) for n in re.findall(r"^(\d)\. ", before, re.MULTILINE)] == list(range(1, len(commands) + 1))


@pytest.mark.parametrize("name", ["first_hour.md", "study.md"])
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / "docs" / name
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_installation_is_readmes_own(walk: ModuleType) -> None:
    _, install = [block.lines[0][0] for block in walk.blocks() if block.install]
    command = install.removesuffix(" && . .venv/bin/activate")
    assert command in (ROOT / "README.md").read_text(encoding="utf-8"), "which CI runs on a bare machine"


def test_the_first_finding_is_the_fault_that_was_planted(walk: ModuleType, walked) -> None:
    folder, told = walked
    found = next(said for line, said in told.items() if line.startswith("vitrail screen"))
    shown = re.search(r"```text\n(.*?)```", walk.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    assert found.startswith(shown[1]), "the page shows what is printed"
    assert found.count("\n  - ") == 1, "and no other"
    assert "<b>Site west, creatinine: in another unit.</b>" in (folder / "screened" / "screen.html").read_text()


def test_the_site_sees_its_rows_and_a_repair(walked) -> None:
    folder, told = walked
    seen = next(said for line, said in told.items() if line.startswith("vitrail look"))
    assert "Most likely: in another unit: 180 of 180 values change" in seen
    assert (folder / "look-west.html").exists()


def test_after_the_repair_nothing_is_likely_wrong(walked) -> None:
    """That the last command ends with 0 was seen as it ran."""
    _, told = walked
    last = list(told.values())[-1]
    assert last.startswith("Nothing is likely wrong")

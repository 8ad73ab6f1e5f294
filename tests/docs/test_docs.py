"""The documents say what the code does: every block of the tutorial and of the architecture page runs, and README's
commands are those of CI."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.support import ROOT
from tests.support.command import vitrail
from vitrail.methods import GROUP

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


NOTEBOOK = """import json as _json, sys as _sys
_answer, _sys.stdout = _sys.stdout, _sys.stderr  # names that no block uses
for _line in _sys.stdin:
    exec(compile(_json.loads(_line), "block", "exec"), globals())
    print("done", file=_answer, flush=True)"""
PLAIN = re.compile(r"vitrail (?P<words>[^|<>&;$`]+?)(?: \|\| test \$\? = (?P<code>\d))?|cat (?P<shown>[\w./ -]+)")


@pytest.fixture
def run_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Python blocks share one session, as in a notebook; shell blocks run in the same folder, and know nothing of it.
    Commands of ours are asked in this process, and train one after the other, since processes load for seconds."""
    monkeypatch.setattr("vitrail.cli.studies.cores", lambda: 1)
    return lambda name: _run_blocks(BLOCK.findall((ROOT / "docs" / name).read_text()), tmp_path)


def _run_blocks(blocks: list[tuple[str, str]], folder: Path) -> None:
    assert len(blocks) >= 4
    log = folder / "notebook.log"
    with (
        log.open("w") as wrong,
        subprocess.Popen(
            [sys.executable, "-c", NOTEBOOK], cwd=folder, text=True, stdin=PIPE, stdout=PIPE, stderr=wrong
        ) as notebook,
    ):
        assert notebook.stdin is not None
        assert notebook.stdout is not None
        for kind, code in blocks:
            if kind == "sh":
                run_shell(code, folder)
            else:
                notebook.stdin.write(json.dumps(code) + "\n")
                notebook.stdin.flush()
                assert notebook.stdout.readline() == "done\n", f"{code}\n{log.read_text()[-3000:]}"


def run_shell(code: str, folder: Path) -> None:
    lines = [PLAIN.fullmatch(line) for line in code.splitlines()]
    if not all(lines):  # more than our own commands
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command, env = ["bash", "-euc", code], {**os.environ, "PATH": path}
        bash = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
        assert bash.returncode == 0, bash.stderr[-3000:]
        return
    for line in filter(None, lines):
        if line["shown"]:
            assert all((folder / name).is_file() for name in line["shown"].split()), line[0]
        else:
            done = vitrail(*shlex.split(line["words"]), cwd=folder)
            assert done.returncode in {0, int(line["code"] or 0)}, f"{line[0]}\n{done.stdout[-1000:]}{done.stderr}"


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    fine = [("python", "x = 1"), ("sh", "vitrail methods\n"), ("sh", "echo $((1 + 1)) > two\n"), ("sh", "cat two")]
    _run_blocks(fine, tmp_path)
    for wrong in (
        ("python", "assert x == 2"),
        ("sh", "vitrail wire nothing"),
        ("sh", "vitrail wire nothing || test $? = 1"),
        ("sh", "cat three"),
        ("sh", "grep 3 two\n"),
    ):
        with pytest.raises(AssertionError):
            _run_blocks([*fine, wrong], tmp_path)


def test_tutorial_runs(tmp_path, run_blocks) -> None:
    run_blocks("tutorial.md")
    assert (tmp_path / "runs" / "compared" / "report.html").exists()


def test_architecture_runs(tmp_path, run_blocks) -> None:
    """Also the method that it writes from scratch: under every law, on real rows and on a page."""
    run_blocks("architecture.md")
    assert (tmp_path / "kin.html").exists()


def test_parties_run(tmp_path, run_blocks) -> None:
    """Also the demo, and that a look-up finds those whom the laboratory has."""
    run_blocks("parties.md")
    for page in ("demo/run/report.html", "demo/explain-hospital.html", "demo/explain-lab.html", "hospital.html"):
        assert (tmp_path / page).exists(), page
    away, blind = ((tmp_path / name).read_text() for name in ("away.csv", "blind.csv"))
    assert away.count("reference") == 10
    assert blind.count("answer") >= 8


def test_the_tutorials_package_is_one_that_is_looked_for() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    (text,) = (block for block in blocks if "[project]" in block)
    assert list(tomllib.loads(text)["project"]["entry-points"]) == [GROUP]


def test_the_researchers_example_runs(tmp_path) -> None:
    code = [c for kind, c in BLOCK.findall((ROOT / "docs" / "researcher.md").read_text()) if kind == "python"]
    assert len(code) == 2
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_readme_has_two_commands_and_a_picture() -> None:
    text = (ROOT / "README.md").read_text()
    shell = [c for kind, c in BLOCK.findall(text) if kind == "sh"][:2]
    assert "vitrail demo" in shell[0]
    assert "pytest" in shell[1]
    assert all("-c constraints.txt" in c for c in shell)
    picture = re.search(r"!\[[^\]]+\]\(([^)]+)\)", text[:400])
    assert picture, "it opens with a picture"
    assert (ROOT / picture[1]).exists()


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 600
    assert len(re.findall(r"(?<!!)\[[^\]]+\]\(", text)) <= 20


def test_readme_has_a_small_picture_in_each_line_of_what_you_get() -> None:
    """Made by scripts/make_picture.py, all of them and no others."""
    lines = (ROOT / "README.md").read_text().split("## What you get")[1].split("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("| <img")]
    pictures = [re.search(r'src="(docs/pictures/([a-z]+)\.png)"', row) for row in rows]
    assert len(rows) == len([found for found in pictures if found]) == 5
    assert all(re.search(r'alt="[^"]{10,}"', row) for row in rows)
    made = runpy.run_path(str(ROOT / "scripts" / "make_picture.py"))["SMALL"]
    assert {found[2] for found in pictures if found} == set(made)
    files = list((ROOT / "docs" / "pictures").iterdir())
    assert {file.name for file in files} == {f"{name}.png" for name in made}
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#:\s]+)(?:#([^)\s]*))?(?: \"[^\"]*\")?\)", page.read_text()):
        there = page.parent / target
        if there.name in {"every_method.md", "api.md"}:  # which scripts/make_docs.py writes
            continue
        assert there.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles], heading

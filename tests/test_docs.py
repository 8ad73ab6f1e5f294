"""The documents say what the code does: every block of the tutorial and of the architecture page runs, and README's
commands are those of CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vitrail.methods import GROUP

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_blocks(name: str, folder: Path) -> None:
    """Python blocks share one session, as in a notebook; shell blocks run in the same folder."""
    blocks = BLOCK.findall((ROOT / "docs" / name).read_text())
    assert len(blocks) >= 4
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = ["import subprocess"]
    for kind, code in blocks:
        if kind == "sh":
            lines.append(f"subprocess.run(['bash', '-euc', {code!r}], check=True)")
        else:
            lines.append(code)
    script = folder / "blocks.py"
    script.write_text("\n".join(lines))
    env = {**os.environ, "PATH": path}
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]


def test_tutorial_runs(tmp_path) -> None:
    run_blocks("tutorial.md", tmp_path)
    assert (tmp_path / "runs" / "compared" / "report.html").exists()


def test_architecture_runs(tmp_path) -> None:
    """Also the method that it writes from scratch: under every law, on real rows and on a page."""
    run_blocks("architecture.md", tmp_path)
    assert (tmp_path / "kin.html").exists()


def test_parties_run(tmp_path) -> None:
    """Also the demo, and that a look-up finds those whom the laboratory has."""
    run_blocks("parties.md", tmp_path)
    for page in ("demo/run/report.html", "demo/explain-hospital.html", "demo/explain-lab.html", "hospital.html"):
        assert (tmp_path / page).exists(), page
    away, blind = ((tmp_path / name).read_text() for name in ("away.csv", "blind.csv"))
    assert away.count("reference") == 10
    assert blind.count("answer") >= 8


def test_the_tutorials_package_is_one_that_is_looked_for() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    (text,) = (block for block in blocks if "[project]" in block)
    assert list(tomllib.loads(text)["project"]["entry-points"]) == [GROUP]


def test_readme_notebook_runs(tmp_path) -> None:
    code = [c for kind, c in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "python"]
    assert len(code) == 1
    done = subprocess.run([sys.executable, "-c", code[0]], cwd=tmp_path, capture_output=True, text=True)
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


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/deploy.md", "docs/parties.md", "docs/tutorial.md"],
)
def test_links_lead_somewhere(name) -> None:
    page = ROOT / name
    for target, heading in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", page.read_text()):
        there = page.parent / target
        assert there.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles], heading

"""A command begins at once: what takes long to load is loaded by the commands that use it, and by no other.

Seconds depend on the machine (benchmarks/speed/startup.py prints them); which modules are loaded does not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail as vt
from vitrail.cli.method_list import describe_methods, read_class, summary_of
from vitrail.methods import TABLE

MOST = {"torch", "numpy", "pandas", "pyarrow", "scipy", "safetensors", "cryptography", "jinja2"}
NEVER = {"sklearn", "nvflare", "PIL", "duckdb", "distributed"}
PROBE = """
import sys
from vitrail.cli import main
sys.argv = ["vitrail", *sys.argv[1:]]
try:
    main()
finally:
    print(*(name for name in sys.modules if name.split(".")[0] in {watched!r} or name in {watched!r}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study, a table and a run."""
    folder = tmp_path_factory.mktemp("startup")
    study, tables = vt.Study.load(vt.datasets.packaged("heart_disease.toml")), vt.datasets.heart_disease()
    shutil.copy(vt.datasets.packaged("heart_disease.toml"), folder / "study.toml")
    (folder / "data").mkdir()
    for name, frame in tables.items():
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    vt.federate(study, tables, rounds=1, out=folder / "done")
    return folder


def loaded(folder: Path, words: str, watched: set[str]) -> set[str]:
    """Of the modules that are watched, and of what is in them, those that a command loads in a process of its own."""
    program = PROBE.format(watched=watched)
    done = subprocess.run([sys.executable, "-c", program, *words.split()], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set((done.stderr.splitlines() or [""])[-1].split())


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        ("--help", {*MOST, "pydantic"}),
        ("run --help", MOST),
        ("check --help", MOST),
        ("methods", MOST),
        ("verify done", MOST - {"cryptography"}),
        ("check study.toml data/cleveland.csv", {"torch", "scipy", "safetensors", "cryptography", "jinja2"}),
        ("wire fedavg study.toml", {"scipy", "cryptography", "jinja2"}),
    ],
)
def test_a_command_loads_only_what_it_uses(folder: Path, words: str, spared: set[str]) -> None:
    assert loaded(folder, words, spared | NEVER) == set()


def test_a_run_loads_before_its_first_round_only_what_it_uses(folder: Path) -> None:
    """scipy.stats alone takes half a second."""
    program = "import sys\nfrom vitrail.engine.rounds import Rounds\nturn = Rounds.turn\n"
    program += "def look(self, *place):\n"
    program += (
        f"    print(*{{'scipy.stats', 'scipy.optimize', 'jinja2', 'cryptography', *{NEVER!r}}} & set(sys.modules))\n"
    )
    program += "    sys.stdout.flush()\n    import os\n    os._exit(0)\nRounds.turn = look\n"
    program += "from vitrail.cli import main\nsys.argv = ['vitrail', *sys.argv[1:]]\nmain()"
    words = ["run", "study.toml", "--data", "data", "--out", "first"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == [""], done.stdout


def test_methods_are_listed_from_their_source_as_they_are() -> None:
    listed = [method for method in describe_methods() if method.name in TABLE]
    assert [method.name for method in listed] == list(TABLE)
    for method in listed:
        assert method == summary_of(method.name)
        assert list(method.defaults) == list(summary_of(method.name).defaults)


def test_a_default_that_is_no_constant_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from dataclasses import dataclass\nMU = 3\n@dataclass\nclass Mine:\n    mu: float = MU\n"
    text += "    lr: float = 1 / 4\n"
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "ours.py").write_text(text.replace("= MU", "= 3"))
    monkeypatch.syspath_prepend(tmp_path)
    assert read_class("ours", "Mine") == ("", {"mu": 3, "lr": 0.25})
    with pytest.raises(ValueError, match="MU"):
        read_class("mine", "Mine")
    with pytest.raises(ValueError, match="Yours"):
        read_class("mine", "Yours")

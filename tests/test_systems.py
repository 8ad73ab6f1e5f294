"""Other systems: all but `serve` and `join` works where Linux's own modules are missing, and those two say so at once.

It runs on Linux: what Windows has not (fcntl, resource, Unix sockets) is taken away in a process of its own, and a lock
as Windows has it is put in its place. docs/systems.md says what was tried on which system.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ELSEWHERE = """
import builtins, sys, types

real, locked = builtins.__import__, {}

def as_elsewhere(name, globals=None, *rest, **named):
    ours = (globals or {}).get("__name__", "").startswith("vitrail")  # others' ways are theirs
    if ours and name.split(".")[0] in ("fcntl", "resource", "termios", "pwd", "grp"):
        raise ImportError(name)
    return real(name, globals, *rest, **named)

def locking(file, how, size):
    locked[how, size] = locked.get((how, size), 0) + 1

builtins.__import__ = as_elsewhere
import subprocess  # it looks for msvcrt
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
from vitrail.cli import main
from vitrail.storage import atomic_files as disk
from vitrail.deploy import doctor
disk.sys = doctor.sys = types.SimpleNamespace(platform="win32")
for words in SAID:
    print("==", *words, flush=True)
    sys.argv = ["vitrail", *words]
    try:
        main()
    except SystemExit as ended:
        print("exit", ended.code or 0, flush=True)
print("== locked", locked)
"""


def run_elsewhere(said: list[list[str]], place: Path) -> dict[str, str]:
    code = ELSEWHERE.replace("SAID", repr(said))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=place, timeout=300, check=False
    )
    assert done.stdout, done.stderr
    *parts, locked = done.stdout.split("== ")[1:]
    assert len(parts) == len(said), done.stderr
    assert "(2, 1): " in locked  # the other system's lock was used
    return {" ".join(words): part + done.stderr for words, part in zip(said, parts, strict=True)}


def test_all_but_two_verbs_work_without_linux(tmp_path: Path) -> None:
    rows = "age,sex,died\n" + "".join(f"{30 + i % 40},{'fm'[i % 2]},{int(i % 40 > 20)}\n" for i in range(60))
    for name in ("Basel", "Lyon", "Graz"):
        (tmp_path / f"{name}.csv").write_text(rows)
    told = run_elsewhere(
        [
            ["init", ".", "--target", "died", "--out", "study.toml"],
            ["check", "study.toml", "Basel.csv"],
            ["run", "study.toml", "--data", ".", "--out", "r", "--rounds", "2"],
            ["verify", "r"],
            ["report", "r"],
            ["predict", "r", "--site", "Basel", "--data", "Basel.csv"],
            ["invite", "study.toml", "--site", "A", "--site", "B", "--site", "C", "--address", "localhost:1"],
            ["serve", "study.toml"],
            ["join", "A.kit", "--data", "Basel.csv"],
        ],
        tmp_path,
    )
    for words, text in told.items():
        code = text.split("exit ")[1][0]
        refused = words.split()[0] in ("serve", "join")
        assert code in ("2" if refused else "01" if words.startswith("check") else "0"), (words, text)
    assert "runs on Linux only" in told["serve study.toml"]
    assert (tmp_path / "r" / "report.html").exists()


def test_a_site_can_do_without_pyarrow(tmp_path: Path) -> None:
    """docs/deploy.md tells who may leave it out; what needs it says so."""
    (tmp_path / "a.csv").write_text("x,y\n" + "1,a\n2,b\n" * 5)
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    code = """
import sys
sys.modules["pyarrow"] = None
from vitrail.core.errors import VitrailError
from vitrail.data.readers.tables import read_table
from pathlib import Path
print(len(read_table(Path("a.csv"))))
try:
    read_table(Path("b.parquet"))
except VitrailError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.startswith("10\n"), done.stderr
    assert "pip install pyarrow" in done.stdout

"""How long a command takes before it does anything: fresh processes of each verb, and what they loaded.

    python benchmarks/speed/startup.py              # 7 processes of each verb, in turns
    python benchmarks/speed/startup.py --times 3

Beside the seconds on the clock stand those of the processor (user and system, best of all), which other work on the
machine disturbs less. `run` is timed until its first round has ended: the first line about a round in the run's log.
The first lines are yardsticks: an empty interpreter, and what no verb that trains or reads a table can do without.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import vitrail as vt
from vitrail.runs.integrity import LOG

HEAVY = (
    *("torch", "pandas", "numpy", "scipy", "scipy.stats", "scipy.optimize", "pyarrow", "pydantic", "cryptography"),
    *("safetensors", "jinja2", "rich", "typer", "sklearn", "nvflare", "PIL", "duckdb"),
)
PROBE = """
import atexit, sys
atexit.register(lambda: print(*(name for name in {heavy!r} if name in sys.modules), file=open({file!r}, "w")))
from vitrail.cli import main
sys.argv[0] = "vitrail"
main()
"""
POLL = 0.002  # seconds between two looks at a run's log


class Start(NamedTuple):
    wall: float  # seconds on the clock
    processor: float  # seconds of user and system


def measure(words: Sequence[str], folder: Path) -> Start:
    """A process from its start to its end."""
    began = time.perf_counter()
    child = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    wall, child.returncode = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"{' '.join(words)} ended with {child.returncode}"
    return Start(wall, used.ru_utime + used.ru_stime)


def measure_first_round(words: Sequence[str], folder: Path, log: Path) -> Start:
    """A process from its start to the end of the first round; what comes after is not waited for."""
    shutil.rmtree(log.parent, ignore_errors=True)
    began = time.perf_counter()
    child = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (log.exists() and '"event": "round"' in log.read_text(encoding="utf-8")):
        assert child.poll() is None, f"{' '.join(words)} ended before its first round"
        time.sleep(POLL)
    wall = time.perf_counter() - began
    fields = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    child.kill()
    child.wait()
    return Start(wall, sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"))


def loaded(words: Sequence[str], folder: Path) -> list[str]:
    """Which of the heavy modules a verb loads."""
    file = folder / "loaded.txt"
    program = PROBE.format(heavy=HEAVY, file=str(file))
    subprocess.run([sys.executable, "-c", program, *words], cwd=folder, capture_output=True, check=True)
    return file.read_text(encoding="utf-8").split()


def prepare(folder: Path) -> None:
    """A study, its tables and a run folder."""
    shutil.copy(vt.datasets.packaged("heart_disease.toml"), folder / "study.toml")
    (folder / "data").mkdir()
    for name, frame in vt.datasets.heart_disease().items():
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    study, tables = vt.Study.load(folder / "study.toml"), vt.datasets.heart_disease()
    vt.federate(study, tables, rounds=2, out=folder / "done")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=7)
    given = parser.parse_args()
    command = str(Path(sys.executable).with_name("vitrail"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        table = "data/cleveland.csv"
        verbs = {
            "--help": ["--help"],
            "check --help": ["check", "--help"],
            "methods": ["methods"],
            "verify": ["verify", "done"],
            "check": ["check", "study.toml", table],
            "wire": ["wire", "fedavg", "study.toml"],
            "predict": ["predict", "done", table, "--site", "cleveland"],
        }
        yardsticks = {
            f"python -c {code!r}": [sys.executable, "-c", code] for code in ("pass", "import torch", "import pandas")
        }
        run = ["run", "study.toml", "--data", "data", "--out", "first"]
        commands = yardsticks | {f"vitrail {verb}": [command, *words] for verb, words in verbs.items()}
        starts: dict[str, list[Start]] = {name: [] for name in [*commands, "vitrail run, to the first round's end"]}
        load = [os.getloadavg()[0]]
        for _ in range(given.times):
            for name, words in commands.items():
                starts[name].append(measure(words, folder))
            log = folder / "first" / LOG
            starts[[*starts][-1]].append(measure_first_round([command, *run], folder, log))
            load.append(os.getloadavg()[0])
        heavy = {f"vitrail {verb}": loaded(words, folder) for verb, words in verbs.items()}
    print(f"# Start-up, {datetime.date.today():%Y-%m-%d}\n")
    print(f"Machine: {platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python")
    print(f"{platform.python_version()}, torch {version('torch')}, pandas {version('pandas')}. {given.times} fresh")
    print(f"processes each, in turns. Load of the machine meanwhile: {min(load):.1f} to {max(load):.1f}.\n")
    print("| command | best, s | median, s | processor, best, s | heavy modules loaded |")
    print("| --- | ---: | ---: | ---: | --- |")
    for name, times in starts.items():
        walls, processor = [t.wall for t in times], min(t.processor for t in times)
        modules = ", ".join(heavy.get(name, ()))
        print(f"| {name} | {min(walls):.2f} | {statistics.median(walls):.2f} | {processor:.2f} | {modules} |")


if __name__ == "__main__":
    main()

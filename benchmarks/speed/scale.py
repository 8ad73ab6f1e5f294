"""How time and memory grow with columns and rows: a CSV of one site is read, checked, cleaned, encoded and split, and
one round is trained (FedAvg, two sites of half the rows each, scored; no screening).

    python benchmarks/speed/scale.py                       # all sizes, each in a process of its own; skips what is there
    python benchmarks/speed/scale.py --one 1000 500        # columns, rows: prints one line of JSON

Memory is what the process held at most in a step, less what it held before the file was read, over the table as numbers
(8 bytes for each cell): with the table itself in it, and all that a step keeps. Times are processor seconds of one
thread. Results: benchmarks/speed/results/scale.md and scale.csv.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "scale.csv"
RUN = "a round of FedAvg, prepared and scored"
TOGETHER = {"check": "check", "clean,encode": "encode and split", "fedavg": RUN}  # steps of one process, and the last
SIZES = [(1_000, 50), (10_000, 50), (100_000, 50), (5, 50_000), (5, 500_000), (5, 5_000_000), (30, 1_000_000)]
NAMES = ("columns", "rows", "file_mb", "table_mb", "step", "seconds", "peak_mb", "of_table")


def held() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watched:
    """Runs a step, and looks every few milliseconds at what the process holds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        gc.collect()
        self.before = held()

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        peak, done = [held()], threading.Event()

        def look() -> None:
            while not done.wait(0.005):
                peak[0] = max(peak[0], held())

        watcher = threading.Thread(target=look)
        watcher.start()
        start = time.process_time()
        try:
            out = work()
        finally:
            seconds = time.process_time() - start
            done.set()
            watcher.join()
        self.rows.append(
            {"step": name, "seconds": round(seconds, 2), "peak_mb": round((peak[0] - self.before) / 1e6, 1)}
        )
        return out


def write_table(path: Path, columns: int, rows: int) -> None:
    """Numbers with three digits behind the point, all different, and a class that two of them tell."""
    rng = np.random.default_rng(columns + rows)
    step = max(1, 2_000_000 // columns)
    with path.open("w", encoding="ascii") as file:
        file.write(",".join([*(f"c{i}" for i in range(columns)), "y"]) + "\n")
        for at in range(0, rows, step):
            x = rng.normal(0, 40, (min(step, rows - at), columns))
            y = x[:, 0] + x[:, 1] + rng.normal(0, 20, len(x)) > 0
            for row, told in zip(x.tolist(), y.tolist(), strict=True):
                file.write(",".join([f"{v:.6f}" for v in row]) + (",yes\n" if told else ",no\n"))


def measure(columns: int, rows: int, steps: set[str]) -> list[dict[str, Any]]:
    import torch

    from vitrail.data.encoding import prepare
    from vitrail.data.readers.tables import clean, read_table
    from vitrail.quality.checks.table import find_faults
    from vitrail.runs import federate
    from vitrail.study.model import Study

    torch.set_num_threads(1)
    features = {f"c{i}": {"kind": "numeric"} for i in range(columns)}
    said = {
        "name": "scale",
        "target": {"column": "y", "classes": ["no", "yes"], "positive": "yes"},
        "features": features,
    }
    said |= {"network": {"kind": "mlp", "hidden": [8]}, "training": {"rounds": 1}, "screen": {"ask": False}}
    study = Study.parse(said, "scale")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        write_table(path, columns, rows)
        size = path.stat().st_size
        watched = Watched()
        frame = watched.step("read", lambda: read_table(path, study))
    if "check" in steps:
        watched.step("check", lambda: find_faults(frame, study))
    if "clean" in steps:
        watched.step("clean", lambda: clean(frame, study))
    half = {"a": frame.iloc[: rows // 2], "b": frame.iloc[rows // 2 :]}
    if "encode" in steps:
        watched.step("encode and split", lambda: prepare(half, study, 1))
    if "fedavg" in steps:
        watched.step(RUN, lambda: federate(study, half, "fedavg", rounds=1))
    table = 8 * (columns + 1) * rows / 1e6
    about = {"columns": columns, "rows": rows, "file_mb": round(size / 1e6, 1), "table_mb": round(table, 1)}
    return [{**about, **row, "of_table": round(row["peak_mb"] / table, 2)} for row in watched.rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, type=int, metavar=("COLUMNS", "ROWS"))
    parser.add_argument("--steps", default=",".join(TOGETHER))
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one, set(given.steps.split(",")))))
        return
    import pandas as pd

    done = pd.read_csv(RESULTS) if RESULTS.exists() else pd.DataFrame(columns=list(NAMES))
    for columns, rows in SIZES:
        for steps, last in TOGETHER.items():
            if ((done["columns"] == columns) & (done["rows"] == rows) & (done["step"] == last)).any():
                continue
            words = [sys.executable, __file__, "--one", str(columns), str(rows), "--steps", steps]
            said = subprocess.run(words, capture_output=True, text=True, check=False)
            if said.returncode:
                print(f"{columns} columns, {rows} rows: stopped ({said.returncode}). {said.stderr[-500:]}")
                continue
            found = json.loads(said.stdout.splitlines()[-1])
            done = pd.concat([done, pd.DataFrame(found if steps == "check" else found[1:])])  # it reads once more
        RESULTS.parent.mkdir(exist_ok=True)
        done.to_csv(RESULTS, index=False)
    steps = ["read", "check", "clean", "encode and split", RUN]
    at = [(SIZES.index((r.columns, r.rows)), steps.index(r.step)) for r in done.itertuples()]
    done = done.iloc[sorted(range(len(done)), key=at.__getitem__)]
    done.to_csv(RESULTS, index=False)
    text = "\n".join(told(done))
    RESULTS.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(text)


def told(done: Any) -> list[str]:
    """The page: a row for each size and step, and how time grows from one size to the next."""
    text = ["# Large tables: time and memory of each step", ""]
    text += [
        "One CSV of numbers and a class, cut into two sites; printed by `benchmarks/speed/scale.py`. Seconds are those of"
    ]
    text += ["one processor; memory is the most that the process held beyond what it held before the file was read,"]
    text += ["the table itself included, over the table as numbers (8 bytes a cell). Each process reads, and then"]
    text += ["checks, or cleans and encodes, or runs."]
    text += ["Of small tables what is held anyway (batches of 250,000 cells, what libraries keep) is most of it.", ""]
    text += ["| columns | rows | file, MB | step | seconds | seconds per million cells | memory / table |"]
    text += ["| ---: | ---: | ---: | --- | ---: | ---: | ---: |"]
    for r in done.itertuples():
        each = r.seconds / (r.columns * r.rows / 1e6)
        cells = [f"{r.columns:,}", f"{r.rows:,}", f"{r.file_mb:.0f}", r.step, f"{r.seconds:.1f}", f"{each:.2f}"]
        text.append(f"| {' | '.join(cells)} | {r.of_table:.1f} |")
    return text


if __name__ == "__main__":
    main()

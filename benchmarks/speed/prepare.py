"""What is waited for beside training: tables drafted and prepared, and every site's model scored.

python benchmarks/speed/prepare.py
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # one core

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from speed import machine

from vitrail.core.text import print_table
from vitrail.data.encoding import prepare
from vitrail.metrics.scores import score_all
from vitrail.study.model import Study
from vitrail.study.validation import CLASS_METRICS

SHAPES = ((30, 360, 561), (3, 50, 20_000), (3, 50, 100_000))  # sites, rows of each, columns
CLASSES = 6


def make(sites: int, rows: int, columns: int) -> dict[str, pd.DataFrame]:
    draw = np.random.default_rng(0)
    names = [f"x{i}" for i in range(columns)]
    frames = [pd.DataFrame(draw.normal(size=(rows, columns)), columns=names) for _ in range(sites)]
    return {f"site {i}": f.assign(y=draw.integers(0, CLASSES, rows)) for i, f in enumerate(frames)}


def seconds(call: Callable[[], object], times: int) -> float:
    """Median, after a first call that does not count."""
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def prepare_seconds(sites: int, rows: int, columns: int, times: int = 5) -> tuple[float, float]:
    """To draft a study, and to prepare the tables."""
    tables = make(sites, rows, columns)
    study = Study.infer(tables, "y")
    return seconds(lambda: Study.infer(tables, "y"), times), seconds(lambda: prepare(tables, study, 0), times)


def score_seconds(sites: int = 30, rows: int = 120, times: int = 50) -> float:
    draw = np.random.default_rng(0)
    y, p = draw.integers(0, CLASSES, (sites, rows)), draw.dirichlet(np.ones(CLASSES), (sites, rows))
    real = np.ones((sites, rows), dtype=bool)
    return seconds(lambda: score_all(CLASS_METRICS, y, p, real), times)


if __name__ == "__main__":
    print(f"{machine('cpu')}; one is used. Seconds, median of 5.\n")
    print_table(["sites", "rows", "columns", "draft", "prepare"], [(*s, *prepare_seconds(*s)) for s in SHAPES])
    print(f"\nFive metrics of 30 sites x 120 rows x {CLASSES} classes: {1000 * score_seconds():.1f} ms.")

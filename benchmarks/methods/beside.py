"""What it takes to run another program beside ours on the same rows, start and batches."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import MagicMock

import torch
from torch import Tensor

from vitrail.engine.local import Engine

SHOWN = (1, 5, 20)  # rounds
States = list[dict[str, Tensor]]  # after each round, all that is compared


@contextlib.contextmanager
def imported(folder: Path, *missing: str) -> Iterator[None]:
    """With another program's folder first on the path, in silence. Those libraries which it imports, does not need here
    and are not installed are stood in for by what does nothing."""
    if not folder.is_dir():
        sys.exit(f"There is no folder {folder}.")
    before, modules = list(sys.path), set(sys.modules)
    absent = [name for name in missing if importlib.util.find_spec(name.split(".")[0]) is None]
    sys.modules.update({name: MagicMock() for name in absent})
    sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - modules:
            if name in absent or str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def batches(engine: Engine, round_: int) -> list[list[tuple[Tensor, Tensor]]]:
    """What each site draws in that round of training, in the engine's order: rows, and their classes by number."""
    engine.sampler.set(0, round_, len(engine.stages[0].exchanges) - 1)  # what comes before training draws nothing
    draw, sites = engine.sampler.draw(), engine.sites
    out = []
    for i, steps in enumerate(engine.sampler.steps):
        taken = [draw.rows[t, i][draw.real[t, i, :, 0] > 0] for t in range(steps)]
        out.append([(sites.x[at], sites.y[at].argmax(1)) for at in taken])
    return out


def worst(one: States, other: States, names: Sequence[str]) -> list[float]:
    """The largest difference in tensors whose name begins like this, after the rounds that are shown."""
    told = [k for k in one[0] if k.startswith(tuple(names))]
    return [max(float((one[r - 1][k] - other[r - 1][k]).abs().max()) for k in told) for r in SHOWN]


def moved(states: States) -> float:
    """By how much any number changed from the first round to the last: what differences are to be seen beside."""
    return max(float((v - states[0][k]).abs().max()) for k, v in states[-1].items())


def written(
    place: Path, title: str, about: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: str
) -> None:
    """The page of results."""
    lines = [
        f"# {title}, {time.strftime('%Y-%m-%d')}",
        "",
        f"{about} torch {torch.__version__}.",
        "",
        f"| {' | '.join(heads)} |",
    ]
    lines += [f"| --- |{' ---: |' * (len(heads) - 1)}", *(f"| {' | '.join(row)} |" for row in rows)]
    place.write_text("\n".join([*lines, notes.rstrip(), ""]), encoding="utf-8")

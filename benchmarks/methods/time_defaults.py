"""What each part of the default of times to an event is worth (decision 054), on lung, gbsg2 and rossi.

    PYTHONPATH=where/lifelines/is python benchmarks/methods/time_defaults.py        # about ten minutes on one core

The parts are added one after the other to what the default was before; the last lines leave one of them out or change
it. Same protocol and measures as benchmarks/methods/time_to_event.py, with three seeds. Until the line that names stronger
penalties, the site's own constants have those from before decision 054.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from time_to_event import Federation, Floats, drafted, federations, measured

import vitrail as vt
from vitrail.core.tensors import Params
from vitrail.data.readers.tables import clean
from vitrail.metrics import recalibration
from vitrail.nets import mlp
from vitrail.runs.setup import resolve
from vitrail.studies.cross_validation import train_folds
from vitrail.studies.folds import whole_folds

SEEDS, FOLDS, SETS = (1, 2, 3), 5, ("lung", "rossi", "gbsg2")
WEAK, STRONG = (1.0, 5.0), (recalibration.TIME_PENALTY, recalibration.INTERVAL_PENALTY)


class Way(NamedTuple):
    """A variant of the default."""

    hazards: str = "proportional"
    epochs: int = 4
    rounds: int = 100
    kind: str = "mlp"
    half: bool = False  # start at hazards of one half
    pace: float = mlp.PACE
    penalties: tuple[float, float] = STRONG


WAYS = {
    "before: free hazards, 1 epoch, weak site constants": Way("free", 1, penalties=WEAK),
    "one score for all intervals": Way(epochs=1, half=True, pace=1.0, penalties=WEAK),
    "+ start with half free of the event": Way(epochs=1, pace=1.0, penalties=WEAK),
    "+ PACE": Way(epochs=1, penalties=WEAK),
    "+ 4 epochs": Way(penalties=WEAK),
    "+ stronger penalties on site constants: the default": Way(),
    "default, 400 rounds of 1 epoch": Way(epochs=1, rounds=400),
    "default, free hazards": Way("free"),
    "default, linear": Way(kind="linear"),
    "default, linear, without PACE": Way(kind="linear", pace=1.0),
}


@contextmanager
def varied(way: Way) -> Iterator[None]:
    """The parts of the default that no study names, as this way has them."""
    init = mlp.MLP.init

    def started(net: mlp.MLP, generator: torch.Generator) -> Params:
        params = init(net, generator)
        if way.half and net.proportional:
            params["head.bias"] = torch.zeros(net.outputs)
        return params

    common, single = way.penalties
    with (
        patch.object(mlp, "PACE", way.pace),
        patch.object(mlp.MLP, "init", started),
        patch.object(recalibration, "TIME_PENALTY", common),
        patch.object(recalibration, "INTERVAL_PENALTY", single),
    ):
        yield


def judged(fed: Federation, way: Way) -> Floats:
    """[measure]: the mean over seeds."""
    training: dict[str, Any] = {"epochs": way.epochs, "rounds": way.rounds}
    study: vt.Study = drafted(fed).with_changes(network={"hazards": way.hazards, "kind": way.kind}, training=training)
    study, method = resolve(study, "fedavg", None)
    cleaned = {n: clean(f, study) for n, f in fed.sites.items()}
    truth, found = [f[study.target.column].to_numpy() for f in cleaned.values()], []
    for seed in SEEDS:
        cut = whole_folds(cleaned, study, seed, FOLDS)
        with varied(way):
            answers = train_folds(study, method, cut, seed, "vectorised", "cpu", lambda done, of: None).last
        found.append(measured(truth, answers, list(cut.lots.values())))
    return np.mean(found, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "time_defaults.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    feds = federations()
    out = [
        "# What each part of the default of times is worth",
        "",
        "Made by `benchmarks/methods/time_defaults.py`.",
        "",
    ]
    out += ["C within folds / Brier score / log loss; mean over 3 seeds.", ""]
    out += [f"| | {' | '.join(SETS)} |", f"| --- |{' --- |' * len(SETS)}"]
    for words, way in WAYS.items():
        cells = []
        for name in SETS:
            within, _, brier, loss = judged(feds[name], way)
            cells.append(f"{within:.3f} / {brier:.3f} / {loss:.3f}")
        out.append(f"| {words} | {' | '.join(cells)} |")
        print(out[-1], flush=True)
    given.out.write_text("\n".join([*out, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()

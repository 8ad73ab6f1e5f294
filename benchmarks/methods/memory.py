"""What an optimiser's memory is worth when it outlives a round: none kept, that of layers that stay at a site, all.

    VITRAIL_DATA=... python benchmarks/methods/ifedavg_tables.py prepare scratch/tables.npz     # tables as arrays
    python benchmarks/methods/memory.py scratch/tables.npz --device cuda --out benchmarks/methods/results/memory.md

The iFedAvg paper's protocol (momentum 0.5, 200 rounds, five seeds) on HAR, vehicle and heart disease. The authors' own
program keeps the memory of everything, gives every method the private layers, averages them under FedAvg, and does not
use a site's first private update: the rows "with ends" (vehicle and heart disease) are FedAvg and Local with f_in and
f_out, shared or alone. HAR was run on a GPU and its results kept (--cache); the rest is a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us

import ifedavg_tables as tables

from vitrail.core.declarations import Adapters, Catalogue, Needs
from vitrail.engine.rounds import AnyMethod, Training
from vitrail.methods import APFL, Centralized, Ditto, FedAvg, IFedAvg, Local

MEMORIES = ("fresh", "own", "kept")
SEED = 8273  # the one that was run with the authors' program


@dataclass(frozen=True)
class Averaged(FedAvg):
    catalogue = Catalogue("FedAvg with ends, averaged too")
    needs = Needs(adapters=Adapters(True, "each"))


@dataclass(frozen=True)
class LocalEnds(Local):
    catalogue = Catalogue("Local with ends", baseline="alone")
    needs = Needs(adapters=Adapters(True, "each"))


METHODS: tuple[AnyMethod, ...] = (
    Local(), Centralized(), FedAvg(), APFL(adaptive=False), APFL(adaptive=False, momentum=0.5), Ditto(), IFedAvg(),
)  # fmt: skip
WITH_ENDS: tuple[AnyMethod, ...] = (Averaged(), LocalEnds())  # on the smaller tables


def words(method: AnyMethod) -> str:
    return method.catalogue.title + (f", momentum {method.momentum}" if method.momentum else "")


def schedule(args: argparse.Namespace, data: dict[str, Any]) -> list[str]:
    """What else moves the scores of one seed: how often the learning rate falls. 50 times in a run is the paper's rule;
    10 times in 200 rounds is every 20 rounds, as in a run of 1000."""
    rows, at = [], tables.SEEDS.index(SEED)
    for method in (Local(), FedAvg(), IFedAvg()):
        cells = [words(method)]
        for memory, decays in itertools.product(("fresh", "kept"), (50, 10)):
            kept = args.cache / f"har-{words(method)}-{memory}-{args.rounds}-decays-{decays}-{SEED}.json"
            if not kept.exists():
                job, training = tables.Job("har", "", (at,), args.rounds), Training(rounds=args.rounds, memory=memory)
                falls = dataclasses.replace(training, decays=decays)
                (told,) = tables.trained(method, job, data, args.device, falls, lambda _: None)
                kept.write_text(json.dumps([statistics.mean(told["f1"]), min(told["f1"])]))
            mean, worst = json.loads(kept.read_text())
            cells.append(f"{mean:.3f} / {worst:.3f}")
        rows.append(f"| {' | '.join(cells)} |")
    head = " | ".join(f"{m}, rate falls {d} times" for m, d in itertools.product(("fresh", "kept"), (50, 10)))
    title = ["", f"## HAR, seed {SEED} alone: memory beside the fall of the learning rate, mean / worst", ""]
    return [*title, f"| method | {head} |", "| --- | ---: | ---: | ---: | ---: |", *rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--data", default="har,vehicle,heart")
    parser.add_argument("--cache", type=Path, default=Path("scratch/memory"), help="a finished run is kept here")
    parser.add_argument("--note", default="", help="a sentence for the page: where kept results come from")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "CPU"
    lines = [
        f"# The optimiser's memory, {time.strftime('%Y-%m-%d')}",
        "",
        f"{gpu}, torch {torch.__version__}; {args.rounds} rounds, seeds {', '.join(map(str, tables.SEEDS))}; weighted "
        "F1 on each site's own hold-out rows. `fresh`: zero at the start of every round. `own`: kept where the "
        "parameters do not leave the site. `kept`: also for the shared ones. Gain: paired over seeds against `fresh`, "
        "mean and standard deviation of the difference over the five seeds.",
        *(["", args.note] if args.note else []),
    ]
    for name in args.data.split(","):
        data = tables.load(args.tables, name)
        rows = []
        for method in METHODS if name == "har" else (*METHODS, *WITH_ENDS):
            told: dict[str, list[tuple[float, float]]] = {}
            for memory in MEMORIES:
                kept = args.cache / f"{name}-{words(method)}-{memory}-{args.rounds}.json"
                if not kept.exists():
                    job = tables.Job(name, "", tuple(range(len(tables.SEEDS))), args.rounds)
                    training = Training(rounds=args.rounds, memory=memory)
                    scores = tables.trained(method, job, data, args.device, training, lambda _: None)
                    kept.write_text(json.dumps([(statistics.mean(s["f1"]), min(s["f1"])) for s in scores]))
                told[memory] = [(mean, worst) for mean, worst in json.loads(kept.read_text())]
            at = tables.SEEDS.index(SEED)
            cells = [words(method)]
            for memory in MEMORIES:
                mean, worst = (statistics.mean(v) for v in zip(*told[memory], strict=True))
                cells.append(f"{mean:.3f} / {worst:.3f}")
            for memory in MEMORIES[1:]:
                gains = [a[0] - b[0] for a, b in zip(told[memory], told["fresh"], strict=True)]
                cells.append(f"{statistics.mean(gains):+.3f} ± {statistics.stdev(gains):.3f}")
            cells.append(" / ".join(f"{told[memory][at][0]:.3f}" for memory in MEMORIES))
            rows.append(f"| {' | '.join(cells)} |")
            print(name, rows[-1], file=sys.stderr, flush=True)
        lines += ["", f"## {name}, {len(data['names'])} sites", ""]
        lines += [f"| method | fresh: mean / worst | own | kept | gain of own | gain of kept | seed {SEED}, mean |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |", *rows]
        if name == "har":
            lines += schedule(args, data)
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

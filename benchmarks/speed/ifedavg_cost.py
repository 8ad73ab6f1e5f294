"""What iFedAvg's private layers cost: its round against FedAvg's, f_out off and on, on the same sites.

    python benchmarks/speed/ifedavg_cost.py                   # CPU
    python benchmarks/speed/ifedavg_cost.py --device cuda     # one GPU

All take turns round by round in one process, so that what else the machine does meets them alike. The ratio is that of
the median rounds; its range is from the quarters of the run, each taken alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us

from speed import machine

from vitrail.core.task import Task
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.engine.threads import threads
from vitrail.methods import build
from vitrail.nets import MLP

OUTPUTS = ("no", "each", "scalar")
PARTS = 4


class Shape(NamedTuple):
    name: str
    sites: int
    rows: int
    features: int
    classes: int
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.2
    batch: int = 16


SHAPES = {s.name: s for s in (Shape("like HAR", 30, 230, 561, 6), Shape("like heart disease", 4, 150, 20, 2))}


def engine(shape: Shape, method: str, output: str, rounds: int, device: str) -> Engine:
    draw = torch.Generator().manual_seed(0)
    named = []
    for i in range(shape.sites):
        x = torch.randn(shape.rows, shape.features, generator=draw)
        y = torch.nn.functional.one_hot(torch.randint(shape.classes, (shape.rows,), generator=draw), shape.classes)
        named.append((f"site {i}", x, y.float(), torch.ones(shape.rows, 1)))
    chosen: Any = build(method, {"output": output} if method == "ifedavg" else {})
    net = MLP(shape.features, shape.classes, shape.hidden, shape.dropout, *chosen.needs.adapters)
    start = net.init(torch.Generator().manual_seed(0))
    task = Task(net, {k: v.to(device) for k, v in start.items()})
    # one learning rate throughout: on a GPU a new one is a new graph
    training = Training(rounds, 1, shape.batch, decays=0)
    return Engine(task, chosen, gather_sites(named).to(device), training, 1)


def seconds(shape: Shape, rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each round by entry, in turns."""
    entries: dict[str, Iterator[Any]] = {"FedAvg": iter(engine(shape, "fedavg", "no", rounds + 5, device).run())}
    for output in OUTPUTS:
        entries[f"iFedAvg, f_out {output}"] = iter(engine(shape, "ifedavg", output, rounds + 5, device).run())
    out: dict[str, list[float]] = {name: [] for name in entries}
    for r in range(rounds + 5):
        for name, steps in entries.items():
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            next(steps)
            if device == "cuda":
                torch.cuda.synchronize()
            if r >= 5:
                out[name].append(time.perf_counter() - began)
    return out


def multiplications(shape: Shape) -> tuple[int, int]:
    """In the matrix products of one row: FedAvg's (forward, weights, and back but for the first layer); f_in's."""
    widths = (shape.features, *shape.hidden, shape.classes)
    layers = [n * m for n, m in pairwise(widths)]
    return 3 * sum(layers) - layers[0], layers[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    used = f"{threads()} threads, " if args.device == "cpu" else ""
    lines = [
        f"# What iFedAvg's private layers cost, {args.device}, {time.strftime('%Y-%m-%d')}",
        "",
        f"Machine: {machine(args.device)}; {used}torch {torch.__version__}.",
        f"{args.rounds} rounds each, in turns, in one process; synthetic rows. Ratio of the median rounds; range: the",
        f"same from each of {PARTS} parts of the run.",
        "",
        "| shape | entry | ms per round | times FedAvg | range |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for shape in SHAPES.values():
        taken = seconds(shape, args.rounds, args.device)
        words = f"{shape.name}: {shape.sites} sites x {shape.rows} rows x {shape.features} columns"
        for name, values in taken.items():
            n = len(values) // PARTS
            parts = [
                statistics.median(values[i * n : (i + 1) * n]) / statistics.median(taken["FedAvg"][i * n : (i + 1) * n])
                for i in range(PARTS)
            ]
            middle = statistics.median(values)
            ratio = middle / statistics.median(taken["FedAvg"])
            lines.append(
                f"| {words} | {name} | {middle * 1000:.2f} | {ratio:.3f} | {min(parts):.3f} to {max(parts):.3f} |"
            )
    shape = SHAPES["like HAR"]
    lines += ["", f"Network {list(shape.hidden)}, dropout {shape.dropout}, batch {shape.batch}, one epoch a round.", ""]
    for shape in SHAPES.values():
        plain, more = multiplications(shape)
        lines.append(
            f"{shape.name}: {plain:,} multiplications a row in FedAvg's matrix products, {more:,} more "
            f"for f_in's gradient under dropout: {1 + more / plain:.2f} times."
        )
    text = "\n".join(lines)
    print(text)
    out = args.out or Path(__file__).parent / "results" / f"ifedavg_cost_{args.device}.md"
    out.write_text(text + "\n")


if __name__ == "__main__":
    main()

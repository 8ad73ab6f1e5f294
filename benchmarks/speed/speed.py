"""Seconds per round: our engine against a plain loop, compiled JAX and Flower's simulation, in one run.

    python benchmarks/speed/speed.py                   # CPU: all rivals that are installed, growth from 10 to 1000 sites
    python benchmarks/speed/speed.py --device cuda     # one GPU: our engine and the plain loop there

Shape: 30 sites x 240 rows x 561 features, MLP 128-64, batch 16, one epoch a round, momentum SGD, dropout 0.2.
The rivals are in rivals.py. All take turns, and the table gives medians and ratios: the machine is noisy.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us

import rivals

from vitrail.core.task import Task
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import build
from vitrail.nets import MLP

SHAPE = rivals.Shape()


def make(sites: int = SHAPE.sites, device: str = "cpu") -> tuple[Task, Sites]:
    shape = rivals.Shape(sites=sites)
    x, y = rivals.make_data(shape, 0)
    net = MLP(shape.features, shape.classes, tuple(shape.hidden), shape.dropout)
    start = net.init(torch.Generator().manual_seed(0))
    task = Task(net, {k: v.to(device) for k, v in start.items()})
    hot = torch.nn.functional.one_hot(torch.from_numpy(y).long(), shape.classes).float()
    named = [(f"site {i}", torch.from_numpy(x[i]), hot[i], torch.ones(shape.rows, 1)) for i in range(sites)]
    return task, gather_sites(named).to(device)


def ours(
    rounds: int, device: str = "cpu", looped: bool = False, method: str = "fedavg", sites: int = SHAPE.sites
) -> list[float]:
    task, data = make(sites, device)
    # one learning rate throughout, as the rivals have
    training = Training(rounds + 3, 1, SHAPE.batch, SHAPE.lr, SHAPE.momentum, decays=0)
    engine = Engine(task, build(method), data, training, 1, looped=looped)
    seconds, last = [], time.perf_counter()
    for _ in engine.run():
        if device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    return seconds[3:]


def as_a_user(rounds: int, method: str = "fedavg") -> list[float]:
    """Rounds as `vt.federate` does them: tables in, scores of every site in every round."""
    import numpy as np
    import pandas as pd

    import vitrail as vt

    rng, rows = np.random.default_rng(0), 360  # of which 240 are trained on, as in the other entries
    names = [f"f{i}" for i in range(SHAPE.features)]
    sites = {}
    for i in range(SHAPE.sites):
        frame = pd.DataFrame(rng.standard_normal((rows, SHAPE.features)), columns=names)
        sites[f"site {i}"] = frame.assign(y=[f"class {k}" for k in rng.integers(0, SHAPE.classes, rows)])
    network = {"hidden": SHAPE.hidden, "dropout": SHAPE.dropout}
    training = {"rounds": rounds + 3, "batch": SHAPE.batch, "lr": SHAPE.lr, "momentum": SHAPE.momentum, "decays": 0}
    study = vt.Study.infer(sites, "y", network=network, training=training, split={"test": 1 / 3})
    times: list[float] = []
    asks = any(ex.consent for stage in build(method).plan(1) for ex in stage.exchanges)
    refuse = list(sites) if asks else []  # what comes after training is not a round
    vt.federate(study, sites, method, refuse=refuse, progress=lambda done, of: times.append(time.perf_counter()))
    return [b - a for a, b in itertools.pairwise(times)][3 : rounds + 2]


def many_sites(invited: int) -> dict[str, float]:
    """10,000 small sites of which some are asked in a round: the time of a round, and memory against the data."""
    sites, rows, features = 10_000, 60, 30
    g = torch.Generator().manual_seed(0)
    x = torch.randn(sites * rows, features, generator=g)
    y = torch.nn.functional.one_hot(torch.randint(0, 2, (sites * rows,), generator=g), 2).float()
    names = tuple(f"site {i:05d}" for i in range(sites))
    data = Sites(names, x, y, torch.ones(sites * rows, 1), (rows,) * sites)
    net = MLP(features, 2, (32, 16), 0.2)
    task = Task(net, net.init(torch.Generator().manual_seed(0)))
    ours(1, sites=2)  # what torch loads at first use is not the federation's
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    size, before = sum(t.numel() * 4 for t in (data.x, data.y, data.w)) / 1e6, _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    engine = Engine(task, build("fedavg", {"invited": invited}), data, Training(23, 1, SHAPE.batch, decays=0), 1)
    seconds, last = [], time.perf_counter()
    for _ in engine.run():
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    peak = (size + _resident("VmHWM") - before) / size
    return {"invited": invited, "ms": 1000 * statistics.median(seconds[3:]), "data_mb": size, "peak_over_data": peak}


def growth(device: str) -> list[dict[str, float]]:
    """Each size in a process of its own, so that peak memory is that size's."""
    out = []
    for sites in (10, 30, 100, 300, 1000):
        out.append(json.loads(_printed("--one-size", str(sites), "--device", device)))
    return out


def one_size(sites: int, device: str) -> dict[str, float]:
    """Time and memory of FedAvg at this size. Memory: resident, beyond what the process holds with the data loaded."""
    ours(1, device, sites=2)  # what torch loads at first use is not the federation's
    task, data = make(sites, device)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    size = data.x.numel() * data.x.element_size() / 1e6
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    training = Training(4, 1, SHAPE.batch, SHAPE.lr, SHAPE.momentum, decays=0)
    last, seconds = time.perf_counter(), []
    for _ in Engine(task, build("fedavg"), data, training, 1).run():
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    return {
        "sites": sites,
        "ms_per_site_round": 1000 * statistics.median(seconds[1:]) / sites,
        "data_mb": size,
        "peak_over_data": (size + _resident("VmHWM") - before) / size,
    }


def _resident(name: str) -> float:
    """MB of this process, from the kernel."""
    text = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(name))) * 1024 / 1e6


def entries(device: str, rounds: int) -> dict[str, Callable[[], list[float]]]:
    if device == "cuda":
        return {
            "vitrail": lambda: ours(200, "cuda"),
            "plain loop": lambda: rivals.plain_loop(SHAPE, 3, 1, "cuda"),
            "compiled JAX": lambda: rivals.jax_compiled(SHAPE, 50),
        }
    return {
        "vitrail": lambda: ours(rounds),
        "vitrail, looped": lambda: ours(rounds, looped=True),
        "vt.federate, FedAvg, scores in every round": lambda: as_a_user(rounds),
        "vt.federate, iFedAvg, scores in every round": lambda: as_a_user(rounds, "ifedavg"),
        "plain loop, 1 thread": lambda: rivals.plain_loop(SHAPE, rounds, 1),
        "plain loop, all threads": lambda: rivals.plain_loop(SHAPE, rounds, os.cpu_count() or 1),
        "stacked autograd (vmap of grad)": lambda: rivals.stacked_autograd(SHAPE, rounds),
        "compiled JAX (scan, vmap)": lambda: rivals.jax_compiled(SHAPE, rounds, tuned=False),
        "compiled JAX, tuned (a device for each core)": lambda: rivals.jax_compiled(SHAPE, rounds),
        "Flower simulation": lambda: rivals.flower_simulation(SHAPE, 4),
    }


def apart(name: str, device: str, rounds: int) -> float | None:
    """One entry in a process of its own: libraries that share one slow each other down. None if it is not installed."""
    command = [sys.executable, __file__, "--entry", name, "--device", device, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        if "ModuleNotFoundError" in done.stderr:
            return None
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="entries that contain one of these words, separated by commas")
    parser.add_argument("--no-growth", action="store_true")
    parser.add_argument("--one-size", type=int, default=0)
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--entry")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.one_size:
        print(json.dumps(one_size(args.one_size, args.device)))
        return
    if args.many:
        print(json.dumps(many_sites(args.many)))
        return
    runs = entries(args.device, args.rounds)
    if args.entry:
        print(statistics.median(runs[args.entry]()))
        return
    names = [k for k in runs if k == "vitrail" or not args.only or any(o in k for o in args.only.split(","))]
    seconds: dict[str, list[float]] = {k: [] for k in names}
    absent: set[str] = set()
    for turn in range(args.turns):
        for name in names:
            if name not in absent:
                if (value := apart(name, args.device, args.rounds)) is None:
                    absent.add(name)
                    continue
                seconds[name].append(value)
                print(f"turn {turn + 1}: {name} {value * 1000:.2f} ms", file=sys.stderr, flush=True)
    base = statistics.median(seconds["vitrail"])
    lines = [
        f"# Speed, {args.device}, {time.strftime('%Y-%m-%d')}",
        "",
        f"Machine: {machine(args.device)}. torch {torch.__version__}, Python {platform.python_version()}.",
        f"{SHAPE}; one epoch a round.",
        f"{args.turns} turns, each entry once a turn in a process of its own; median round, then median turn.",
        "",
        "| entry | ms per round | range over turns | times vitrail |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, values in seconds.items():
        if values:
            m = statistics.median(values)
            spread = f"{min(values) * 1000:.2f} to {max(values) * 1000:.2f}"
            lines.append(f"| {name} | {m * 1000:.2f} | {spread} | {m / base:.1f} |")
    lines += [f"\nNot installed, so not run: {name}." for name in sorted(absent)]
    if not args.no_growth and args.device == "cpu":
        lines += ["", "Growth at 240 rows a site, FedAvg:", ""]
        lines += [
            "| sites | ms per site and round | data, MB | peak memory / data |",
            "| ---: | ---: | ---: | ---: |",
        ]
        for row in growth(args.device):
            cells = (f"{row[k]:.{d}f}" for k, d in (("sites", 0), ("ms_per_site_round", 2), ("data_mb", 0)))
            lines.append(f"| {' | '.join(cells)} | {row['peak_over_data']:.2f} |")
        lines += ["", "10,000 sites x 60 rows x 30 features, MLP 32-16, some of them invited in a round:", ""]
        lines += ["| invited | ms a round | ms a site invited | data, MB | peak memory / data |"]
        lines += ["| ---: | ---: | ---: | ---: | ---: |"]
        for invited in (50, 100, 200, 400):
            row = json.loads(_printed("--many", str(invited)))
            ms = row["ms"]
            cells = (
                invited,
                f"{ms:.1f}",
                f"{ms / invited:.3f}",
                f"{row['data_mb']:.0f}",
                f"{row['peak_over_data']:.2f}",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    text = "\n".join(lines)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def _printed(*words: str) -> str:
    """By this script in a process of its own."""
    return subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True).stdout


def machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((x.split(":")[1].strip() for x in info.splitlines() if x.startswith("model name")), "CPU")
    return f"{model}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()

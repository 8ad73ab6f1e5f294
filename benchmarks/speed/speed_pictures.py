"""What pictures cost: a round of RIPFL against FedAvg's, FedAvg's step against a plain loop's, a whole study, memory.

    python benchmarks/speed/speed_pictures.py                   # 2 cores, a small shape
    python benchmarks/speed/speed_pictures.py --device cuda     # 30 sites, batches of 64

Pictures of 3 x 32 x 32 as uint8, the CNN of 2 convolutions and 3 linear layers, Adam. The plain loop is that of
benchmarks/speed/speed_modules.py; on CPU it also runs with a thread for each core, sites in turn. All entries of a table are
measured in one process, by turns; medians.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us

from speed_modules import CLASSES, SHAPE, STEPS, make_sites, plain_loop, wait

from vitrail.core.losses import CrossEntropy, Evidence
from vitrail.core.task import Task
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.engine.threads import threads
from vitrail.methods import build
from vitrail.nets import Module, cnn

Turn = Callable[[], float]


def engine(net: Module, sites: Sites, name: str, training: Training, device: str) -> Engine:
    start = {k: v.to(device) for k, v in net.init(torch.Generator().manual_seed(0)).items()}
    loss = Evidence(anneal=0) if name == "ripfl" else CrossEntropy()
    return Engine(Task(net, start, loss), build(name), sites.to(device), training, 1)


def rounds_of(net: Module, sites: Sites, name: str, batch: int, device: str, epochs: int = 1) -> Turn:
    """Milliseconds of a round, one after the other; a method whose rounds differ goes through them in turn."""
    training = Training(10_000, epochs, batch, 3e-4, decays=0, optimiser="adam", mean=True)
    going = engine(net, sites, name, training, device).run()

    def turn() -> float:
        begin = time.perf_counter()
        for _ in range(5):  # RIPFL's schedule
            next(going)
        wait(device)
        return (time.perf_counter() - begin) / 5 * 1e3

    return turn


def loop_on_all_cores(net: Module, sites: Sites, batch: int) -> Turn:
    """The plain loop, one site to a thread at a time."""
    modules = [net.make() for _ in sites.names]  # type: ignore[operator]
    rules = [torch.optim.Adam(m.parameters(), 3e-4, fused=True) for m in modules]
    labels = sites.y.argmax(1)
    pool = ThreadPoolExecutor(threads(), initializer=torch.set_num_threads, initargs=(1,))

    def site(i: int) -> None:
        for rows in (torch.randperm(sites.sizes[i]) + sites.starts[i]).split(batch):
            rules[i].zero_grad()
            torch.nn.functional.cross_entropy(modules[i](sites.x[rows].float() / 255), labels[rows]).backward()
            rules[i].step()

    def turn() -> float:
        begin = time.perf_counter()
        list(pool.map(site, range(len(modules))))
        return (time.perf_counter() - begin) / STEPS * 1e3

    return turn


def medians(entries: dict[str, Turn], turns: int, warm: int = 3) -> dict[str, float]:
    for turn in entries.values():
        for _ in range(warm):
            turn()
    took: dict[str, list[float]] = {k: [] for k in entries}
    for _ in range(turns):
        for k, turn in entries.items():
            took[k].append(turn())
    return {k: statistics.median(v) for k, v in took.items()}


def many(sites: Sites, by: int) -> Sites:
    """Each site's rows so many times."""
    named = []
    for name, first, size in zip(sites.names, sites.starts, sites.sizes, strict=True):
        x, y = (t[first : first + size].repeat(by, *[1] * (t.dim() - 1)) for t in (sites.x, sites.y))
        named.append((name, x, y, torch.ones(len(x), 1)))
    return gather_sites(named)


def memory(net: Module, sites: Sites, batch: int, device: str) -> tuple[float, float, float]:
    """Megabytes: of the uint8 pictures, of all sites' models with Adam's memory and gradient, and of a round's peak."""
    pictures = sites.x.numel() / 1e6
    size = sum(p.numel() for p in net.module.parameters())
    models = 4 * 4 * size * len(sites.names) / 1e6
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    turn = rounds_of(net, sites, "fedavg", batch, device)
    turn()
    if device == "cuda":
        return pictures, models, (torch.cuda.max_memory_allocated() - before) / 1e6
    return pictures, models, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    count, batch = (30, 64) if gpu else (6, 32)
    net, sites = cnn(SHAPE, CLASSES), make_sites(count, batch)
    name = torch.cuda.get_device_name() if gpu else f"{threads()} cores"
    lines = [
        f"# Pictures: what a round costs, {args.device}, {time.strftime('%Y-%m-%d')}",
        "",
        f"{name}, torch {torch.__version__}. {count} sites x batch {batch}, {STEPS} steps a round, CNN of "
        f"{sum(p.numel() for p in net.module.parameters()):,} parameters, uint8 pictures {SHAPE}; medians of "
        f"{args.turns}.",
        "",
    ]
    if gpu:
        torch.backends.cudnn.benchmark = True
    entries = {k: rounds_of(net, sites, k, batch, args.device) for k in ("fedavg", "ripfl")}
    loop = plain_loop(net, sites, batch, args.device)
    entries["plain loop"] = lambda: loop() * STEPS
    if not gpu:
        both = loop_on_all_cores(net, sites, batch)
        entries["plain loop, all cores"] = lambda: both() * STEPS
    found = medians(entries, args.turns)
    lines += ["| entry | a round, ms | times FedAvg's |", "| --- | ---: | ---: |"]
    lines += [f"| {k} | {v:.1f} | {v / found['fedavg']:.2f} |" for k, v in found.items()]
    if gpu:
        rows = make_sites(30, 64)
        begin = time.perf_counter()
        training = Training(200, 5, 64, 3e-4, decays=0, optimiser="adam", mean=True)
        for _ in engine(net, rows, "fedavg", training, "cuda").run():
            pass
        wait("cuda")
        took = time.perf_counter() - begin
        lines += ["", f"200 rounds x 5 epochs of FedAvg at 30 sites of {rows.sizes[0]} pictures: {took:.1f} s."]
    once, more = (memory(net, many(make_sites(count, batch), by), batch, args.device) for by in (2, 10))
    pictures, models, peak = more
    what = "of the device at most, more than before" if gpu else "of the whole process at most (torch alone: about 300)"
    growth = (peak - once[2]) / (pictures - once[0])
    lines += [
        "",
        f"Memory: pictures {pictures:.0f} MB, models with gradient and Adam's memory {models:.0f} MB; {peak:.0f} MB "
        f"{what}. With a fifth of the pictures {once[2]:.0f} MB: {growth:.2f} bytes for each byte of pictures; the "
        "rest is models and what one step of all sites has in hand.",
    ]
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

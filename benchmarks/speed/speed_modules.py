"""Milliseconds for one step of all sites, where the network is any torch module: ours against a plain loop, in one run.

    python benchmarks/speed/speed_modules.py                   # CPU, a small shape
    python benchmarks/speed/speed_modules.py --device cuda     # 30 sites, batches of 64, a CNN and a ResNet18

Pictures of 3 x 32 x 32 as uint8, cross-entropy, Adam, one epoch a round, no dropout. The plain loop is a module and a
fused torch.optim.Adam for each site, one after the other, with the rows on the device and no DataLoader. Both take
turns in one process; the table gives medians. FedAvg's averaging is in our time (a round over its steps), not in the
loop's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us

from vitrail.core.task import Task
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import build
from vitrail.nets import Module, cnn, resnet18

SHAPE, CLASSES, STEPS = (3, 32, 32), 10, 8


def make_sites(sites: int, batch: int) -> Sites:
    g, rows, named = torch.Generator().manual_seed(0), batch * STEPS, []
    for i in range(sites):
        x = torch.randint(0, 256, (rows, *SHAPE), generator=g, dtype=torch.uint8)
        y = torch.nn.functional.one_hot(torch.randint(0, CLASSES, (rows,), generator=g), CLASSES).float()
        named.append((f"site {i:02d}", x, y, torch.ones(rows, 1)))
    return gather_sites(named)


def ours(net: Module, sites: Sites, batch: int, device: str) -> Callable[[], float]:
    """A function that trains one round and gives the milliseconds of a step."""
    start = {k: v.to(device) for k, v in net.init(torch.Generator().manual_seed(0)).items()}
    training = Training(1000, 1, batch, 3e-4, decays=0, optimiser="adam", mean=True)
    rounds = Engine(Task(net, start), build("fedavg"), sites.to(device), training, 1).run()

    def turn() -> float:
        begin = time.perf_counter()
        next(rounds)
        wait(device)
        return (time.perf_counter() - begin) / STEPS * 1e3

    return turn


def plain_loop(net: Module, sites: Sites, batch: int, device: str) -> Callable[[], float]:
    modules = [net.make().to(device) for _ in sites.names]  # type: ignore[operator]
    rules = [torch.optim.Adam(m.parameters(), 3e-4, fused=True) for m in modules]
    x, labels = sites.x.to(device), sites.y.argmax(1).to(device)

    def turn() -> float:
        begin = time.perf_counter()
        for first, size, module, rule in zip(sites.starts, sites.sizes, modules, rules, strict=True):
            for rows in (torch.randperm(size, device=device) + first).split(batch)[: STEPS // 4]:
                rule.zero_grad()
                loss = torch.nn.functional.cross_entropy(module(x[rows].float() / 255), labels[rows])
                loss.backward()
                rule.step()
        wait(device)
        return (time.perf_counter() - begin) / (STEPS // 4) * 1e3

    return turn


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sites", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    count, batch = args.sites or (30 if gpu else 4), args.batch or (64 if gpu else 16)
    if gpu:
        torch.backends.cudnn.benchmark = True
    nets = {"CNN (2 conv + 3 linear)": cnn(SHAPE, CLASSES)}
    if gpu:
        nets["ResNet18 (GroupNorm)"] = resnet18(SHAPE, CLASSES)
    lines = [
        f"# A step of all sites with torch modules, {args.device}, {time.strftime('%Y-%m-%d')}",
        "",
        f"{torch.cuda.get_device_name() if gpu else 'CPU'}, torch {torch.__version__}. {count} sites x batch {batch}, "
        f"Adam, uint8 pictures {SHAPE}; medians of {args.turns} turns, TF32 as torch has it by default (convolutions).",
        "",
        "| network | parameters | vitrail, ms | plain loop, ms | times |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, net in nets.items():
        sites = make_sites(count, batch)
        entries = {"vitrail": ours(net, sites, batch, args.device), "loop": plain_loop(net, sites, batch, args.device)}
        for turn in entries.values():  # compilation, capture, first allocations
            for _ in range(3):
                turn()
        took: dict[str, list[float]] = {k: [] for k in entries}
        for _ in range(args.turns):
            for k, turn in entries.items():
                took[k].append(turn())
        a, b = (statistics.median(v) for v in took.values())
        size = sum(p.numel() for p in net.module.parameters())
        lines.append(f"| {name} | {size:,} | {a:.2f} | {b:.2f} | {b / a:.1f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

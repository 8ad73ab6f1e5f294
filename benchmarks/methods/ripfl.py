"""RIPFL and its rivals on 10,000 pictures of CIFAR-10: the paper's comparison, its parts one by one, what doubt knows.

    VITRAIL_DATA=... python benchmarks/methods/ripfl.py prepare scratch/ripfl.npz       # pictures and cuts as arrays
    python benchmarks/methods/ripfl.py run scratch/ripfl.npz --device cuda --budget 500 # torch and numpy are enough; resumes
    python benchmarks/methods/ripfl_report.py                                           # tables from what is in the cache

One table or figure of the paper at a time, with the learning rates that were chosen before (RIPFL's for its variants):

    ... run scratch/ripfl.npz --what table2 --device cuda --processes 12     # 15/5, 10/10, 5/15 of 30 sites, 6 classes
    ... run scratch/ripfl.npz --what figure4 --device cuda --processes 12    # 200 rounds, 50 sites, 6 classes
    ... run scratch/ripfl.npz --what figure5 --device cuda --processes 12    # lambda x sigma, 50 sites
    ... run scratch/ripfl.npz --what self --device cuda --processes 12       # its own model counted, or the others alone
    ... run scratch/ripfl.npz --what n50 --device cuda --processes 12        # 50 sites, 5 classes, three seeds, all ways
    VITRAIL_DATA=... python benchmarks/methods/ripfl.py prepare scratch/ripfl100.npz --set cifar100
    ... run scratch/ripfl100.npz --what cifar100 --device cuda --budget 550  # ResNet18, the paper's learning rate; resumes
    python benchmarks/methods/ripfl_figures.py                               # these tables, but n50: that is in ripfl_report

Where there is no GPU, --rounds and --epochs make all of it short; such runs stand in a cache of their own and show that
the program works, not which way is better:

    ... run scratch/ripfl.npz --what table2 --rounds 10 --epochs 1 --seeds 1
    python benchmarks/methods/ripfl_figures.py --short

CIFAR-100 with 30 sites, 40 rounds of 5 epochs is 600 steps of all sites and takes about 80 s on one H200, by the step
time in benchmarks/speed/results/speed_modules_h200.md; the paper has 200 rounds of 10 epochs on 60,000 pictures.

A finished run is a line of a file in --cache; a run that was stopped goes on with what is missing. First every way's
learning rate is chosen, and whether a site trains one more round alone in the end, on rows of the sites that are kept
out of training, under a seed of its own; then all ways train with theirs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing as mp
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us

from vitrail.core.exchange import Method
from vitrail.core.facts import OWN, RECEIVED
from vitrail.core.losses import CrossEntropy, Evidence, UncertaintyLoss
from vitrail.core.task import Task
from vitrail.core.tensors import clone
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import build
from vitrail.methods.fedavg import Own
from vitrail.nets import Module, cnn, resnet18

SIZES, SIGMAS, SEEDS = (10, 30, 50), (4, 5, 6), (1, 2, 3)
MIDDLE, TUNED_AT = 30, 5  # sites and classes of the parts, the attack and the tuning
TUNING = 100  # the seed that learning rates are chosen by
ASIDE = 0.2  # of a site's rows, there
SHAPE = (3, 32, 32)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
ROUNDS, TUNING_ROUNDS, EPOCHS, BATCH = 100, 50, 5, 64
ATTACKED = 0.2
WIDTH, UNITS = 6, (120, 84)  # of the network
MOMENTS = ("before", "after")  # one more round of training alone
RESULTS = Path(__file__).parent / "results" / "ripfl"
LAMS = (0.0, 0.1, 0.3, 1.0, 3.0)  # of figure 5: which the paper tried is in its drawing alone
CURVE_ROUNDS, POINTS = 200, 20  # of figure 4, and how often it is looked at
SETS = {"cifar10": (SIZES, SIGMAS), "cifar100": ((3, 30, 50), (40, 50, 60))}  # sites (3: to try it) and classes
PAPER_RATE, ROUNDS_100, EPOCHS_100 = 3e-4, 40, 5  # of CIFAR-100
FEW = 200  # pictures of a site that are told at a time


class Way(NamedTuple):
    title: str
    method: str
    given: dict[str, Any] = {}  # noqa: RUF012
    kl: float | None = None  # the weight of wrong evidence; None: cross-entropy
    rate_of: str = ""  # another way, whose learning rate it takes


WAYS = {
    "local": Way("Local", "local"),
    "fedavg": Way("FedAvg", "fedavg"),
    "fedprox": Way("FedProx", "fedprox", {"mu": 0.01}),
    "fedper": Way("FedPer", "fedper"),
    "apfl": Way("APFL", "apfl"),
    "moon": Way("MOON", "moon"),
    "cfl": Way("CFL", "cfl"),
    "apple": Way("APPLE", "apple"),
    "fed_rod": Way("Fed-RoD", "fed_rod"),
    "fine_tune": Way("FedAvg + fine-tuning", "fine_tune", {"epochs": 2}),
    "fine_head": Way("FedAvg + fine-tuning of the head", "fine_tune", {"epochs": 2, "part": "head"}),
    "ripfl": Way("RIPFL", "ripfl", kl=0.1),
    "evident": Way("FedAvg, evidence", "fedavg", kl=0.1),
    "evident_tune": Way("fine-tuning, evidence", "fine_tune", {"epochs": 2}, 0.1),
    "evident_head": Way("fine-tuning of the head, evidence", "fine_tune", {"epochs": 2, "part": "head"}, 0.1),
}
PARTS = {
    "lam 0": Way("nothing fused (lambda 0)", "ripfl", {"lam": 0.0}, 0.1, "ripfl"),
    "lam 1": Way("lambda 1", "ripfl", {"lam": 1.0}, 0.1, "ripfl"),
    "kl 0": Way("no KL", "ripfl", {}, 0.0, "ripfl"),
    "kl 1": Way("KL weight 1", "ripfl", {}, 1.0, "ripfl"),
    "ce": Way("cross-entropy for evidence", "ripfl", {"evidence": False}, None),
    "everyone": Way("everybody is chosen", "ripfl", {"selection": "all"}, 0.1, "ripfl"),
    "by lot": Way("chosen by lot", "ripfl", {"selection": "random"}, 0.1, "ripfl"),
    "unlike": Way("taken by lot, not by similarity", "ripfl", {"similarity": False}, 0.1, "ripfl"),
    "c fixed": Way("c = 5 for everyone", "ripfl", {"takes": 5}, 0.1, "ripfl"),
    "c all": Way("all chosen are taken", "ripfl", {"takes": 1000}, 0.1, "ripfl"),
    "rear 1": Way("all layers every round", "ripfl", {"rear": 1}, 0.1, "ripfl"),
    "schedule": Way("the schedule alone", "ripfl", {"lam": 0.0, "selection": "all", "takes": 1000}, 0.1, "ripfl"),
}
FIGURES = {  # variants of RIPFL in tables and figures of `--what`
    "others": Way("the remaining clients alone", "ripfl", {"count_self": False}, 0.1, "ripfl"),
    "10/10": Way(
        "10 of the better half, 10 of the poorer", "ripfl", {"drawn_sure": 2 / 3, "drawn": 2 / 3}, 0.1, "ripfl"
    ),
    "5/15": Way("5 of the better half, 15 of the poorer", "ripfl", {"drawn_sure": 1 / 3, "drawn": 1.0}, 0.1, "ripfl"),
    "lam 0.1": Way("lambda 0.1", "ripfl", {"lam": 0.1}, 0.1, "ripfl"),
    "lam 3": Way("lambda 3", "ripfl", {"lam": 3.0}, 0.1, "ripfl"),
}
RIVALS = ("fedavg", "fedper", "fedprox", "moon", "cfl", "fed_rod", "ripfl")  # of the paper that are shown everywhere
DOUBTED = ("ripfl", "evident_tune", "evident_head", "fedper", "fine_head")  # whose doubt is looked at


class Job(NamedTuple):
    kind: str  # tune, main, part, attack, varied; or what table or figure it is for
    way: str
    sites: int
    sigma: int
    seed: int
    lr: float = 0.0

    @property
    def name(self) -> str:
        return " ".join(map(str, self))


def ways() -> dict[str, Way]:
    return WAYS | PARTS | FIGURES


class Length(NamedTuple):
    """Of a run that is not as long as usual."""

    rounds: int | None = None
    epochs: int | None = None
    rows: int | None = None  # of a site, and pictures that it is judged by

    def of(self, job: Job) -> tuple[int, int]:
        """Rounds and local epochs."""
        usual = {"tune": TUNING_ROUNDS, "figure4": CURVE_ROUNDS, "cifar100": ROUNDS_100}.get(job.kind, ROUNDS)
        return self.rounds or usual, self.epochs or (EPOCHS_100 if job.kind == "cifar100" else EPOCHS)


def prepare(path: Path, which: str) -> None:
    """Pictures as [row, channel, height, width], and which rows each site holds."""
    import pandas as pd

    import vitrail as vt

    names = {"cifar10": "cifar10_8k_2k.npz", "cifar100": "cifar100_4500_1000.npz"}
    with np.load(Path(os.environ["VITRAIL_DATA"]) / f"{which}_subset" / names[which]) as z:
        found = {k: z[k] for k in ("x_train", "y_train", "x_test", "y_test")}
    arrays = {k: v.transpose(0, 3, 1, 2) if k[0] == "x" else v.astype(np.int64) for k, v in found.items()}
    labels = pd.DataFrame({"y": arrays["y_train"]})
    sizes, sigmas = SETS[which]
    for sites in sizes:
        for sigma in sigmas:
            for seed in (*SEEDS, TUNING):
                cut = vt.partition.sigma_classes(labels, "y", sites, sigma, seed)
                arrays |= {f"{sites} {sigma} {seed} {i}": f.index.to_numpy() for i, f in enumerate(cut.values())}
    for seed in SEEDS if which == "cifar10" else ():  # 2 to 6 classes a site, as many rows at each
        for i, rows in enumerate(varied(arrays["y_train"], MIDDLE, seed)):
            arrays[f"{MIDDLE} 0 {seed} {i}"] = rows
    np.savez_compressed(path, **arrays)


def varied(labels: np.ndarray, sites: int, seed: int, rows: int = 180) -> list[np.ndarray]:
    rng, classes = np.random.default_rng(seed), int(labels.max()) + 1
    while True:
        pools = {k: list(rng.permutation(np.flatnonzero(labels == k))) for k in range(classes)}
        held = [rng.choice(classes, 2 + i % 5, replace=False) for i in range(sites)]
        try:
            return [np.array([pools[k].pop() for k in own for _ in range(rows // len(own))]) for own in held]
        except IndexError:
            continue


class World:
    """A federation's rows on the device, and the pictures that each site is judged by."""

    def __init__(self, data: Any, job: Job, device: str, most: int | None = None) -> None:
        x, y = data["x_train"], data["y_train"]
        self.outputs = int(y.max()) + 1
        rng = np.random.default_rng([job.seed, job.sites, job.sigma])
        parts = [data[f"{job.sites} {job.sigma} {job.seed} {i}"] for i in range(job.sites)]
        self.classes = [np.unique(y[rows]) for rows in parts]
        named, kept = [], []
        for i, rows in enumerate(parts):
            rows = rng.permutation(rows)[:most]
            if job.kind == "tune":
                kept.append(rows[: int(ASIDE * len(rows))])
                rows = rows[int(ASIDE * len(rows)) :]
            labels = y[rows]
            if job.kind == "attack" and i < ATTACKED * job.sites:
                labels = rng.choice(self.classes[i], len(rows))
            hot = torch.nn.functional.one_hot(torch.from_numpy(labels), self.outputs).float()
            named.append((f"site {i:02d}", torch.from_numpy(x[rows]), hot, torch.ones(len(rows), 1)))
        self.sites = gather_sites(named).to(device)
        order = [int(name.split()[1]) for name in self.sites.names]
        self.classes = [self.classes[i] for i in order]
        self.honest = np.array([job.kind != "attack" or i >= ATTACKED * job.sites for i in order])
        if kept:
            self.seen = [(x[kept[i]], y[kept[i]]) for i in order]
        else:
            ex, ey = data["x_test"], data["y_test"]
            self.seen = [(ex[np.isin(ey, own)], ey[np.isin(ey, own)]) for own in self.classes]
            self.unseen = [(ex[~np.isin(ey, own)], ey[~np.isin(ey, own)]) for own in self.classes]
        self.seen = [(a[:most], b[:most]) for a, b in self.seen]
        self.device = device

    def padded(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[Tensor, Tensor, Tensor]:
        longest = max(len(y) for _, y in parts)
        x = torch.zeros(len(parts), longest, *SHAPE, dtype=torch.uint8)
        y = torch.full((len(parts), longest), -1)
        for i, (pictures, labels) in enumerate(parts):
            x[i, : len(labels)], y[i, : len(labels)] = torch.from_numpy(pictures), torch.from_numpy(labels)
        return x.to(self.device), y.to(self.device), (y >= 0).to(self.device)


def net_of(job: Job, classes: int) -> Module:
    net = resnet18(SHAPE, classes) if job.kind == "cifar100" else cnn(SHAPE, classes, WIDTH, UNITS)
    return dataclasses.replace(net, normalise="centred")


def carried_out(data: Any, job: Job, device: str, length: Length) -> dict[str, Any]:
    """Train, and score each site's model on pictures of its own classes: as it is after the last word, and after one
    more round of training alone; for figure 4 on the way, too."""
    way, world = ways()[job.way], World(data, job, device, length.rows)
    loss = CrossEntropy() if way.kl is None else Evidence(way.kl)
    net = net_of(job, world.outputs)
    start = {k: v.to(device) for k, v in net.init(torch.Generator().manual_seed(job.seed)).items()}
    rounds, epochs = length.of(job)
    training = Training(rounds, epochs, BATCH, job.lr, decays=0, mean=True, optimiser="adam", memory="own")
    engine = Engine(Task(net, start, loss), build(way.method, way.given), world.sites, training, job.seed)
    points = {round(rounds * (i + 1) / POINTS) for i in range(POINTS)} if job.kind == "figure4" else set()
    began, curve = time.perf_counter(), {}
    for r, last in enumerate(engine.run(), 1):
        if r in points:
            scores = judged(engine, last, world, training, job)
            curve[r] = {when: float(np.mean(scores[when])) for when in MOMENTS if when in scores}
    if device == "cuda":
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    found: dict[str, Any] = {"seconds": round(took, 2), "honest": world.honest.tolist()}
    found |= {"rounds": rounds, "epochs": epochs, **({"rows": length.rows} if length.rows else {})}
    found["classes"] = [len(c) for c in world.classes]
    found["bytes"] = int(sum(r["bytes"] for r in engine.ledger.rows()))
    found |= judged(engine, last, world, training, job)
    if curve:
        found["curve"] = curve
    if (
        job.kind in ("main", "varied", "attack")
        and job.way in DOUBTED
        and isinstance(engine.task.loss, UncertaintyLoss)
    ):
        settled, (x, y, real) = engine.settled(last), world.padded(world.seen)
        with torch.no_grad():
            z = engine.method.predict(engine.task, settled, x)
        found |= doubts(world, engine.task, lambda rows: engine.method.predict(engine.task, settled, rows), z, y, real)
    return found


def judged(engine: Engine, moment: Any, world: World, training: Training, job: Job) -> dict[str, list[float]]:
    """[site] before and after one more round of training alone, as far as there is such a model."""
    settled, method, task = engine.settled(moment), engine.method, engine.task
    (x, y, real), held = world.padded(world.seen), method.models(task, settled)

    def share(scores: Any) -> list[float]:
        with torch.no_grad():
            return right(torch.cat([scores(some) for some in x.split(FEW, 1)], 1), y, real)

    mine = share(lambda rows: method.predict(task, settled, rows))
    if RECEIVED in held:  # what a site predicts with is trained already
        return {"after": mine, "before": share(lambda rows: task.output(held[RECEIVED], rows))}
    if type(method).predict is not Method.predict:  # not one model, that could be trained
        return {"before": mine}
    further = one_more_round(task, held[OWN], world, training, job)
    return {"before": mine, "after": share(lambda rows: task.output(further, rows))}


def one_more_round(task: Task, params: Any, world: World, training: Training, job: Job) -> Any:
    alone = dataclasses.replace(training, rounds=1)
    local = Engine(task, build("local"), world.sites, alone, job.seed + 1000)
    moment = local.start()._replace(state=Own(clone(params), task.initial_state(params)))
    (last,) = local.run(moment)
    return last.state.params


def right(z: Tensor, y: Tensor, real: Tensor) -> list[float]:
    """[site]: the share of its pictures that are told right."""
    return (((z.argmax(-1) == y) & real).sum(1) / real.sum(1)).tolist()


def doubts(world: World, task: Task, predict: Any, z: Tensor, y: Tensor, real: Tensor) -> dict[str, Any]:
    """[site]: doubt on its own pictures, and how well it tells them from others: the share of pairs in order."""
    u, wrong = task.loss.uncertainty(z), z.argmax(-1) != y  # type: ignore[attr-defined]
    x, noise = world.padded(world.seen)[0], torch.Generator(device=world.device).manual_seed(0)
    spoilt = x.float() + 64 * torch.randn(x.shape, generator=noise, device=x.device)
    others = {"inverted": 255 - x, "noisy": spoilt.clamp(0, 255).to(torch.uint8)}
    with torch.no_grad():
        away, _, here = world.padded(world.unseen)
        strange = task.loss.uncertainty(predict(away))  # type: ignore[attr-defined]
        unlike = {k: task.loss.uncertainty(predict(rows)) for k, rows in others.items()}  # type: ignore[attr-defined]
    out: dict[str, Any] = {"doubt": [float(u[i][real[i]].mean()) for i in range(len(u))]}
    out["errors"] = [auroc(u[i][real[i]], wrong[i][real[i]]) for i in range(len(u))]
    for name, v, there in (("unseen", strange, here), *((k, v, real) for k, v in unlike.items())):
        pairs = [(u[i][real[i]], v[i][there[i]]) for i in range(len(u))]
        out[name] = [auroc(torch.cat(p), torch.arange(sum(map(len, p))).to(p[0].device) >= len(p[0])) for p in pairs]
    return out


def auroc(values: Tensor, odd: Tensor) -> float:
    """How often the odd one of a pair has the higher value; half for equal ones."""
    order = values.double().sort()
    _, at, count = torch.unique_consecutive(order.values, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1) / 2)[at]
    rank = torch.empty_like(rank).scatter_(0, order.indices, rank)
    n, m = int(odd.sum()), int((~odd).sum())
    return float((rank[odd].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def jobs(done: dict[str, Any]) -> list[Job]:
    """What is to be done next; the rest where learning rates are known."""
    tuned = [w for w, way in ways().items() if not way.rate_of]
    out = [Job("tune", w, MIDDLE, TUNED_AT, TUNING, lr) for w in tuned for lr in RATES]
    if len(chosen(done)) < len(tuned):
        return out
    pick = rates_of(done)
    for seed in SEEDS:
        out += [Job("main", w, MIDDLE, s, seed, pick[w]) for s in (4, 6) for w in WAYS]
        out += [Job("part", w, MIDDLE, s, seed, pick[w]) for s in (4, 6) for w in PARTS]
        out += [Job("attack", w, MIDDLE, 6, seed, pick[w]) for w in ("fedavg", "fine_head", "ripfl", "by lot")]
        out += [Job("varied", w, MIDDLE, 0, seed, pick[w]) for w in ("ripfl", "evident_head", "fedper")]
    for seed in SEEDS:
        rest = [(n, s) for n in SIZES for s in SIGMAS if (n, s) not in ((MIDDLE, 4), (MIDDLE, 6))]
        out += [Job("main", w, n, s, seed, pick[w]) for n, s in rest for w in WAYS]
    return out


def figure_jobs(what: str, rates: dict[str, float], seeds: tuple[int, ...], only: dict[str, Any]) -> list[Job]:
    """Runs of one table or figure; `only`: ways, sites and sigmas that are wanted, where not all are."""
    if what == "n50":
        cells = [("main", w, 50, TUNED_AT) for w in WAYS]
    elif what == "table2":
        cells = [(what, w, MIDDLE, 6) for w in ("ripfl", "10/10", "5/15")]
    elif what == "self":
        cells = [(what, w, MIDDLE, s) for s in (4, 6) for w in ("ripfl", "others")]
    elif what == "figure4":
        cells = [(what, w, 50, 6) for w in (*RIVALS, "apple", "fine_head")]
    elif what == "figure5":
        grid = ["ripfl" if lam == 0.3 else f"lam {lam:g}" for lam in LAMS]
        cells = [(what, w, 50, s) for s in SIGMAS for w in grid]
    else:
        cells = [
            (what, w, n, s) for n in SETS[what][0][1:] for s in SETS[what][1] for w in (*RIVALS, "local", "fine_head")
        ]
    if only["sites"]:
        cells = list(dict.fromkeys((k, w, only["sites"], s) for k, w, _, s in cells))
    cells = [c for c in cells if c[1] in (only["ways"] or (c[1],)) and c[3] in (only["sigmas"] or (c[3],))]
    return [Job(*c, seed, PAPER_RATE if what == "cifar100" else rates[c[1]]) for seed in seeds for c in cells]


def rates_of(done: dict[str, Any]) -> dict[str, float]:
    """way -> the learning rate it trains with, as far as that is known."""
    best = chosen(done)
    return {w: best[way.rate_of or w][0] for w, way in ways().items() if (way.rate_of or w) in best}


def chosen(done: dict[str, Any]) -> dict[str, tuple[float, str, float]]:
    """way -> the best learning rate, before or after one more round alone, and the score on the rows kept aside; of
    ways tried at every rate."""
    found: dict[str, list[tuple[float, str, float]]] = {}
    for told in done.values():
        job = Job(*told["job"])
        if job.kind == "tune":
            scores = [(job.lr, when, float(np.mean(told[when]))) for when in MOMENTS if when in told]
            found.setdefault(job.way, []).append(max(scores, key=lambda s: s[2]))
    return {w: max(tried, key=lambda s: s[2]) for w, tried in found.items() if len(tried) == len(RATES)}


def finished(cache: Path) -> dict[str, Any]:
    lines = [json.loads(line) for file in sorted(cache.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return {" ".join(map(str, told["job"])): told for told in lines}


def gather(cache: Path) -> None:
    """All that is known into one file."""
    done = finished(cache)
    files = list(cache.glob("*.jsonl"))
    whole = cache / "all.json.part"
    whole.write_text("".join(json.dumps(told) + "\n" for told in done.values()))
    for file in files:
        file.unlink()
    whole.rename(cache / "all.jsonl")


def work(path: Path, device: str, todo: Any, out: Path, until: float, length: Length) -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    with np.load(path) as z:
        data = {k: z[k] for k in z.files}
    while time.time() < until:
        try:
            job = todo.get(timeout=1)
        except Exception:  # nothing is left
            return
        try:
            told = carried_out(data, job, device, length)
        except Exception as error:
            print(f"{job.name}: {type(error).__name__}: {error}", flush=True)
            continue
        with out.open("a") as file:
            file.write(json.dumps({"job": list(job), **told}) + "\n")
        score = np.mean(told.get("after", told["before"]))
        print(f"{job.name}: {100 * score:.1f} in {told['seconds']} s", flush=True)


def run(path: Path, device: str, cache: Path, processes: int, budget: float, wanted: Any, length: Length) -> None:
    """`wanted`: of what is done, the jobs that are to be done."""
    until = time.time() + budget
    cache.mkdir(parents=True, exist_ok=True)
    while time.time() < until:
        done = finished(cache)
        missing = [j for j in wanted(done) if j.name not in done]
        print(f"{len(done)} done, {len(missing)} to do", flush=True)
        if not missing:
            return
        context = mp.get_context("spawn")
        todo = context.Queue()
        for job in missing:
            todo.put(job)
        stamp = int(time.time())
        files = [cache / f"{stamp}-{i}.jsonl" for i in range(processes)]
        workers = [context.Process(target=work, args=(path, device, todo, f, until, length)) for f in files]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        gather(cache)
        if len(finished(cache)) == len(done):
            return  # nothing more can be done


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["prepare", "run"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--set", choices=[*SETS], default="cifar10", help="of prepare")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, help="else results/ripfl, or results/ripfl_short for short runs")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds")
    parser.add_argument("--only", default="", help="kinds of jobs, separated by commas")
    parser.add_argument("--what", choices=["table2", "figure4", "figure5", "self", "n50", "cifar100"])
    parser.add_argument("--seeds", type=numbers, default=SEEDS)
    parser.add_argument("--ways", type=lambda text: tuple(text.split(",")), default=())
    parser.add_argument("--sites", type=int, default=0)
    parser.add_argument("--sigmas", type=numbers, default=())
    parser.add_argument("--rounds", type=int, help="fewer than usual: a short run")
    parser.add_argument("--epochs", type=int, help="likewise")
    parser.add_argument("--rows", type=int, help="of a site: likewise")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.data, args.set)
        return
    length, only = (
        Length(args.rounds, args.epochs, args.rows),
        {k: getattr(args, k) for k in ("ways", "sites", "sigmas")},
    )
    cache = args.cache or (RESULTS.with_name("ripfl_short") if any(length) else RESULTS)

    def wanted(done: dict[str, Any]) -> list[Job]:
        if args.what:
            return figure_jobs(args.what, rates_of(finished(RESULTS)), args.seeds, only)
        return [j for j in jobs(done) if not args.only or j.kind in args.only.split(",")]

    run(args.data, args.device, cache, args.processes, args.budget, wanted, length)


if __name__ == "__main__":
    main()

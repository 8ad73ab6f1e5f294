"""Does choosing whom to learn from, and how much, pay? Federations of which the truth is known, and real tables.

    VITRAIL_DATA=... python benchmarks/choose.py --jobs 2      # resumes; finished cases lie in --cache
    python benchmarks/choose.py --report                       # tables from what is there

First every way's learning rate (and what else is its own) is chosen on seeds that the comparison does not use, within
training rows: a third of them is held out, and the mean log loss of the sites counts. Then every way under every seed,
on the same rows, judged by the log loss on test rows that nobody trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process for each core

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import vitrail as vt
from vitrail.core.exchange import Rows
from vitrail.core.facts import CHOICE, GROUP
from vitrail.core.random import mixed
from vitrail.core.task import Task
from vitrail.core.tensors import each
from vitrail.data.encode import prepare
from vitrail.engines.local import Engine
from vitrail.engines.rounds import Training
from vitrail.engines.sites import gather_sites
from vitrail.methods.centres import Centres
from vitrail.nets import MLP

Array = NDArray[Any]
Case = dict[str, Any]
FIRST = 2001  # first seed of the comparison; seeds 1 and on are tuned with
ROUNDS, BATCH = 30, 32
TEST = 3000  # rows of a site in a world of our own
BEHIND = 2e-3  # nats that centres may be behind the best
HARM = 5e-3  # nats by which a site must be behind Local to count as harmed


class Site(NamedTuple):
    x: Array
    y: Array
    test_x: Array
    test_y: Array
    group: int = 0  # the truth, where there is one
    honest: bool = True  # whether its labels are right; only such sites are judged


class World(NamedTuple):
    """`groups` 0: as many as sites; spread: each site's own truth, around its group's; shift: features have another
    place and scale at each site; wrong: labels of every third site are turned round, or drawn by lot."""

    groups: int = 1
    spread: float = 0.0
    shift: bool = False
    wrong: str = ""
    sites: int = 12
    rows: tuple[int, int] = (60, 250)
    hidden: tuple[int, ...] = ()  # of the network; its truth then is one too
    table: str = ""  # rows of this table instead
    hard: bool = False  # whether there is somebody to find: groups or wrong labels


WORLDS = {
    "all alike": World(),
    "spread .2": World(spread=0.2),
    "spread .4": World(spread=0.4),
    "all different": World(0),
    "feature shift": World(shift=True),
    "two groups": World(2, hard=True),
    "two groups, spread .2": World(2, 0.2, hard=True),
    "three groups": World(3, hard=True),
    "a third turned round": World(wrong="turned", hard=True),
    "a third by lot": World(wrong="by lot", hard=True),
    "two groups of 4 sites": World(2, sites=8, rows=(60, 60), hard=True),
    "network, all alike": World(hidden=(16,)),
    "network, two groups": World(2, hidden=(16,), hard=True),
    "network, a third by lot": World(wrong="by lot", hidden=(16,), hard=True),
    "heart, 4 hospitals": World(table="heart"),
    "GUSTO, 16 regions": World(table="gusto"),
    "Titanic by age": World(table="titanic"),
    "Adult by occupation": World(table="occupation"),
    "Adult by relationship": World(table="relationship"),
    "pictures, 4 classes a site": World(table="cifar", sites=16, rows=(80, 240)),
    "pictures, two groups": World(2, table="cifar", rows=(80, 240), hard=True),
}
CONTROL = "two groups of 4 sites"  # METHODS: where Weight Erosion is known to win
RATES = [0.03, 0.1, 0.3, 1.0, 3.0]


class RandomCentres(Centres):
    """The simple rival with the same information: groups drawn by lot, everything else the same."""

    def nearest(self, losses: Tensor, rows: Rows) -> Tensor:
        first = next(iter(rows.blocks())).x[:, 0].flatten(1).double().sum(1)  # a site is known by its first row
        lot = mixed(first.view(torch.int64), torch.tensor(losses.shape[-1])) % losses.shape[-1]
        return lot.view(-1, *[1] * (losses.dim() - 2)).expand(losses.shape[:-1])


class Way(NamedTuple):
    title: str
    make: Callable[..., Any]
    grid: dict[str, list[Any]] = {}  # noqa: RUF012  beside the learning rate


def named(name: str, **always: Any) -> Callable[..., Any]:
    return lambda **given: vt.methods.build(name, {**always, **given})


WAYS = {
    "local": Way("Local", named("local")),
    "global": Way("Global", named("fedavg")),
    "fine_tune": Way("Fine-tuning", named("fine_tune"), {"epochs": [1, 3, 10, 30]}),
    "random": Way("Random centres", RandomCentres),
    "centres": Way("Centres", Centres),
    "two folds": Way("Centres, 2 folds", partial(Centres, folds=2)),
    "five folds": Way("Centres, 5 folds", partial(Centres, folds=5)),
    "one start": Way("Centres, 1 start", partial(Centres, starts=1)),
    "four starts": Way("Centres, 4 starts", partial(Centres, starts=4)),
    "no constants": Way("Centres without constants", partial(Centres, constant=False)),
    "erosion": Way(
        "Weight Erosion",
        named("weight_erosion", update="local", beside=False, p_s=0.0),
        {"p_d": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]},
    ),
}
RIVALS = ("local", "global", "fine_tune", "random")
PARTS = ("two folds", "five folds", "one start", "four starts", "no constants")  # at the learning rate of Centres
ORACLE = "oracle"  # FedAvg within the true groups, at Global's learning rate


def ways_of(world: str) -> list[str]:
    """Weight Erosion costs as many models as there are sites: it is tried where it is known to win."""
    return [w for w in WAYS if w not in PARTS and (w != "erosion" or world == CONTROL)]


# --- worlds ----------------------------------------------------------------------------------------------------------


def sites_of(world: World, seed: int) -> list[Site]:
    if world.table == "cifar":
        return pictures(world, seed)
    return tabled(world.table, seed) if world.table else drawn(world, seed)


def drawn(world: World, seed: int, columns: int = 10) -> list[Site]:
    g, n = np.random.default_rng([seed, 17]), world.sites
    truths = [truth(g, columns, bool(world.hidden)) for _ in range(world.groups or n)]
    out = []
    for i in range(n):
        group, bad = i % len(truths), bool(world.wrong) and i % 3 == 2
        own = world.spread * g.normal(size=columns)
        constant = 0.3 * g.normal() if world.spread else 0.0
        place, scale = np.zeros(columns), np.ones(columns)
        if world.shift:
            place, scale = 0.7 * g.normal(size=columns), np.exp(0.4 * g.normal(size=columns))
        many = int(np.exp(g.uniform(*np.log(world.rows))))
        x = place + scale * g.normal(size=(many + TEST, columns))
        y = (g.random(len(x)) < 1 / (1 + np.exp(-(truths[group](x) + x @ own + constant)))).astype(int)
        if bad:
            y[:many] = 1 - y[:many] if world.wrong == "turned" else g.integers(0, 2, many)
        out.append(Site(x[:many], y[:many], x[many:], y[many:], 1 if bad else group, not bad))
    return out


def truth(g: np.random.Generator, columns: int, network: bool) -> Callable[[Array], Array]:
    b, inner, outer = 0.8 * g.normal(size=columns), g.normal(size=(columns, 6)), 1.5 * g.normal(size=6)
    return (lambda x: np.tanh(x @ inner) @ outer) if network else (lambda x: x @ b)


@cache
def frames(name: str) -> dict[str, Any]:
    if name == "heart":
        return vt.datasets.heart_disease()
    if name == "gusto":
        return vt.datasets.gusto()
    if name == "titanic":
        return vt.cut.age_strict(vt.datasets.titanic())
    adult = vt.datasets.adult().drop(columns=["fnlwgt", "education", "country"])
    parts = {str(k): f.drop(columns=name) for k, f in adult.groupby(name) if len(f) > 600}
    return dict(sorted(parts.items()))


@cache
def study_of(name: str) -> vt.Study:
    target = {"heart": "disease", "gusto": "day30", "titanic": "survived"}.get(name, "target")
    study = vt.Study.infer(frames(name), target, network={"kind": "linear"}, standardise="global")
    share = 0.8 if target == "target" else 0.5
    return study.with_changes(training={"class_weights": "none"}, split={"test": share, "at_least": 1})


def tabled(name: str, seed: int) -> list[Site]:
    """At most 1000 rows of a site, drawn by the seed, and of these a half is tested on; of Adult four fifths."""
    some = {k: f.sample(min(len(f), 1000), random_state=seed) for k, f in frames(name).items()}
    made = prepare(some, study_of(name), seed)
    return [Site(*(np.asarray(a) for a in (s.train_x, s.train_y, s.test_x, s.test_y))) for s in made]


@cache
def features() -> tuple[Array, Array, Array, Array]:
    """CIFAR-10 through fixed features: 64 random patches, whitened, rectified, pooled to quarters; 40 components."""
    held = np.load(Path(os.environ["VITRAIL_DATA"]) / "cifar10_subset" / "cifar10_8k_2k.npz")
    g, size = np.random.default_rng(0), 6
    both = [torch.tensor(held[k]).float().view(-1, 32, 32, 3).permute(0, 3, 1, 2) / 255 for k in ("x_train", "x_test")]
    cut = torch.nn.functional.unfold(both[0][:400], size, stride=3).transpose(1, 2).flatten(0, 1)

    def level(p: Tensor) -> Tensor:
        return (p - p.mean(-1, keepdim=True)) / (p.std(-1, keepdim=True) + 0.05)

    patches = level(cut[torch.tensor(g.permutation(len(cut))[:4000])])
    mean, (values, axes) = patches.mean(0), torch.linalg.eigh(torch.cov(patches.T))
    white = (axes / (values + 0.1).sqrt()) @ axes.T
    filters = torch.nn.functional.normalize((patches[:64] - mean) @ white)

    def seen(x: Tensor) -> Tensor:
        out = []
        for part in x.split(250):
            found = (level(torch.nn.functional.unfold(part, size, stride=3).transpose(1, 2)) - mean) @ white @ filters.T
            found = torch.cat([(found - 0.5).relu(), (-found - 0.5).relu()], -1).transpose(1, 2).unflatten(2, (9, 9))
            out.append(torch.nn.functional.adaptive_avg_pool2d(found, 2).flatten(1))
        return torch.cat(out)

    train, test = (seen(x) for x in both)
    middle, scale = train.mean(0), train.std(0) + 1e-6
    train, test = (train - middle) / scale, (test - middle) / scale
    values, axes = torch.linalg.eigh(train.T @ train / len(train))
    turn = axes[:, -40:] / values[-40:].sqrt()
    return (train @ turn).numpy(), held["y_train"].astype(int), (test @ turn).numpy(), held["y_test"].astype(int)


def pictures(world: World, seed: int) -> list[Site]:
    """Of one group: each site has 4 of the 10 classes. Of two: all classes, and the second group names them anew."""
    (x, y, test_x, test_y), g = features(), np.random.default_rng([seed, 23])
    left = {c: list(g.permutation(np.flatnonzero(y == c))) for c in range(10)}
    names, out = g.permutation(10), []
    for i in range(world.sites):
        group, many = i % world.groups, int(g.integers(*world.rows))
        classes = np.arange(10) if world.groups > 1 else g.choice(10, 4, replace=False)
        take = [left[c].pop() for c in classes for _ in range(many // len(classes)) if left[c]]
        test = np.flatnonzero(np.isin(test_y, classes))
        said, asked = (names[v] if group else v for v in (y[take], test_y[test]))
        out.append(Site(x[take], said, test_x[test], asked, group))
    return out


# --- one case --------------------------------------------------------------------------------------------------------


def trained(world: World, sites: list[Site], method: Any, lr: float, seed: int) -> Case:
    """Log loss and accuracy on each site's test rows; for centres also what was chosen."""
    classes = 1 + max(int(s.y.max()) for s in sites)
    net = MLP(sites[0].x.shape[1], classes, world.hidden)
    names = [f"{i:02}" for i in range(len(sites))]
    rows = [(n, *tensors_of(s.x, s.y, classes), torch.ones(len(s.y), 1)) for n, s in zip(names, sites, strict=True)]
    training = Training(ROUNDS, 1, BATCH, lr, momentum=0.0, decays=20, mean=True)
    task = Task(net, net.init(torch.Generator().manual_seed(seed)))
    engine, facts = Engine(task, method, gather_sites(rows), training, seed), {}
    for moment in engine.run():
        facts |= {f.means: f.value.tolist() for f in moment.facts.values()}
    state = engine.settled(moment)
    loss, right = [], []
    for name, site in zip(names, sites, strict=True):
        at = engine.names.index(name)
        x, y = tensors_of(site.test_x, site.test_y, classes)
        z = method.predict(engine.task, each(lambda t: t[at : at + 1], state), x[None])[0].double()  # noqa: B023
        loss.append(float(-(z.log_softmax(-1) * y).sum(1).mean()))
        right.append(float((z.argmax(1) == y.argmax(1)).double().mean()))
    found = {}
    if CHOICE in facts:
        group = dict(zip(engine.names, facts[GROUP], strict=True))
        found = {"choice": facts[CHOICE], "group": [group[n] for n in names]}
    return {"loss": loss, "accuracy": right, **found}


def tensors_of(x: Array, y: Array, classes: int) -> tuple[Tensor, Tensor]:
    return torch.tensor(x).float(), torch.nn.functional.one_hot(torch.tensor(y).long(), classes).float()


def inner(sites: list[Site], seed: int) -> list[Site]:
    """Training rows only, a third of them to judge by."""
    out, g = [], np.random.default_rng([seed, 29])
    for s in sites:
        order = g.permutation(len(s.y))
        test, train = order[: len(order) // 3], order[len(order) // 3 :]
        out.append(s._replace(x=s.x[train], y=s.y[train], test_x=s.x[test], test_y=s.y[test]))
    return out


def mean_loss(case: Case, sites: list[Site]) -> float:
    return float(np.mean([v for v, s in zip(case["loss"], sites, strict=True) if s.honest]))


def settings(way: str) -> list[dict[str, Any]]:
    grid = {"lr": RATES, **WAYS[way].grid}
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tuned(job: Case) -> Case:
    world = WORLDS[job["world"]]
    sites = inner(sites_of(world, job["seed"]), job["seed"])
    tried = []
    for given in settings(job["way"]):
        lr, rest = given["lr"], {k: v for k, v in given.items() if k != "lr"}
        case = trained(world, sites, WAYS[job["way"]].make(**rest), lr, job["seed"])
        # every site counts, also those with wrong labels: who could say which they are?
        tried.append({**given, "loss": float(np.mean(case["loss"]))})
    return {"tried": tried}


def compared(job: Case) -> Case:
    world, given = WORLDS[job["world"]], dict(job["settings"])
    sites, lr = sites_of(world, job["seed"]), given.pop("lr")
    truths = {"truth": [s.group for s in sites], "honest": [s.honest for s in sites]}
    if job["way"] != ORACLE:
        return {**trained(world, sites, WAYS[job["way"]].make(**given), lr, job["seed"]), **truths}
    case: Case = {"loss": [0.0] * len(sites), "accuracy": [0.0] * len(sites)}
    for group in set(truths["truth"]):
        mine = [i for i, s in enumerate(sites) if s.group == group]
        part = trained(world, [sites[i] for i in mine], WAYS["global"].make(**given), lr, job["seed"])
        for what in case:
            for i, value in zip(mine, part[what], strict=True):
                case[what][i] = value
    return {**case, **truths}


# --- all cases -------------------------------------------------------------------------------------------------------


def place(job: Case, folder: Path) -> Path:
    """A case that was made with other settings is another case."""
    way = WAYS.get(job["way"], WAYS["global"])
    about = [job, WORLDS[job["world"]], way.grid, RATES, ROUNDS, BATCH, TEST, asdict(Centres())]
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:10]
    return folder / f"{job['step']}-{job['way']}-{job['seed']}-{mark}.json"


def work(job: Case, folder: Path) -> None:
    torch.set_num_threads(1)
    began = time.process_time()
    done = (tuned if job["step"] == "tune" else compared)(job)
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    path = place(job, folder)
    path.with_suffix(".tmp").write_text(json.dumps({**job, **done, "where": where, "s": time.process_time() - began}))
    path.with_suffix(".tmp").replace(path)


def read(jobs: Iterable[Case], folder: Path) -> list[Case]:
    return [json.loads(path.read_text()) for job in jobs if (path := place(job, folder)).exists()]


def best(cases: list[Case], way: str) -> dict[str, Any]:
    """The setting with the lowest mean over the tuning seeds; the first of equals."""
    table = [[row["loss"] for row in c["tried"]] for c in cases]
    return settings(way)[int(np.nan_to_num(np.mean(table, 0), nan=np.inf).argmin())]


def plan(worlds: list[str], folder: Path, seeds: int, tuning: int, parts: bool) -> dict[str, list[Case]]:
    """What is to be done; the comparison only where tuning is done."""
    tune = [
        {"step": "tune", "world": world, "way": way, "seed": s}
        for s, world in itertools.product(range(1, 1 + tuning), worlds)
        for way in ways_of(world)
    ]
    compare = []
    for world in worlds:
        chosen = {}
        for way in ways_of(world):
            done = read([j for j in tune if (j["world"], j["way"]) == (world, way)], folder)
            if len(done) == tuning:
                chosen[way] = best(done, way)
        if WORLDS[world].hard and "global" in chosen:
            chosen[ORACLE] = chosen["global"]
        if parts and "centres" in chosen and not WORLDS[world].table:
            chosen |= dict.fromkeys(PARTS, chosen["centres"])
        for s, (way, given) in itertools.product(range(FIRST, FIRST + seeds), chosen.items()):
            compare.append({"step": "compare", "world": world, "way": way, "seed": s, "settings": given})
    return {"tune": tune, "compare": sorted(compare, key=lambda j: j["seed"])}


def carry_out(jobs: list[Case], folder: Path, processes: int) -> None:
    todo, began = [j for j in jobs if not place(j, folder).exists()], time.time()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for n, future in enumerate(as_completed([pool.submit(work, job, folder) for job in todo]), 1):
            future.result()
            if n % 20 == 0 or n == len(todo):
                print(f"{n} of {len(todo)} after {time.time() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--worlds", help="names, separated by semicolons; all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument("--parts", action="store_true", help="also what folds, starts and constants cost and bring")
    parser.add_argument("--cache", type=Path, default=Path("scratch/choose"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "choose.md")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    worlds = args.worlds.split(";") if args.worlds else list(WORLDS)
    if unknown := [w for w in worlds if w not in WORLDS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(WORLDS)}")
    args.cache.mkdir(parents=True, exist_ok=True)
    for step in () if args.report else ("tune", "compare"):  # the second rests on what the first has found
        carry_out(plan(worlds, args.cache, args.seeds, args.tuning_seeds, args.parts)[step], args.cache, args.jobs)


if __name__ == "__main__":
    main()

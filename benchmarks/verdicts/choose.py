"""Does choosing whom to learn from, and how much, pay? Federations of which the truth is known, and real tables.

    VITRAIL_DATA=... python benchmarks/verdicts/choose.py --jobs 2      # resumes; finished cases lie in --cache
    python benchmarks/verdicts/choose.py --report                       # tables from what is there

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
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process for each core

import numpy as np
import torch
from torch import Tensor
from worlds import TEST, WORLDS, Array, Site, World, sites_of

import vitrail as vt
from vitrail.core.exchange import Rows, Stage
from vitrail.core.facts import CHOICE, GROUP
from vitrail.core.random import mixed
from vitrail.core.task import Task
from vitrail.core.tensors import map_tensors
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.centre_stages import CentreOffer, ChooseCentres, State
from vitrail.methods.centres import Centres
from vitrail.nets import MLP
from vitrail.stats.intervals import interval

Case = dict[str, Any]
FIRST = 4001  # first seed of the comparison; seeds 1 and on are tuned with
ROUNDS, BATCH = 30, 32
BEHIND = 2e-3  # nats that centres may be behind the best
HARM = 5e-3  # nats by which a site must be behind Local to count as harmed


CONTROL = "two groups of 4 sites"  # in which Weight Erosion is known to win
RATES = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


class RandomCentres(Centres):
    """The simple rival with the same information: groups drawn by lot, everything else the same."""

    def nearest(self, losses: Tensor, rows: Rows) -> Tensor:
        first = next(iter(rows.blocks())).x[:, 0].flatten(1).double().sum(1)  # a site is known by its first row
        lot = mixed(first.view(torch.int64), torch.tensor(losses.shape[-1])) % losses.shape[-1]
        return lot.view(-1, *[1] * (losses.dim() - 2)).expand(losses.shape[:-1])


class Selfish(ChooseCentres):
    def settle(self, task: Task, state: State, down: CentreOffer) -> State:
        return super().settle(task, state, down._replace(choice=state.losses.flatten(1).argmin(1)))


class OwnChoice(Centres):
    """Every site chooses for itself, by its own losses."""

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        first, choose, show = super().plan(rounds)
        return first, choose._replace(exchanges=(Selfish(self),)), show


class Way(NamedTuple):
    title: str
    make: Callable[..., Any]
    grid: dict[str, list[Any]] = {}  # noqa: RUF012  beside the learning rate


def named(name: str, **always: Any) -> Callable[..., Any]:
    return lambda **given: vt.methods.build(name, {**always, **given})


WAYS = {
    "local": Way("Local", named("local")),
    "global": Way("Global", named("fedavg")),
    "fine_tune": Way("Fine-tuning", named("fine_tune"), {"epochs": [1, 3, 10, 30, 100]}),
    "random": Way("Random centres", RandomCentres),
    "centres": Way("Centres", Centres),
    "two folds": Way("2 folds", partial(Centres, folds=2)),
    "five folds": Way("5 folds", partial(Centres, folds=5)),
    "one start": Way("1 start", partial(Centres, starts=1)),
    "four starts": Way("4 starts", partial(Centres, starts=4)),
    "half": Way("groups part half-way", partial(Centres, warm=0.5)),
    "no constants": Way("without constants", partial(Centres, constant=False)),
    "head": Way("only the last layer differs", partial(Centres, split="head")),
    "own choice": Way("each site chooses", OwnChoice),
    "erosion": Way(
        "Weight Erosion",
        named("weight_erosion", update="local", beside=False, p_s=0.0),
        {"p_d": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]},
    ),
}
RIVALS = ("local", "global", "fine_tune", "random")
# at the learning rate of Centres
PARTS = ("two folds", "five folds", "one start", "four starts", "half", "no constants", "head", "own choice")
ORACLE = "oracle"  # FedAvg within the true groups, at the learning rate of Centres


def ways_of(world: str) -> list[str]:
    """Weight Erosion costs as many models as there are sites: it is tried where it is known to win."""
    return [w for w in WAYS if w not in PARTS and (w != "erosion" or world == CONTROL)]


# --- one case --------------------------------------------------------------------------------------------------------


def engine_of(world: World, sites: list[Site], method: Any, lr: float, seed: int) -> tuple[Engine, list[str], int]:
    """As every way trains; the names of sites in the world's order, and how many classes there are."""
    classes = 1 + max(int(s.y.max()) for s in sites)
    net = MLP(sites[0].x.shape[1], classes, world.hidden)
    names = [f"{i:02}" for i in range(len(sites))]
    rows = [(n, *tensors_of(s.x, s.y, classes), torch.ones(len(s.y), 1)) for n, s in zip(names, sites, strict=True)]
    training = Training(ROUNDS, 1, BATCH, lr, momentum=0.0, decays=20, mean=True)
    task = Task(net, net.init(torch.Generator().manual_seed(seed)))
    return Engine(task, method, gather_sites(rows), training, seed), names, classes


def trained(world: World, sites: list[Site], method: Any, lr: float, seed: int) -> Case:
    """Log loss and accuracy on each site's test rows; for centres also what was chosen."""
    (engine, names, classes), facts = engine_of(world, sites, method, lr, seed), {}
    for moment in engine.run():
        facts |= {f.means: f.value.tolist() for f in moment.facts.values()}
    state = engine.settled(moment)
    loss, right = [], []
    for name, site in zip(names, sites, strict=True):
        at = engine.names.index(name)
        x, y = tensors_of(site.test_x, site.test_y, classes)
        z = method.predict(engine.task, map_tensors(lambda t: t[at : at + 1], state), x[None])[0].double()  # noqa: B023
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


def settings(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tuned(job: Case) -> Case:
    world = WORLDS[job["world"]]
    sites = inner(sites_of(world, job["seed"]), job["seed"])
    tried = []
    for given in settings(job["grid"]):
        case = trained(world, sites, WAYS[job["way"]].make(**given), job["lr"], job["seed"])
        # every site counts, also those with wrong labels: who could say which they are?
        tried.append({"lr": job["lr"], **given, "loss": float(np.mean(case["loss"]))})
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
    ours = asdict(Centres()) if job["way"] in ("centres", "random", *PARTS) else {}
    about = [job, WORLDS[job["world"]], ROUNDS, BATCH, TEST, ours]
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


def best(cases: list[Case]) -> dict[str, Any]:
    """The setting with the lowest mean over the tuning seeds; the first of equals."""
    found: dict[tuple[tuple[str, Any], ...], list[float]] = {}
    for row in (row for c in cases for row in c["tried"]):
        found.setdefault(tuple((k, v) for k, v in row.items() if k != "loss"), []).append(row["loss"])
    return dict(min(found, key=lambda given: float(np.nan_to_num(np.mean(found[given]), nan=np.inf))))


def plan(worlds: list[str], folder: Path, seeds: int, tuning: int, parts: bool) -> dict[str, list[Case]]:
    """What is to be done; the comparison only where tuning is done."""
    tune = [
        {"step": "tune", "world": world, "way": way, "seed": s, "lr": lr, "grid": WAYS[way].grid}
        for s, world in itertools.product(range(1, 1 + tuning), worlds)
        for way, lr in itertools.product(ways_of(world), RATES)
    ]
    compare = []
    for world in worlds:
        chosen = {}
        for way in ways_of(world):
            done = read([j for j in tune if (j["world"], j["way"]) == (world, way)], folder)
            if len(done) == tuning * len(RATES):
                chosen[way] = best(done)
        if WORLDS[world].hard and "centres" in chosen:
            chosen[ORACLE] = chosen["centres"]
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


# --- the report ------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """One world, under the seeds that every way has."""

    world: str
    seeds: list[int]
    runs: dict[str, list[Case]]

    @property
    def best(self) -> str:
        """Of the rivals, by the mean; picked after the fact."""
        return min(RIVALS, key=lambda w: float(self.losses(w).mean()))

    def losses(self, way: str, what: str = "loss") -> Array:
        """[seed]: mean over honest sites."""
        return np.array([np.mean(np.array(c[what])[c["honest"]]) for c in self.runs[way]])

    def harmed(self, way: str) -> float:
        """The share of honest sites that Local would have served better, by more than HARM."""
        pairs = zip(self.runs[way], self.runs["local"], strict=True)
        return float(np.mean([(np.array(a["loss"]) - b["loss"] > HARM)[a["honest"]].mean() for a, b in pairs]))

    def gain(self, rival: str, way: str = "centres", what: str = "loss") -> tuple[float, float, float]:
        """How much lower than the rival's, paired by seed; 95 % interval, widened where seeds share rows."""
        share = {"": 0.0, "occupation": 0.8, "relationship": 0.8, "cifar": 0.2}.get(WORLDS[self.world].table, 0.5)
        return interval((self.losses(rival, what) - self.losses(way, what)).tolist(), share)

    def choices(self) -> str:
        told = [c["choice"] for c in self.runs["centres"]]
        many = ", ".join(f"{int(k)}: {sum(t[0] == k for t in told)}" for k in sorted({t[0] for t in told}))
        constants = sum(t[1] for t in told) / len(told)
        return f"{many} | {100 * constants:.0f} % | {np.mean([t[2] for t in told]):.2f}"

    def apart(self) -> str:
        """In how many seeds no two sites of different truth share a group."""
        if not WORLDS[self.world].hard:
            return ""
        clean = 0
        for c in self.runs["centres"]:
            pairs = itertools.combinations(zip(c["group"], c["truth"], strict=True), 2)
            clean += not any(a[0] == b[0] and a[1] != b[1] for a, b in pairs)
        return f"{clean} of {len(self.seeds)}"


def gather(plans: dict[str, list[Case]], folder: Path, parts: bool = False) -> list[Result]:
    """Worlds in which every way is there; with `parts`, also its parts, under the seeds that they have."""
    out = []
    for world in dict.fromkeys(j["world"] for j in plans["compare"]):
        jobs = [j for j in plans["compare"] if j["world"] == world and (parts or j["way"] not in PARTS)]
        done: dict[str, dict[int, Case]] = {}
        for c in read(jobs, folder):
            done.setdefault(c["way"], {})[c["seed"]] = c
        if set(done) != {j["way"] for j in jobs}:
            continue
        seeds = sorted(set.intersection(*(set(v) for v in done.values())))
        if len(seeds) > 1:
            out.append(Result(world, seeds, {w: [v[s] for s in seeds] for w, v in done.items()}))
    return out


def milli(told: tuple[float, float, float]) -> str:
    """In thousandths, bold where the interval excludes zero."""
    mean, low, high = (1000 * v for v in told)
    text = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def rows_of(head: list[str], lines: Iterable[list[str]]) -> list[str]:
    marks = ["---", *["---:"] * (len(head) - 1)]
    return ["", *("| " + " | ".join(line) + " |" for line in (head, marks, *lines)), ""]


def verdicts(results: list[Result]) -> list[str]:
    hard, easy = ([r for r in results if WORLDS[r.world].hard is h] for h in (True, False))
    wins = {r.world: [w for w in RIVALS if r.gain(w)[1] <= 0] for r in hard}
    lines = [
        f"- Somebody to find (hidden groups, wrong labels), {len(hard)} worlds. Better than all four rivals, interval"
    ]
    lines[0] += f" above 0: {sum(not v for v in wins.values())}. "
    lines[0] += "; ".join(f"not in *{w}* against {', '.join(WAYS[x].title for x in v)}" for w, v in wins.items() if v)
    behind = {r.world: -r.gain(r.best)[0] for r in easy}
    late = {w: v for w, v in behind.items() if v > BEHIND}
    lines.append(f"- All others, {len(easy)} worlds. At most {1000 * BEHIND:g}e-3 nats behind the best of the four:")
    lines[1] += f" {len(easy) - len(late)}. " + "; ".join(f"not in *{w}*, {1000 * v:.1f}e-3" for w, v in late.items())
    for way in (*RIVALS, "centres"):
        regret = [float(r.losses(way).mean() - min(r.losses(w).mean() for w in RIVALS)) for r in results]
        lines.append(f"- {WAYS[way].title}: over all worlds {1000 * np.mean(regret):+.1f}e-3 nats from the best of the")
        harm = 100 * np.mean([r.harmed(way) for r in results])
        lines[-1] += f" four in each, at worst {1000 * max(regret):+.1f}e-3; {harm:.0f} % of sites harmed."
    return lines


def write(plans: dict[str, list[Case]], folder: Path, out: Path) -> None:
    results, done = gather(plans, folder), [c for jobs in plans.values() for c in read(jobs, folder)]
    lines = [f"# Choosing whom to learn from, and how much, {time.strftime('%Y-%m-%d')}", "", SETTINGS, ""]
    lines += [
        f"CPU minutes: {sum(c['s'] for c in done) / 60:.0f}. On: {'; '.join(sorted({c['where'] for c in done}))}."
    ]
    lines += ["", "## In short", "", *verdicts(results), "", "## Log loss, mean over sites and seeds"]
    ways = [*RIVALS, "centres"]
    head = ["world", "seeds", *(WAYS[w].title for w in ways), "true groups"]
    table = [
        [r.world, str(len(r.seeds)), *(f"{r.losses(w).mean():.4f}" if w in r.runs else "" for w in (*ways, ORACLE))]
        for r in results
    ]
    lines += [*rows_of(head, table), "## Centres: 1e-3 nats lower than", ""]
    lines += [
        "Paired by seed, 95 % interval in brackets, bold where it excludes 0; last, lower than the best of the four."
    ]
    table = [[r.world, *(milli(r.gain(w)) for w in RIVALS), milli(r.gain(r.best)), WAYS[r.best].title] for r in results]
    lines += rows_of(["world", *(WAYS[w].title for w in RIVALS), "the best of them", "which"], table)
    lines += ["## What was chosen, and who was harmed", ""]
    lines += [
        f"Harmed: share of sites more than {1000 * HARM:g}e-3 nats behind Local. Apart: no two sites of different"
    ]
    lines += ["truth in one group."]
    head = ["world", "groups: seeds", "constants", "alpha", "apart", *(f"harmed, {WAYS[w].title}" for w in ways[1:])]
    table = [
        [r.world, *r.choices().split(" | "), r.apart(), *(f"{100 * r.harmed(w):.0f} %" for w in ways[1:])]
        for r in results
    ]
    lines += rows_of(head, table)
    if some := [r for r in gather(plans, folder, parts=True) if set(PARTS) <= set(r.runs)]:
        lines += ["## What each part brings: 1e-3 nats lower than Centres as it is (3 folds, 2 starts, one choice)"]
        table = [[r.world, str(len(r.seeds)), *(milli(r.gain("centres", w)) for w in PARTS)] for r in some]
        lines += rows_of(["world", "seeds", *(WAYS[w].title for w in PARTS)], table)
    for r in (r for r in results if "erosion" in r.runs):
        lines += [f"## Weight Erosion's positive control: {r.world}, 60 rows each", "", "Accuracy, in thousandths:"]
        table = []
        for w in (*ways, "erosion"):
            gains = [milli(r.gain(w, y, "accuracy")) if w != y else "" for y in ("global", "local")]
            table.append([WAYS[w].title, f"{r.losses(w, 'accuracy').mean():.3f}", *gains])
        lines += rows_of(["way", "accuracy", "less Global", "less Local"], table)
    lines += ["## Tuned", ""]
    ends = []
    for r in results:
        given = {w: r.runs[w][0]["settings"] for w in r.runs if w not in (*PARTS, ORACLE)}
        for w, values in given.items():
            grid = {"lr": RATES, **WAYS[w].grid}
            ends += [
                f"{WAYS[w].title} {k} {v:g} ({r.world})" for k, v in values.items() if v in (grid[k][0], grid[k][-1])
            ]
        told = (f"{WAYS[w].title} {', '.join(f'{k} {v:g}' for k, v in values.items())}" for w, values in given.items())
        lines.append(f"- {r.world}: {'; '.join(told)}")
    lines += ["", f"At an end of its grid: {'; '.join(ends) or 'none'}."]
    out.write_text("\n".join(lines) + "\n")
    print(out)


SETTINGS = """\
Written by `benchmarks/verdicts/choose.py`. Worlds of our own: logistic truths over 10 features, 12 sites of 60 to 250 rows, 3000
test rows each; *network*: the truth is a small tanh network, the model an MLP of 16 units. Tables: linear models on
features standardised over all sites, at most 500 rows of a site, half of them test rows (Adult: 1000, four fifths).
Pictures: CIFAR-10 through fixed random-patch features, 4 classes a site, or two groups that name the classes
differently. Everyone trains 30 rounds of one epoch, batches of 32, mean loss, no momentum, the rate times .9 twenty
times. Every way's learning rate, and fine-tuning's epochs, are tuned alike within training rows of two other seeds.
Random centres: groups by lot, all else as Centres. True groups: FedAvg within them, at Centres' rate. Only sites with
right labels are judged. Earlier comparisons (seeds 2001 and 3001 and on) led to changes of the method
(docs/decisions/017-centres.md); these seeds did not."""


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
    write(plan(worlds, args.cache, args.seeds, args.tuning_seeds, args.parts), args.cache, args.out)


if __name__ == "__main__":
    main()

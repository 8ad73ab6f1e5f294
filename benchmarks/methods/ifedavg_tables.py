"""The iFedAvg paper's comparison on the data we have: Local, Centralized, FedAvg, FedAvg with fine-tuning, APFL, iFedAvg
(f_out off and on).

    VITRAIL_DATA=... python benchmarks/methods/ifedavg_tables.py prepare scratch/tables.npz     # tables as arrays
    python benchmarks/methods/ifedavg_tables.py estimate scratch/tables.npz --data har           # how long it would take
    python benchmarks/methods/ifedavg_tables.py run scratch/tables.npz                           # torch and numpy are enough
    python benchmarks/methods/ifedavg_tables.py run scratch/tables.npz --device cuda
    python benchmarks/methods/ifedavg_tables.py run scratch/tables.npz --memory own --out ...    # today's default
    python benchmarks/methods/ifedavg_tables.py report scratch/tables.npz                        # from what is in the cache

A finished run (data, method, seed) is a file in the cache; a run that was stopped goes on with what is missing. CPU: a
process for each core, one thread each. Seeds that share a run are stacked as further sites of it: all five on a GPU or
where a batch is little work (small network, Centralized), else one at a time. A seed's start, rows and batches are
drawn from names that hold the seed, so its result is the same in a stack as alone, up to rounding.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import multiprocessing as mp
import os
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us

from vitrail.core.random import key
from vitrail.core.task import Task
from vitrail.core.tensors import clone, flatten, map_tensors, per_site, to_all, unflatten
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import TABLE, AnyMethod, build
from vitrail.methods.fedavg import Shared
from vitrail.metrics.scores import score
from vitrail.nets import MLP

SEEDS = (2934384, 10231938, 8273, 2019231, 62739)
METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "centralized": {},
    "fedavg": {},
    "fine_tune": {},
    "apfl": {"adaptive": False},
    "ifedavg": {},
    "ifedavg+out": {"output": "each"},
}
METRICS = ("f1", "auc", "balanced_accuracy")
SHIFT, SCALE = 1.5, 0.5  # `vehicle shifted x1`; x2 and x3 are two and three times as strong
GAIN = 1.0  # `vehicle gain x1`
SHIFTED = ("vehicle shifted x1", "vehicle shifted x2", "vehicle shifted x3")
LATER = ("vehicle one shifted x1", "vehicle one shifted x2", "har shifted x1")  # set up after the above was seen
LAST = ("vehicle gain x1", "vehicle gain x2", "vehicle one turned x1", "vehicle turned x1")  # after these six
DATA = ("har", "vehicle", *SHIFTED, *LATER, *LAST, "heart", "gusto")
ROUNDS = {"gusto": 100}  # the others: 1000. A round of GUSTO has up to 182 batches a site, one of vehicle at most 23
ENOUGH = 60  # rows of a site whose score is more than noise
PUBLISHED = {  # F1 mean, F1 worst; the paper's tables 1 and 2
    "har": {"local": (0.993, 0.974), "centralized": (0.988, 0.955), "fedavg": (0.967, 0.909), "apfl": (0.992, 0.972)}
    | {"ifedavg": (0.994, 0.950)},
    "vehicle": {"local": (0.939, 0.884), "centralized": (0.943, 0.834), "fedavg": (0.871, 0.398)}
    | {"apfl": (0.935, 0.874), "ifedavg": (0.928, 0.874)},
}
SETTINGS = f"""\
Settings of the paper's appendix A.3: MLP 128-64 tanh, dropout 0.2, SGD 0.002 decayed by 0.9 fifty times over the
rounds, momentum 0.5 (none for APFL, whose alpha stays 0.5), one local epoch a round, batches of 16, loss summed over
the batch and class-weighted (inverse prevalence at the site; Centralized: of all rows), sites weighted equally.
Seeds {", ".join(map(str, SEEDS))} for split, start, batches and dropout. Hold-out: a third of each site, at least 100
rows where that is not more than half of the site; stratified. F1 weighted by class, AUC one against one.
HAR has features recomputed from the raw signals, not UCI's 561; vehicle is Ditto's training part (1860 rows): the
numbers are near the paper's, not the paper's. HAR and vehicle keep the scaling of their source; heart (4 hospitals)
and GUSTO (16 regions) are standardised per site on its training rows. Missing numbers are 0 after that, missing binary
values 0.5, missing categories 1 / categories.
`vehicle shifted` is vehicle with the per-sensor standardisation undone: each feature of each sensor times a log-normal
factor (sigma {SCALE}, {2 * SCALE}, {3 * SCALE} in x1, x2, x3) plus a normal shift (SD {SHIFT}, {2 * SHIFT}, \
{3 * SHIFT}); the same draws at
each strength. These three were set up before any was run. They show no wide margin, so three more were set up, before
running them: `one shifted`, where the same is done to one sensor only (the one with most rows), as the paper's own
outlier is one client; and HAR's 30 subjects shifted, which have more rows each. They show none either. To learn what
would, four more, again set up before running them: `gain`, one factor (sigma {GAIN}, {2 * GAIN}) and one shift \
(SD {SHIFT}, {2 * SHIFT}) for each half of a sensor's
columns (it has two instruments); `turned`, each column of each sensor times a standard normal factor, so that
half of them point the other way, and `one turned`, the same at one sensor. Nothing else was tried.
Every number is the mean of the five seeds; after the +- the SD over seeds. Worst: the site that is worst in that mean,
among sites with at least {ENOUGH} rows in all, and beside it among all sites. All sites train and count in the mean.
AUC has no value where a hold-out has one class only; such a site is left out of that seed's AUC."""


class Job(NamedTuple):
    """One run: these seeds, by their place in SEEDS, stacked."""

    data: str
    method: str
    seeds: tuple[int, ...]
    rounds: int
    memory: Literal["fresh", "own", "kept"] = "fresh"  # of the optimizer's memory, what outlives a round

    def __str__(self) -> str:
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {SEEDS[self.seeds[0]]}"
        return f"{self.data}, {self.method}, {seeds}"


# The data


def prepare(out: Path, wanted: list[str]) -> None:
    """Every data set as arrays: encoded columns (NaN where a number is missing), site, class, and the splits."""
    import vitrail as vt
    from vitrail.data.encoding import Encoder, columns
    from vitrail.data.readers.tables import clean
    from vitrail.data.splitting import split_rows

    sources = {
        "har": (vt.datasets.har, "activity", 0),
        "vehicle": (vt.datasets.vehicle, "label", 0),
        "heart": (vt.datasets.heart_disease, "disease", 1),
        "gusto": (vt.datasets.gusto, "day30", 1),
    }
    arrays: dict[str, Any] = {}
    for name, (source, target, local) in ((name, sources[name]) for name in wanted):
        sites = source()
        study = vt.Study.infer(sites, target, paper="ifedavg")
        plain = {
            f: {**x.model_dump(), "indicator": False} for f, x in study.features.items()
        }  # drafts of today have some
        study = study.with_changes(features=plain)
        xs, ys, ids, tests = [], [], [], []
        wide = [f for f, x in study.features.items() for _ in (x.levels if x.kind == "categorical" else [f])]
        number = np.array([study.features[f].kind == "numeric" for f in wide])
        for i, (site, frame) in enumerate(sites.items()):
            rows = clean(frame, study)
            x = Encoder(study, {}, {}).matrix(rows)
            x[:, number] = rows[[f for f, k in zip(wide, number, strict=True) if k]].to_numpy(dtype=float)
            y = rows[target].to_numpy()
            mask = np.zeros((len(SEEDS), len(y)), dtype=bool)
            for s, seed in enumerate(SEEDS):
                mask[s, split_rows(y, study, seed, site)[1]] = True
            xs, ys, ids, tests = [*xs, x], [*ys, y], [*ids, np.full(len(y), i)], [*tests, mask]
        assert xs[0].shape[1] == len(columns(study))
        parts = {"x": np.concatenate(xs).astype(np.float32), "y": np.concatenate(ys), "site": np.concatenate(ids)}
        parts |= {"test": np.concatenate(tests, 1), "number": number}
        parts |= {"local": np.array(local), "names": np.array(list(sites))}
        arrays |= {f"{name}/{k}": v for k, v in parts.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **arrays)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def load(source: Path, name: str) -> dict[str, Any]:
    base, *words = name.split()
    kind, strength = (words[-2], int(words[-1][1:])) if words else ("", 0)
    with np.load(source) as z:
        data = {k.split("/")[1]: z[k] for k in z.files if k.startswith(f"{base}/")}
    if strength:
        for i, site in enumerate(data["names"].tolist()):
            if "one" in words and i != np.bincount(data["site"]).argmax():
                continue
            rng, mine = np.random.default_rng(key("shift", site)), data["site"] == i
            width = data["x"].shape[1]
            scale, shift = rng.standard_normal((2, 2 if kind == "gain" else width)) * strength
            if kind == "gain":
                scale, shift = np.repeat(scale, width // 2), np.repeat(shift, width // 2)
            factor = scale if kind == "turned" else np.exp((GAIN if kind == "gain" else SCALE) * scale)
            data["x"][mine] = data["x"][mine] * factor + (0 if kind == "turned" else SHIFT * shift)
    hashed = hashlib.sha256(b"".join(data[k].tobytes() for k in ("x", "y", "site", "test")))
    return data | {"digest": hashed.hexdigest()[:16], "rows": np.bincount(data["site"])}


def split(data: dict[str, Any], s: int) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """(site, train x, train y, test x, test y) of one seed, sites by name."""
    for i, name in sorted(enumerate(data["names"].tolist()), key=lambda site: site[1]):
        mine = data["site"] == i
        x, y, held = data["x"][mine].astype(np.float64), data["y"][mine], data["test"][s][mine]
        if data["local"]:
            n = data["number"]
            with warnings.catch_warnings():  # a column may be missing at a whole site
                warnings.simplefilter("ignore", RuntimeWarning)
                mean, sd = np.nanmean(x[~held][:, n], 0), np.nanstd(x[~held][:, n], 0)
            x[:, n] = (x[:, n] - np.nan_to_num(mean)) / np.where(np.nan_to_num(sd) > 0, sd, 1)
        x = np.nan_to_num(x).astype(np.float32)
        yield name, x[~held], y[~held], x[held], y[held]


def weights(y: Any, classes: int) -> torch.Tensor:
    """Inverse prevalence, scaled to sum to the number of classes that occur."""
    count = np.bincount(y, minlength=classes).astype(float)
    inverse = np.where(count > 0, 1 / count.clip(min=1), 0)
    return torch.from_numpy((inverse * (count > 0).sum() / inverse.sum())[y]).float()[:, None]


# One run


def stack(method: AnyMethod, member: torch.Tensor) -> AnyMethod:
    """Several federations of an averaging method at once; `member` [federation, site] is 1 where a site belongs."""
    of = member.argmax(0)

    class Stack(type(method)):  # type: ignore[misc]
        wire = dataclasses.replace(method.wire, aggregation="each")

        def coord(self, task: Task, sites: int) -> Shared:
            return Shared(clone(to_all(super().coord(task, sites).params, len(member))))

        def send(self, task: Task, coord: Shared, roster: Any) -> Shared:
            return Shared({k: v[of[: len(roster.names)]] for k, v in coord.params.items()})

        def merge(self, task: Task, coord: Shared, up: Any, roster: Any) -> tuple[Shared, Any]:
            mine = member[:, : len(roster.names)]
            sums = {k: (mine @ v.flatten(1)).view(-1, *v.shape[1:]) for k, v in up.change.items()}
            return Shared({k: coord.params[k] + v / per_site(mine @ up.weight, v) for k, v in sums.items()}), {}

    return Stack(**dataclasses.asdict(method))


def joined(trees: list[Any], by: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    """Messages or states of the same shape as one."""
    parts = [dict(flatten(t)) for t in trees]
    return unflatten(trees[0], {k: by([p[k] for p in parts]) for k in parts[0]})


def learn(job: Job, data: dict[str, Any], device: str, tick: Callable[[int], None]) -> list[dict[str, list[float]]]:
    """For each seed the scores of every site, in the order of `names`."""
    method = build(job.method.split("+")[0], METHODS[job.method])
    return trained(method, job, data, device, Training(rounds=job.rounds, memory=job.memory), tick)


def trained(
    method: AnyMethod, job: Job, data: dict[str, Any], device: str, training: Training, tick: Callable[[int], None]
) -> list[dict[str, list[float]]]:
    """The seed is part of a site's name."""
    classes = int(data["y"].max()) + 1
    named: list[Any] = []
    tests: dict[tuple[int, str], Any] = {}
    seed_of: dict[str, int] = {}
    for at, s in enumerate(job.seeds):
        parts = list(split(data, s))
        tests |= {(at, site): (x, y) for site, _, _, x, y in parts}
        if method.catalogue.pools_rows:
            xs, ys = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
            parts = [("all sites", xs, ys, xs[:0], ys[:0])]
        for site, x, y, *_ in parts:
            hot = torch.nn.functional.one_hot(torch.from_numpy(y), classes).float()
            named.append((f"{SEEDS[s]} {site}", torch.from_numpy(x), hot, weights(y, classes)))
            seed_of[named[-1][0]] = at
    sites = gather_sites(named).to(device)
    net = MLP(data["x"].shape[1], classes, (128, 64), 0.2).framed(method.needs.adapters)
    starts = [net.init(torch.Generator().manual_seed(key(SEEDS[s], "init"))) for s in job.seeds]
    plain = [Task(net, {k: v.to(device) for k, v in start.items()}) for start in starts]
    tasks = [training.apply_to(task, method) for task in plain]
    of = torch.tensor([seed_of[n] for n in sites.names], device=device)
    state = joined([method.state(t, 1) for t in tasks], torch.cat)
    coord = joined([method.coord(t, len(of)) for t in tasks], torch.stack)
    if len(tasks) == 1:
        coord = method.coord(tasks[0], len(of))
    elif method.catalogue.federated:
        method = stack(method, torch.nn.functional.one_hot(of, len(tasks)).T.float().contiguous())
    engine = Engine(tasks[0], method, sites, training, 0)  # 0: the seeds are in the names
    moment = engine.start()._replace(coord=coord, state=map_tensors(lambda t: t[of], state))
    for done in engine.run(moment):
        moment = done
        if done.stage == 0:  # what comes after training is no round
            tick(done.round)
    settled = engine.settled(moment)
    out: list[dict[str, list[float]]] = [{m: [] for m in METRICS} for _ in job.seeds]
    for at, s in enumerate(job.seeds):
        for site in data["names"].tolist():
            spot = sites.names.index(f"{SEEDS[s]} {'all sites' if method.catalogue.pools_rows else site}")
            own = map_tensors(lambda t, i=spot: t[i : i + 1], settled)  # type: ignore[misc]
            x, y = tests[at, site]
            with torch.no_grad():
                z = method.predict(tasks[0], own, torch.from_numpy(x).to(device)[None])[0]
            for m, v in score(METRICS, y, z.softmax(1).double().cpu().numpy()).items():
                out[at][m].append(v)
    return out


# Many runs


class Cache(NamedTuple):
    folder: Path

    def path(self, job: Job, s: int) -> Path:
        how = "" if job.memory == "fresh" else f".{job.memory}"
        return self.folder / f"{job.data}.{job.method}.{SEEDS[s]}.{job.rounds}{how}.json".replace(" ", "_")

    def get(self, job: Job, s: int, digest: str) -> dict[str, Any] | None:
        """What this seed gave, if it was run on the same data."""
        try:
            found: dict[str, Any] = json.loads(self.path(job, s).read_text())
        except FileNotFoundError:
            return None
        return found if found["digest"] == digest else None

    def put(self, job: Job, digest: str, scores: list[dict[str, list[float]]], seconds: float, where: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for s, got in zip(job.seeds, scores, strict=True):
            entry = {**job._asdict(), "seeds": SEEDS[s], "digest": digest, "where": where, "stacked": len(job.seeds)}
            entry |= {"seconds": seconds / len(job.seeds), "scores": got}
            fresh = self.path(job, s).with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(entry))
            fresh.replace(self.path(job, s))


def place(device: str) -> str:
    return f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, torch {torch.__version__}"


def work(
    me: int, pin: bool, source: Path, cache: Cache | None, device: str, jobs: Any, say: Callable[[Any], None]
) -> None:
    """Jobs until there are none; says ("round", me, job, n), ("done", me, job, seconds of each round)."""
    try:
        if pin and hasattr(os, "sched_setaffinity"):  # the engine uses the cores it is given
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[me]})
        clock = time.process_time if pin else time.perf_counter  # one thread: what others do does not count
        loaded: dict[str, dict[str, Any]] = {}
        for job in iter(jobs.get, None):
            data = loaded.get(job.data) or load(source, job.data)
            loaded, began = {job.data: data}, clock()
            times: list[float] = []

            def tick(n: int, job: Job = job, times: list[float] = times) -> None:
                times.append(clock())
                say(("round", me, job, n))

            scores = learn(job, data, device, tick)
            if cache:
                cache.put(job, data["digest"], scores, clock() - began, place(device))
            say(("done", me, job, np.diff(times).tolist()))
        say(("end", me, None, None))
    except KeyboardInterrupt:
        pass
    except Exception:
        say(("error", me, None, traceback.format_exc()))


def guess(job: Job, data: dict[str, Any]) -> float:
    """Rough relative cost: a batch costs something whatever its size, and the sums of its rows."""
    rows, columns = int((~data["test"][0]).sum()), data["x"].shape[1]
    longest = rows if job.method == "centralized" else int(np.bincount(data["site"][~data["test"][0]]).max())
    heavy = {"apfl": 2.2, "ifedavg": 1.4, "ifedavg+out": 1.5}.get(job.method, 1.0)
    return job.rounds * heavy * (longest / 16 * 3e-4 + len(job.seeds) * rows * (columns + 80) * 128 * 6 / 2e10)


class Bar:
    """Where the work stands, on one line; without a terminal, a line a minute."""

    def __init__(self, cost: dict[Job, float]) -> None:
        self.cost, self.live = cost, sys.stderr.isatty()
        self.done: list[Job] = []
        self.now: dict[int, tuple[Job, int]] = {}  # worker -> its job and round
        self.began = self.last = time.time()

    def heard(self, what: str, me: int, job: Job, n: Any) -> None:
        if what == "done":
            self.done.append(job)
            self.now.pop(me, None)
        else:
            self.now[me] = (job, n)
        if time.time() - self.last < (0.5 if self.live else 60):
            return
        self.last = time.time()
        part = sum(self.cost[j] for j in self.done) + sum(self.cost[j] * k / j.rounds for j, k in self.now.values())
        left = (sum(self.cost.values()) / part - 1) * (self.last - self.began) / 60
        doing = " | ".join(f"{j}, round {k}/{j.rounds}" for _, (j, k) in sorted(self.now.items()))
        line = f"{len(self.done)}/{len(self.cost)} runs, {left:.0f} min left | {doing}"
        print(f"\r{line:<150}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)


def all_jobs(
    source: Path, names: list[str], rounds: int | None, device: str, memory: Literal["fresh", "own", "kept"]
) -> tuple[list[Job], dict[str, Any]]:
    """Every run, and the data sets. Few rows at a time of a small network are all overhead: its seeds share a run."""
    sets, jobs = {n: load(source, n) for n in names}, []
    each_alone = [(s,) for s in range(len(SEEDS))]
    for n, data in sets.items():
        small = data["x"].shape[1] * 128 * 4 < 1 << 17
        for m in METHODS:
            groups = [sum(each_alone, ())] if device == "cuda" or small or m == "centralized" else each_alone
            jobs += [Job(n, m, g, rounds or ROUNDS.get(n, 1000), memory) for g in groups]
    return jobs, sets


def carry_out(
    todo: list[Job], source: Path, cache: Cache | None, device: str, workers: int, sets: dict[str, Any]
) -> Iterator[tuple[Job, list[float]]]:
    """Each job as it is finished, with the seconds of its rounds."""
    bar = Bar({job: guess(job, sets[job.data]) for job in todo})
    ctx = mp.get_context("spawn")
    jobs: Any = ctx.Queue() if workers > 1 else queue.Queue()
    said: Any = ctx.Queue() if workers > 1 else queue.Queue()
    for job in [*todo, *[None] * workers]:
        jobs.put(job)
    if workers > 1:
        crew: list[Any] = [
            ctx.Process(target=work, args=(i, True, source, cache, device, jobs, said.put), daemon=True)
            for i in range(workers)
        ]
    else:  # a thread of this process
        crew = [threading.Thread(target=work, args=(0, False, source, cache, device, jobs, said.put), daemon=True)]
    for one in crew:
        one.start()
    ended = 0
    while ended < workers:
        what, me, job, extra = said.get()
        if what == "error":
            sys.exit(f"\n{extra}")
        if what == "end":
            ended += 1
            continue
        bar.heard(what, me, job, extra)
        if what == "done":
            yield job, extra
    if bar.live:
        print(file=sys.stderr)


# The report


def mean(values: Any, axis: int | None = None) -> Any:
    with warnings.catch_warnings():  # a small site's AUC may have no value in any seed
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values, axis)


class Result(NamedTuple):
    """One method on one data set."""

    scores: dict[str, Any]  # metric -> [seed, site]
    names: list[str]
    rows: Any  # [site]
    seconds: float
    where: str

    def mean(self, metric: str) -> float:
        return float(mean(self.scores[metric]))

    def spread(self, metric: str) -> float:
        return float(np.std(mean(self.scores[metric], 1), ddof=1))

    def worst(self, metric: str, at_least: int = ENOUGH) -> tuple[float, str]:
        sites = np.where(self.rows >= at_least, mean(self.scores[metric], 0), np.nan)
        return float(np.nanmin(sites)), self.names[int(np.nanargmin(sites))]

    def gap(self, other: Result, at_least: int) -> tuple[float, float]:
        """Our worst site's F1 minus the other's worst site's, and its standard error over seeds."""
        one, two = (r.scores["f1"][:, r.names.index(r.worst("f1", at_least)[1])] for r in (self, other))
        return float(mean(one - two)), float(np.std(one - two, ddof=1) / len(SEEDS) ** 0.5)

    def row(self, title: str) -> str:
        lost = int(np.isnan(self.scores["f1"]).sum())
        title += f" ({lost} diverged)" if lost else ""
        cells = [title, f"{self.mean('f1'):.3f} +- {self.spread('f1'):.3f}"]
        cells += ["{:.3f} ({})".format(*self.worst("f1", n)) for n in (ENOUGH, 0)]
        cells += [f"{self.mean('auc'):.3f}", *(f"{self.worst('auc', n)[0]:.3f}" for n in (ENOUGH, 0))]
        cells += [f"{self.mean('balanced_accuracy'):.3f}", f"{self.seconds:.0f}"]
        return table_row(cells)


def table_row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: list[str], rows: list[str]) -> list[str]:
    return [table_row(head), table_row(["---", *["---:"] * (len(head) - 1)]), *rows]


def title_of(method: str) -> str:
    return TABLE[method.split("+")[0]].catalogue.title + (" with f_out" if "+" in method else "")


def collect(jobs: list[Job], sets: dict[str, Any], cache: Cache) -> dict[str, dict[str, Result]]:
    """data -> method -> result, for those whose seeds are all there."""
    out: dict[str, dict[str, Result]] = {n: {} for n in sets}
    for name, method, rounds, memory in dict.fromkeys((j.data, j.method, j.rounds, j.memory) for j in jobs):
        data, whole = sets[name], Job(name, method, (), rounds, memory)
        got = [g for s in range(len(SEEDS)) if (g := cache.get(whole, s, data["digest"]))]
        if len(got) == len(SEEDS):
            scores = {m: np.array([g["scores"][m] for g in got], dtype=float) for m in METRICS}
            where = " and ".join(sorted({g["where"] for g in got}))
            seconds = sum(g["seconds"] for g in got)
            out[name][method] = Result(scores, data["names"].tolist(), data["rows"], seconds, where)
    return out


def report(jobs: list[Job], sets: dict[str, Any], cache: Cache) -> str:
    results = collect(jobs, sets, cache)
    rounds = {j.data: j.rounds for j in jobs}
    places = sorted({r.where for found in results.values() for r in found.values()})
    lines = [f"# The iFedAvg paper's comparison, {time.strftime('%Y-%m-%d')}", "", SETTINGS, ""]
    lines += [
        f"Computed on: {'; '.join(places)}. Seconds: of the five seeds in all; on a CPU those of one core, two or"
    ]
    lines += ["more cores run as many methods or seeds side by side."]
    if jobs[0].memory != "fresh":
        lines += [f"What outlives a round of the optimizer's memory: memory = {jobs[0].memory!r}."]
    for name, found in results.items():
        if not found:
            continue
        data = sets[name]
        enough = int((data["rows"] >= ENOUGH).sum())
        lines += ["", f"## {name}: {len(data['names'])} sites, {data['x'].shape[1]} columns, {len(data['y'])} rows", ""]
        lines += [f"{rounds[name]} rounds. {enough} of {len(data['names'])} sites have at least {ENOUGH} rows."]
        if len({r.where for r in found.values()}) > 1:
            lines += ["Computed on: " + "; ".join(f"{title_of(m)} {r.where}" for m, r in found.items()) + "."]
        head = ["method", "F1 mean", f"F1 worst, {ENOUGH} rows or more", "F1 worst, all sites", "AUC mean"]
        head += [f"AUC worst, {ENOUGH} rows or more", "AUC worst, all sites", "balanced accuracy mean", "seconds"]
        gap = ["not run", *[""] * (len(head) - 2)]
        rows = [found[m].row(title_of(m)) if m in found else table_row([title_of(m), *gap]) for m in METHODS]
        lines += ["", *table(head, rows)]
        if name in PUBLISHED:
            said = [f"{title_of(m)} {a:.3f} / {b:.3f}" for m, (a, b) in PUBLISHED[name].items()]
            lines += ["", f"The paper, on its copy of the data, F1 mean / worst: {', '.join(said)}."]
    return "\n".join([*lines, *closing(results)]) + "\n"


def closing(results: dict[str, dict[str, Result]]) -> list[str]:
    """f_out on against off, and whether the published pattern holds."""
    change, pattern = [], []
    for name, found in results.items():
        if "ifedavg" in found and "ifedavg+out" in found:
            off, on = found["ifedavg"], found["ifedavg+out"]
            cells = [f"{on.mean(m) - off.mean(m):+.3f}" for m in ("f1", "auc")]
            cells += [f"{on.worst(m, n)[0] - off.worst(m, n)[0]:+.3f}" for m in ("f1", "auc") for n in (ENOUGH, 0)]
            change.append(table_row([name, *cells]))
        if {"ifedavg", "fedavg", "local"} <= found.keys():
            ours, theirs, alone = found["ifedavg"], found["fedavg"], found["local"]
            gap, noise = ours.gap(theirs, ENOUGH)
            every, noise_every = ours.gap(theirs, 0)
            cost = ours.mean("f1") - alone.mean("f1")
            cells = [f"{gap:+.3f} +- {noise:.3f}", above(gap, noise)]
            cells += [
                f"{every:+.3f} +- {noise_every:.3f}",
                above(every, noise_every),
                f"{cost:+.3f}",
                yes(cost >= -0.01),
            ]
            pattern.append(table_row([name, *cells, yes(above(gap, noise) == "yes" and cost >= -0.01)]))
    few = f"{ENOUGH} rows or more"
    head = ["data", "F1 mean", "AUC mean", f"F1 worst, {few}", "F1 worst, all", f"AUC worst, {few}", "AUC worst, all"]
    lines = ["", "## f_out on minus off", "", *table(head, change), "", "## Does the published pattern hold?", ""]
    lines += [
        f"The pattern: iFedAvg's worst site (of those with at least {ENOUGH} rows) above FedAvg's, and its mean F1"
    ]
    lines += [
        "not more than 0.01 below Local's. After +- the standard error over seeds; within two of them is `level`."
    ]
    head = ["data", "worst F1, iFedAvg - FedAvg", "above", "the same over all sites", "above"]
    return [*lines, "", *table([*head, "mean F1, iFedAvg - Local", "within 0.01 or above", "holds"], pattern)]


def above(gap: float, noise: float) -> str:
    return "level" if abs(gap) <= 2 * noise else yes(gap > 0)


def yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def estimate(jobs: list[Job], sets: dict[str, Any], source: Path, rounds: int, device: str, workers: int) -> None:
    """A few rounds of each method; the time of all the rounds and seeds from their median."""
    short = {j._replace(rounds=rounds): j for j in jobs if 0 in j.seeds}
    total = 0.0
    for job, times in carry_out(list(short), source, None, device, workers, sets):
        whole, runs = short[job], sum(j[:2] == job[:2] for j in jobs)
        minutes = float(np.median(times)) * whole.rounds * runs / 60
        total += minutes / workers
        print(f"{job}: {1e3 * np.median(times):.0f} ms a round, {runs} x {whole.rounds} rounds {minutes:.1f} min")
    print(f"All methods and seeds, {workers} at a time: {total:.0f} min; on a CPU with nothing else to do.")


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    results = Path(__file__).parent / "results" / "ifedavg_tables.md"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("verb", choices=["prepare", "estimate", "run", "report"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", help=f"comma-separated; default {','.join(DATA)}")
    parser.add_argument("--methods", help=f"comma-separated; default {','.join(METHODS)}")
    parser.add_argument("--rounds", type=int, help="default 1000, gusto 100; estimate: how many are timed, default 25")
    parser.add_argument("--memory", choices=["fresh", "own", "kept"], default="fresh")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, help="processes; default one for each core, one on a GPU")
    parser.add_argument("--cache", type=Path, default=Path("scratch/ifedavg_tables"))
    parser.add_argument("--out", type=Path, default=results)
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.file, args.data.split(",") if args.data else ["har", "vehicle", "heart", "gusto"])
        return
    names = args.data.split(",") if args.data else list(DATA)
    chosen = args.methods.split(",") if args.methods else list(METHODS)
    if unknown := [n for n in names if n not in DATA] + [m for m in chosen if m not in METHODS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join([*DATA, *METHODS])}")
    workers = args.workers or (1 if args.device == "cuda" else cores)
    cache, rounds = Cache(args.cache), None if args.verb == "estimate" else args.rounds
    with np.load(args.file) as z:
        there = {key.split("/")[0] for key in z.files}
    every = [n for n in DATA if n.split()[0] in there] if args.verb != "estimate" else names
    jobs, sets = all_jobs(args.file, every, rounds, args.device, args.memory)
    mine = [j for j in jobs if j.data in names and j.method in chosen]
    if args.verb == "estimate":
        estimate(mine, sets, args.file, args.rounds or 25, args.device, workers)
        return
    if args.verb == "run":
        missing = [(j, [s for s in j.seeds if not cache.get(j, s, sets[j.data]["digest"])]) for j in mine]
        todo = [j._replace(seeds=tuple(seeds)) for j, seeds in missing if seeds]
        todo.sort(key=lambda j: (names.index(j.data), -guess(j, sets[j.data])))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit takes the workers along
        try:
            for job, times in carry_out(todo, args.file, cache, args.device, workers, sets):
                print(f"\r{f'{job}: {sum(times):.0f} s':<150}", flush=True)
                args.out.write_text(report(jobs, sets, cache))
        except KeyboardInterrupt:
            sys.exit("\nStopped. The same command goes on from here.")
    text = report(jobs, sets, cache)
    args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

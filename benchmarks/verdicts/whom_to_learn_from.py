"""Whom should a site learn from? All answers we have, on the same rows, each with settings tuned alike.

    VITRAIL_DATA=... python benchmarks/verdicts/whom_to_learn_from.py --jobs 16      # resumes; finished cases lie in --cache
    python benchmarks/verdicts/whom_to_learn_from_report.py                          # tables and figures from what is there

Three steps. First `vitrail tune`'s cross-validation (studies/tune.py), within the training rows of a few seeds that the
comparison does not use, picks each method's learning rate and main hyperparameters: a coarse grid at first, then what
lies next to the best on its ladder, until nothing next to the best is untried. Then the same for the number of sites of
Ndoye top-k, which is no method of the table: ranking and training are repeated within the training rows, of which a
third is held out, as often as there are folds. Last, every method under every seed, all sites users at once, judged on
each user's hold-out rows.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process for each core

import numpy as np
import pandas as pd
import torch
from worlds import TEST, WORLDS, sites_of

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.core.task import Task
from vitrail.data.encoding import prepare
from vitrail.data.splitting import split_rows
from vitrail.engine.local import Engine
from vitrail.runs.evaluation import Evaluator
from vitrail.runs.setup import build_task, standardise_lines, training_of, training_rows
from vitrail.studies.transfer import transfer, transfer_lines
from vitrail.studies.tune import tune

Sites = dict[str, pd.DataFrame]
Case = dict[str, Any]
METRICS = ("balanced_accuracy", "f1", "auc")  # the first is the one that is tuned for
RANKING_FOLDS = 5  # of Ndoye's cross-validated loss, the default of `vitrail transfer`
FIRST = 2001
WHERE = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, torch {torch.__version__}"
TRAINING = {"total": "mean", "momentum": 0.0, "decay": 0.9, "decays": 20}


class Source(NamedTuple):
    title: str
    rounds: int
    batch: int
    seeds: int  # of the comparison: FIRST and on
    tuning: int  # seeds: 1 and on
    folds: int
    ks: tuple[int, ...]  # sites to try, of Ndoye top-k
    worlds: bool = False  # every seed draws rows that no other has


CONTROL = "two groups of 4 sites"  # of benchmarks/verdicts/worlds.py, where sites are in the groups by turns
GROUPS = WORLDS[CONTROL].groups
DATA = {
    "titanic_strict": Source("Titanic, AGE_STRICT", 40, 16, 20, 2, 3, (1, 2)),
    "titanic_some": Source("Titanic, AGE_SOME", 40, 16, 20, 2, 3, (1, 2)),
    "heart": Source("Heart disease, four hospitals", 40, 16, 20, 2, 3, (1, 2)),
    "gusto": Source("GUSTO, 16 regions", 20, 64, 10, 1, 2, (1, 3, 7, 11, 14)),
    "har": Source("HAR, 15 people", 20, 64, 8, 1, 2, (1, 3, 7, 13)),
    "control": Source("Control: two hidden groups of 4 sites", 40, 16, 20, 3, 3, (1, 3, 6), True),
}


class Ladder(NamedTuple):
    """Values to try, in order."""

    rungs: tuple[float, ...]
    start: tuple[float, ...]  # tried at first
    ends: tuple[float, ...] = ()  # beyond which there is nothing to try


LADDERS = {
    "lr": Ladder((0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), (0.03, 0.3, 3.0)),
    "p_d": Ladder((0.0, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (0.003, 0.03, 0.3), (0.0,)),  # 0: Global
    "p_s": Ladder((0.0, 0.1, 0.2, 0.5, 1.0, 2.0), (0.2,), (0.0,)),
    "share": Ladder((0.05, 0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.2, 0.4), (0.5,)),  # more is refused
    "lam": Ladder((0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0), (0.01, 0.1, 1.0), (0.0,)),  # 0: Local
    "alpha": Ladder((0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0), (0.25, 0.5, 0.75), (0.0, 1.0)),  # a share
    "epochs": Ladder((1, 3, 10, 30, 100, 300), (3, 10, 30), (1,)),
    "identity": Ladder((0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0), (0.01, 0.1, 1.0), (0.0,)),  # 0: free layers
}
WIDENINGS = 6  # at most


class Way(NamedTuple):
    title: str
    method: str
    given: dict[str, Any]  # not tuned
    tuned: tuple[str, ...] = ()  # beside the learning rate


TOP = "ndoye"
WAYS = {
    "global": Way("Global (FedAvg)", "fedavg", {}),
    "local": Way("Local", "local", {}),
    "weight_erosion": Way("Weight Erosion", "weight_erosion", {"update": "local", "beside": False}, ("p_d", "p_s")),
    TOP: Way("Ndoye top-k", "fedavg", {}),
    "influence": Way("Influence", "influence", {}, ("share",)),
    "ditto": Way("Ditto", "ditto", {}, ("lam",)),
    "apfl": Way("APFL", "apfl", {}, ("alpha",)),
    "fine_tune": Way("Fine-tuning", "fine_tune", {}, ("epochs",)),
    "ifedavg": Way("iFedAvg", "ifedavg", {}, ("identity",)),
    "centres": Way("Centres", "centres", {}),
}


# --- one case --------------------------------------------------------------------------------------------------------


@cache
def table(name: str) -> Any:
    if name == "har":
        return dict(itertools.islice(vt.datasets.har().items(), 0, None, 2))  # every second person
    tables = {"heart": vt.datasets.heart_disease, "gusto": vt.datasets.gusto}
    return tables.get(name, vt.datasets.titanic)()


@lru_cache(4)
def load(name: str, seed: int) -> tuple[vt.Study, Sites]:
    source, rows = DATA[name], None if name == "control" else table(name)
    training = {**TRAINING, "rounds": source.rounds, "batch": source.batch}
    if name == "heart":
        sites, study = rows, vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    elif name in ("gusto", "har"):
        sites, study = rows, vt.Study.infer(rows, {"gusto": "day30"}.get(name, "activity"), network={"kind": "linear"})
    elif name == "control":
        sites = {f"site {i}": framed(s) for i, s in enumerate(sites_of(WORLDS[CONTROL], seed))}
        study = vt.Study.infer(sites, "y", network={"kind": "linear"}, standardise="none")
        study = study.with_changes(split={"test": TEST / len(sites["site 0"]), "at_least": 1})
    else:
        sites = vt.partition.age_strict(rows) if name == "titanic_strict" else vt.partition.age_some(rows, seed=seed)
        study = vt.Study.infer({"all": rows}, "survived", network={"kind": "linear"}, standardise="global")
    return study.with_changes(training=training, metrics=METRICS), sites


def framed(site: Any) -> pd.DataFrame:
    x, y = np.concatenate([site.x, site.test_x]), np.concatenate([site.y, site.test_y])
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(y=np.where(y, "yes", "no"))


@contextmanager
def counted() -> Iterator[dict[str, list[int]]]:
    """Rows through gradients and through losses, of every model, while it is open."""
    cost: dict[str, list[int]] = {"gradients": [], "evaluations": []}

    def watched(name: str, into: str) -> Any:
        inner = getattr(Task, name)

        def call(self: Task, params: Any, batch: Any, *rest: Any, **named: Any) -> Any:
            cost[into].append(int((batch.w > 0).sum()))
            return inner(self, params, batch, *rest, **named)

        return patch.object(Task, name, call)

    with watched("accumulate", "gradients"), watched("grad", "gradients"), watched("value", "evaluations"):
        yield cost


def trained(study: vt.Study, sites: Sites, method: Any, seed: int) -> Case:
    """scores[metric][site], and what it cost."""
    data = prepare(sites, study, seed)
    rows = training_rows(data, study, method, "cpu")
    engine = Engine(build_task(study, method, seed), method, rows, training_of(study), seed)
    with counted() as cost:
        *_, last = engine.run()
    scores: dict[str, dict[str, float]] = {m: {} for m in METRICS}
    for _, _, site, split, metric, value in Evaluator(engine, study, data).rows(last, ("test",)):
        if split == "test":  # its own model; a method may hold others beside it
            scores[metric][site] = value
    sent = sum(row["bytes"] for row in engine.ledger.rows())
    sent += len(data) * sum(line.bytes * line.rounds for line in standardise_lines(study))
    sizes = {s.name: [len(s.train_y), len(s.test_y)] for s in data}
    return {"scores": scores, "sizes": sizes, "bytes": sent, **{k: sum(v) for k, v in cost.items()}}


def top_k(study: vt.Study, sites: Sites, seed: int, ks: Sequence[int], lr: float, ranking_lr: float) -> dict[int, Case]:
    """For each k, every user's model trained with its k best ranked sites."""
    n = len(sites)
    alone = study.with_changes(training={"lr": ranking_lr})
    with counted() as cost:
        found = transfer(alone, sites, RANKING_FOLDS, seed)
    ranked = {k: sum(v) for k, v in cost.items()}
    ranked["bytes"] = n * sum(line.bytes * line.rounds for line in transfer_lines(study, n, RANKING_FOLDS))
    out = {}
    for k in ks:
        case: Case = {"scores": {m: {} for m in METRICS}, "sizes": {}, **ranked, "chosen": {}}
        for user in sites:
            case["chosen"][user] = chosen = found.choose(user, f"top:{k}")
            some = {name: frame for name, frame in sites.items() if name == user or name in chosen}
            mine = trained(study, some, vt.methods.build("fedavg", {"lr": lr}), seed)
            for m in METRICS:
                case["scores"][m][user] = mine["scores"][m][user]
            case["sizes"][user] = mine["sizes"][user]
            for what in ("bytes", "gradients", "evaluations"):
                case[what] += mine[what]
        # each site's rows under every model of the ranking, its own cross-validated
        case["evaluations"] += n * sum(train for train, _ in case["sizes"].values())
        out[k] = case
    return out


def tuned(job: Case) -> Case:
    """The score of every setting, within the training rows of a seed."""
    study, sites = load(job["data"], job["seed"])
    source, way = DATA[job["data"]], WAYS[job["way"]]
    if job["way"] != TOP:
        method, grid = vt.methods.build(way.method, way.given), job["grid"]
        try:
            said = tune(study, sites, method, grid, source.folds, job["seed"], metric=METRICS[0]).table
        except VitrailError as error:
            if error.title != "nothing was tuned":
                raise
            said = pd.DataFrame(itertools.product(*grid.values()), columns=list(grid)).assign(mean=np.nan)  # diverged
        return {"table": said[[*grid, "mean"]].to_dict("records")}
    target = study.target.column
    inner = {n: f.iloc[split_rows(f[target].to_numpy(), study, job["seed"], n)[0]] for n, f in sites.items()}
    study = study.with_changes(split={"test": 1 / 3, "at_least": 1})
    rows: dict[int, list[float]] = {k: [] for k in source.ks}
    for part in range(source.folds):
        found = top_k(study, inner, 10_000 * (1 + part) + job["seed"], source.ks, job["lr"], job["ranking_lr"])
        for k, case in found.items():
            rows[k].append(float(np.mean(list(case["scores"][METRICS[0]].values()))))
    return {"table": [{"k": k, "mean": float(np.mean(v))} for k, v in rows.items()]}


def compared(job: Case) -> Case:
    study, sites = load(job["data"], job["seed"])
    way, chosen = WAYS[job["way"]], job["settings"]
    told: dict[str, dict[str, float]] = {}
    if job["way"] == TOP:
        return top_k(study, sites, job["seed"], [chosen["k"]], chosen["lr"], chosen["ranking_lr"])[chosen["k"]]
    method = vt.methods.build(way.method, {**way.given, **chosen})
    if DATA[job["data"]].worlds and job["way"] == "global":  # what could be had by who knew the groups
        told["known"] = {}
        for group in range(GROUPS):
            some = dict(itertools.islice(sites.items(), group, None, GROUPS))
            told["known"] |= trained(study, some, method, job["seed"])["scores"][METRICS[0]]
    if job["way"] == "fine_tune":  # what as many epochs are worth without anybody
        longer = study.with_changes(training={"rounds": study.training.rounds + chosen["epochs"]})
        alone = vt.methods.build("local", {"lr": chosen["lr"]})
        told["alone"] = trained(longer, sites, alone, job["seed"])["scores"][METRICS[0]]
    return trained(study, sites, method, job["seed"]) | told


# --- all cases -------------------------------------------------------------------------------------------------------


def place(job: Case, folder: Path) -> Path:
    """A case that was made with other settings is another case."""
    about = [job, DATA[job["data"]]._replace(seeds=0, tuning=0), WAYS[job["way"]], RANKING_FOLDS, TRAINING]
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
    return folder / f"{job['step']}-{job['data']}-{job['way']}-{job['seed']}-{mark}.json"


def work(job: Case, folder: Path) -> None:
    torch.set_num_threads(1)
    if job["step"] == "search":
        search(job, folder, run=True)
        return
    began = time.process_time()
    done = (tuned if job["step"] == "tune" else compared)(job)
    path = place(job, folder)
    path.with_suffix(".tmp").write_text(json.dumps({**job, **done, "where": WHERE, "s": time.process_time() - began}))
    path.with_suffix(".tmp").replace(path)


def read(jobs: list[Case], folder: Path) -> list[Case]:
    return [json.loads(place(j, folder).read_text()) for j in jobs if place(j, folder).exists()]


def best(cases: list[Case]) -> dict[str, Any]:
    """The setting with the highest mean over the tuning seeds; the first of equals."""
    rows = pd.concat([pd.DataFrame(c["table"]) for c in cases])
    keys = [c for c in rows.columns if c != "mean"]
    means = rows.groupby(keys, sort=False)["mean"].agg(lambda v: v.mean(skipna=False)).reset_index()
    return {k: means[k].tolist()[means["mean"].argmax()] for k in keys}


class Search(NamedTuple):
    best: dict[str, Any]
    cases: list[Case]
    left: list[str]  # of which a value next to the best was not tried

    @property
    def tried(self) -> list[dict[str, Any]]:
        rows = [{k: v for k, v in row.items() if k != "mean"} for case in self.cases for row in case["table"]]
        return [row for i, row in enumerate(rows) if row not in rows[:i]]


def search(job: Case, folder: Path, run: bool = False) -> Search | None:
    """From the coarse grid to the best that has nothing untried next to it; None where a case of it is missing."""
    names = ("lr", *WAYS[job["way"]].tuned)
    grids, found = [{k: list(LADDERS[k].start) for k in names}], Search({}, [], [])
    for _ in range(1 + WIDENINGS):
        cases = [{**job, "step": "tune", "seed": s, "grid": grid} for grid, s in itertools.product(grids, job["seed"])]
        for case in cases:
            if not place(case, folder).exists():
                if not run:
                    return None
                work(case, folder)
        found = found._replace(cases=found.cases + read(cases, folder))
        found = found._replace(best=best(found.cases))
        near = {k: beside(found, k) for k in names}
        found = found._replace(left=[k for k in names if near[k]])
        grids = [{n: near[k] if n == k else [found.best[n]] for n in names} for k in found.left]
        if not grids:
            break
    return found


def beside(found: Search, name: str) -> list[float]:
    """Next to the best on its ladder, and not tried with what else is best."""
    rungs = LADDERS[name].rungs
    at = rungs.index(found.best[name])
    return [v for v in rungs[max(0, at - 1) : at + 2] if {**found.best, name: v} not in found.tried]


class Plan(NamedTuple):
    """What there is to do, as far as the cache knows what the steps before have found."""

    search: list[Case]
    rank: list[Case]
    compare: list[Case]


def plan(names: Sequence[str], folder: Path, seeds: int | None = None) -> Plan:
    """`seeds`: of the comparison, where they are to be fewer."""
    out, found = Plan([], [], []), {}
    for d in names:
        tuning = list(range(1, 1 + DATA[d].tuning))
        jobs = {w: {"step": "search", "data": d, "way": w, "seed": tuning} for w in WAYS if w != TOP}
        out.search.extend(jobs.values())
        searches = {w: search(job, folder) for w, job in jobs.items()}
        found = {w: s.best for w, s in searches.items() if s}
        if len(found) < len(jobs):
            continue
        rates = {"lr": found["global"]["lr"], "ranking_lr": found["local"]["lr"]}
        ranking = [{"step": "tune", "data": d, "way": TOP, "seed": s, **rates} for s in tuning]
        out.rank.extend(ranking)
        if len(done := read(ranking, folder)) == len(ranking):
            found[TOP] = {**best(done), **rates}
        for s, w in itertools.product(range(FIRST, FIRST + (seeds or DATA[d].seeds)), found):
            out.compare.append({"step": "compare", "data": d, "way": w, "seed": s, "settings": found[w]})
    return out


def carry_out(jobs: list[Case], folder: Path, processes: int) -> None:
    todo = [j for j in jobs if not (search(j, folder) if j["step"] == "search" else place(j, folder).exists())]
    began = time.time()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(work, job, folder): job for job in todo}
        for n, future in enumerate(as_completed(waiting), 1):
            future.result()
            job = waiting[future]
            line = f"{job['step']} {n}/{len(todo)} after {time.time() - began:.0f} s: {job['data']}, {job['way']}"
            print(f"{line}, seed {job['seed']}", flush=True)


def names_of(parser: argparse.ArgumentParser, given: str) -> list[str]:
    names = given.split(",")
    if unknown := [n for n in names if n not in DATA]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(DATA)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--seeds", type=int, help="of the comparison, fewer than planned")
    parser.add_argument("--cache", type=Path, default=Path("scratch/whom_to_learn_from"))
    args = parser.parse_args()
    names = names_of(parser, args.data)
    args.cache.mkdir(parents=True, exist_ok=True)
    for step in Plan._fields:  # each rests on what the one before has found
        carry_out(getattr(plan(names, args.cache, args.seeds), step), args.cache, args.jobs)


if __name__ == "__main__":
    main()

"""Whom should a site learn from? All answers we have, on the same rows, each with settings tuned alike.

    VITRAIL_DATA=... python benchmarks/whom_to_learn_from.py --jobs 16      # resumes; finished cases lie in --cache
    python benchmarks/whom_to_learn_from.py --report                        # tables and figures from what is there

Three steps. First `vitrail tune`'s cross-validation (studies/tune.py), within the training rows of a few seeds that the
comparison does not use, picks each method's learning rate and main hyperparameter. Then the same for the number of
sites of Ndoye top-k, which is no method of the table: ranking and training are repeated within the training rows, of
which a third is held out, as often as there are folds. Last, every method under every seed, all sites users at once,
judged on each user's hold-out rows.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process for each core

import numpy as np
import pandas as pd
import torch
from worlds import TEST, WORLDS, sites_of

import vitrail as vt
from vitrail.core.task import Task
from vitrail.data.encode import prepare, split_rows
from vitrail.engines.local import Engine
from vitrail.runs.judge import Judge
from vitrail.runs.setup import build_task, standardise_lines, training_of, training_rows
from vitrail.studies.intervals import interval
from vitrail.studies.transfer import transfer, transfer_lines
from vitrail.studies.tune import tune

Sites = dict[str, pd.DataFrame]
Case = dict[str, Any]
METRICS = ("balanced_accuracy", "f1", "auc")  # the first is the one that is tuned for
WORDS = {"balanced_accuracy": "balanced accuracy", "f1": "F1", "auc": "AUC"}
YARDS = ("global", "local")
COUNTED = ("gradients", "evaluations")  # of rows
RANKING_FOLDS = 5  # of Ndoye's cross-validated loss, the default of `vitrail transfer`
FIRST = 2001
TRAINING = {"total": "mean", "momentum": 0.0, "decay": 0.9, "decays": 20}


class Source(NamedTuple):
    title: str
    rounds: int
    batch: int
    seeds: int  # of the comparison: FIRST and on
    tuning: int  # seeds: 1 and on
    folds: int
    rates: tuple[float, ...]  # learning rates to try
    ks: tuple[int, ...]  # sites to try, of Ndoye top-k


CONTROL = "two groups of 4 sites"  # of benchmarks/worlds.py
DATA = {
    "titanic_strict": Source("Titanic, AGE_STRICT", 40, 16, 30, 4, 3, (0.03, 0.1, 0.3, 1, 3, 10, 30), (1, 2)),
    "titanic_some": Source("Titanic, AGE_SOME", 40, 16, 30, 4, 3, (0.03, 0.1, 0.3, 1, 3, 10, 30), (1, 2)),
    "heart": Source("Heart disease, four hospitals", 40, 16, 30, 4, 3, (0.01, 0.03, 0.1, 0.3, 1, 3), (1, 2)),
    "gusto": Source("GUSTO, 16 regions", 20, 64, 12, 2, 2, (0.03, 0.1, 0.3, 1, 3, 10, 30), (1, 3, 7, 11, 14)),
    "har": Source("HAR, 30 people", 20, 64, 6, 1, 2, (0.01, 0.03, 0.1, 0.3, 1, 3), (1, 3, 7, 15, 28)),
    "control": Source("Control: two hidden groups of 4 sites", 40, 16, 10, 3, 3, (0.03, 0.1, 0.3, 1, 3, 10), (1, 3, 6)),
}


class Way(NamedTuple):
    title: str
    method: str
    given: dict[str, Any]  # not tuned
    grid: dict[str, list[Any]]  # beside the learning rate


TOP = "ndoye"
WAYS = {
    "global": Way("Global (FedAvg)", "fedavg", {}, {}),
    "local": Way("Local", "local", {}, {}),
    "weight_erosion": Way(
        "Weight Erosion",
        "weight_erosion",
        {"update": "local", "beside": False},
        {"p_d": [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3], "p_s": [0.0, 0.2, 0.5]},
    ),
    TOP: Way("Ndoye top-k", "fedavg", {}, {}),
    "influence": Way("Influence", "influence", {}, {"share": [0.1, 0.2, 0.4, 0.5]}),
    "ditto": Way("Ditto", "ditto", {}, {"lam": [0.001, 0.01, 0.1, 1.0, 10.0]}),
    "apfl": Way("APFL", "apfl", {}, {"alpha": [0.1, 0.25, 0.5, 0.75, 0.9]}),
    "fine_tune": Way("Fine-tuning", "fine_tune", {}, {"epochs": [1, 5, 10, 30, 100]}),
    "ifedavg": Way("iFedAvg", "ifedavg", {}, {"identity": [0.0, 0.01, 0.1, 1.0]}),
    "centres": Way("Centres", "centres", {}, {}),
}
BOUNDS = {"p_s": 0.0, "share": 0.5, "epochs": 1, "identity": 0.0, "k": 1}  # beyond which there is nothing to try
SETTINGS = """\
Every site is a user once and keeps its own hold-out: a third of its rows, at least 100 where that is not more than half
(heart disease: a third), stratified. Titanic and GUSTO: a linear softmax model, as in the Weight Erosion report; heart
disease: the shipped study's network of 32 and 16 units; HAR: linear. Numbers are standardised per site, on Titanic over
all sites, since per site would undo the cut by age. AGE_SOME is cut anew by each seed. Control: a world in which a
method can win, 8 sites of 60 training rows in two hidden groups with different truths, 3000 test rows each, drawn anew
by each seed (benchmarks/worlds.py; more such worlds, and by log loss, in benchmarks/choose.py). Loss: the mean over a
batch, class-weighted (inverse prevalence at the site). For every method one local epoch a round, no momentum, the
learning rate times 0.9 twenty times over the run, sites weighted equally. Weight Erosion erodes by these local updates
(`update = "local"`): with one gradient a round, its other form, it would have had a small part of everybody's steps.
Fine-tuning's epochs come after the rounds and start again at the full learning rate. Influence trains without the rows
that it judges by. Ndoye top-k ranks with Local's tuned learning rate, then trains FedAvg with the k chosen at FedAvg's;
k stays below all others, which would be Global.

Tuned on training rows only, by balanced accuracy, mean over sites; the seeds' training rows are drawn from the same
tables as the hold-outs of the comparison, for all methods alike. A tuned value at an end of its grid might be better
beyond it: such are named below each table, but for ends beyond which there is nothing (no penalty, one epoch, one
site).

Less Global, less Local: the gain, paired by seed. In brackets the 95 % interval of `vitrail compare` (Nadeau and
Bengio: widened, since seeds redraw the test rows from the same rows); **bold**, and above `better` or `worse`, where it
excludes zero. A star, and `on these rows`, where only the plain t interval over seeds does. Nothing is corrected for
the many comparisons, and who is best was picked after the fact. Worst user: the site that is worst in the mean over
seeds, each method's own.

Sent: all bytes of the engine's ledger, both directions, all sites, for all users' models, with standardising and, for
Ndoye, the models and losses of its ranking. Row gradients: one row through one gradient of one model, counted where
every method computes them (`Task.accumulate`), over all sites. Evaluations: one row through one model to judge it by
(Influence's validation rows, Ndoye's ranking); hold-out scores, the same for all, are not counted, nor is tuning."""


# --- one case --------------------------------------------------------------------------------------------------------


@cache
def table(name: str) -> Any:
    tables = {"heart": vt.datasets.heart_disease, "gusto": vt.datasets.gusto, "har": vt.datasets.har}
    return tables.get(name, vt.datasets.titanic)()


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
        sites = vt.cut.age_strict(rows) if name == "titanic_strict" else vt.cut.age_some(rows, seed=seed)
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

    with watched("accumulate", "gradients"), watched("value", "evaluations"):
        yield cost


def trained(study: vt.Study, sites: Sites, method: Any, seed: int) -> Case:
    """scores[metric][site], and what it cost."""
    data = prepare(sites, study, seed)
    rows = training_rows(data, study, method, "cpu")
    engine = Engine(build_task(study, method, seed), method, rows, training_of(study), seed)
    with counted() as cost:
        *_, last = engine.run()
    scores: dict[str, dict[str, float]] = {m: {} for m in METRICS}
    for _, _, site, _, metric, value in Judge(engine, study, data).rows(last, ("test",)):
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
        method = vt.methods.build(way.method, way.given)
        said = tune(
            study, sites, method, {"lr": source.rates, **way.grid}, source.folds, job["seed"], metric=METRICS[0]
        )
        return {"table": said.table[["lr", *way.grid, "mean"]].to_dict("records")}
    target = study.target.column
    inner = {n: f.iloc[split_rows(f[target].to_numpy(), study, job["seed"], n)[0]] for n, f in sites.items()}
    rows: dict[int, list[float]] = {k: [] for k in source.ks}
    for part in range(source.folds):
        found = top_k(study, inner, 10_000 * (1 + part) + job["seed"], source.ks, job["lr"], job["ranking_lr"])
        for k, case in found.items():
            rows[k].append(float(np.mean(list(case["scores"][METRICS[0]].values()))))
    return {"table": [{"k": k, "mean": float(np.mean(v))} for k, v in rows.items()]}


def compared(job: Case) -> Case:
    study, sites = load(job["data"], job["seed"])
    way, chosen = WAYS[job["way"]], job["settings"]
    if job["way"] == TOP:
        return top_k(study, sites, job["seed"], [chosen["k"]], chosen["lr"], chosen["ranking_lr"])[chosen["k"]]
    return trained(study, sites, vt.methods.build(way.method, {**way.given, **chosen}), job["seed"])


# --- all cases -------------------------------------------------------------------------------------------------------


def place(job: Case, folder: Path) -> Path:
    """A case that was made with other settings is another case."""
    about = [job, DATA[job["data"]]._replace(seeds=0, tuning=0), WAYS[job["way"]], RANKING_FOLDS, TRAINING]
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
    return folder / f"{job['step']}-{job['data']}-{job['way']}-{job['seed']}-{mark}.json"


def work(job: Case, folder: Path) -> None:
    torch.set_num_threads(1)
    began = time.process_time()
    done = (tuned if job["step"] == "tune" else compared)(job)
    where = (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, torch {torch.__version__}"
    )
    path = place(job, folder)
    path.with_suffix(".tmp").write_text(json.dumps({**job, **done, "where": where, "s": time.process_time() - began}))
    path.with_suffix(".tmp").replace(path)


def weight(job: Case) -> float:
    """Rough relative cost, so that the longest start first."""
    settings = math.prod(map(len, WAYS[job["way"]].grid.values())) * 4 if job["step"] == "tune" else 1
    heavy = {"weight_erosion": 8, TOP: 20, "influence": 2, "apfl": 2, "centres": 20}.get(job["way"], 1)
    return settings * heavy * {"gusto": 10, "har": 60}.get(job["data"], 1)


def carry_out(jobs: list[Case], folder: Path, processes: int) -> None:
    todo = sorted((j for j in jobs if not place(j, folder).exists()), key=weight, reverse=True)
    began = time.time()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(work, job, folder): job for job in todo}
        for n, future in enumerate(as_completed(waiting), 1):
            future.result()
            job = waiting[future]
            line = f"{job['step']} {n}/{len(todo)} after {time.time() - began:.0f} s: {job['data']}, {job['way']}"
            print(f"{line}, seed {job['seed']}", flush=True)


def read(jobs: list[Case], folder: Path) -> list[Case]:
    return [json.loads(place(j, folder).read_text()) for j in jobs if place(j, folder).exists()]


def best(cases: list[Case]) -> dict[str, Any]:
    """The setting with the highest mean over the tuning seeds; the first of equals."""
    rows = pd.concat([pd.DataFrame(c["table"]) for c in cases])
    keys = [c for c in rows.columns if c != "mean"]
    means = rows.groupby(keys, sort=False)["mean"].agg(lambda v: v.mean(skipna=False)).reset_index()
    return {k: means[k].tolist()[means["mean"].argmax()] for k in keys}


class Plan(NamedTuple):
    """What there is to do, as far as the cache knows what the steps before have found."""

    tune: list[Case]
    rank: list[Case]
    compare: list[Case]


def plan(names: Sequence[str], folder: Path, args: argparse.Namespace) -> Plan:
    out, plain = Plan([], [], []), [w for w in WAYS if w != TOP]
    for d in names:
        seeds = range(1, 1 + (args.tuning_seeds or DATA[d].tuning))
        jobs = {w: [{"step": "tune", "data": d, "way": w, "seed": s} for s in seeds] for w in WAYS}
        out.tune.extend(job for w in plain for job in jobs[w])
        if any(len(read(jobs[w], folder)) < len(seeds) for w in plain):
            continue
        found = {w: best(read(jobs[w], folder)) for w in plain}
        rates = {"lr": found["global"]["lr"], "ranking_lr": found["local"]["lr"]}
        out.rank.extend(ranking := [{**job, **rates} for job in jobs[TOP]])
        if len(done := read(ranking, folder)) == len(seeds):
            found[TOP] = {**best(done), **rates}
        for w, s in itertools.product(found, range(args.first, args.first + (args.seeds or DATA[d].seeds))):
            out.compare.append({"step": "compare", "data": d, "way": w, "seed": s, "settings": found[w]})
    return out


# --- the report ------------------------------------------------------------------------------------------------------


class Gain(NamedTuple):
    """Over seeds; `sure` and `here`: the sign if the wide and the plain interval exclude zero, else 0."""

    mean: float
    low: float
    high: float
    sure: int
    here: int

    def __str__(self) -> str:
        text = f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"
        return f"**{text}**" if self.sure else f"{text} *" if self.here else text


class Result(NamedTuple):
    """One data set, under the seeds that every way has."""

    data: str
    sizes: dict[str, list[int]]  # site -> training and test rows
    seeds: list[int]
    scores: dict[tuple[str, str], Any]  # way, metric -> [seed, site]
    runs: dict[str, list[Case]]  # way -> a run for each seed

    def score(self, way: str, user: str, metric: str = METRICS[0]) -> float:
        """Mean over seeds, of the mean user or the worst."""
        by_site = np.nanmean(self.scores[way, metric], 0)
        return float(by_site.mean() if user == "mean" else by_site.min())

    def worst(self, way: str, metric: str) -> int:
        return int(np.nanmean(self.scores[way, metric], 0).argmin())

    def gain(self, way: str, rival: str, user: str | int, metric: str = METRICS[0]) -> Gain:
        """For the mean user, the worst one (each way's own), or that of this number."""
        one, two = self.scores[way, metric], self.scores[rival, metric]
        if user == "mean":
            apart = np.nanmean(one - two, 1)
        else:
            at = [self.worst(w, metric) if user == "worst" else int(user) for w in (way, rival)]
            apart = one[:, at[0]] - two[:, at[1]]
        train, test = np.sum(list(self.sizes.values()), 0)
        (mean, low, high), (_, a, b) = (interval(apart.tolist(), share) for share in (test / (train + test), 0.0))
        return Gain(mean, low, high, (low > 0) - (high < 0), (a > 0) - (b < 0))

    def cost(self, way: str, what: str) -> float:
        return float(np.mean([run[what] for run in self.runs[way]]))

    def times(self, way: str) -> list[float]:
        return [self.cost(way, what) / self.cost("global", what) for what in ("bytes", "gradients")]


def gather(jobs: list[Case], folder: Path) -> list[Result]:
    out = []
    for d in dict.fromkeys(j["data"] for j in jobs):
        there = {w: read([j for j in jobs if (j["data"], j["way"]) == (d, w)], folder) for w in WAYS}
        seeds = sorted(set.intersection(*({c["seed"] for c in cases} for cases in there.values())))
        if len(seeds) < 2:
            print(f"{d}: too few cases are there")
            continue
        runs = {w: [c for c in cases if c["seed"] in seeds] for w, cases in there.items()}  # read in order of seeds
        sizes = runs["global"][0]["sizes"]
        scores = {
            (w, m): np.array([[c["scores"][m][site] for site in sizes] for c in runs[w]], float)
            for w, m in itertools.product(WAYS, METRICS)
        }
        out.append(Result(d, sizes, seeds, scores, runs))
    return out


def listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words) or "nobody"


def answer(r: Result) -> list[str]:
    """The plain answer for one data set."""
    lines = [f"- **{DATA[r.data].title}**"]
    for user in ("mean", "worst"):
        score = {w: r.score(w, user) for w in WAYS}
        top = max(score, key=lambda w: score[w])
        sent, computed = (f"{v:.3g}" for v in r.times(top))
        said = [
            f"  - {user.title()} user: {WAYS[top].title} is best, {score[top]:.3f} (Global {score['global']:.3f}, "
            f"Local {score['local']:.3f}), for {sent} times Global's bytes and {computed} times its gradients."
        ]
        for rival in YARDS:
            found = {WAYS[w].title: r.gain(w, rival, user) for w in WAYS if w != rival}
            parts = []
            for sign, word in ((1, "better"), (-1, "worse")):
                parts.append((word, [w for w, g in found.items() if g.sure == sign]))
                parts.append((f"{word} on these rows", [w for w, g in found.items() if g.here == sign and not g.sure]))
            told = "; ".join(f"{word} {listed(ways)}" for word, ways in parts if ways)
            said.append(f"Against {rival.title()}: {told or 'nobody differs'}.")
        lines.append(" ".join(said))
    return lines


def overall(results: list[Result]) -> list[str]:
    """Over all data sets: who beats both yardsticks, mean ranks, cost."""
    lines, rest = [], [w for w in WAYS if w not in YARDS]
    for user in ("mean", "worst"):
        wins = {
            w: [DATA[r.data].title for r in results if all(r.gain(w, v, user).sure > 0 for v in YARDS)] for w in rest
        }
        both = [f"{WAYS[w].title} ({listed(where)})" for w, where in wins.items() if where]
        score = pd.DataFrame([[r.score(w, user) for w in WAYS] for r in results], columns=list(WAYS))
        ranks = score.rank(axis=1, ascending=False).mean().sort_values()
        told = ", ".join(f"{WAYS[str(w)].title} {v:.1f}" for w, v in ranks.items())
        lines.append(f"- For the {user} user, better than both Global and Local: {listed(both)}. Mean rank: {told}.")
    costs = []
    for w in rest:
        pairs = np.array([r.times(w) for r in results])
        spans = [sorted({f"{v:.3g}" for v in times}, key=float) for times in pairs.T]
        costs.append(f"{WAYS[w].title} {' and '.join(' to '.join([s[0], *s[1:][-1:]]) for s in spans)}")
    return [*lines, f"- Cost, as a multiple of Global's bytes and row gradients: {'; '.join(costs)}."]


def at_an_end(r: Result) -> list[str]:
    """Tuned values that might be better beyond their grid."""
    found = []
    for w, way in WAYS.items():
        grid = {"lr": DATA[r.data].rates, "ranking_lr": DATA[r.data].rates, "k": DATA[r.data].ks, **way.grid}
        for name, value in r.runs[w][0]["settings"].items():
            if value in (grid[name][0], grid[name][-1]) and value != BOUNDS.get(name):
                found.append(f"{way.title} {name} {value:g}")
    return found


def table_of(r: Result, metric: str) -> list[str]:
    """One row for each way; the first table also says what was tuned, for how many users it is above, and the cost."""
    first = metric == METRICS[0]
    head = [f"{WORDS[metric]} (tuned)" if first else WORDS[metric]]
    head += [h for user in ("mean", "worst") for h in (f"{user} user", "less Global", "less Local")]
    head += ["users above Global, Local", "sent, kB", *(f"row {k}, thousand" for k in COUNTED)] if first else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for w in WAYS:
        lost = int(np.isnan(r.scores[w, METRICS[0]]).any(1).sum())
        cells = [WAYS[w].title + (f", {lost} runs diverged" if lost else "")]
        for user in ("mean", "worst"):
            where = f" ({list(r.sizes)[r.worst(w, metric)]})" if user == "worst" else ""
            cells.append(f"{r.score(w, user, metric):.3f}{where}")
            cells += ["" if w == v else str(r.gain(w, v, user, metric)) for v in YARDS]
        if first:
            by_site = {v: np.nanmean(r.scores[v, metric], 0) for v in (w, *YARDS)}
            above = ", ".join(str((by_site[w] > by_site[v]).sum()) for v in YARDS)
            cells[0] += f" ({', '.join(f'{k} {v:g}' for k, v in r.runs[w][0]['settings'].items())})"
            cells += [f"{above} of {len(r.sizes)}", *(f"{r.cost(w, k) / 1e3:,.0f}" for k in ("bytes", *COUNTED))]
        lines.append(cells)
    return ["", *("| " + " | ".join(line) + " |" for line in lines)]


STYLE = """
svg { --paper: #fdfdfb; --ink: #1d2126; --soft: #5a626b; --grid: #e6e8e8; --zero: #8b939c; --u0: #0072b2; --u1: #d55e00;
  --u2: #009e73; --u3: #c0659a; font: 13px system-ui, "Liberation Sans", Arial, sans-serif }
@media (prefers-color-scheme: dark) { svg { --paper: #16191d; --ink: #e7e9eb; --soft: #a7b0b9; --grid: #2a2f36;
  --zero: #7d868f; --u0: #4aa3e0; --u1: #f0803c; --u2: #2fc79a; --u3: #de93bf } }
rect { fill: var(--paper) } text { fill: var(--ink) } .soft { fill: var(--soft); font-size: 12px }
.head { font-size: 15px; font-weight: 600 } .grid { stroke: var(--grid) } .zero { stroke: var(--zero) }
g { stroke-width: 1.8 } .mean { fill: var(--ink); stroke: var(--ink) } .dot { fill: var(--u0); opacity: .7 }
.u0 { fill: var(--u0); stroke: var(--u0) } .u1 { fill: var(--u1); stroke: var(--u1) }
.u2 { fill: var(--u2); stroke: var(--u2) } .u3 { fill: var(--u3); stroke: var(--u3) }
"""


def figure(r: Result) -> str:
    """Gain over Global: every user with its interval where they are few, else dots; and the mean user's interval."""
    from vitrail.report.draw import Scale, line, swarm, tag, text, ticks, written
    from vitrail.report.words import signed

    ways, sites = [w for w in WAYS if w != "global"], list(r.sizes)
    few = len(sites) <= 4
    gains = {w: [r.gain(w, "global", i) for i in range(len(sites))] for w in ways}
    means = {w: r.gain(w, "global", "mean") for w in ways}
    ends = [v for w in ways for g in gains[w] for v in (g[1:3] if few else g[:1])] + [0.0]
    ends += [v for g in means.values() for v in g[1:3]]
    step, left, right, top = 15.0 * len(sites) + 28 if few else 60.0, 120.0, 816.0, 58.0
    bottom, air = top + step * len(ways), 0.03 * (max(ends) - min(ends))
    x = Scale(min(ends) - air, max(ends) + air, left, right)
    parts = [
        tag("rect", width=832, height=bottom + 48),
        text(8, 22, f"{DATA[r.data].title}: gain over Global", "head"),
    ]
    keys = {f"u{i}": site for i, site in enumerate(sites)} if few else {"dot": "a user, mean over seeds"}
    for i, (kind, who) in enumerate({**keys, "mean": "the mean user"}.items()):
        at = left + 5 + (130 if few else 190) * i
        parts += [tag("circle", cx=at, cy=42, r=4.5, class_=kind), text(at + 10, 46, who, "soft")]
    for value, said in written(ticks(x.low, x.high, 7), signed):
        parts.append(line(x(value), top, x(value), bottom, "grid" if value else "zero"))
        parts.append(text(x(value), bottom + 16, said, "soft", "middle"))
    words = f"{WORDS[METRICS[0]]} less Global's, same seeds; lines: 95 % intervals"
    parts.append(text((left + right) / 2, bottom + 36, words, "soft", "middle"))
    for n, w in enumerate(ways):
        base = top + n * step
        parts += [text(8, base + step / 2 + 4, WAYS[w].title, "name"), line(8, base, right, base, "grid")]
        away = swarm([x(g.mean) for g in gains[w]], 8, 16)
        drawn = [(f"u{i}" if few else "dot", 14 + 15 * i if few else 22 + away[i]) for i in range(len(sites))]
        drawn.append(("mean", step - 13))
        for (kind, down), g, who in zip(drawn, [*gains[w], means[w]], [*sites, "the mean user"], strict=True):
            reach = [line(x(g.low), base + down, x(g.high), base + down, kind)] if few or kind == "mean" else []
            tip = tag("title", f"{WAYS[w].title}, {who}: {g}".replace("*", "").strip())
            parts.append(tag("g", tip, *reach, tag("circle", cx=x(g.mean), cy=base + down, r=4, class_=kind)))
    size = {"viewBox": f"0 0 832 {bottom + 48:g}", "xmlns": "http://www.w3.org/2000/svg"}
    return str(tag("svg", tag("title", "Gain over Global"), tag("style", STYLE), *parts, width=832, **size))


def write(todo: Plan, folder: Path, out: Path) -> None:
    results, done = gather(todo.compare, folder), [c for jobs in todo for c in read(jobs, folder)]
    minutes = {step: sum(c["s"] for c in done if c["step"] == step) / 60 for step in ("tune", "compare")}
    grids = [f"{w.title} {', '.join(f'{k} {v}' for k, v in w.grid.items())}" for w in WAYS.values() if w.grid]
    lines = [f"# Whom to learn from, {time.strftime('%Y-%m-%d')}", "", "In short, by balanced accuracy:", ""]
    lines += [
        *overall(results),
        *(line for r in results for line in answer(r)),
        "",
        "## What was done",
        "",
        SETTINGS,
        "",
    ]
    lines += [f"Tried beside learning rates and Ndoye's k: {'; '.join(grids)}. CPU minutes: tuning"]
    lines += [f"{minutes['tune']:.0f}, comparison {minutes['compare']:.0f}."]
    lines += ["Computed on: " + "; ".join(sorted({c["where"] for c in done})) + "."]
    out.with_suffix("").mkdir(exist_ok=True)
    for r in results:
        source, tuned_with = DATA[r.data], {j["seed"] for j in todo.tune if j["data"] == r.data}
        lines += ["", f"## {source.title}", "", f"{len(r.sizes)} users, {int(np.sum(list(r.sizes.values())))} rows,"]
        lines += [f"{source.rounds} rounds, batches of {source.batch}. Tuned with {len(tuned_with)} seeds from 1 on,"]
        lines += [
            f"{source.folds} folds each, of learning rates {list(source.rates)} and k {list(source.ks)}; compared"
        ]
        lines += [
            f"with {len(r.seeds)} seeds, {r.seeds[0]} to {r.seeds[-1]}.",
            *(line for m in METRICS for line in table_of(r, m)),
            "",
        ]
        lines += [f"At an end of its grid: {listed(at_an_end(r)) if at_an_end(r) else 'nothing'}.", ""]
        lines += [f"![{source.title}: gain over Global for each user and method]({out.stem}/{r.data}.svg)"]
        (out.with_suffix("") / f"{r.data}.svg").write_text(figure(r) + "\n")
    out.write_text("\n".join(lines) + "\n")
    print(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--seeds", type=int, help="fewer than planned, to try it out")
    parser.add_argument("--first", type=int, default=FIRST, help="first seed of the comparison; another to try it out")
    parser.add_argument("--tuning-seeds", type=int, help="fewer than planned, to try it out")
    parser.add_argument("--cache", type=Path, default=Path("scratch/whom_to_learn_from"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "whom_to_learn_from.md")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    names = args.data.split(",")
    if unknown := [n for n in names if n not in DATA]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(DATA)}")
    args.cache.mkdir(parents=True, exist_ok=True)
    if args.report:
        write(plan(names, args.cache, args), args.cache, args.out)
        return
    for step in Plan._fields:  # each rests on what the one before has found
        carry_out(getattr(plan(names, args.cache, args), step), args.cache, args.jobs)


if __name__ == "__main__":
    main()

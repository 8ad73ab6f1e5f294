"""Weight Erosion and its rivals, each with the same bytes or the same gradient steps (Grimberg 2020, section 6).

    VITRAIL_DATA=... python benchmarks/verdicts/fixed_budget.py     # about 15 minutes on one core; resumes from --cache
    python benchmarks/verdicts/fixed_budget.py --cache PLACE --report              # tables of what is done

The budget is what so many rounds of Global (FedAvg) take at one site (studies/compare/budget.py); every other way trains
as many rounds as that pays. Linear models, all sites users at once, balanced accuracy on each user's hold-out rows, mean
over users. Learning rates (and p_d of Weight Erosion) are tuned for each budget by itself, by cross-validation within
the training rows of a seed that the comparison does not use. Ndoye top-k is no method of the table: for each user it
costs a ranking, for which every site trains alone and in five folds, and FedAvg with k others, so that a site takes part
in k + 1 trainings; it takes Global's and Local's learning rates. The control is a world with two hidden groups, in which
choosing whom to learn from can win.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from whom_to_learn_from import RANKING_FOLDS, TRAINING, load, top_k, trained

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import prepare
from vitrail.stats.intervals import interval
from vitrail.studies.compare.budget import FixedBudget, Spent, spent_by
from vitrail.studies.transfer import transfer_lines
from vitrail.studies.tune import tune

Case = dict[str, Any]
METRIC = "balanced_accuracy"
FIRST, TUNED_WITH, FOLDS = 3001, 1, 3
AMOUNTS = (10, 60)  # rounds of Global
MOST = 200  # rounds of any way
KINDS = ("bytes", "steps")
LR = (0.03, 0.1, 0.3, 1.0, 3.0)
SENSORS, FEWEST = 8, 100  # of the vehicle table: every so many sensors with that many rows


class Source(NamedTuple):
    title: str
    k: int  # of Ndoye top-k
    count: int = 8  # seeds
    worlds: bool = False  # every seed draws rows that no other has

    @property
    def seeds(self) -> range:
        return range(FIRST, FIRST + self.count)


DATA = {
    "heart": Source("Heart disease, four hospitals", 1),
    "titanic_strict": Source("Titanic, AGE_STRICT, four sites", 1),
    "control": Source("Control: two hidden groups of 4 sites", 3, 5, True),
    "vehicle": Source("Vehicle, eight sensors", 3, 4),
}


class Way(NamedTuple):
    title: str
    method: str
    given: dict[str, Any]
    grid: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012  beside the learning rate


EROSION = {"p_d": (0.003, 0.03, 0.3)}
WAYS = {
    "global": Way("Global (FedAvg)", "fedavg", {}),
    "local": Way("Local", "local", {}),
    "gradient": Way("Weight Erosion, one gradient a round", "weight_erosion", {"beside": False}, EROSION),
    "updates": Way("Weight Erosion, local updates", "weight_erosion", {"beside": False, "update": "local"}, EROSION),
    "influence": Way("Influence", "influence", {}),
    "apfl": Way("APFL", "apfl", {}),
    "ndoye": Way("Ndoye top-k", "fedavg", {}),
}


@cache
def sensors() -> Any:
    tables = [(n, f) for n, f in vt.datasets.vehicle().items() if len(f) >= FEWEST]
    return dict(tables[:: max(1, len(tables) // SENSORS)][:SENSORS])


@cache
def sensor_study() -> vt.Study:
    return vt.Study.infer(sensors(), "label", network={"kind": "linear"})


@lru_cache(40)
def loaded(name: str, seed: int) -> tuple[vt.Study, Any]:
    if name != "vehicle":
        study, sites = load(name, seed)
        return study.with_changes(network={"kind": "linear"}, metrics=(METRIC,)), sites
    return sensor_study().with_changes(training={**TRAINING, "rounds": 1, "batch": 16}, metrics=(METRIC,)), sensors()


def with_rounds(study: vt.Study, rounds: int) -> vt.Study:
    return study.with_changes(training={"rounds": rounds})


def built(way: str, settings: dict[str, Any]) -> Any:
    return vt.methods.build(WAYS[way].method, {**WAYS[way].given, **settings})


def cost(study: vt.Study, way: str, k: int, rounds: int, rows: dict[str, int]) -> Spent:
    """Of one site, in the mean over sites for Ndoye top-k."""
    study = study.with_changes(method={"name": WAYS[way].method, **WAYS[way].given})
    one = spent_by(study, WAYS[way].method, rounds, rows)
    if way != "ndoye":
        return one
    ranking = sum(line.bytes * line.rounds for line in transfer_lines(study, len(rows), RANKING_FOLDS))
    share = 1 + (RANKING_FOLDS - 1)  # all rows once, and each fold's others
    return Spent(rounds, (k + 1) * one.bytes + ranking, (k + 1 + share) * one.steps)


def affordable(study: vt.Study, way: str, k: int, rows: dict[str, int], budget: FixedBudget) -> int:
    low, high = 0, MOST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if budget.pays(cost(study, way, k, middle, rows)) else (low, middle - 1)
    return low


def tuned(name: str, way: str, rounds: int) -> dict[str, Any]:
    study, sites = loaded(name, TUNED_WITH)
    method, grid = built(way, {}), {"lr": list(LR), **{k: list(v) for k, v in WAYS[way].grid.items()}}
    try:
        table = tune(with_rounds(study, rounds), sites, method, grid, FOLDS, TUNED_WITH, metric=METRIC).table
    except VitrailError as error:
        if error.title != "nothing was tuned":
            raise
        return {"lr": LR[0]}
    best = table.loc[table["mean"].idxmax()]
    return {k: float(best[k]) for k in grid}


def case_of(name: str, kind: str, amount: int, way: str, chosen: dict[str, Case]) -> Case:
    study, sites = loaded(name, FIRST)
    rows = {site.name: len(site.train_y) for site in prepare(sites, study, FIRST)}
    spent = cost(study, "global", 0, amount, rows)
    budget = FixedBudget(bytes=spent.bytes) if kind == "bytes" else FixedBudget(steps=spent.steps)
    rounds = affordable(study, way, DATA[name].k, rows, budget)
    out: Case = {"rounds": rounds, "budget": budget, "settings": {}, "scores": []}
    if not rounds:
        return out
    k, began = DATA[name].k, time.process_time()
    if way == "ndoye":
        out["settings"] = {"lr": chosen["global"]["settings"]["lr"], "ranking_lr": chosen["local"]["settings"]["lr"]}
    else:
        out["settings"] = tuned(name, way, rounds)
    for seed in DATA[name].seeds:
        study, sites = loaded(name, seed)
        now = with_rounds(study, rounds).with_changes(metrics=("balanced_accuracy", "f1", "auc"))
        if way == "ndoye":
            found = top_k(now, sites, seed, [k], **out["settings"])[k]
        else:
            found = trained(now, sites, built(way, out["settings"]), seed)
        out["scores"].append(float(np.mean(list(found["scores"][METRIC].values()))))
    return out | {"s": time.process_time() - began}


def told(values: list[float], worlds: bool) -> str:
    """A paired difference: widened where seeds redraw test rows from the same rows (Nadeau and Bengio)."""
    mean, low, high = interval(values, 0.0 if worlds else 1 / 3)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def report(cases: dict[str, Case]) -> list[str]:
    lines = ["# Fixed budgets of bytes and of gradient steps", ""]
    lines += [
        "`python benchmarks/verdicts/fixed_budget.py`. Balanced accuracy on hold-out rows, mean over users, "
        f"linear models. The budget is what {' or '.join(map(str, AMOUNTS))} rounds of Global take "
        f"at one site, and no way trains more than {MOST} rounds. In brackets 95 % intervals of differences, paired by "
        "seed (Nadeau and Bengio; in the control, where each seed draws a world, Student's t).", "",
    ]  # fmt: skip
    wins, count = dict.fromkeys(WAYS, 0), 0
    short, clear = list[str](), {s.title: [0, 0] for s in DATA.values()}  # intervals that exclude zero, of how many
    for name, source in DATA.items():
        lines += [f"## {source.title}", ""]
        for kind, amount in itertools.product(KINDS, AMOUNTS):
            if any(f"{name}-{kind}-{amount}-{way}" not in cases for way in WAYS):
                lines += [f"As many {kind} as {amount} rounds of Global: not done.", ""]
                continue
            mine = {way: cases[f"{name}-{kind}-{amount}-{way}"] for way in WAYS}
            spent = FixedBudget(*mine["global"]["budget"])
            lines += [
                f"As many {kind} as {amount} rounds of Global: {spent.words} a site. "
                f"{len(mine['global']['scores'])} seeds.", "",
                "| way | rounds | settings | score | less Global | less Local |", "| --- | --- | --- | --- | --- | --- |",
            ]  # fmt: skip
            for way, case in mine.items():
                if not case["scores"]:
                    lines.append(f"| {WAYS[way].title} | 0: not a single round | | | | |")
                    continue
                less = []
                for rival in ("global", "local"):
                    gain = [a - b for a, b in zip(case["scores"], mine[rival]["scores"], strict=True)]
                    less.append("" if way == rival else told(gain, source.worlds))
                    _, low, high = interval(gain, 0.0 if source.worlds else 1 / 3)
                    clear[source.title][0] += low > 0 or high < 0
                    clear[source.title][1] += way != rival
                given = ", ".join(f"{k} {v:g}" for k, v in case["settings"].items())
                score = f"{np.mean(case['scores']):.3f}"
                lines.append(f"| {WAYS[way].title} | {case['rounds']} | {given} | {score} | {less[0]} | {less[1]} |")
            best = max((w for w in mine if mine[w]["scores"]), key=lambda w: float(np.mean(mine[w]["scores"])))
            wins[best], count = wins[best] + 1, count + 1
            short.append(f"| {source.title} | {amount} rounds' {kind} | {WAYS[best].title} | {beats(mine, source)} |")
            lines.append("")
    head = [
        "## In short", "", "| data | budget | highest mean | Weight Erosion better than both Global and Local |",
        "| --- | --- | --- | --- |", *short, "",
        f"Highest mean, of {count} budgets: " + ", ".join(f"{WAYS[w].title} {n}" for w, n in wins.items()) + ". Who is "
        "highest was picked after the fact.", "",
        "Differences to Global or Local whose interval excludes zero: "
        + "; ".join(f"{title} {some} of {of}" for title, (some, of) in clear.items()) + ".", "",
    ]  # fmt: skip
    seconds = sum(case.get("s", 0.0) for case in cases.values())
    where = (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, torch {torch.__version__}"
    )
    return [*lines[:4], *head, *lines[4:], f"CPU minutes: {seconds / 60:.0f}. {where}.", ""]


def beats(mine: dict[str, Case], source: Source) -> str:
    """Whether the interval of its gain over both excludes zero, for either form of Weight Erosion."""
    out = []
    for way in ("gradient", "updates"):
        if not mine[way]["scores"]:
            out.append("no round")
            continue
        lows = []
        for rival in ("global", "local"):
            gain = [a - b for a, b in zip(mine[way]["scores"], mine[rival]["scores"], strict=True)]
            lows.append(interval(gain, 0.0 if source.worlds else 1 / 3)[1])
        out.append("yes" if min(lows) > 0 else "no")
    return f"one gradient: {out[0]}; local updates: {out[1]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fixed_budget.md")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="", help="cases whose name begins like this, such as control-bytes-60")
    parser.add_argument("--report", action="store_true", help="of what is done")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.cache.mkdir(parents=True, exist_ok=True)
    cases: dict[str, Case] = {}
    for name, kind, amount in itertools.product(DATA, KINDS, AMOUNTS):
        chosen: dict[str, Case] = {}
        for way in WAYS:
            key = f"{name}-{kind}-{amount}-{way}"
            place = args.cache / f"{key}.json"
            if not place.exists() and (args.report or not key.startswith(args.only)):
                continue
            if not place.exists():
                place.write_text(json.dumps(case_of(name, kind, amount, way, chosen)))
                done = json.loads(place.read_text())
                print(key, done["rounds"], done["settings"], round(done.get("s", 0), 1), flush=True)
            case = json.loads(place.read_text())
            chosen[way] = cases[key] = case
        args.out.write_text("\n".join(report(cases)))


if __name__ == "__main__":
    main()

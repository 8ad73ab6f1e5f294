"""Weight Erosion on the Titanic: the report's case study over many seeds, more kinds of skew, attackers, and the cost.

    python benchmarks/methods/weight_erosion_titanic.py --jobs 16     # resumes; finished cases lie in --cache
    python benchmarks/methods/weight_erosion_titanic.py --report      # tables and figures from what is there

The report (Grimberg 2020, section 5) trains a linear softmax model on one batch per agent and round, three ways:
Global (all agents alike), Weight Erosion, Local. p_d = 0 is Global and a huge p_d is Local, so that all three are the
same code on the same batches. Learning rate, p_d and p_s are tuned for each scheme, seed and federation by `vitrail
tune` (3 folds within the training rows, log loss); half of each site's rows are test rows and take no part in it.

Not as in the report: every site is the user at once, so that the others, too, train on half of their rows (there: on
all); batches of 64 where the report's were 132 or 161, of twice as many rows. Rounds, batch and grid were chosen on
seeds 9001 to 9003, which the results do not use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import vitrail as vt
from vitrail.core import facts as means
from vitrail.core.exchange import Roster
from vitrail.core.facts import Fact, Facts
from vitrail.core.random import key
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, clone
from vitrail.data.encoding import SiteData, columns, prepare
from vitrail.engine.local import Engine
from vitrail.methods.blocks.per_user import Up
from vitrail.methods.influence import Influence
from vitrail.methods.weight_erosion import Coord, WeightErosion
from vitrail.runs.evaluation import Evaluator
from vitrail.runs.setup import build_task, training_of, training_rows
from vitrail.stats.intervals import interval
from vitrail.studies.tune import tune

Frame = pd.DataFrame
Case = dict[str, Any]
ROUNDS, BATCH, TEST, EVERY, ALONE = 100, 64, 0.5, 4, 1e9
GRID = {"lr": [0.3, 1.0]}
PENALTIES = {"p_d": [0.001, 0.003, 0.01], "p_s": [0.0, 0.2]}
REPORTED = {"p_d": 0.01, "p_s": 0.2}  # the case study's own
SCHEMES = {"global": "Global", "erosion": "Weight Erosion", "local": "Local", "stopped": "WE, early stopping"}
SCHEMES |= {"reported": "WE, report's penalties"}
WHEN = {"last": "after the last round", "stopped": "where early stopping stopped", "mean": "mean over the rounds"}
WHEN |= {"first": "when the user's first site has lost all (or at the end)"}
ATTACKS = {  # what the attacker says to each user of the update for that user's model; kind, strength
    "noise": ("noise", 1.0),
    "noise x 10": ("noise", 10.0),
    "negative": ("scaled", -1.0),
    "negative x 10": ("scaled", -10.0),
    "copy": ("copy", 1.0),
    "echo": ("echo", 1.0),
}
COST_SITES = (4, 8, 16)


# --- federations ------------------------------------------------------------------------------------------------------


@cache
def passengers() -> Frame:
    return vt.datasets.titanic()


@cache
def study() -> vt.Study:
    return vt.Study.infer(
        {"all": passengers()},
        "survived",
        name="Titanic",
        standardise="global",
        metrics=["accuracy", "log_loss"],
        split={"test": TEST, "at_least": 0},
        network={"kind": "linear"},
        training={"rounds": ROUNDS, "batch": BATCH, "total": "mean", "class_weights": "none", "decays": 0},
    )


def by_sex(frame: Frame, seed: int) -> dict[str, Frame]:
    out: dict[str, Frame] = {}
    for name, sex in (("women", "female"), ("men", "male")):
        a, b = vt.partition.iid(frame[frame.sex == sex], 2, seed).values()
        out |= {f"{name} a": a, f"{name} b": b}
    return out


def label_skew(frame: Frame, seed: int) -> dict[str, Frame]:
    """Sites of equal size in which the share of survivors grows: a tenth, two, three and four of all survivors."""
    rng = np.random.default_rng(key(seed, "label skew"))
    lived, died = (rng.permutation(np.flatnonzero(frame.survived == k)) for k in (1, 0))
    most = (np.array([0.1, 0.3, 0.6, 1.0]) * len(lived)).astype(int)
    ends = (np.arange(1, 5) * len(frame) / 4).astype(int)
    parts = zip(np.split(lived, most[:-1]), np.split(died, (ends - most)[:-1]), strict=True)
    rows = [np.sort(np.concatenate(p)) for p in parts]
    return {f"{round(100 * frame.survived.iloc[r].mean())} % survived": frame.iloc[r] for r in rows}


def features_given_label(frame: Frame, seed: int) -> dict[str, Frame]:
    """p(x|y): the share of survivors is everywhere the same, but among survivors, and among the dead, the fares grow
    from site to site (ranked by fare with noise of half a standard deviation of its logarithm)."""
    rng = np.random.default_rng(key(seed, "p(x|y)"))
    fare = np.log1p(frame.fare.fillna(frame.fare.median()).to_numpy())
    fare = fare + 0.5 * fare.std() * rng.normal(size=len(fare))
    quarter = np.zeros(len(frame), dtype=int)
    for k in (0, 1):
        rows = np.flatnonzero(frame.survived == k)
        quarter[rows[np.argsort(fare[rows], kind="stable")]] = np.arange(len(rows)) * 4 // len(rows)
    return {f"fares {name}": frame[quarter == i] for i, name in enumerate(("lowest", "low", "high", "highest"))}


def iid(frame: Frame, seed: int) -> dict[str, Frame]:
    return vt.partition.iid(frame, 4, seed)


def turned(frame: Frame, seed: int, column: str) -> dict[str, Frame]:
    """p(y|x): sites by lot; at one of them, another in each seed, the two values of a column are exchanged."""
    sites = iid(frame, seed)
    odd, values = guilty(list(sites), seed), list(frame[column].unique())
    other = dict(zip(values, reversed(values), strict=True))
    return sites | {odd: sites[odd].assign(**{column: sites[odd][column].map(other)})}


def guilty(names: list[str], seed: int) -> str:
    return names[seed % len(names)]


FEDERATIONS: dict[str, tuple[str, Callable[[Frame, int], dict[str, Frame]]]] = {
    "age_strict": ("AGE_STRICT", lambda f, seed: vt.partition.age_strict(f)),
    "age_some": ("AGE_SOME", lambda f, seed: vt.partition.age_some(f, seed=seed)),
    "sex": ("By sex, two sites of each", by_sex),
    "label": ("Label skew, p(y)", label_skew),
    "x_given_y": ("p(x|y) skew", features_given_label),
    "y_given_x": ("p(y|x) skew: fates turned round at one site", lambda f, seed: turned(f, seed, "survived")),
    "y_given_sex": ("p(y|x) skew: sex turned round at one site", lambda f, seed: turned(f, seed, "sex")),
    "iid": ("IID", iid),
}
FIGURES = ("age_strict", "age_some", "y_given_x")
BY_LOT = ("y_given_x", "y_given_sex", "iid")  # a site's name says nothing
PAIRS = {"age_some": [("0-35 a", "0-35 b")], "sex": [("women a", "women b"), ("men a", "men b")]}
ATTACKED = ("age_strict", "iid")


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attacked(WeightErosion):
    """One site lies to every other user; about its own model it says the truth.

    noise: a random direction, as long as the true update. negative: the true update times -1. x 10: ten
    times as long. copy: exactly the update that the user itself sends in this round, which a site could know only from
    a coordinator that leaks it. echo: the step that the user's model took in the round before, which every site sees,
    since it is sent the model; in the first round, the truth.
    """

    attacker: str = ""
    attack: str = ""
    strength: float = 1.0
    held: dict[str, Any] = field(default_factory=dict, compare=False)  # generator, and the models of the round before

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        if self.attacker not in roster.names:  # the engine only looks at shapes
            return super().merge(task, coord, up, roster)
        at, n = roster.names.index(self.attacker), len(roster.names)
        update, others = clone(up.update), torch.arange(n) != at
        for k, lie in self.lie({k: v[at] for k, v in update.items()}, update, coord).items():
            update[k][at, others] = self.strength * lie[others]
        self.held["models"] = clone(coord.models)
        return super().merge(task, coord, up._replace(update=update), roster)

    def lie(self, true: Params, update: Params, coord: Coord) -> Params:
        """[user, ...]"""
        if self.attack == "copy":
            return {k: torch.stack([v[i, i] for i in range(len(v))]) for k, v in update.items()}
        if self.attack == "echo" and "models" in self.held:
            return {k: coord.models[k] - v for k, v in self.held["models"].items()}
        if self.attack == "noise":
            generator = self.held.setdefault("generator", torch.Generator().manual_seed(key(self.attacker)))
            noise = {k: torch.randn(v.shape, generator=generator) for k, v in true.items()}
            long, wide = (_lengths(tree) for tree in (true, noise))
            return {k: v * (long / wide).view(-1, *[1] * (v.dim() - 1)) for k, v in noise.items()}
        return true


def _lengths(tree: Params) -> torch.Tensor:
    return torch.stack([v.flatten(1).square().sum(1) for v in tree.values()]).sum(0).sqrt()


def fit(data: list[SiteData], method: WeightErosion, seed: int) -> Case:
    """Accuracy per round and site, trust, and the learned weights (second class less first, constant last)."""
    task = build_task(study(), method, seed)
    engine = Engine(task, method, training_rows(data, study(), method, "cpu"), training_of(study()), seed)
    judge, curve, alpha, stops = Evaluator(engine, study(), data), [], [], []
    for moment in engine.run():
        alpha.append(means.find_value(moment.facts, means.TRUST)[judge.at][:, judge.at].numpy())
        stops.append(means.find_value(moment.facts, means.STOPPED)[judge.at].tolist())
        if moment.round % EVERY == 0:
            scores = judge.rows(moment, ("test",))
            curve.append([round(value, 4) for *_, metric, value in scores if metric == "accuracy"])
    settled = engine.settled(moment).params
    both = torch.cat([settled["head.weight"], settled["head.bias"][:, None]], 1)[judge.at]
    return {
        "curve": curve,
        "accuracy": curve[-1],
        "log loss": [value for *_, metric, value in scores if metric == "log_loss"],
        "alpha": np.array(alpha).round(4).tolist(),
        "stop": [next((r + 1 for r, s in enumerate(stops) if s[i]), ROUNDS) for i in range(len(data))],
        "weights": (both[..., 1] - both[..., 0]).numpy().round(4).tolist(),
    }


def tuned(sites: dict[str, Frame], seed: int) -> dict[str, Case]:
    """The settings of each scheme, by cross-validation within the training rows."""
    out: dict[str, Case] = {}
    for scheme, p_d in (("global", 0.0), ("erosion", None), ("local", ALONE)):
        fixed: Case = {"beside": False} | ({} if p_d is None else {"p_d": p_d})
        grid = GRID | (PENALTIES if p_d is None else {})
        found = tune(study(), sites, WeightErosion(**fixed), grid, 3, seed, metric="log_loss")
        out[scheme] = {"p_s": 0.0, **fixed, **{k: float(v) for k, v in found.settings.items()}}
        if p_d is None:
            same = (found.table[list(REPORTED)] == pd.Series(REPORTED)).all(axis=1)
            out["reported"] = {**fixed, **REPORTED, "lr": float(found.table[same].lr.iloc[0])}
    return out | {"stopped": {**out["erosion"], "validation": 0.2}}


def case(job: Case) -> Case:
    began, (name, seed) = time.process_time(), (job["federation"], job["seed"])
    if name == "cost":
        return job | {"counts": cost(seed), "seconds": time.process_time() - began}
    sites = FEDERATIONS[name][1](passengers(), seed)
    data, settings = prepare(sites, study(), seed), tuned(sites, seed)
    runs = {scheme: fit(data, WeightErosion(**settings[scheme]), seed) for scheme in SCHEMES}
    most = [int(d.train_y.mean() > 0.5) for d in data]
    job |= {"sites": list(sites), "odd": guilty(list(sites), seed), "settings": settings, "runs": runs, "attacks": {}}
    job["majority"] = [float((d.test_y == k).mean()) for d, k in zip(data, most, strict=True)]
    for attack, (kind, strength) in (ATTACKS if name in ATTACKED else {}).items():
        lie = {"attacker": job["odd"], "attack": kind, "strength": strength}
        job["attacks"][attack] = {s: fit(data, Attacked(**settings[s], **lie), seed) for s in ("global", "erosion")}
    return job | {"seconds": time.process_time() - began}


# --- what it costs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted(Task):
    """Counts what every site computes: gradients of one batch, their rows, and losses of whole models."""

    counts: dict[str, float] = field(default_factory=lambda: {"gradients": 0, "rows": 0, "losses": 0})

    def accumulate(
        self, params: Params, batch: Batch, into: Params, times: float, scale: float, *, step: bool = False
    ) -> None:
        self.counts["gradients"] += len(batch.x)
        self.counts["rows"] += int((batch.w > 0).sum())
        super().accumulate(params, batch, into, times, scale, step=step)

    def value(self, params: Params, batch: Batch) -> torch.Tensor:
        self.counts["losses"] += len(batch.x)
        return super().value(params, batch)


@dataclass(frozen=True)
class ForOne(WeightErosion):
    """A run for one user, as the report's: the others' models are not trained."""

    user: int = 0

    def coord(self, task: Task, sites: int) -> Coord:
        made = super().coord(task, sites)
        return made._replace(watch=made.watch._replace(stopped=torch.arange(sites) != self.user))


def counted(sites: dict[str, Frame], method: Any) -> dict[str, float]:
    plain = build_task(study(), method, 1)
    task = Counted(plain.net, plain.start, plain.loss)
    rows = training_rows(prepare(sites, study(), 1), study(), method, "cpu")
    engine = Engine(task, method, rows, training_of(study()), 1)
    task.counts.update(dict.fromkeys(task.counts, 0))  # the engine has looked at the shapes of one round
    began = time.process_time()
    for _ in engine.run():
        pass
    return task.counts | {"seconds": time.process_time() - began}


def cost(n: int) -> dict[str, dict[str, float]]:
    sites = vt.partition.iid(passengers(), n, 1)
    given: dict[str, Any] = {"lr": 1.0, **REPORTED, "beside": False}
    alone = [counted(sites, ForOne(**given, user=i)) for i in range(n)]
    return {
        "Weight Erosion, all users at once": counted(sites, WeightErosion(**given)),
        "Weight Erosion, a run for each user, summed": {k: sum(a[k] for a in alone) for k in alone[0]},
        "Weight Erosion, all at once, Global and Local beside": counted(
            sites, WeightErosion(**{**given, "beside": True})
        ),
        "Weight Erosion, all at once, nobody ever distrusted": counted(sites, WeightErosion(**{**given, "p_d": 1e-9})),
        "Influence, all users at once": counted(sites, Influence(lr=1.0, momentum=0.0)),
    }


# --- the report -------------------------------------------------------------------------------------------------------


def said(values: Iterable[float], share: float = TEST, sign: str = "") -> str:
    mean, low, high = interval(list(values), share)
    return f"{mean:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def above(values: Iterable[float], share: float) -> bool:
    return interval(list(values), share)[1] > 0


def row(*cells: object) -> str:
    return "| " + " | ".join(str(c).replace("|", r"\|") for c in cells) + " |"


def head(*cells: str, left: int = 1) -> list[str]:
    return [row(*cells), row(*["---"] * left, *["---:"] * (len(cells) - left))]


def trust_at(runs: Case, when: str) -> np.ndarray:
    """[user, site]; trust stands still once a user has stopped."""
    path = np.array(runs["stopped" if when == "stopped" and "stopped" in runs else "erosion"]["alpha"])
    if when == "first":
        ends = [np.append(np.flatnonzero((path[:, u] == 0).any(1)), len(path) - 1)[0] for u in range(path.shape[1])]
        return path[ends, range(len(ends))]
    return np.asarray(path.mean(0) if when == "mean" else path[-1])


def trusts(cases: list[Case], when: str) -> np.ndarray:
    """[seed, user, site]"""
    return np.array([trust_at(c["runs"], when) for c in cases])


def scores(cases: list[Case], scheme: str, metric: str = "accuracy") -> np.ndarray:
    """[seed, user]"""
    return np.array([c["runs"][scheme][metric] for c in cases])


def accuracy_table(cases: list[Case]) -> list[str]:
    lines = head("user", "always the same answer", *SCHEMES.values(), "WE - Global", "WE - Local")
    users = [(name, [i]) for i, name in enumerate(cases[0]["sites"])]
    for name, at in [
        *([] if cases[0]["federation"] in BY_LOT else users),
        ("mean of all sites", list(range(len(users)))),
    ]:
        mine = {s: scores(cases, s)[:, at].mean(1) for s in SCHEMES}
        level = np.mean([np.array(c["majority"])[at] for c in cases])
        gaps = [said(mine["erosion"] - mine[s], 0.0, "+") for s in ("global", "local")]
        lines.append(row(name, f"{level:.3f}", *(said(v) for v in mine.values()), *gaps))
    return lines


def trust_table(cases: list[Case]) -> list[str]:
    names, mean = cases[0]["sites"], [trusts(cases, when).mean(0) for when in list(WHEN)[:3]]
    lines = head("user", *names)
    for i, user in enumerate(names):
        cells = (" / ".join(f"{m[i, j]:.2f}" for m in mean) if i != j else "itself" for j in range(len(names)))
        lines.append(row(user, *cells))
    return lines


def who_gains(cases: list[Case]) -> str:
    """The users for whom Weight Erosion beats both, and those for whom it loses to one."""
    gaps = [scores(cases, "erosion") - scores(cases, s) for s in ("global", "local")]
    users = list(enumerate(cases[0]["sites"]))
    here, new = ([u for i, u in users if all(above(g[:, i], s) for g in gaps)] for s in (0.0, TEST))
    loses = [u for i, u in users if any(above(-g[:, i], 0.0) for g in gaps)]
    said = {"on these rows": here, "for new rows, too": new, "loses to one of them on these rows": loses}
    return "; ".join(f"{words}: {', '.join(who) or 'nobody'}" for words, who in said.items())


def more_claims(cases: list[Case]) -> list[str]:
    """What else the report sees in AGE_STRICT."""
    young, old = (cases[0]["sites"].index(s) for s in ("0-20", "36+"))
    best = ", ".join(f"{SCHEMES[s]} {said(scores(cases, s)[:, old])}" for s in ("erosion", "local"))
    gap = (scores(cases, "erosion") - scores(cases, "local"))[:, young]
    w = {s: np.array([c["runs"][s]["weights"] for c in cases]).mean(0) for s in SCHEMES}
    ends = np.sort([w["global"], w["local"]], 0)
    out = int(((w["erosion"] < ends[0]) | (w["erosion"] > ends[1])).sum())
    return [
        f"- Accuracy above 90 % for 36+ (the report's figure 6): {best}.",
        f"- Weight Erosion clearly better than Local for 0-20: {said(gap, 0.0, '+')}.",
        f"- Weights of Weight Erosion, mean over seeds, not between Global's and Local's: {out} of {ends[0].size}.",
    ]


def standing(c: Case, runs: Case) -> dict[str, Any]:
    """The odd site of a case in the eyes of the honest users ([user] each), and how they fare."""
    at, path = c["sites"].index(c["odd"]), np.array(runs["erosion"]["alpha"])
    honest = [i for i in range(len(c["sites"])) if i != at]
    out: dict[str, Any] = {}
    for when in WHEN:
        t = trust_at(runs, when)
        out |= {f"odd {when}": t[honest, at], f"rest {when}": [np.delete(t[u], [u, at]).mean() for u in honest]}
        out[f"lowest {when}"] = [highest(-t, u, at) for u in honest]
        out[f"highest {when}"] = [highest(t, u, at) for u in honest]
    out["gone"] = [np.append(np.flatnonzero(path[:, u, at] == 0), ROUNDS - 1)[0] + 1 for u in honest]
    out["honest"] = np.array(c["runs"]["erosion"]["alpha"]).mean(0)[honest, at]
    out |= {s: np.array(runs[s]["accuracy"])[honest] for s in runs}
    out |= {f"{s}, log loss": np.array(runs[s]["log loss"])[honest] for s in runs}
    return out | {f"no {s}": np.array(c["runs"][s]["accuracy"])[honest] for s in ("erosion", "global", "local")}


def highest(trust: np.ndarray, user: int, site: int) -> bool:
    """This user trusts this site more than any other."""
    return bool(trust[user, site] > np.delete(trust[user], [user, site]).max())


def odd_site(cases: list[Case]) -> list[str]:
    found, lines = [standing(c, c["runs"]) for c in cases], []
    for when, words in WHEN.items():
        hits = sum(sum(f[f"lowest {when}"]) for f in found)
        odd, rest = (np.mean([f[f"{who} {when}"] for f in found]) for who in ("odd", "rest"))
        lines.append(
            f"- The odd site's weight {words}: {odd:.3f}, the honest ones' {rest:.3f}; below every other's for {hits} "
            f"of {sum(len(f['gone']) for f in found)} honest users."
        )
    for metric, last in (("accuracy", ""), ("log loss (lower is better)", ", log loss")):
        mine = {s: np.array([f[s + last].mean() for f in found]) for s in SCHEMES}
        lines.append(f"- Honest users, {metric}: {', '.join(f'{SCHEMES[s]} {said(v)}' for s, v in mine.items())}.")
        for rival in ("global", "local"):
            gap = mine["erosion"] - mine[rival]
            lines.append(
                f"- Weight Erosion less {SCHEMES[rival]}, {metric}: {said(gap, 0.0, '+')} over seeds, "
                f"{said(gap, TEST, '+')} corrected for new rows; above in {int((gap > 0).sum())} of {len(gap)} seeds."
            )
    own = {s: [c["runs"][s]["accuracy"][c["sites"].index(c["odd"])] for c in cases] for s in SCHEMES}
    lines.append(f"- The odd site itself: {', '.join(f'{SCHEMES[s]} {said(v)}' for s, v in own.items())}.")
    return lines


def attack_table(cases: list[Case]) -> list[str]:
    lines = head(
        *(
            "attack",
            "trust: last",
            "trust: mean",
            "honest: mean",
            "the others: mean",
            "lowest",
            "highest",
            "gone after",
        ),
        *("WE", "Global", "WE - WE unattacked", "Global - Global unattacked", "WE - Global", "WE - Local"),
    )
    for attack in ATTACKS:
        each = [standing(c, c["attacks"][attack]) for c in cases]
        got = {k: np.array([np.mean(f[k]) for f in each]) for k in each[0]}
        cells = [f"{got[k].mean():.2f}" for k in ("odd last", "odd mean", "honest", "rest mean")]
        cells += [f"{100 * got[k].mean():.0f} %" for k in ("lowest mean", "highest mean")]
        cells += [f"{got['gone'].mean():.0f}", *(said(got[k]) for k in ("erosion", "global"))]
        gaps = (("erosion", "no erosion"), ("global", "no global"), ("erosion", "global"), ("erosion", "no local"))
        cells += [said(got[a] - got[b], 0.0, "+") for a, b in gaps]
        lines.append(row(attack, *cells))
    return lines


def cost_table(cases: list[Case]) -> list[str]:
    lines = head("sites", "what", "gradients a round", "rows a round", "losses a round", "seconds", left=2)
    for c in sorted(cases, key=lambda c: int(c["seed"])):
        for what, count in c["counts"].items():
            a_round = [f"{count[k] / ROUNDS:.1f}" for k in ("gradients", "rows", "losses")]
            lines.append(row(c["seed"], what, *a_round, f"{count['seconds']:.2f}"))
    return lines


def settings_line(cases: list[Case]) -> str:
    parts = []
    for scheme, keys in (("global", ["lr"]), ("erosion", ["lr", *PENALTIES]), ("local", ["lr"])):
        chosen = pd.Series([", ".join(f"{k} {c['settings'][scheme][k]:g}" for k in keys) for c in cases]).value_counts()
        parts.append(f"{SCHEMES[scheme]}: " + "; ".join(f"{k} ({n})" for k, n in chosen.items()))
    stops = np.median([c["runs"]["stopped"]["stop"] for c in cases])
    return f"Tuned (in so many seeds): {'. '.join(parts)}. Early stopping: round {stops:.0f} in the median."


def figures(name: str, cases: list[Case], folder: Path) -> list[str]:
    """The report's figures 6 to 9, mean over seeds: all users in one picture, as the page of a run draws them."""
    from vitrail.analysis.trust import read_trust
    from vitrail.report.sections.learning.sources import LearningSources
    from vitrail.report.sections.learning.user import user_figure, weights_figures
    from vitrail.runs.setup import MAJORITY

    if name in BY_LOT:  # the same site odd in all
        cases = [c for c in cases if c["odd"] == cases[0]["odd"]]
    sites = cases[0]["sites"]

    def mean(scheme: str, what: str) -> np.ndarray:
        return np.asarray(np.mean([c["runs"][scheme][what] for c in cases], 0))

    told = {means.ROUND: torch.arange(1, ROUNDS + 1), means.TRUST: torch.tensor(mean("erosion", "alpha"))}
    trust = read_trust(sites, {what: Fact(value, means=what, every=True) for what, value in told.items()})
    assert trust is not None
    curves: list[Any] = [(0, s, MAJORITY, np.mean([c["majority"][i] for c in cases])) for i, s in enumerate(sites)]
    weights: list[Any] = []
    for model, scheme in {means.OWN: "erosion", means.SHARED: "global", means.ALONE: "local"}.items():
        for i, s in enumerate(sites):
            curves += [((r + 1) * EVERY, s, model, v[i]) for r, v in enumerate(mean(scheme, "curve"))]
            held = zip([*columns(study()), "(constant)"], mean(scheme, "weights")[i], strict=True)
            weights += [(s, "survival", f, model, v) for f, v in held]
    shown = LearningSources(
        title=SCHEMES["erosion"],
        trust=trust,
        curves=pd.DataFrame(curves, columns=["round", "site", "model", "value"]),
        weights=pd.DataFrame(weights, columns=["site", "answer", "feature", "model", "value"]),
        refused=(),
    )
    pictures = {f"{name}.svg": [user_figure(shown, s, "accuracy") for s in sites]}
    pictures[f"{name}_weights.svg"] = [weights_figures(shown, s)[0][1] for s in sites]
    folder.mkdir(parents=True, exist_ok=True)
    for file, parts in pictures.items():
        (folder / file).write_text(picture(sites, [str(p) for p in parts]))
    which = f"Mean of {len(cases)} seeds" + (f" in which {cases[0]['odd']} is the odd site." if name in BY_LOT else ".")
    return [which, "", *(f"![{FEDERATIONS[name][0]}]({folder.name}/{file})" for file in pictures)]


def picture(sites: list[str], drawn: list[str]) -> str:
    """Two by two, the narrow drawing of each site; with the page's own colours, so that the file stands alone."""
    from vitrail.report.charts import svg as page

    css = (Path(page.__file__).parents[1] / "templates" / "page.css").read_text()
    kept = re.findall(r"^(?:svg|\.(?:m\d|line|strong|end|leader|again|yard|of-)).*$", css, re.MULTILINE)
    style = css.split("@media", 1)[0] + "\n".join(kept) + "\nsvg { font-family: system-ui, sans-serif; }"
    parts, top, wide = [], 0.0, page.NARROW + 40
    for i, svg in enumerate(drawn):
        narrow = svg[svg.rindex("<svg") :]
        high = float(re.findall(r'viewBox="0 0 \S+ ([\d.]+)"', narrow)[0])
        x, y = 20 + wide * (i % 2), top + 40
        parts.append(f'<text x="{x}" y="{y - 12}" font-weight="650">{sites[i]} as the user</text>')
        parts.append(narrow.replace("<svg", f'<svg x="{x}" y="{y}" width="{page.NARROW}" height="{high}"', 1))
        top += (high + 60) * (i % 2)
    size = f'viewBox="0 0 {2 * wide} {top:.0f}" width="{2 * wide}"'
    back = '<rect width="100%" height="100%" style="fill: var(--paper)"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{back}{"".join(parts)}</svg>\n'


def in_short(by: dict[str, list[Case]]) -> list[str]:
    """What is claimed, and in how much of what was run it came out so."""
    lines = head("claim", "came out", left=2)
    for name in (n for n in FEDERATIONS if by[n] and n not in BY_LOT):
        claim = f"{FEDERATIONS[name][0]}: Weight Erosion beats Global and Local for some users"
        lines.append(row(claim, who_gains(by[name])))
    for pair, cases in ((pair, by[name]) for name in PAIRS for pair in PAIRS[name] if by[name]):
        (a, b), cells = (cases[0]["sites"].index(s) for s in pair), []
        for when, words in WHEN.items():
            t = trusts(cases, when)
            lead = [t[:, i, j] - np.delete(t[:, i], [a, b], 1).max(1) for i, j in ((a, b), (b, a))]
            cells.append(f"{int((np.min(lead, 0) > 0).sum())} of {len(cases)} seeds {words}, by {np.mean(lead):+.3f}")
        lines.append(row(f"{' and '.join(pair)} keep each other's weight highest", "; ".join(cells)))
    for name in ("y_given_x", "y_given_sex"):
        found, title = [standing(c, c["runs"]) for c in by[name]], FEDERATIONS[name][0]
        if found:
            cells = [f"{sum(all(f[f'lowest {w}']) for f in found)} of {len(found)} seeds {WHEN[w]}" for w in WHEN]
            lines.append(row(f"{title}: its weight below every other's for every honest user", "; ".join(cells)))
            gaps = [[f[f"erosion{m}"].mean() - f[f"global{m}"].mean() for f in found] for m in ("", ", log loss")]
            told = f"accuracy {said(gaps[0], 0.0, '+')}, log loss {said(gaps[1], 0.0, '+')}"
            lines.append(row(f"{title}: Weight Erosion beats Global for honest users", told))
    return lines


def report(found: list[Case], out: Path) -> list[str]:
    by = {n: [c for c in found if c["federation"] == n] for n in (*FEDERATIONS, "cost")}
    seeds = sorted({c["seed"] for n in FEDERATIONS for c in by[n]})
    told = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")]
    lines = [
        f"# Weight Erosion on the Titanic, {time.strftime('%Y-%m-%d')}",
        "",
        f"{len(found) - len(by['cost'])} federations, seeds {seeds[0]} to {seeds[-1]}; "
        f"{sum(c['seconds'] for c in found) / 60:.0f} CPU minutes, one core each. {told[2]}",
        "",
        told[3],
        "",
        f"{ROUNDS} rounds, batches of {BATCH}, grid {GRID | PENALTIES}. Accuracy on the user's test rows, mean over "
        "seeds with the 95 % interval corrected for the rows that seeds share (Nadeau and Bengio): what to expect of "
        "new rows. Differences between schemes are paired, their intervals over seeds alone: on these rows. Early "
        "stopping: a fifth of the training rows set aside, patience 20, a run of its own, settings as tuned. Report's "
        f"penalties: {REPORTED}, learning rate tuned. Tables of trust: alpha {' / '.join(list(WHEN.values())[:3])}.",
        "",
        *in_short(by),
    ]
    for name in (n for n in FEDERATIONS if by[n]):
        cases = by[name]
        lines += ["", f"## {FEDERATIONS[name][0]}", "", *accuracy_table(cases), ""]
        lines += odd_site(cases) if name.startswith("y_given") else []
        lines += more_claims(cases) if name == "age_strict" else []
        lines += ["", settings_line(cases), *(["", *trust_table(cases)] if name not in BY_LOT else [])]
        lines += ["", *figures(name, cases, out.with_suffix(""))] if name in FIGURES else []
    for name in (n for n in ATTACKED if by[n]):
        words = "Another site in each seed; settings tuned without the attack. Honest users only, mean over users and "
        words += "seeds. honest: the same site's trust when it does not lie; lowest, highest: for so many users its "
        words += f"mean trust is; gone after: the round in which its weight is 0 ({ROUNDS}: never)."
        lines += ["", f"## One site lies: {FEDERATIONS[name][0]}", "", " ".join((Attacked.__doc__ or "").split())]
        lines += ["", words, "", *attack_table(by[name])]
    if by["cost"]:
        words = f"IID cuts, batches of {BATCH}, {ROUNDS} rounds, {REPORTED}. A gradient is of one batch at one site. "
        words += "In Influence a user's models come from all sites' own runs, so that a run for one user is the whole "
        words += "run, and N of them cost N times its line; a round of it is an epoch, not one batch."
        lines += ["", "## Cost", "", words, "", *cost_table(by["cost"])]
    return lines


def one(job: Case, cache_folder: str) -> str:
    torch.set_num_threads(1)
    done, place = case(dict(job)), Path(cache_folder) / f"{job['federation']}-{job['seed']}.json"
    place.with_suffix(".tmp").write_text(json.dumps(done))
    place.with_suffix(".tmp").replace(place)
    return place.stem


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--federations", default=",".join([*FEDERATIONS, "cost"]))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--cache", type=Path, default=Path("scratch/weight_erosion_titanic"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "weight_erosion_titanic.md")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    if args.report:
        found = [json.loads(p.read_text()) for p in sorted(args.cache.glob("*.json"))]
        found.sort(key=lambda c: c["seed"])
        args.out.write_text("\n".join(report(found, args.out)) + "\n")
        print(args.out)
        return
    names, seeds = args.federations.split(","), range(args.first, args.first + args.seeds)
    todo = [{"federation": "cost", "seed": n} for n in reversed(COST_SITES) if "cost" in names]
    todo += [{"federation": n, "seed": s} for s in seeds for n in FEDERATIONS if n in names]
    todo = [j for j in todo if not (args.cache / f"{j['federation']}-{j['seed']}.json").exists()]
    began = time.time()
    with ProcessPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(one, job, str(args.cache)) for job in todo]
        for n, future in enumerate(as_completed(waiting), 1):
            print(f"{n}/{len(todo)} {future.result()} after {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""What do the stopping rules of Weight Erosion do to its scores? The cone of the report's footnote 16, and the loss on
rows set aside (section 4.4).

    VITRAIL_DATA=... python benchmarks/verdicts/stopping_rules.py     # about 5 minutes on one core; resumes from --cache

Worlds with and without hidden groups (worlds.py) and two real tables, in which a half of each site's rows is tested on.
The learning rate and p_d are tuned without a stopping rule (log loss, within the training rows of a seed that is not
compared), and are the same for all rules. `cone` 1e-9 stands for the rule as printed: any common direction will do.

Controls. "Stopped at its best": each user's model of the round in which its loss on the test rows was lowest, which no
rule can know; where that gains nothing, no rule can. "Stopped anywhere": a round drawn at random from those after the
first tenth. Both stop each user by itself, as the rules do, but do not change what the others are sent; with Weight
Erosion a user's model does not depend on whether others have stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from choose import inner, tensors_of
from torch import Tensor
from worlds import WORLDS, Site, World, sites_of

from vitrail.core.facts import STOPPED
from vitrail.core.task import Task
from vitrail.core.tensors import Params, map_tensors
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.basics import common_cosine
from vitrail.methods.weight_erosion import WeightErosion
from vitrail.nets import MLP
from vitrail.stats.intervals import interval

Case = dict[str, Any]
SEEDS, TUNED_WITH = tuple(range(5001, 5007)), (1,)
BATCH, TESTED = 32, 1000  # rows; of the test rows of a site, at most
ALIKE = "eight sites, all alike"
OURS = {**WORLDS, ALIKE: World(sites=8, rows=(60, 60))}
CASES = ("two groups of 4 sites", "heart, 4 hospitals", "Titanic by age", ALIKE)
GRID = {"lr": (0.1, 0.5, 2.0), "p_d": (0.003, 0.03, 0.3)}


class Form(NamedTuple):
    title: str
    update: str
    rounds: int


FORMS = {"gradient": Form("one gradient a round", "gradient", 50), "local": Form("local updates", "local", 30)}


class Rule(NamedTuple):
    title: str
    given: dict[str, Any]


RULES = {
    "none": Rule("no stopping rule", {}),
    "printed": Rule("cone 1e-9 (as printed)", {"cone": 1e-9}),
    "cone .1": Rule("cone 0.1", {"cone": 0.1}),
    "cone .3": Rule("cone 0.3", {"cone": 0.3}),
    "cone .5": Rule("cone 0.5", {"cone": 0.5}),
    "patience 5": Rule("validation 0.2, patience 5", {"validation": 0.2, "patience": 5}),
    "patience 20": Rule("validation 0.2, patience 20", {"validation": 0.2, "patience": 20}),
    "aside": Rule("validation 0.2, never stops", {"validation": 0.2, "patience": 10**6}),
}
BEST, ANYWHERE = "best", "anywhere"
CONTROLS = {BEST: "stopped at its best (control)", ANYWHERE: "stopped anywhere (control)"}


@dataclass(frozen=True)
class Watched(WeightErosion):
    """Notes in every round the widest cone's cosine for each user, and stops nobody."""

    cosines: list[list[float]] = field(default_factory=list, compare=False)  # [round][user]

    def compared(self, update: Params, took: Tensor) -> tuple[Tensor, Tensor]:
        self.cosines.append(common_cosine(update, took).tolist())
        return super().compared(update, took)


class Trained(NamedTuple):
    """[round, site]; round 0 is the start. Of a training that is scored at its end alone, only the end."""

    loss: np.ndarray
    right: np.ndarray  # balanced accuracy
    stopped: np.ndarray  # [round, site] from round 1 on
    cosine: np.ndarray  # likewise; of a training that is watched

    def cut(self, cone: float) -> Trained:
        """As it would be with that cone: a user's model does not depend on who else has stopped, so that it is the
        model of the round before the first in which the cosine is too small."""
        small = self.cosine < cone
        ends = np.where(small.any(0), small.argmax(0), len(small))  # rounds trained
        every = np.arange(small.shape[1])
        stopped = np.arange(1, 1 + len(small))[:, None] > ends
        return Trained(self.loss[ends, every][None], self.right[ends, every][None], stopped, self.cosine)


def trained(
    world: World, sites: list[Site], form: Form, given: dict[str, Any], lr: float, seed: int, watched: bool = False
) -> Trained:
    """Scored after the last round, or after every round."""
    classes = 1 + max(int(s.y.max()) for s in sites)
    net = MLP(sites[0].x.shape[1], classes, world.hidden)
    names = [f"{i:02}" for i in range(len(sites))]
    rows = [(n, *tensors_of(s.x, s.y, classes), torch.ones(len(s.y), 1)) for n, s in zip(names, sites, strict=True)]
    training = Training(form.rounds, 1, BATCH, lr, momentum=0.0, decays=20, mean=True)
    task = Task(net, net.init(torch.Generator().manual_seed(seed)))
    kind = Watched if watched else WeightErosion
    method = kind(**{"update": form.update, "beside": False, "p_s": 0.0, **given})
    engine = Engine(task, method, gather_sites(rows), training, seed)
    tests = [tensors_of(s.test_x[:TESTED], s.test_y[:TESTED], classes) for s in sites]
    at, out, ended = [engine.names.index(n) for n in names], [], []
    for done, moment in enumerate(itertools.chain([engine.start()], engine.run())):
        if done:
            stopped = [f.value for f in moment.facts.values() if f.means == STOPPED]
            ended.append(stopped[0][at].tolist() if stopped else [False] * len(at))
        if watched or done == form.rounds:
            state = engine.settled(moment)
            out.append([scores_of(method, task, state, i, *t) for i, t in zip(at, tests, strict=True)])
    loss, right = np.array(out, float).transpose(2, 0, 1)
    noted = method.cosines[-form.rounds :] if isinstance(method, Watched) else []  # a rehearsal was noted before
    cosine = np.array(noted).reshape(-1, len(names))[:, at]
    return Trained(loss, right, np.array(ended, float), cosine)


def scores_of(method: Any, task: Task, state: Any, i: int, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Log loss and balanced accuracy of site i's own model."""
    z = method.predict(task, map_tensors(lambda t: t[i : i + 1], state), x[None])[0].double()
    hit, of = (z.argmax(1) == y.argmax(1)).double(), y.argmax(1)
    by_class = [float(hit[of == k].mean()) for k in of.unique()]
    return float(-(z.log_softmax(-1) * y).sum(1).mean()), float(np.mean(by_class))


def tuned(name: str, form: Form) -> dict[str, float]:
    best: tuple[float, dict[str, float]] = (np.inf, {})
    for values in itertools.product(*GRID.values()):
        given, losses = dict(zip(GRID, values, strict=True)), []
        for seed in TUNED_WITH:
            sites = inner(sites_of(OURS[name], seed), seed)
            run = trained(OURS[name], sites, form, {"p_d": given["p_d"]}, given["lr"], seed)
            losses.append(float(run.loss[-1].mean()))
        best = min(best, (float(np.nan_to_num(np.mean(losses), nan=np.inf)), given), key=lambda b: b[0])
    return best[1]


def case_of(name: str, form: Form) -> Case:
    """By rule, for every seed: mean over sites of loss and of balanced accuracy, rounds trained, share stopped."""
    began, chosen = time.process_time(), tuned(name, form)
    out: Case = {"settings": chosen, "rules": {r: [] for r in (*RULES, *CONTROLS)}}
    for seed in SEEDS:
        sites, g = sites_of(OURS[name], seed), np.random.default_rng([seed, 31])
        whole = trained(OURS[name], sites, form, {"p_d": chosen["p_d"]}, chosen["lr"], seed, True)
        for key, rule in RULES.items():
            if "validation" in rule.given:
                given = {"p_d": chosen["p_d"], **rule.given}
                run = trained(OURS[name], sites, form, given, chosen["lr"], seed)
            else:
                run = whole.cut(rule.given.get("cone", 0.0))
            length = (run.stopped == 0).sum(0).mean()
            out["rules"][key].append(
                [run.loss[-1].mean(), run.right[-1].mean(), length / form.rounds, run.stopped[-1].mean()]
            )
            if key == "none":
                every = np.arange(len(sites))
                lots = g.integers(form.rounds // 10, form.rounds, len(sites))
                for control, at in ((BEST, whole.loss.argmin(0)), (ANYWHERE, lots)):
                    scores = [whole.loss[at, every].mean(), whole.right[at, every].mean()]
                    out["rules"][control].append([*scores, at.mean() / form.rounds, 1.0])
    return out | {"s": time.process_time() - began}


def told(values: list[float], fresh: bool) -> str:
    """A paired difference; 95 %, widened where seeds redraw test rows from the same rows (Nadeau and Bengio)."""
    mean, low, high = interval(values, 0.0 if fresh else 0.5)
    mark = "**" if low > 0 or high < 0 else ""
    return f"{mark}{mean:+.4f} ({low:+.4f} to {high:+.4f}){mark}"


def report(cases: dict[str, Case]) -> list[str]:
    lines = [
        "# Stopping rules of Weight Erosion", "",
        f"`python benchmarks/verdicts/stopping_rules.py`. {len(SEEDS)} seeds; mean over sites. Less: the difference to "
        "Weight Erosion without a stopping rule, paired by seed, with its 95 % interval (worlds: Student's t over drawn "
        "worlds; tables: Nadeau and Bengio); **bold** where that excludes zero. Of the log loss less is better. Trained: "
        "share of the rounds before a user stopped. Stopped: share of users.", "",
    ]  # fmt: skip
    titles, short = {k: r.title for k, r in RULES.items()} | CONTROLS, {k: [0, 0, 0] for k in (*RULES, *CONTROLS)}
    for key, case in cases.items():
        name, form = key.split("|")
        given, fresh = case["settings"], not OURS[name].table
        lines += [
            f"## {name}: {FORMS[form].title}, {FORMS[form].rounds} rounds", "",
            f"Learning rate {given['lr']:g}, p_d {given['p_d']:g}.", "",
            "| rule | log loss | less | balanced accuracy | less | trained | stopped |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]  # fmt: skip
        plain = np.array(case["rules"]["none"])
        for rule, values in case["rules"].items():
            mine = np.array(values)
            less = ["", ""] if rule == "none" else [told(list(mine[:, i] - plain[:, i]), fresh) for i in (0, 1)]
            if rule != "none":
                _, low, high = interval(list(mine[:, 0] - plain[:, 0]), 0.0 if fresh else 0.5)
                short[rule][0 if high < 0 else 1 if low > 0 else 2] += 1
            lines.append(
                f"| {titles[rule]} | {mine[:, 0].mean():.4f} | {less[0]} | {mine[:, 1].mean():.4f} | {less[1]} | "
                f"{mine[:, 2].mean():.2f} | {mine[:, 3].mean():.2f} |"
            )
        lines.append("")
    head = ["| rule | lower log loss | higher | cannot tell |", "| --- | --- | --- | --- |"]
    head += [f"| {titles[r]} | {a} of {len(cases)} | {b} | {c} |" for r, (a, b, c) in short.items() if r != "none"]
    seconds = sum(case["s"] for case in cases.values())
    where = (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, torch {torch.__version__}"
    )
    return [*lines[:4], *head, "", *lines[4:], f"CPU minutes: {seconds / 60:.0f}. {where}.", ""]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "stopping_rules.md")
    parser.add_argument("--cache", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.cache.mkdir(parents=True, exist_ok=True)
    cases: dict[str, Case] = {}
    for name, form in itertools.product(CASES, FORMS):
        place = args.cache / f"{form}-{name}.json".replace(" ", "_")
        if not place.exists():
            place.write_text(json.dumps(case_of(name, FORMS[form])))
            print(name, form, round(json.loads(place.read_text())["s"], 1), flush=True)
        cases[f"{name}|{form}"] = json.loads(place.read_text())
        args.out.write_text("\n".join(report(cases)))


if __name__ == "__main__":
    main()

"""What one site that lies does to the others, and who names it: poisoning under every way of making a total.

GUSTO, the ten largest regions with 400 patients each, FedAvg; the largest region lies. `sign`: ten times the negative
of its change; `scale`: a hundred times its change; `labels`: its outcomes are turned round, and its change is sent ten
times as long; `backdoor`: its patients with a mark in one column are called well, and its change is sent ten times as
long; `within`: each number of its report one standard deviation of the honest sites' to the wrong side of their mean,
which no rule that looks at one round can tell from a site that differs (it sees the others' reports: the worst case).
`groups`: totals of groups of at least three, and their median; the liar's group is named, not the liar. `two servers`:
Multi-Krum on distances that two servers open.

Honest sites' AUC on their own hold-out rows: mean and worst. `named`: the liar, as the page of a run names it
(report/sections/protection.py); `others`: honest sites named.

`names`: the same without anybody who lies, on federations as they are (GUSTO's regions, HAR's people, hospitals) and
cut at random (Adult): how often the page would name an honest site.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from guard_worlds import world_of
from torch import Tensor

import vitrail as vt
from vitrail import methods
from vitrail.core.facts import OUTLYING
from vitrail.core.tensors import map_tensors
from vitrail.data.encoding import columns, prepare
from vitrail.engine.local import Engine
from vitrail.metrics.scores import score_all
from vitrail.privacy import Guards
from vitrail.report.sections.protection import outlying
from vitrail.runs.setup import build_task, training_of, training_rows

RULES = ("sum", "median", "trimmed", "multikrum", "clipping", "groups", "two servers")
ATTACKS = ("none", "sign", "scale", "labels", "backdoor", "within")
REGIONS, ROWS, ROUNDS, LR = 10, 400, 30, 0.004
MARK = 4.0  # standard deviations
CLIP = 5.0  # far above what an honest region changes in a round


def tables(seed: int) -> tuple[vt.Study, dict[str, Any]]:
    frames = dict(sorted(vt.datasets.gusto().items(), key=lambda kv: -len(kv[1]))[:REGIONS])
    frames = {n: f.sample(ROWS, random_state=seed).reset_index(drop=True) for n, f in frames.items()}
    study = vt.Study.infer(frames, "day30", name="gusto")
    return study.with_changes(training={"rounds": ROUNDS, "lr": LR}), frames


def guards_of(rule: str) -> Guards:
    if rule == "groups":
        return Guards(sum="groups", least=3)
    if rule == "two servers":
        return Guards(clip=CLIP, sum="two servers", least=3)
    return Guards(robust=None if rule == "sum" else rule)  # type: ignore[arg-type]


class Lie:
    def __init__(self, attack: str, liar: str) -> None:
        self.attack, self.liar = attack, liar

    def __call__(self, names: tuple[str, ...], ex: Any, up: Any) -> Any:
        if self.attack == "none" or self.liar not in names:
            return up
        at = names.index(self.liar)
        others = [i for i in range(len(names)) if i != at]
        by = {"sign": -10.0, "scale": 100.0, "labels": 10.0, "backdoor": 10.0}.get(self.attack)

        def turned(t: Tensor) -> Tensor:
            if t.dim() < 2:  # what it counts
                return t
            t = t.clone()
            mean, sd = t[others].mean(0), t[others].std(0)
            t[at] = t[at] * by if by is not None else mean - sd * mean.sign()
            return t

        return map_tensors(turned, up)


def case(rule: str, attack: str, seed: int) -> dict[str, Any]:
    study, frames = tables(seed)
    liar, method = next(iter(frames)), methods.build("fedavg")
    data = prepare(frames, study, seed)
    mark = next(i for i, c in enumerate(columns(study)) if c == "pulse")
    for site in data:
        if site.name == liar and attack == "labels":
            site.train_y[:] = 1 - site.train_y
        if site.name == liar and attack == "backdoor":
            site.train_x[:, mark], site.train_y[:] = MARK, 0
    rows = training_rows(data, study, method, "cpu")
    task = build_task(study, method, seed)
    given = {"guards": guards_of(rule), "lies": Lie(attack, liar), "chunk": len(frames)}
    engine = Engine(task, method, rows, training_of(study), seed, **given)
    path = []
    for last in engine.run():
        path += [f.value.numpy() for f in last.facts.values() if f.means == OUTLYING]
    settled, aucs, fooled = engine.settled(last), [], []
    for site in data:
        if site.name == liar:
            continue
        i = engine.names.index(site.name)
        mine = map_tensors(lambda t: t[i : i + 1], settled)  # noqa: B023

        def said(x: Any, mine: Any = mine) -> Any:
            z = method.predict(engine.task, mine, torch.from_numpy(x).float()[None])
            return engine.task.loss.predictions(z.double()).numpy()

        y = site.test_y.astype(np.int64)
        aucs.append(float(score_all(["auc"], y[None], said(site.test_x), np.ones((1, len(y)), bool))["auc"][0]))
        ill = site.test_x[y == 1].copy()
        if len(ill):
            ill[:, mark] = MARK
            fooled.append(float((said(ill)[0].argmax(1) == 0).mean()))
    named = {engine.names[i] for i in outlying(np.array(path))} if path else set()
    named |= set(engine.aggregator.excluded)
    told = {"mean": float(np.mean(aucs)), "worst": float(np.min(aucs)), "fooled": float(np.mean(fooled))}
    return told | {"named": liar in named, "others": len(named - {liar}), "event": liar in engine.aggregator.unusual}


def honest(world: str, rule: str, seed: int) -> dict[str, Any]:
    """Nobody lies: who would be named all the same."""
    study, frames = world_of(world, seed)
    study = study.with_changes(training={"rounds": ROUNDS})
    method, data = methods.build("fedavg"), prepare(frames, study, seed)
    rows = training_rows(data, study, method, "cpu")
    engine = Engine(build_task(study, method, seed), method, rows, training_of(study), seed, guards=guards_of(rule))
    path = [f.value.numpy() for last in engine.run() for f in last.facts.values() if f.means == OUTLYING]
    return {"sites": len(frames), "named": len(outlying(np.array(path)))}

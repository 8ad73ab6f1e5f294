"""What [protect] of a study comes to in numbers: guards, noise, and what of a privacy budget is spent when.

Noise adds up: looks under noises z_1, z_2, ... are one look under s with 1/s^2 = 1/z_1^2 + 1/z_2^2 + ... So a budget is
one number 1/s^2 that is dealt out: to the counts of classes, to the means and spreads of columns (runs/noisy.py), and
the rest in equal parts to all looks of the training.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Literal, NamedTuple

from vitrail.core.task import Task
from vitrail.data.encode import numeric
from vitrail.methods import AnyMethod
from vitrail.protect.budget import Budget, noise_for, spent
from vitrail.protect.guards import Guards, Sum
from vitrail.protect.rows import PrivateTask
from vitrail.study import Study

SHARES = {"classes": 0.05, "columns": 0.1}  # of 1/s^2: what is counted before the first round
ROW_CLIP = 1.0  # where the study names none


class Spent(NamedTuple):
    """The privacy budget of a run, for a page."""

    of: Literal["row", "site"]
    epsilon: float
    delta: float
    noise: float  # z
    clip: float
    looks: int  # at each row, or site, in the whole run
    covers: tuple[str, ...]
    leaves_out: tuple[str, ...]


def guards_of(study: Study) -> Guards:
    """What the engine takes; the study's method is the one that is run."""
    p = study.protect
    noise = 0.0
    if p.sites:  # a site knows its own noise, so that of the fewest in a total all but one have to make up for it
        noise = noise_for(Budget(p.sites.epsilon, p.sites.delta), reports_of(study)) / math.sqrt(p.least - 1)
    robust = None if p.robust == "no" else p.robust
    compress = None if p.compress == "no" else p.compress
    over: Sum = p.sum if p.sum in ("groups", "two servers") else "one"
    return Guards(None if p.rows else p.clip, noise, robust, over, p.sum == "masked", p.least, compress)


def looks_of(study: Study, method: AnyMethod) -> int:
    """How often each row is looked at: once an epoch in every exchange that trains."""
    return reports_of(study, method) * study.training.epochs


def reports_of(study: Study, method: AnyMethod | None = None) -> int:
    """How many reports of training a site sends in a run."""
    stages = (method or study.build_method()).plan(study.training.rounds)
    return sum(stage.times(i) for stage in stages for i, ex in enumerate(stage.exchanges) if ex.trains)


def shares_of(study: Study) -> dict[str, float]:
    """What is counted under noise before the first round where rows are private, and the part of the budget for it."""
    if study.protect.rows is None:
        return {}
    wanted = {
        "classes": study.target.kind == "classes" and study.training.class_weights != "none",
        "columns": study.standardise != "none" and bool(numeric(study)),
    }
    return {k: SHARES[k] for k, yes in wanted.items() if yes}


def start_noise(study: Study) -> dict[str, float]:
    """z of each of these."""
    if study.protect.rows is None:
        return {}
    whole = noise_for(Budget(study.protect.rows.epsilon, study.protect.rows.delta), 1)
    return {k: whole / math.sqrt(share) for k, share in shares_of(study).items()}


def row_noise(study: Study, method: AnyMethod) -> float:
    """z of every step of the training."""
    assert study.protect.rows is not None
    whole = noise_for(Budget(study.protect.rows.epsilon, study.protect.rows.delta), 1)
    return whole * math.sqrt(looks_of(study, method) / (1 - sum(shares_of(study).values())))


def private(task: Task, study: Study, method: AnyMethod) -> Task:
    """The same with clipped gradients and noise, where the study says so."""
    if study.protect.rows is None:
        return task
    given = {f.name: getattr(task, f.name) for f in fields(Task)}
    return PrivateTask(**given, clip=study.protect.clip or ROW_CLIP, noise=row_noise(study, method))


def spent_after(study: Study, method: AnyMethod, rounds: int) -> float:
    """The epsilon of a row, or a site, that took part in so many rounds of training."""
    p = study.protect
    total = sum(stage.rounds for stage in method.plan(study.training.rounds) if any(x.trains for x in stage.exchanges))
    share = min(1.0, rounds / max(1, total))
    if p.rows:
        looks = looks_of(study, method) * share
        parts = [1 / z**2 for z in start_noise(study).values()] + [looks / row_noise(study, method) ** 2]
        return spent(1 / math.sqrt(sum(parts)), 1, p.rows.delta) if sum(parts) else 0.0
    if p.sites:
        noise = guards_of(study).noise * math.sqrt(p.least - 1)
        return spent(noise, round(reports_of(study, method) * share), p.sites.delta)
    return 0.0


def spent_by(study: Study, method: AnyMethod) -> Spent | None:
    """Of a site that took part in every round."""
    p, whole = study.protect, spent_after(study, method, study.training.rounds)
    always = [
        "how many rows a site has",
        "its scores and its share of each class, which the coordinator is told as they are",
        "what sites publish of their columns before the first round, where they agree to",
    ]
    if p.rows:
        covers = ["the reports of every round, and the models that are made of them"]
        covers += ["the counts of classes by which rows are weighted"] * ("classes" in shares_of(study))
        covers += ["the means and spreads by which columns are standardised"] * ("columns" in shares_of(study))
        given = row_noise(study, method), p.clip or ROW_CLIP, looks_of(study, method)
        return Spent("row", whole, p.rows.delta, *given, tuple(covers), tuple(always))
    if p.sites:
        noise = guards_of(study).noise * math.sqrt(p.least - 1)
        covers = ["the total of every round, and the models that are made of it"]
        if p.sum == "plain":
            always.insert(0, "a single report, which the coordinator can read: its noise is a part of the total's")
        given = noise, p.clip or 0.0, reports_of(study, method)
        return Spent("site", whole, p.sites.delta, *given, tuple(covers), tuple(always))
    return None

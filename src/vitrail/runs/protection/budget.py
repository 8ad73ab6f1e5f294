"""What [protect] of a study comes to in numbers: guards, noise, and what of a privacy budget is spent when.

Noise adds up: looks under noises z_1, z_2, ... are one look under s with 1/s^2 = 1/z_1^2 + 1/z_2^2 + ... So a budget is
one number 1/s^2 that is dealt out: to the counts of classes, to the means and spreads of columns
(runs/protection/dp_statistics.py), and the rest in equal parts to all looks of the training. A row that is held out is
in none of these: between machines its budget is for the scores that leave (privacy/noisy_scores.py).
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Literal, NamedTuple

from vitrail.core.task import Task
from vitrail.data.encoding import numeric
from vitrail.methods import AnyMethod
from vitrail.privacy.budget import Budget, epsilon_of, noise_for
from vitrail.privacy.dp_sgd import PrivateTask
from vitrail.privacy.guards import Guards, Sum
from vitrail.study.model import Study

SHARES = {"classes": 0.05, "columns": 0.1}  # of 1/s^2: what is not training
ROW_CLIP = 1.0  # where the study names none


class SpentBudget(NamedTuple):
    """The privacy budget of a run, for a page."""

    of: Literal["row", "patient", "site"]
    epsilon: float  # of a row, or site, that is removed
    replaced: float  # epsilon of one that is replaced by any other
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
        left = 1 - sum(shares_of(study).values())
        noise = noise_for(Budget(p.sites.epsilon, p.sites.delta), reports_of(study)) / math.sqrt(p.least - 1)
        noise /= math.sqrt(left)
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
    """What of a budget is not for training, and the part of it: what is counted under noise before the first round
    where rows are private, and scores."""
    p = study.protect
    counted = p.rows is not None
    wanted = {
        "classes": counted and study.target.kind == "classes" and study.training.class_weights != "none",
        "columns": counted and study.standardise != "none" and bool(numeric(study)),
    }
    return {k: SHARES[k] for k, yes in wanted.items() if yes}


def whole_noise(study: Study) -> float:
    """z of a single look that would spend all of the study's budget."""
    spend = study.protect.rows or study.protect.sites
    assert spend is not None
    return noise_for(Budget(spend.epsilon, spend.delta), 1)


def start_noise(study: Study) -> dict[str, float]:
    """z of each of these."""
    shares = shares_of(study)
    return {k: whole_noise(study) / math.sqrt(share) for k, share in shares.items()} if shares else {}


def score_noise(study: Study) -> float:
    """z of all scores of a run together, for `noisy_scores`: a row that is held out is in no step of the training and
    in no count, so that scores on such rows alone have the whole of its budget."""
    return whole_noise(study)


def row_noise(study: Study, method: AnyMethod) -> float:
    """z of every step of the training."""
    return whole_noise(study) * math.sqrt(looks_of(study, method) / (1 - sum(shares_of(study).values())))


def private(task: Task, study: Study, method: AnyMethod) -> Task:
    """The same with clipped gradients and noise, where the study says so."""
    if study.protect.rows is None:
        return task
    given = {f.name: getattr(task, f.name) for f in fields(Task)}
    return PrivateTask(**given, clip=study.protect.clip or ROW_CLIP, noise=row_noise(study, method))


def loss_after(study: Study, method: AnyMethod, rounds: int) -> float:
    """1/s^2 of a row, or a site, that took part in so many rounds of training; infinite where there is no noise."""
    p = study.protect
    total = sum(stage.rounds for stage in method.plan(study.training.rounds) if any(x.trains for x in stage.exchanges))
    share = min(1.0, rounds / max(1, total))
    before = sum(1 / z**2 for z in start_noise(study).values())
    if p.rows:
        looks = looks_of(study, method)
        return before + (looks * share / row_noise(study, method) ** 2 if looks else 0.0)
    if p.sites:
        noise = guards_of(study).noise * math.sqrt(p.least - 1)
        return before + round(reports_of(study, method) * share) / noise**2
    return math.inf


def row_loss(study: Study, method: AnyMethod) -> float:
    """What a whole run can tell about one removed row of a site: 1/s^2 for the ledger of these rows
    (deploy/site/privacy_ledger.py). Noise for sites guards a row, too: without it a site's change is another one, which
    may lie 2 clips off. Who reads each report, as under plain sums, sees it under its own site's noise alone."""
    loss = loss_after(study, method, study.training.rounds)
    if study.protect.rows or not study.protect.sites:
        return loss
    return 4 * loss * (study.protect.least - 1 if study.protect.sum == "plain" else 1)


def spent_after(study: Study, method: AnyMethod, rounds: int) -> float:
    """The epsilon of a row, or a site, that is removed and took part in so many rounds of training."""
    spend = study.protect.rows or study.protect.sites
    return epsilon_of(loss_after(study, method, rounds), spend.delta) if spend else 0.0


def replaced_after(study: Study, method: AnyMethod, rounds: int) -> float:
    """The same where it is replaced by any other: it moves twice as far."""
    spend = study.protect.rows or study.protect.sites
    return epsilon_of(4 * loss_after(study, method, rounds), spend.delta) if spend else 0.0


def spent_by(study: Study, method: AnyMethod) -> SpentBudget | None:
    """Of a site that took part in every round."""
    p, rounds = study.protect, study.training.rounds
    removed, replaced = (f(study, method, rounds) for f in (spent_after, replaced_after))
    always = [
        "how many rows a site has",
        "its share of each class, and in a simulation its scores, which the coordinator receives without noise",
        "what sites publish about their columns before the first round, where they agree to",
    ]
    if p.rows:
        covers = ["the reports of every round, and the models that are made of them"]
        covers += ["the counts of classes by which rows are weighted"] * ("classes" in shares_of(study))
        covers += ["the means and spreads by which columns are standardised"] * ("columns" in shares_of(study))
        covers.append("between machines, the scores of its model")
        given = row_noise(study, method), p.clip or ROW_CLIP, looks_of(study, method)
        of: Literal["row", "patient"] = "patient" if study.person_column else "row"
        always += ["how many rows each patient has"] * (of == "patient")
        return SpentBudget(of, removed, replaced, p.rows.delta, *given, tuple(covers), tuple(always))
    if p.sites:
        noise = guards_of(study).noise * math.sqrt(p.least - 1)
        covers = ["the total of every round, and the models that are made of it"]
        if p.sum == "plain":
            always.insert(0, "a single report, which the coordinator can read: its noise is a part of the total's")
        given = noise, p.clip or 0.0, reports_of(study, method)
        return SpentBudget("site", removed, replaced, p.sites.delta, *given, tuple(covers), tuple(always))
    return None


def budget_words(spent: SpentBudget) -> str:
    """What the two numbers of a budget mean, for a page, a consent form and a terminal."""
    others = {"row": "another person's row", "patient": "another patient's rows", "site": "another hospital's rows"}
    one, other = spent.of, others[spent.of]
    return (
        f"The privacy budget of each {one} is epsilon {spent.epsilon:.3g} if the {one} is removed and "
        f"{spent.replaced:.3g} if it is replaced (delta {spent.delta:g}). Removed: the run is compared with the same "
        f"run without the {one}'s values. Nothing that the budget covers is more than e^{spent.epsilon:.3g} times as "
        "likely in one as in the other, except with probability delta. Replaced: the run is compared with the same run "
        f"with {other} in its place. This is the number to look at if people know that the {one} takes part and ask "
        f"what its values are. The budget covers {'; '.join(spent.covers)}. It does not cover "
        f"{'; '.join(spent.leaves_out)}."
    )

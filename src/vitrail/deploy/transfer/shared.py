"""Whose model carries over to whose rows, between machines ([transfer] in a study): what both ends know of it. Asked
before the first round, of the sites that publish, three questions, each answered once in a run:

model    each trains alone and cross-validates (studies/own_models.py); its model and its loss travel, signed by it
judge    each is sent the others' models, and says their losses on its training rows
subset   each is told which sites were chosen for whom and who would train together, and stays or withdraws

A loss of a model that somebody made for it can tell of a single row. So a site judges only models that another
participant signed for this run, one of each, within the bounds of weights, and once: see deploy/transfer/site.py.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.core.task import Task
from vitrail.deploy.protocol.message import QUESTIONS, MessageSchema, no_such
from vitrail.deploy.protocol.model_digests import model_digest
from vitrail.engine.contract import Spec, WireEntry
from vitrail.runs.setup import build_task
from vitrail.studies.own_models import alone_method, alone_study
from vitrail.studies.transfer import travel_lines
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

TRANSFER, LEGS = "transfer", ("model", "judge", "subset")  # the kind of its messages; in the order of time
MODEL, CV, BASELINE = "model", "cv_loss", "baseline_loss"  # names of tensors
SIGNED = {"signature": str, "certificate": str}
NUMBER = (), torch.float64


def transfer_run(run: str) -> str:
    """The trainings of a site alone as a run of their own: what it draws in them it draws nowhere else."""
    return hashlib.sha256(f"vitrail transfer 1 {run}".encode()).hexdigest()[:16]


def own_study(agreed: Agreement) -> Study:
    """The study as each site trains alone."""
    return alone_study(agreed.study.with_changes(protect={"sum": "plain", "second": ""}))


def own_task(agreed: Agreement) -> Task:
    return build_task(own_study(agreed), alone_method(), agreed.seed)


def model_spec(agreed: Agreement, *many: int) -> Spec:
    return {f"{MODEL}/{k}": ((*many, *v.shape), torch.float32) for k, v in own_task(agreed).start.items()}


def question_schema(agreed: Agreement, words: Mapping[str, Any]) -> MessageSchema:
    leg, form = _leg(agreed, words), dict[str, Any](QUESTIONS[TRANSFER])
    if leg == "judge":
        many = _count(agreed, words)
        return MessageSchema(
            {**form, "models": dict}, {**model_spec(agreed, many), "cv_losses": ((many,), torch.float64)}
        )
    return MessageSchema({**form, "subsets": dict, "together": list} if leg == "subset" else form, {})


def answer_schema(agreed: Agreement, words: Mapping[str, Any]) -> MessageSchema:
    """A loss is NaN where too few rows stand behind it, or the model diverged."""
    leg = _leg(agreed, words)
    if leg == "model":
        return MessageSchema(dict(SIGNED), {**model_spec(agreed), CV: NUMBER, BASELINE: NUMBER})
    if leg == "judge":
        return MessageSchema({}, {"losses": ((_count(agreed, words),), torch.float64)}, frozenset({"losses"}))
    return MessageSchema({"stays": bool}, {})


def signed_text(agreed: Agreement, run: str, site: str, model: Mapping[str, Tensor], cv: Tensor) -> bytes:
    """What a site signs: no model of another study, run or site can stand for its own. `model`: by wire name."""
    return "\0".join(("vitrail transfer 1", agreed.hash, run, site, model_digest({**model, CV: cv}))).encode()


def model_of(tensors: Mapping[str, Tensor], at: int | None = None) -> dict[str, Tensor]:
    """The model in a message, by wire name; of several the one at that place."""
    named = {k: v for k, v in tensors.items() if k.startswith(f"{MODEL}/")}
    return named if at is None else {k: v[at] for k, v in named.items()}


def plain(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the network's names."""
    return {k.removeprefix(f"{MODEL}/"): v for k, v in model.items()}


def together(user: str, subsets: Mapping[str, Iterable[str]], sites: Iterable[str]) -> list[str]:
    """Who would train: the study's user with those chosen for it, or all."""
    group = {user, *subsets.get(user, ())} if user else {*sites}
    return sorted(group)


def wire_lines(agreed: Agreement) -> list[WireEntry]:
    return travel_lines(agreed.study, agreed.sites) if agreed.study.transfer else []


def longest(agreed: Agreement) -> int:
    """Bytes of tensors that no message of a transfer is longer than."""
    if not agreed.study.transfer:
        return 0
    return (agreed.sites - 1) * (8 + sum(math.prod(s) * t.itemsize for s, t in model_spec(agreed).values())) + 16


def _leg(agreed: Agreement, words: Mapping[str, Any]) -> str:
    leg: str = words["leg"] if words.get("leg") in LEGS and agreed.study.transfer else ""
    if not leg:
        raise no_such("leg", words.get("leg"))
    return leg


def _count(agreed: Agreement, words: Mapping[str, Any]) -> int:
    models = words.get("models")
    if not isinstance(models, dict) or not 1 <= len(models) < agreed.sites:
        raise no_such("models", models)
    return len(models)

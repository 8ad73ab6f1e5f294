"""What a run tells about whom each site learned from: trust or shares, the models beside, weights of linear models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.trust import Trust, read_trust
from vitrail.core.facts import AGREED, ALONE, ALONE_BIAS, ALONE_WEIGHT, OWN, RECEIVED, SHARED, VALIDATION
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.data.encoding import columns
from vitrail.runs.result import Run
from vitrail.runs.setup import MAJORITY

__all__ = ["MAJORITY", "MODELS", "LearningSources", "effects", "read_learned"]

MODELS = (OWN, SHARED, ALONE, RECEIVED)  # in the order of a key
TITLES = {SHARED: "Global", ALONE: "Local", RECEIVED: "As received"}  # the own one goes by the run's method
WEIGHTS = ["site", "answer", "feature", "model", "value"]


class LearningSources(NamedTuple):
    """All that a page shows of it. Models are named by what each is to a site (core/facts.py)."""

    title: str  # of the method
    trust: Trust
    curves: pd.DataFrame  # round, site, model (one of MODELS, or MAJORITY), value: the primary metric
    weights: pd.DataFrame | None  # site, answer, feature, model, value; None where no model is linear
    refused: Sequence[str] = ()  # sites that did not show the model trained alone
    judged: bool = False  # whether users have a loss on rows that they set aside
    grows: bool = False  # whether messages hold something for every site
    row_word: str = "row"  # what a row is

    def called(self, model: str) -> str:
        return TITLES.get(model, self.title)

    @property
    def has_companions(self) -> bool:
        """Whether models were carried beside the sites' own."""
        return bool(self.curves["model"].isin([SHARED, ALONE]).any())

    @property
    def received(self) -> bool:
        """Whether the model that a site was given is known beside the one that it trained."""
        return bool(self.curves["model"].eq(RECEIVED).any())


def read_learned(run: Run) -> LearningSources | None:
    """From a run; None where no site weighed another."""
    if (trust := read_trust(run.sites, run.facts)) is None:
        return None
    own = run.curve().assign(model=OWN)
    own = own[own["round"] <= trust.rounds[-1]]  # what comes after trains nothing
    same = run.baseline().assign(round=0, model=MAJORITY)
    curves = pd.concat([own, run.companion_scores(), same], ignore_index=True)
    curves = curves[curves["metric"] == run.study.metrics[0]][["round", "site", "model", "value"]]
    agreed = run.fact(AGREED)
    refused = [] if agreed is None else [s for s, agrees in zip(run.sites, agreed.tolist(), strict=True) if not agrees]
    judged, grows = run.fact(VALIDATION) is not None, run.method.wire.per_site_messages
    return LearningSources(
        run.method.catalogue.title, trust, curves, _weights(run, refused), refused, judged, grows, run.study.row_word
    )


def _weights(run: Run, refused: Sequence[str]) -> pd.DataFrame | None:
    """What a linear model makes of each feature. Own and Global where the sites' models are at hand, Local where it was
    shown."""
    task = run.plan.task
    if not task.net.linear or run.study.images:  # of a picture no weight belongs to a feature
        return None
    target, names, rows = run.study.target, [*columns(run.study), "(constant)"], []
    answers = target.levels[1:] if len(target.levels) == 2 else target.levels or (f"more {target.column}",)
    weight, bias = run.fact(ALONE_WEIGHT), run.fact(ALONE_BIAS)
    for i, site in enumerate(run.sites):
        held = run.model_of(site).models() if site in run.models else {}
        seen = {model: effects(task, held[model]) for model in (OWN, SHARED) if model in held}
        if weight is not None and bias is not None and site not in refused:
            seen[ALONE] = effects(task, {"head.weight": weight[i], "head.bias": bias[i]})
        for model, both in seen.items():
            speaks = _towards(both, len(target.levels))
            rows += [
                (site, answer, feature, model, float(speaks[f, a]))
                for a, answer in enumerate(answers)
                for f, feature in enumerate(names)
            ]
    return pd.DataFrame(rows, columns=WEIGHTS)


def effects(task: Task, params: Params) -> Tensor:
    """[feature and the constant, output]: what a linear model makes of one unit of each, by asking it."""
    (many,) = task.net.shape
    x = torch.cat([torch.eye(many), torch.zeros(1, many)]).double()  # each feature by itself, then none
    z = task.output({k: v[None].double() for k, v in params.items()}, x[None])[0]
    return torch.cat([z[:-1] - z[-1:], z[-1:]])


def _towards(both: Tensor, levels: int) -> Tensor:
    """[feature, answer]: of two classes towards the second; of more, less their mean."""
    if levels == 2:
        return both[:, 1:] - both[:, :1]
    return both - both.mean(1, keepdim=True) if levels else both

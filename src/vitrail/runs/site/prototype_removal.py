"""A site takes prototypes out of its model by hand (analysis/images/prototype_removal.py); at the site alone.

    last layer   w_cp <- 0 for each prototype p that is taken out, all classes c
    constant     c <- mean over the site's training pictures of what these added to each score, and on top of it the
                 constant that fits these pictures best, as after every training (metrics/recalibration.py)

Without the constant a class would lose evidence on every picture, and be predicted too rarely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.analysis.images.prototype_removal import ChangedPrediction, PrototypeRemoval, RemovedPrototype
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.facts import OWN
from vitrail.data.encoding import fingerprint_rows
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import persons_of
from vitrail.data.readers.tables import clean
from vitrail.data.splitting import hold_out
from vitrail.metrics.recalibration import fit_constant
from vitrail.metrics.score_intervals import score_intervals
from vitrail.metrics.scores import decide
from vitrail.nets.prototype_network import ProtoNet
from vitrail.runs.result import Model

OPTION = "--without-prototype"
TIMES = 100.0  # so often each picture counts when the constant is fitted: the pull towards the mean becomes weak


class Correction(NamedTuple):
    """A copy of a site's model."""

    model: Model
    removed: tuple[RemovedPrototype, ...]
    fitted: bool  # whether its constant was fitted again; only where the pictures are those that the run saw


def held_out_of(site: str, rows: pd.DataFrame, mine: Model, fingerprint: str | None) -> NDArray[np.bool_] | None:
    """[row]: whether no training saw it; None where these are not the pictures that the run saw."""
    if fingerprint not in (None, fingerprint_rows(rows)):
        return None
    return np.isin(np.arange(len(rows)), hold_out(rows, mine.study, mine.seed, site)[1])


def correct(mine: Model, site: str, frame: pd.DataFrame, fingerprint: str | None, asked: Sequence[str]) -> Correction:
    """`frame`: the site's own pictures; `asked`: CLASS:NUMBER each."""
    model, removed = remove_prototypes(mine, asked)
    rows = clean(frame, mine.study)
    held_out = held_out_of(site, rows, mine, fingerprint)
    if held_out is None or held_out.all():
        return Correction(model, removed, False)
    some = rows.iloc[np.flatnonzero(~held_out)]
    pictures = torch.from_numpy(mine.encoder.matrix(some))
    before, after = (of.scorer()[1](pictures).double() for of in (mine, model))
    added = (before - after).mean(0)
    y = np.eye(len(mine.study.target.levels))[some[mine.study.target.column].to_numpy()]
    weights = weights_of(some, mine.study)
    w = np.ones(len(some)) if weights is None else weights
    constant = fit_constant(mine.plan.task.loss, after + added, y, TIMES * w)
    if constant is None:
        return Correction(model, removed, False)
    constants = {**mine.encoder.constants, OWN: (added.numpy() + constant).tolist()}
    return Correction(model._replace(encoder=replace(mine.encoder, constants=constants)), removed, True)


def remove_prototypes(mine: Model, asked: Sequence[str]) -> tuple[Model, tuple[RemovedPrototype, ...]]:
    """A copy whose own model gives these prototypes no weight; the other models that the site holds are as they were.
    `asked`: CLASS:NUMBER each, as the private page names them; all mistakes are told at once."""
    plan, classes = mine.plan, mine.study.target.levels
    net = plan.task.net
    if not isinstance(net, ProtoNet):
        what = f"the model has no prototypes: its network is of kind {mine.study.network.kind!r}."
        hint = 'Only a network with kind = "prototypes" has some: write it under [network].'
        raise VitrailError("cannot remove prototypes", [Problem(OPTION, what, hint)])
    removed = _parse(asked, classes, net.per_class)
    columns = [classes.index(one.label) * net.per_class + one.number - 1 for one in removed]
    held, tensors = mine.models(plan)[OWN][net.HEAD], dict(mine.tensors)
    for name, value in mine.tensors.items():
        if name.rpartition("/")[2] == net.HEAD and value.shape == held.shape:
            moved = mine._replace(tensors={**mine.tensors, name: value + 1})
            if not torch.equal(moved.models(plan)[OWN][net.HEAD], held):  # the model's own last layer is made of it
                tensors[name] = value.clone()
                tensors[name][:, columns] = 0
    corrected = mine._replace(tensors=tensors)
    if corrected.models(plan)[OWN][net.HEAD][:, columns].any():
        what = f"{mine.method.catalogue.title} makes the last layer of parts that are not kept apart."
        raise VitrailError("cannot remove prototypes", [Problem(OPTION, what, "Use a model of another method.")])
    return corrected, removed


def _parse(asked: Sequence[str], classes: Sequence[str], per_class: int) -> tuple[RemovedPrototype, ...]:
    problems, result = list[Problem](), dict[RemovedPrototype, None]()
    for text in asked:
        label, colon, digits = text.rpartition(":")
        if not colon or not digits.isdecimal():
            what = f"expected CLASS:NUMBER, got {text!r}."
            problems.append(Problem(OPTION, what, f"Write for example {OPTION} {classes[-1]}:1."))
        elif label not in classes:
            problems.append(Problem(OPTION, f"there is no class {label!r}.", nearest(label, classes)))
        elif not 1 <= int(digits) <= per_class:
            what = f"class {label} has no prototype {int(digits)}."
            problems.append(Problem(OPTION, what, f"Its prototypes have the numbers 1 to {per_class}."))
        else:
            result[RemovedPrototype(label, int(digits), per_class)] = None
    if problems:
        raise VitrailError("cannot remove prototypes", problems)
    return tuple(result)


def compare_without(
    mine: Model,
    correction: Correction,
    rows: pd.DataFrame,
    pixels: NDArray[np.uint8],
    names: Sequence[str],
    held_out: NDArray[np.bool_] | None,
) -> PrototypeRemoval:
    """On the held-out pictures; on all where these are not the pictures that the run saw (`held_out` is None)."""
    study, classes = mine.study, mine.study.target.levels
    at = np.arange(len(rows)) if held_out is None else np.flatnonzero(held_out)
    some, labels = rows.iloc[at], rows[study.target.column].to_numpy()[at]
    cut = np.array(mine.encoder.thresholds) if mine.encoder.thresholds else None
    before, after = (_shares(model, torch.from_numpy(pixels[at])) for model in (mine, correction.model))
    persons, weights = persons_of(some, study), weights_of(some, study)
    scored = [score_intervals(study.metrics, labels, p, cut, persons, weights) for p in (before, after)]
    words = [decide(p, cut) for p in (before, after)]
    changed = tuple(
        ChangedPrediction(
            names[at[i]],
            pixels[at[i]],
            classes[labels[i]],
            classes[words[0][i]],
            classes[words[1][i]],
            float(before[i, words[0][i]]),
            float(after[i, words[1][i]]),
        )
        for i in np.flatnonzero(words[0] != words[1])
    )
    scores = {metric: (scored[0][metric], scored[1][metric]) for metric in study.metrics}
    return PrototypeRemoval(correction.removed, len(at), held_out is not None, correction.fitted, scores, changed)


def scores_beside(mine: Model, correction: Correction) -> Callable[[Tensor], Tensor]:
    """[row, class] scores of the corrected model, to be compared with those of the model as it is: what its constant
    has changed is in them."""
    _, scorer = correction.model.scorer()
    none = [0.0] * len(mine.study.target.levels)
    old, new = (torch.tensor(of.encoder.constants.get(OWN, none)) for of in (mine, correction.model))
    return lambda pictures: scorer(pictures) + (new - old)


def _shares(model: Model, pictures: Tensor) -> NDArray[np.float64]:
    task, scorer = model.scorer()
    return task.loss.predictions(scorer(pictures)).double().numpy()

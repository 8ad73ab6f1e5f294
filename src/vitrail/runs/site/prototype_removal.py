"""A site takes prototypes out of its model by hand (analysis/images/prototype_removal.py); at the site alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.analysis.images.prototype_removal import ChangedPrediction, PrototypeRemoval, RemovedPrototype
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.facts import OWN
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import persons_of
from vitrail.metrics.score_intervals import score_intervals
from vitrail.metrics.scores import decide
from vitrail.nets.prototype_network import ProtoNet
from vitrail.runs.result import Model

OPTION = "--without-prototype"


def remove_prototypes(mine: Model, asked: Sequence[str]) -> tuple[Model, tuple[RemovedPrototype, ...]]:
    """A copy whose own model gives these prototypes no weight; the other models that the site holds are as they were.
    `asked`: CLASS:NUMBER each, as the private page names them; all mistakes are told at once."""
    plan, classes = mine.plan, mine.study.target.levels
    net = plan.task.net
    if not isinstance(net, ProtoNet):
        what = f"the model has no prototypes: its network is of kind {mine.study.network.kind!r}."
        hint = 'Only a network with kind = "prototypes" has some: vitrail run STUDY --method indisco.'
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
    problems, found = list[Problem](), dict[RemovedPrototype, None]()
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
            found[RemovedPrototype(label, int(digits), per_class)] = None
    if problems:
        raise VitrailError("cannot remove prototypes", problems)
    return tuple(found)


def compare_without(
    mine: Model,
    corrected: Model,
    removed: Sequence[RemovedPrototype],
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
    before, after = (_shares(model, torch.from_numpy(pixels[at])) for model in (mine, corrected))
    persons, weights = persons_of(some, study), weights_of(some, study)
    scored = [score_intervals(study.metrics, labels, p, cut, persons, weights) for p in (before, after)]
    said = [decide(p, cut) for p in (before, after)]
    changed = tuple(
        ChangedPrediction(
            names[at[i]],
            pixels[at[i]],
            classes[labels[i]],
            classes[said[0][i]],
            classes[said[1][i]],
            float(before[i, said[0][i]]),
            float(after[i, said[1][i]]),
        )
        for i in np.flatnonzero(said[0] != said[1])
    )
    scores = {metric: (scored[0][metric], scored[1][metric]) for metric in study.metrics}
    return PrototypeRemoval(tuple(removed), len(at), held_out is not None, scores, changed)


def _shares(model: Model, pictures: Tensor) -> NDArray[np.float64]:
    task, scorer = model.scorer()
    return task.loss.predictions(scorer(pictures)).double().numpy()

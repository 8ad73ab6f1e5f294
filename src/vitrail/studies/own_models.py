"""What a site does alone for the adapted Ndoye factor: it trains a model by itself, cross-validates it, and tries the
models of others on its training rows. A simulation does it for all sites at once, a site between machines for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail import methods
from vitrail.core.facts import OWN
from vitrail.core.losses import log_hazard, log_shares
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.data.encoding import SiteData, class_weights, columns
from vitrail.engine.local import Engine
from vitrail.methods import AnyMethod
from vitrail.metrics.scores import Floats
from vitrail.metrics.survival import losses
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.evaluation import truth_of
from vitrail.runs.setup import build_task, resolve, training_of, training_rows
from vitrail.studies.cross_validation import same_loss
from vitrail.study.model import Study

FEEDBACK = ["user", "site", "column", "output", "user_effect", "site_effect", "difference"]


class Mean(NamedTuple):
    value: float
    error: float  # standard error, as if rows were independent


class OwnModels(NamedTuple):
    """`params`: [site, ...], f_i in the order of `data`; `same`: the loss of the best single answer to all rows."""

    task: Task
    data: list[SiteData]
    params: Params
    cv: dict[str, Mean]
    same: dict[str, float]


def alone_method() -> AnyMethod:
    """The method by which each site trains by itself."""
    return methods.build(methods.named(lambda kind: kind.catalogue.alone)[0])


def alone_study(study: Study, rounds: int | None = None) -> Study:
    """The study as each site trains by itself, without what sites find out between machines."""
    return resolve(study.with_changes(transfer=None, verdict=None), alone_method(), rounds)[0]


def train_alone(
    study: Study,
    data: list[SiteData],
    parts: Sequence[Sequence[SiteData]],
    seed: int,
    *,
    engine: str = "vectorised",
    progress: Callable[[int, int], None] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> OwnModels:
    """Of an `alone_study`. `parts`: the same sites for each fold; `secrets`: from what each
    site draws in place of the seed."""
    method = alone_method()
    task = build_task(study, method, seed)
    data, parts = as_rows(data, task.net), [as_rows([*fold], task.net) for fold in parts]
    left_out = [s._replace(name=_name(s.name, k)) for k, fold in enumerate(parts) for s in fold]
    rows = training_rows([*data, *left_out], study, method, "cpu")
    own = {_name(n, k): v for n, v in (secrets or {}).items() for k in range(len(parts))} | dict(secrets or {})
    runner = Engine(task, method, rows, training_of(study), seed, looped=engine == "looped", secrets=own)
    last = runner.start()
    for last in runner.run():
        if progress:
            progress(last.round, study.training.rounds)
    states = method.models(task, runner.settled(last))[OWN]
    place = {name: i for i, name in enumerate(runner.sites.names)}
    params = {k: v[[place[s.name] for s in data]] for k, v in states.items()}
    cv = {s.name: _cross_validated(study, task, states, place, s, parts) for s in data}
    same = {s.name: same_loss(study, truth_of(study, s, "train"), loss_weights(study, s)) for s in data}
    return OwnModels(task, data, params, cv, same)


def losses_on(study: Study, task: Task, params: Params, user: SiteData) -> list[Mean]:
    """Of each model on a user's training rows."""
    weights = loss_weights(study, user)
    return [mean_loss(one, weights) for one in model_losses(study, task, params, user.train_x, user.train_y)]


def loss_weights(study: Study, site: SiteData) -> Floats:
    """[training row]"""
    return _weights(study, site.train_y, site.train_y)


def _name(site: str, fold: int) -> str:
    return f"{site}\x1f{fold}"  # no file has such a name


def model_losses(study: Study, task: Task, params: Params, x: Any, y: NDArray[np.generic]) -> Floats:
    """[model, row]: each model's loss on each row."""
    some, rows = next(iter(params.values())), torch.from_numpy(x)
    rows = rows if study.images else rows.to(some)
    with torch.no_grad():
        z = task.output(params, rows.expand(len(some), *x.shape)).double()
        if study.target.kind == "number":
            wrong = (z[..., 0] - torch.from_numpy(y)) * study.target.scale
            return (wrong**2).numpy()
        if study.target.kind == "time":
            return np.stack([losses(y.astype(np.float64), p) for p in task.loss.predictions(z).numpy()])
        right = torch.from_numpy(y.astype(np.int64)).expand(len(some), -1)[..., None]
        return -log_shares(task.loss, z).gather(2, right)[..., 0].numpy()


def _weights(study: Study, y: NDArray[np.generic], trained: NDArray[np.generic]) -> Floats:
    if study.target.kind != "classes" or study.training.class_weights == "none":
        return np.ones(len(y))
    return class_weights(trained, len(study.target.levels))[y.astype(np.int64)]


def mean_loss(losses: Floats, weights: Floats) -> Mean:
    value = float((losses * weights).sum() / weights.sum())
    return Mean(value, float(np.sqrt((weights**2 * (losses - value) ** 2).sum()) / weights.sum()))


def _cross_validated(
    study: Study, task: Task, states: Params, place: dict[str, int], site: SiteData, parts: Sequence[Sequence[SiteData]]
) -> Mean:
    """Every training row's loss under the model that has not seen it."""
    losses, weights = [], []
    for k, fold in enumerate(parts):
        at = place[_name(site.name, k)]
        mine = next(s for s in fold if s.name == site.name)
        losses.append(
            model_losses(study, task, {n: v[at : at + 1] for n, v in states.items()}, mine.test_x, mine.test_y)[0]
        )
        weights.append(_weights(study, mine.test_y, site.train_y))
    return mean_loss(np.concatenate(losses), np.concatenate(weights))


def feedback_of(study: Study, task: Task, own: Params, user: SiteData, names: list[str]) -> list[tuple[Any, ...]]:
    """How much each column moves the answer, in the user's model and in each other's.

    The mean slope of the answer over the user's rows. For a linear model it is the weight itself; first-layer weights
    of a network with hidden layers cannot be compared, slopes can. `(intercept)`: the answer where all columns are 0.
    """
    some = next(iter(own.values()))
    x = torch.from_numpy(user.train_x).to(some).expand(len(names), *user.train_x.shape).contiguous().requires_grad_()
    answers, outputs = _answers(study, task.output(own, x))
    rows, me = [], names.index(user.name)
    with torch.no_grad():
        level = _answers(study, task.output(own, torch.zeros_like(x[:, :1])))[0][:, 0]  # [model, output]
    for o, output in enumerate(outputs):
        (slope,) = torch.autograd.grad(answers[..., o].mean(1).sum(), x, retain_graph=True)
        effects = torch.cat([slope.sum(1), level[:, o : o + 1]], 1).double().numpy()  # [model, column]
        for i, name in enumerate(names):
            if i != me:
                for c, column in enumerate([*columns(study), "(intercept)"]):
                    mine, theirs = float(effects[me, c]), float(effects[i, c])
                    rows.append((user.name, name, column, output, mine, theirs, theirs - mine))
    return rows


def _answers(study: Study, z: Tensor) -> tuple[Tensor, list[str]]:
    """[model, row, output], free of what a softmax does not see; two classes have one answer, the log-odds."""
    target = study.target
    if target.kind == "number":
        return z * target.scale, [target.column]
    if target.kind == "time":
        return log_hazard(z)[..., None], [target.column]
    if len(target.levels) == 2:
        return z[..., 1:] - z[..., :1], [target.levels[1]]
    return z - z.mean(2, keepdim=True), list(target.levels)

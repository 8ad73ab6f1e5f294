"""One method, one seed: every row of every site judged by a model that was not trained on it.

Each site's rows are cut into folds; for every fold a federation is trained in which all sites hold that fold out at
once, all of them in one stack (engine/replicas.py). The seed draws the cut, the first model and the batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from vitrail.data.encoding import Encoder
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import count_persons, how_many, persons_of
from vitrail.engine.batches import Sites
from vitrail.engine.contract import Ledger
from vitrail.engine.local import Engine
from vitrail.engine.replicas import Replicas, stack_replicas
from vitrail.methods import AnyMethod
from vitrail.metrics import survival
from vitrail.metrics.scores import Answers, score, score_all
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.evaluation import (
    Evaluator,
    constant_scores,
    decision_thresholds,
    rare_of,
    share_of,
    size_row,
    sizes_table,
    target_words,
)
from vitrail.runs.folder import versions
from vitrail.runs.plan import Plan
from vitrail.runs.setup import build_task, held_rows, is_evaluated, resolve, training_of, training_rows
from vitrail.runs.training import ledger_of
from vitrail.studies.benefit import Floats, Ints
from vitrail.studies.executor import Step
from vitrail.studies.folds import FoldedRows, whole_folds
from vitrail.study.model import Study

HELD = 1 << 30  # bytes of rows and models that are held at once; folds beyond that come after
Weights = Floats | None  # [row]: for how many each stands; None: for one
SMALLEST = 1e-15  # share of a class, so that its logarithm is a number


class CrossValidated(NamedTuple):
    """What came of the trainings of all folds."""

    predictions: dict[int, list[Floats]]  # rounds done -> for each site [row, answer], by models not trained on the row
    trained: dict[str, Floats]  # metric -> [site]: on the rows trained on, mean over folds
    ledger: Ledger  # of one fold's training

    @property
    def last(self) -> list[Floats]:
        return self.predictions[max(self.predictions)]


class RemoteDraws(NamedTuple):
    """Of the sites of a run between machines, in one fold: what they drew from, and by what they standardised."""

    secrets: Mapping[str, str] | None = None
    scales: Mapping[str, Encoder] | None = None


def cross_validate(
    study: Study,
    cleaned: Mapping[str, pd.DataFrame],
    method: str | AnyMethod,
    seed: int,
    folds: int,
    engine: str = "vectorised",
    device: str = "cpu",
    step: Step = lambda done, of: None,
) -> dict[str, Any]:
    """Plain values, ready for a file: scores, curve, losses of every row and its fold. `cleaned`: by
    data/readers/tables.py."""
    study, chosen = resolve(study, method, None)
    cut = whole_folds(cleaned, study, seed, folds)
    names, tested = list(cleaned), [cut.tested(n) for n in cleaned]
    rows = [f[mine] for f, mine in zip(cut.cleaned.values(), tested, strict=True)]
    lots = [of[mine] for of, mine in zip(cut.lots.values(), tested, strict=True)]
    truth, stand = [f[study.target.column].to_numpy() for f in rows], [weights_of(f, study) for f in rows]
    judged = train_folds(study, chosen, cut, seed, engine, device, step)
    answers = {done: [p[mine] for p, mine in zip(of, tested, strict=True)] for done, of in judged.predictions.items()}
    last, at = answers[max(answers)], _thresholds(study, cut)
    test, spread = _scored(study, truth, last, stand, at), _spread(study, truth, last, cut.folds, lots, stand, at)
    curve = [(done, m, v) for done, of in answers.items() for m, v in _scored(study, truth, of, stand, at).items()]
    split = {"test": test, "train": judged.trained}
    sizes = _sizes(study, cut)
    ledger = ledger_of(judged.ledger, study, chosen, sizes, Plan(study, chosen, seed).wire(), None, {})
    return {
        "seed": seed,
        "scores": [[n, m, float(v[j]), k] for k in split for j, n in enumerate(names) for m, v in split[k].items()],
        "curve": [[done, n, m, float(v[j])] for done, m, v in curve for j, n in enumerate(names)],
        "folds": [
            [n, m, k, float(x)]
            for m, v in spread.items()
            for n, of in zip(names, v, strict=True)
            for k, x in enumerate(of)
        ],
        "chance": [
            [n, m, v]
            for n, y, w in zip(names, truth, stand, strict=True)
            for m, v in constant_scores(study, study.metrics, _plain(study, y), w).items()
        ],
        "losses": {
            n: row_losses(study, y, p, w).tolist() for n, y, p, w in zip(names, truth, last, stand, strict=True)
        },
        "brier": dict(zip(names, _brier(study, truth, last, stand), strict=True)),
        "brier_same": {n: _brier_same(study, y, w) for n, y, w in zip(names, truth, stand, strict=True)},
        "lots": {n: of.tolist() for n, of in zip(names, lots, strict=True)},
        "same": {n: same_loss(study, y, w) for n, y, w in zip(names, truth, stand, strict=True)},
        "ledger": ledger.to_dict("records"),
        "sites": sizes.to_dict("records"),
        "versions": versions(),
    }


def train_folds(
    study: Study,
    method: AnyMethod,
    cut: FoldedRows,
    seed: int,
    engine: str,
    device: str,
    step: Step,
    far: Callable[[int], RemoteDraws] | None = None,
) -> CrossValidated:
    """A federation for each fold, as many at once as are held. `far`: as the sites of a run between machines trained
    that fold, one fold after the other."""
    task, sites = build_task(study, method, seed, device), len(cut.cleaned)
    model = sum(v.numel() * v.element_size() for v in task.start.values())
    at_once = 1 if far else max(1, HELD // (2 * _bytes(study, cut.cleaned) + 4 * model * sites))
    outputs, tested = study.target.outputs, [cut.tested(n) for n in cut.cleaned]
    by_round: dict[int, list[Floats]] = {}
    trained: list[dict[str, Floats]] = []
    for first in range(0, cut.folds, at_once):
        some = range(first, min(first + at_once, cut.folds))
        stack, judge = _stacked(study, method, cut, some, seed, engine, device, far(first) if far else RemoteDraws())
        total = sum(stage.rounds for stage in stack.engine.stages)
        for done, now in enumerate(chain([stack.start()], stack.run())):
            if done and not is_evaluated(done, total):
                continue
            settled = stack.settled(now)
            predicted = judge.answers(settled, "test", others=False)["test"]  # [fold x site, row, answer]
            whole = by_round.setdefault(done, [np.full((len(f), outputs), math.nan) for f in cut.cleaned.values()])
            for i, (k, (j, lots)) in enumerate(product(some, enumerate(cut.lots.values()))):
                mine = np.flatnonzero((lots == k) & tested[j])
                whole[j][mine] = predicted[i, : len(mine)]
            step(first * total + len(some) * done, cut.folds * total)
        y, real = judge.truth["train"]
        answers = judge.answers(settled, "train", others=False)["train"]
        how = judge.weights["train"], Answers.least, judge.thresholds
        trained.append(score_all(study.metrics, y, answers, real, *how))
    mean = {m: np.concatenate([t[m].reshape(-1, sites) for t in trained]).mean(0) for m in study.metrics}
    return CrossValidated(by_round, mean, stack.ledger)


def _stacked(
    study: Study, method: AnyMethod, cut: FoldedRows, some: range, seed: int, engine: str, device: str, far: RemoteDraws
) -> tuple[Replicas, Evaluator]:
    """The federations of some folds, and who judges all their lanes: fold after fold, the sites in their order."""
    task = build_task(study, method, seed, device)
    data = [as_rows(cut.fold(k, far.scales), task.net, device) for k in some]
    sites, lanes = stack_replicas([training_rows(fold, study, method, device) for fold in data])
    held = [held_rows(fold, study, method, device) for fold in data]
    given = task, method, sites, training_of(study), seed
    out = _in_order([h for h in held if h is not None], sites, lanes)
    runner = Engine(*given, looped=engine == "looped", held=out, secrets=far.secrets)
    stack = Replicas(runner, lanes)
    at = []
    for fold, names, mine in zip(data, stack.names, lanes, strict=True):
        place = dict(zip(names, mine.tolist(), strict=True))
        at += [int(mine[0]) if method.catalogue.pools_rows else place[site.name] for site in fold]
    return stack, Evaluator(runner, study, [site for fold in data for site in fold], at=at)


def _in_order(held: list[Sites], sites: Sites, lanes: list[torch.Tensor]) -> Sites | None:
    """Hold-out rows, the lanes in the engine's order."""
    if not held:
        return None
    spans: dict[int, tuple[int, int]] = {}
    first = 0
    for part, mine in zip(held, lanes, strict=True):
        at = {name: (first + a, n) for name, a, n in zip(part.names, part.starts, part.sizes, strict=True)}
        spans |= {lane: at[sites.names[lane]] for lane in mine.tolist()}
        first += len(part.x)
    x, y, w = (torch.cat([getattr(part, k) for part in held]) for k in ("x", "y", "w"))
    starts, sizes = zip(*(spans[i] for i in range(len(sites.names))), strict=True)
    return Sites(sites.names, x, y, w, sizes, starts)


def yardstick(study: Study) -> str:
    """What verdicts are about: the name of `row_losses`."""
    if study.target.kind == "number":
        return "squared_error"
    if study.target.kind == "time":
        return "time_log_loss"
    return "log_loss"


def row_losses(study: Study, y: NDArray[Any], p: Floats, w: Weights = None) -> Floats:
    """[row]: what a verdict is about. Of classes the log loss of the stated risks; of numbers the squared
    error; of times to an event minus the logarithm of the likelihood; each times what the row stands for. NaN where the
    model diverged."""
    if study.target.kind == "number":
        return np.asarray((p[:, 0] - y) ** 2 * _even(w), np.float64)
    if study.target.kind == "time":
        return np.asarray(survival.losses(y, p) * _even(w), np.float64)
    of = y.astype(np.int64)
    return np.asarray(-np.log(p[np.arange(len(of)), of].clip(SMALLEST, 1)) * _even(w), np.float64)


def same_loss(study: Study, y: NDArray[Any], w: Weights = None) -> float:
    """The loss of the best single answer to all of these rows: what there is to gain."""
    if study.target.kind == "number":
        return float(np.average((y - np.average(y, weights=w)) ** 2, weights=w))
    if study.target.kind == "time":
        p = np.tile(survival.life_table(y, study.target.outputs, w), (len(y), 1))
        return float(np.average(survival.losses(y, p), weights=w))
    of = y.astype(np.int64)
    share = np.bincount(of, w, len(study.target.levels)).astype(np.float64)
    share = share / share.sum()
    return float(-np.sum(share * np.log(share.clip(SMALLEST, 1))))


def _even(w: Weights) -> Floats | float:
    """What rows stand for, 1 on average."""
    return 1.0 if w is None else w / w.mean()


def _brier(study: Study, truth: list[NDArray[Any]], answers: list[Floats], stand: list[Weights]) -> list[float]:
    """[site]: what stands beside the log loss, for those who read that; none where the target is a number."""
    if study.target.kind == "number":
        return [math.nan] * len(truth)
    name, every = _brier_name(study), zip(truth, answers, stand, strict=True)
    return [score((name,), _plain(study, y), p, w)[name] for y, p, w in every]


def _brier_same(study: Study, y: NDArray[Any], w: Weights) -> float:
    """That of one answer to every row: the shares of the classes, or the life table."""
    if study.target.kind == "number":
        return math.nan
    return constant_scores(study, (name := _brier_name(study),), _plain(study, y), w)[name]


def _brier_name(study: Study) -> str:
    return "integrated_brier" if study.target.kind == "time" else "brier"


def _scored(
    study: Study, truth: list[NDArray[Any]], answers: list[Floats], stand: list[Weights], at: Floats | None
) -> dict[str, Floats]:
    """Metric -> [site], of the rows of all folds together."""
    every = [np.ones((1, len(y)), dtype=bool) for y in truth]
    return {m: v[:, 0] for m, v in _over(study, truth, answers, every, stand, at).items()}


def _spread(
    study: Study,
    truth: list[NDArray[Any]],
    answers: list[Floats],
    k: int,
    lots: list[Ints],
    stand: list[Weights],
    at: Floats | None,
) -> dict[str, Floats]:
    """Metric -> [site, fold]: what each fold adds to the score (a jackknife's pseudo-values), for intervals. A fold may
    be too small for a score of its own."""
    outside = [of != np.arange(k)[:, None] for of in lots]
    without, whole = _over(study, truth, answers, outside, stand, at), _scored(study, truth, answers, stand, at)
    return {m: k * whole[m][:, None] - (k - 1) * v for m, v in without.items()}


def _over(
    study: Study,
    truth: list[NDArray[Any]],
    answers: list[Floats],
    which: list[NDArray[np.bool_]],
    stand: list[Weights],
    at: Floats | None,
) -> dict[str, Floats]:
    """Metric -> [site, set], over sets of each site's rows: which [set, row]. `at`: by `_thresholds`."""
    sets, longest = len(which[0]), max(map(len, truth))
    y = np.zeros((len(truth), sets, longest), np.int64 if study.target.kind == "classes" else np.float64)
    p, real = np.zeros((*y.shape, answers[0].shape[1])), np.zeros(y.shape, dtype=bool)
    w = np.ones(y.shape)
    for j, (own, own_answers, rows, by) in enumerate(zip(truth, answers, which, stand, strict=True)):
        y[j, :, : len(own)], p[j, :, : len(own)], real[j, :, : len(own)] = own, own_answers, rows
        w[j, :, : len(own)] = 1.0 if by is None else by
    flat = len(truth) * sets
    parts = y.reshape(flat, -1), p.reshape(flat, longest, -1), real.reshape(flat, -1), w.reshape(flat, -1)
    scores = score_all(study.metrics, *parts, thresholds=None if at is None else np.repeat(at, sets, axis=0))
    return {m: v.reshape(len(truth), sets) for m, v in scores.items()}


def _thresholds(study: Study, cut: FoldedRows) -> Floats | None:
    """[site, class]: at which decisions are made, as in a run; by default each site's own shares of classes, by date
    those of the earlier rows."""
    if not study.target.levels:
        return None
    rows = [f if cut.late is None else f[~cut.late[name]] for name, f in cut.cleaned.items()]
    return np.stack([decision_thresholds(study, f[study.target.column].to_numpy(), weights_of(f, study)) for f in rows])


def _sizes(study: Study, cut: FoldedRows) -> pd.DataFrame:
    """Tested are all rows, or by date the later ones; trained on are those outside a fold."""
    column, out = study.target.column, []
    for name, frame in cut.cleaned.items():
        trained, tested = cut.trained(name, 0), frame[cut.tested(name)]
        y = _plain(study, tested[column].to_numpy())
        persons = persons_of(tested, study)
        counts = [int(trained.sum()), len(y), *rare_of(study, y, persons)]
        if persons is not None:
            counts += [count_persons(frame[trained], study), how_many(persons)]
        share = share_of(study, y, weights_of(tested, study))
        out.append(size_row(study, name, counts, target_words(study, share)))
    return sizes_table(study, out)


def _plain(study: Study, y: NDArray[Any]) -> NDArray[Any]:
    return y.astype(np.int64) if study.target.levels else y.astype(np.float64)


def _bytes(study: Study, cleaned: Mapping[str, pd.DataFrame]) -> int:
    rows = sum(map(len, cleaned.values()))
    return rows * (math.prod(study.images.shape) if study.images else 4 * len(study.features))

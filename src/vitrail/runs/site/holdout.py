"""What figures show of the hold-out rows, site by site: worked out in the process that has the rows, kept beside the
site's model (`held_out_summary.json`), and read again for a page. It never crosses between machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from vitrail.analysis.effects import mean_effects
from vitrail.data.encoding import Encoder
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import how_many, persons_of
from vitrail.data.readers.tables import clean
from vitrail.data.splitting import hold_out
from vitrail.metrics.holdout_summary import (
    FeatureEffect,
    HeldOutAnswers,
    HoldOutSummary,
    SummaryScore,
    confusion_of,
    count_risks,
    expected_risks,
    group_values,
)
from vitrail.metrics.score_intervals import DRAWS, score_intervals
from vitrail.metrics.scores import FEWEST
from vitrail.metrics.survival import curves_by_risk
from vitrail.runs.evaluation import constant_scores
from vitrail.runs.result import Model
from vitrail.runs.site.answers import in_units
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.runs.result import Run


TIME_DRAWS = 100  # of rows with times to an event, whose scores take long


def summaries_of(run: Run) -> dict[str, HoldOutSummary]:
    """By site; nothing of sites on other machines, and of a run made before Vitrail kept this."""
    fresh = {site: answers for site, answers in run.answers.items() if site not in run.summaries}
    for site, answers in fresh.items():
        run.summaries[site] = summarise(run.study, run.encoders[site], answers)
    return {site: run.summaries[site] for site in run.sites if site in run.summaries}


def summarise(study: Study, encoder: Encoder, answers: HeldOutAnswers) -> HoldOutSummary:
    target, many = study.target, len(answers.y)
    if not many:
        return HoldOutSummary(0, {})
    share = 1.0 if answers.persons is None else how_many(answers.persons) / many
    empty = HoldOutSummary(many, _scores(study, answers), effects=_effects(study, encoder, answers))
    if target.kind == "number":
        fewest = round(FEWEST / share)
        return empty._replace(groups=group_values(answers.y, answers.p[:, 0], fewest))
    if target.kind == "time":
        curves = curves_by_risk(answers.y, answers.p, target.ends, answers.weights)
        return empty._replace(expected=expected_risks(answers.p), curves=tuple(curves))
    return empty._replace(risks=count_risks(answers, share), confusion=confusion_of(answers))


def summarise_own(mine: Model, site: str, frame: pd.DataFrame) -> HoldOutSummary:
    """At a site, of its own table: the rows that the run saw and never trained on."""
    study, rows = mine.study, clean(frame, mine.study)
    held = rows.iloc[hold_out(rows, study, mine.seed, site)[1]]
    task, scorer = mine.scorer()

    def predict(x: NDArray[np.float32]) -> NDArray[np.float64]:
        return in_units(study, task.loss.predictions(scorer(torch.from_numpy(x)).double()).numpy())

    x = mine.encoder.matrix(held, None, np.float32)
    cut = np.array(mine.encoder.thresholds) if mine.encoder.thresholds else None
    truth = held[study.target.column].to_numpy()
    y = truth.astype(np.int64) if study.target.levels else truth.astype(np.float64)
    answers = HeldOutAnswers(y, predict(x), persons_of(held, study), weights_of(held, study), cut, x, predict)
    return summarise(study, mine.encoder, answers)


def _scores(study: Study, answers: HeldOutAnswers) -> dict[str, SummaryScore]:
    """The study's own metrics, and of classes how far the risks themselves are off."""
    y, p, persons, weights, thresholds, *_ = answers
    metrics = tuple(dict.fromkeys((*study.metrics, *(("brier",) if study.target.levels else ()))))
    baseline = constant_scores(study, metrics, y, weights)
    draws = TIME_DRAWS if study.target.kind == "time" else DRAWS
    intervals = score_intervals(metrics, y, p, thresholds, persons, weights, draws=draws)
    return {metric: SummaryScore(*score, baseline[metric]) for metric, score in intervals.items()}


def _effects(study: Study, encoder: Encoder, answers: HeldOutAnswers) -> tuple[FeatureEffect, ...]:
    """Of the risk of the event, or of the number; nothing of pictures and of more than two classes."""
    target = study.target
    if study.images or len(target.levels) > 2:
        return ()

    def answer(x: NDArray[np.float32]) -> NDArray[np.float64]:
        values = answers.predict(x)
        return values[:, 1] if target.levels else values[:, 0] if target.kind == "number" else 1 - values[:, -1]

    return mean_effects(answers.x, encoder, answer)

"""What figures show of the hold-out rows, site by site: worked out in the process that has the rows, kept beside the
site's model (`held_out_summary.json`), and read again for a page. It never crosses between machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.analysis.effects import mean_effects
from vitrail.data.persons import how_many
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
from vitrail.metrics.score_intervals import score_intervals
from vitrail.metrics.scores import FEWEST
from vitrail.metrics.survival import curves_by_risk
from vitrail.runs.evaluation import constant_scores
from vitrail.runs.result import Model

if TYPE_CHECKING:
    from vitrail.runs.result import Run


def summaries_of(run: Run) -> dict[str, HoldOutSummary]:
    """By site; nothing of sites on other machines, and of a run made before Vitrail kept this."""
    fresh = {site: answers for site, answers in run.answers.items() if site not in run.summaries}
    for site, answers in fresh.items():
        run.summaries[site] = summarise(run.model_of(site), answers)
    return {site: run.summaries[site] for site in run.sites if site in run.summaries}


def summarise(mine: Model, answers: HeldOutAnswers) -> HoldOutSummary:
    target, many = mine.study.target, len(answers.y)
    if not many:
        return HoldOutSummary(0, {})
    share = 1.0 if answers.persons is None else how_many(answers.persons) / many
    empty = HoldOutSummary(many, _scores(mine, answers), effects=_effects(mine, answers))
    if target.kind == "number":
        fewest = round(FEWEST / share)
        return empty._replace(groups=group_values(answers.y, answers.p[:, 0], fewest))
    if target.kind == "time":
        curves = curves_by_risk(answers.y, answers.p, target.ends, answers.weights)
        return empty._replace(expected=expected_risks(answers.p), curves=tuple(curves))
    return empty._replace(risks=count_risks(answers, share), confusion=confusion_of(answers))


def _scores(mine: Model, answers: HeldOutAnswers) -> dict[str, SummaryScore]:
    """The study's own metrics, and of classes how far the risks themselves are off."""
    study, (y, p, persons, weights, thresholds, _) = mine.study, answers
    metrics = tuple(dict.fromkeys((*study.metrics, *(("brier",) if study.target.levels else ()))))
    baseline = constant_scores(study, metrics, y, weights)
    intervals = score_intervals(metrics, y, p, thresholds, persons, weights)
    return {metric: SummaryScore(*score, baseline[metric]) for metric, score in intervals.items()}


def _effects(mine: Model, answers: HeldOutAnswers) -> tuple[FeatureEffect, ...]:
    """Of the risk of the event, or of the number; nothing of pictures and of more than two classes."""
    study, target = mine.study, mine.study.target
    if study.images or len(target.levels) > 2:
        return ()
    task, scorer = mine.scorer()

    def answer(x: NDArray[np.float32]) -> NDArray[np.float64]:
        values = np.asarray(task.loss.predictions(scorer(torch.from_numpy(x)).double()).numpy(), np.float64)
        if target.kind == "number":
            return values[:, 0] * target.scale + target.center
        return values[:, 1] if target.levels else 1 - values[:, -1]

    return mean_effects(answers.x, mine.encoder, answer)

"""A site's model card: what its model was made of, how good it is on the site's own rows, and where it should not be
trusted. Worked out at the site, from its own file; nothing leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.analysis.calibration import (
    FINE,
    Benefit,
    BrierParts,
    CalibrationLine,
    RateInterval,
    brier_parts,
    fit_line,
    net_benefit,
)
from vitrail.core.text import several
from vitrail.data.encoding import fingerprint_rows
from vitrail.data.persons import count_persons, how_many, persons_of
from vitrail.data.readers.tables import clean
from vitrail.data.splitting import hold_out
from vitrail.metrics.calibration import RiskCounts, counted, merged, risks
from vitrail.metrics.score_intervals import SEED, score_intervals
from vitrail.metrics.scores import FEWEST, metric_name, small_sample
from vitrail.quality.screening.result import Finding
from vitrail.runs.evaluation import constant_scores, rare_of, share_of, target_words
from vitrail.runs.folder import versions
from vitrail.runs.result import Model
from vitrail.study.model import LOWER_IS_BETTER, Study

TENTHS = tuple(k / 10 for k in range(1, 10))
OFTEN_MISSING = 0.3  # a column that lacks so many values is told


class CardColumn(NamedTuple):
    name: str
    kind: str
    unit: str
    missing: float  # the share of rows without a value


class CardScore(NamedTuple):
    metric: str
    estimate: RateInterval
    chance: float  # what one answer to every row comes to


class CardCalibration(NamedTuple):
    """Of the hold-out rows: groups by tenths of risk, net benefit at every per cent."""

    counts: RiskCounts
    line: CalibrationLine | None
    parts: BrierParts
    benefit: Benefit | None  # of two classes


class Card(NamedTuple):
    site: str
    study: Study
    run: str
    method: str
    seed: int
    same: bool  # the rows are those that the run saw
    train: int
    test: int
    persons: tuple[int, int] | None  # whose they are, where the study names them: trained on, and held out
    shares: list[tuple[str, int]]  # of each class, or nothing: rows
    target: str  # of a number: mean and spread; of a time: how many had the event
    columns: list[CardColumn]
    scores: list[CardScore]
    bedside: CardCalibration | None
    findings: list[Finding] | None  # None: the site's data was not compared with others'
    limits: list[str]
    left: list[str]  # what left the house, in words
    guards: list[str]
    versions: dict[str, str]


def make_card(
    mine: Model,
    site: str,
    run: str,
    frame: pd.DataFrame,
    seen: str | None,
    findings: list[Finding] | None,
    left: Sequence[str],
    guards: Sequence[str],
) -> Card:
    """`seen`: the fingerprint of the rows that the run saw, where it is known; of others all are scored."""
    study, rows = mine.study, clean(frame, mine.study)
    y, target = rows[study.target.column].to_numpy(), study.target
    same = seen in (None, fingerprint_rows(rows))
    train, test = hold_out(rows, study, mine.seed, site) if same else (np.arange(0), np.arange(len(y)))
    held = rows.iloc[test]
    whose = persons_of(held, study)
    truth, p = y[test], _answers(mine, held)
    bedside = _bedside(truth, p, whose) if target.levels and len(test) else None
    counts = np.bincount(y.astype(np.int64), minlength=len(target.levels)) if target.levels else ()
    scores = _scores(study, truth, p, mine.encoder.thresholds, whose)
    columns = [CardColumn(n, f.kind, f.unit, float(rows[n].isna().mean())) for n, f in study.features.items()]
    return Card(
        site=site,
        study=study,
        run=run,
        method=mine.method.catalogue.title,
        seed=mine.seed,
        same=same,
        train=len(train),
        test=len(test),
        persons=(count_persons(rows.iloc[train], study), how_many(whose)) if whose is not None else None,
        shares=[(level, int(n)) for level, n in zip(target.levels, counts, strict=True)],
        target=_outcome(study, y),
        columns=columns,
        scores=scores,
        bedside=bedside,
        findings=findings,
        limits=[*no_better(scores), *_limits(study, truth, whose, columns, same, findings)],
        left=list(left),
        guards=list(guards),
        versions=versions(),
    )


def _outcome(study: Study, y: NDArray[np.float64]) -> str:
    """Of a number its mean and spread, of a time how often the event was seen; classes stand by themselves."""
    if study.target.levels or not len(y):
        return ""
    spread = f", SD {y.std():.3g}" if study.target.kind == "number" else ""
    return f"{target_words(study, share_of(study, y))}{spread}"


def _answers(mine: Model, rows: pd.DataFrame) -> NDArray[np.float64]:
    """[row, class], or [row, 1] in the target's own unit."""
    task, z = mine.scores(rows)
    answers = np.asarray(task.loss.predictions(z.double()).numpy(), np.float64)
    target = mine.study.target
    return answers * target.scale + target.center if target.kind == "number" else answers


def _scores(
    study: Study,
    y: NDArray[np.generic],
    p: NDArray[np.float64],
    thresholds: Sequence[float] = (),
    persons: NDArray[np.int64] | None = None,
    seed: int = SEED,
) -> list[CardScore]:
    """Each metric on the hold-out rows, its interval, and what the same answer comes to."""
    if not len(y):
        return []
    cut = np.array(thresholds) if thresholds else None
    same = constant_scores(study, study.metrics, y)
    intervals = score_intervals(study.metrics, y, p, cut, persons, seed=seed)
    return [CardScore(metric, RateInterval(*score), same[metric]) for metric, score in intervals.items()]


def no_better(scores: list[CardScore]) -> list[str]:
    """Of the first score, where always giving the same answer lies within its interval or beyond its better end."""
    out = []
    for s in scores[:1]:
        sign = -1 if s.metric in LOWER_IS_BETTER else 1
        worst = min(sign * s.estimate.low, sign * s.estimate.high)
        if not worst > sign * s.chance:  # also where there is no interval
            name = metric_name(s.metric)
            out.append(f"Its {name} is not shown to beat the baseline here.")
    return out


def _bedside(
    y: NDArray[np.generic], p: NDArray[np.float64], persons: NDArray[np.int64] | None = None
) -> CardCalibration | None:
    risk, event = risks(y, p)
    share = 1.0 if persons is None else how_many(persons) / max(1, len(y))
    counts = merged(counted(risk, event, TENTHS), round(FEWEST / share))
    if not np.isfinite(p).all() or not len(counts.low):
        return None
    benefit = net_benefit(counted(risk, event, FINE).of_persons(share)) if p.shape[1] == 2 else None
    return CardCalibration(counts.of_persons(share), fit_line(risk, event, share), brier_parts(counts), benefit)


def _limits(
    study: Study,
    y: NDArray[np.generic],
    persons: NDArray[np.int64] | None,
    columns: list[CardColumn],
    same: bool,
    findings: list[Finding] | None,
) -> list[str]:
    """Where the model should not be trusted, as far as the site's own rows tell."""
    word, out = study.row_word, []
    if not same:
        out.append(
            f"These are not the {word}s that the run saw: all of them are scored, also where it trained on some."
        )
    rare = next(iter(rare_of(study, y.astype(np.int64) if study.target.levels else y, persons)), None)
    many, unit = len(y) if persons is None else how_many(persons), study.unit_word
    if few := small_sample(many, rare, unit, study.target.kind == "time"):
        out.append(f"Scores rest on few {unit}s: {few}.")
    if gaps := [f"{c.name} ({100 * c.missing:.0f} %)" for c in columns if c.missing >= OFTEN_MISSING]:
        out.append(f"Often missing here, so that the model has no value to use: {', '.join(gaps)}.")
    if findings is None:
        out.append("This site's data was not compared with the others': whether columns mean the same is not known.")
    if wrong := [f for f in findings or [] if f.wrong]:
        out.append(f"Likely wrong: {several(len(wrong), 'column')} of its data. To look at them: vitrail look.")
    out.append(
        f"Scores are of this site's own {word}s at the time of the run; other patients, devices or years may differ."
    )
    if study.training.refit:
        out.append(
            f"The command predict uses a model that was trained once more, on all {word}s. That model cannot be "
            "scored; these scores are of the model before it."
        )
    return out

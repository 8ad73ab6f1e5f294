"""A site's model card: what its model was made of, how good it is on the site's own rows, and where it should not be
trusted. Worked out at the site, from its own file; nothing leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.bedside import Counts, counted, merged, risks
from vitrail.core.metrics import few_rows, score_all
from vitrail.data.encode import fingerprint_rows, split_rows
from vitrail.data.read import clean
from vitrail.explain.bedside import FINE, Benefit, Interval, Line, Parts, brier_parts, fit_line, net_benefit
from vitrail.runs.folder import versions
from vitrail.runs.judge import rare_of, same_answer, share_of, target_words
from vitrail.runs.run import Model
from vitrail.screen.found import Finding
from vitrail.study import LOWER_IS_BETTER, Study

DRAWS = 300  # of hold-out rows, for the scores' intervals
NUMBERS = 3_000_000  # in all draws together, at most
TENTHS = tuple(k / 10 for k in range(1, 10))
OFTEN_MISSING = 0.3  # a column that lacks so many values is told


class Column(NamedTuple):
    name: str
    kind: str
    unit: str
    missing: float  # the share of rows without a value


class Score(NamedTuple):
    metric: str
    told: Interval
    chance: float  # what always giving the same answer comes to


class Bedside(NamedTuple):
    """Of the hold-out rows: groups by tenths of risk, net benefit at every per cent."""

    counts: Counts
    line: Line | None
    parts: Parts
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
    shares: list[tuple[str, int]]  # of each class, or nothing: rows
    target: str  # of a number: mean and spread; of a time: how many had the event
    columns: list[Column]
    scores: list[Score]
    bedside: Bedside | None
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
    train, test = split_rows(y, study, mine.seed, site) if same else (np.arange(0), np.arange(len(y)))
    held = rows.iloc[test]
    truth, p = y[test], _answers(mine, held)
    bedside = _bedside(truth, p) if target.levels and len(test) else None
    counts = np.bincount(y.astype(np.int64), minlength=len(target.levels)) if target.levels else ()
    scores = _scores(study, truth, p)
    columns = [Column(n, f.kind, f.unit, float(rows[n].isna().mean())) for n, f in study.features.items()]
    return Card(
        site=site,
        study=study,
        run=run,
        method=mine.method.title,
        seed=mine.seed,
        same=same,
        train=len(train),
        test=len(test),
        shares=[(level, int(n)) for level, n in zip(target.levels, counts, strict=True)],
        target=_outcome(study, y),
        columns=columns,
        scores=scores,
        bedside=bedside,
        findings=findings,
        limits=[*no_better(scores), *_limits(study, truth, columns, same, findings)],
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
    told = np.asarray(task.loss.answers(z.double()).numpy(), np.float64)
    target = mine.study.target
    return told * target.scale + target.center if target.kind == "number" else told


def _scores(study: Study, y: NDArray[np.generic], p: NDArray[np.float64], seed: int = 38) -> list[Score]:
    """Each metric on the hold-out rows, its interval by drawing them again, and what the same answer comes to."""
    if not len(y):
        return []
    draws = max(50, min(DRAWS, NUMBERS // max(1, p.size)))
    at = np.random.default_rng(seed).integers(0, len(y), (draws, len(y)))
    at = np.concatenate([np.arange(len(y))[None], at])
    found = score_all(study.metrics, y[at], p[at], np.ones(at.shape, bool))
    same = same_answer(study, study.metrics, y)
    out = []
    for metric, values in found.items():
        drawn = values[1:][np.isfinite(values[1:])]
        ends = np.quantile(drawn, [0.025, 0.975]) if len(drawn) > draws / 2 else (np.nan, np.nan)
        out.append(Score(metric, Interval(float(values[0]), *map(float, ends)), same[metric]))
    return out


def no_better(scores: list[Score]) -> list[str]:
    """Of the first score, where always giving the same answer lies within its interval or beyond its better end."""
    out = []
    for s in scores[:1]:
        sign = -1 if s.metric in LOWER_IS_BETTER else 1
        worst = min(sign * s.told.low, sign * s.told.high)
        if not worst > sign * s.chance:  # also where there is no interval
            name = s.metric.replace("_", " ")
            out.append(f"By {name} it cannot be told here from always giving the same answer.")
    return out


def _bedside(y: NDArray[np.generic], p: NDArray[np.float64]) -> Bedside | None:
    risk, event = risks(y, p)
    counts = merged(counted(risk, event, TENTHS))
    if not np.isfinite(p).all() or not len(counts.low):
        return None
    benefit = net_benefit(counted(risk, event, FINE)) if p.shape[1] == 2 else None
    return Bedside(counts, fit_line(risk, event), brier_parts(counts), benefit)


def _limits(
    study: Study, y: NDArray[np.generic], columns: list[Column], same: bool, findings: list[Finding] | None
) -> list[str]:
    """Where the model should not be trusted, as far as the site's own rows tell."""
    word, out = study.row_word, []
    if not same:
        out.append(
            f"These are not the {word}s that the run saw: all of them are scored, also where it trained on some."
        )
    rare = next(iter(rare_of(study, y.astype(np.int64) if study.target.levels else y)), None)
    if few := few_rows(len(y), rare, word, study.target.kind == "time"):
        out.append(f"Scores stand on few {word}s: {few}.")
    if gaps := [f"{c.name} ({100 * c.missing:.0f} %)" for c in columns if c.missing >= OFTEN_MISSING]:
        out.append(f"Often missing here, and then taken as neutral: {', '.join(gaps)}.")
    if findings is None:
        out.append("This site's data was not compared with the others': whether a column means the same is not known.")
    if wrong := [f for f in findings or [] if f.wrong]:
        out.append(f"{len(wrong)} of its columns are likely wrong: see below, and `vitrail look`.")
    if study.target.levels and study.training.class_weights == "inverse":
        out.append("Trained as if every class were as common: its risks of a rare class are too high by that.")
    out.append(
        "Scores are of this site's own rows at the time of the run; other patients, devices or years may differ."
    )
    return out

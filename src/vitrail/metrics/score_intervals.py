"""How sure scores on hold-out rows are: 95 % intervals by drawing the rows again, whole persons where they are named.

They are about these rows alone: another training, and other patients than those of this place and time, are not in
them. Below about 80 rows they cover somewhat less than they promise (tests/test_promised_rates.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.metrics.scores import score_all

Floats = NDArray[np.float64]
DRAWS, LEAST_DRAWS = 300, 50
NUMBERS = 3_000_000  # in all draws together, at most
SEED = 38
Z = 1.959964


class ScoreInterval(NamedTuple):
    """NaN at both ends where most draws do not define the score."""

    value: float
    low: float
    high: float


def score_intervals(
    metrics: tuple[str, ...],
    y: NDArray[Any],
    p: Floats,
    thresholds: Floats | None = None,
    persons: NDArray[np.int64] | None = None,
    weights: Floats | None = None,
    seed: int = SEED,
    draws: int = DRAWS,
) -> dict[str, ScoreInterval]:
    """By metric; of y [row], p [row, class]. `thresholds` [class]: from which on a class is predicted; `persons` [row]:
    whose each is; `weights` [row]: for how many each stands."""
    draws = max(LEAST_DRAWS, min(draws, NUMBERS // max(1, p.size)))
    if persons is None:
        at = np.random.default_rng(seed).integers(0, len(y), (draws, len(y)))
        at = np.concatenate([np.arange(len(y))[None], at])
        real = np.ones(at.shape, bool)
    else:
        at, real = draw_persons(persons, draws, seed)
    cut = None if thresholds is None else np.tile(thresholds, (len(at), 1))
    scores = score_all(metrics, y[at], p[at], real, None if weights is None else weights[at], thresholds=cut)
    out = {}
    for metric, values in scores.items():
        drawn = values[1:][np.isfinite(values[1:])]
        ends = np.quantile(drawn, [0.025, 0.975]) if len(drawn) > draws / 2 else (np.nan, np.nan)
        out[metric] = ScoreInterval(float(values[0]), float(ends[0]), float(ends[1]))
    return out


def draw_persons(persons: NDArray[np.int64], draws: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[draw, place]: rows of as many persons as there are, drawn with repetition, each with all its rows; and which
    places hold a row at all. The first draw is the rows as they are."""
    groups = [np.flatnonzero(persons == k) for k in np.unique(persons)]
    lots = np.random.default_rng(seed).integers(0, len(groups), (draws, len(groups)))
    drawn = [np.arange(len(persons)), *(np.concatenate([groups[k] for k in lot]) for lot in lots)]
    at = np.zeros((len(drawn), max(map(len, drawn))), np.int64)
    real = np.zeros(at.shape, bool)
    for i, rows in enumerate(drawn):
        at[i, : len(rows)], real[i, : len(rows)] = rows, True
    return at, real


def interval_of_counts(metric: str, value: float, rows: float, rare: float, more: float = 0.0) -> ScoreInterval:
    """Of a score without its rows: of so many, so many of them of the rarer of two classes. `more`: a variance beside
    that of the rows, as of rounding. NaN where no such interval is known.

    accuracy            binomial         balanced accuracy   of both recalls, each taken to be the score
    area under the ROC  Hanley and McNeil (1982)
    """
    common = rows - rare
    if not 0 <= value <= 1 or rows <= 0:
        return ScoreInterval(value, np.nan, np.nan)
    if metric == "accuracy":
        variance = value * (1 - value) / rows
    elif metric == "balanced_accuracy" and min(rare, common) > 0:
        variance = value * (1 - value) / 4 * (1 / rare + 1 / common)
    elif metric == "auc" and min(rare, common) > 0:
        one, two = value / (2 - value), 2 * value**2 / (1 + value)
        spread = (rare - 1) * (one - value**2) + (common - 1) * (two - value**2) + value * (1 - value)
        variance = spread / (rare * common)
    else:
        return ScoreInterval(value, np.nan, np.nan)
    error = max(float(np.sqrt(variance + more)), 1.5 / rows)  # where all are right one more could have been otherwise
    return ScoreInterval(value, max(0.0, value - Z * error), min(1.0, value + Z * error))

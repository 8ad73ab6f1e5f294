"""Scores that leave a hospital, as counts of patients rounded to a multiple of ten or more, up or down by chance.

A score is a sum over patients divided by how many of them it counts. One patient can move it by at most one part in
that number, so that a score times that number is a count of patients. Such a count leaves as a multiple of `step_of`,
which is TEN, and the square root of twice the number of patients where that is more: about as far as chance moves a
count anyway. Of 50 patients 47 leaves as 50 with probability 0.7 and as 40 otherwise, so that it is right on average,
no two different answers are fewer than ten patients apart, and one patient more or less changes an answer in at most
one case of ten. Scores that follow
from how many patients of each class were told right are worked out from such counts (`of_hits`), so that they tell no
more together than one of them. Losses that no number bounds are bounded first: see `bounded`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TEN = 10  # patients between two answers
COARSEST = 0.25  # of a score's range: where ten patients are more than that, a single site tells no such score
SMALLEST = 0.02  # probability that a rounded loss takes an answer to have given to what came true
OF_HITS = ("accuracy", "balanced_accuracy", "f1", "f1_event")  # follow from hits, by class
LARGEST_LOSS = -math.log(SMALLEST)
WIDEST = 3.0  # standard deviations of the target: no error of a number counts for more


class ScoredRows(NamedTuple):
    """How many held-out rows a site scores. `rare`: of their rarest class, or with the event; `spread`: the variance of
    a numeric target among them, in squares of the study's own scale. Where rows stand for several, all are fewer."""

    rows: float
    rare: float = 0
    classes: int = 0
    spread: float = math.nan


def patients(metric: str, of: ScoredRows) -> float:
    """How many patients a score counts: one of them moves it by at most one part in so many. NaN where no such number
    is known, and then the score does not leave."""
    loss = of.rows / LARGEST_LOSS
    counts = {
        "accuracy": of.rows,
        "balanced_accuracy": of.classes * of.rare,
        "f1": of.rows / 3,  # one answer moves the F1 of its own class by two parts, and that of another by one
        "f1_event": of.rare / 2,  # one answer moves it by at most two parts of those with the event
        "auc": of.rare,
        "log_loss": loss,
        "brier": of.rows,
        "rmse": of.rows,  # rounded as a mean square, in squares of the widest error
        "mae": of.rows,
        "r2": of.rows * of.spread / WIDEST**2,
        "c_index": of.rare / 2,  # a patient is in at most twice its share of the pairs that an event makes
        "uno_c": math.nan,  # weights by censoring have no bound
        "integrated_brier": math.nan,  # nor have these
        "time_log_loss": loss,
        "doubt": of.rows,
        "auroc": math.nan,  # of mistakes, whose number is not known to others
    }
    name, _, part = metric.partition("@")
    if name == "accuracy" and part:  # of the surest so many per cent
        return of.rows * float(part) / 100
    if name == "free":  # of a third of the rows, by risk
        return of.rows / 3
    return float(counts.get(metric, math.nan)) or math.nan


def can_leave(metric: str) -> bool:
    """Whether a rounded form of it can leave: how many rows are still followed, at so many times, would take steps as
    large as the number itself."""
    return not metric.startswith("left@")


def step_of(many: float, of: int = 1) -> int:
    """Patients between two answers about so many of them; `of`: how many numbers the same patients stand behind, of
    which one patient then changes no more in all than it changes one.

    >>> step_of(20), step_of(50), step_of(200), step_of(5000), step_of(50, 3)
    (10, 10, 20, 100, 30)
    """
    return max(TEN * of, math.ceil(math.sqrt(2 * many)))


def rounded(count: float, many: float, chance: float, of: int = 1) -> float:
    """A count out of so many patients as a multiple of `step_of`; `chance`: drawn evenly from 0 to 1.

    >>> rounded(40, 50, 0.9), rounded(47, 50, 0.2), rounded(47, 50, 0.4)
    (40, 40, 50)
    """
    step = step_of(many, of)
    return step * math.floor(count / step + chance)


def rounding_variance(metric: str, rows: float, rare: float, of: int = 1) -> float:
    """What rounding adds to the variance of a score of so many patients, so many of them of the rarer of two classes:
    of an even draw, one sixth of the square of a step. `of`: as `step_of` has it. NaN where it is not worked out, and
    where all are of one class.

    >>> round(rounding_variance("auc", 200, 60) ** 0.5, 3)
    0.075
    >>> rounding_variance("balanced_accuracy", 50, 50)
    nan
    """
    each = step_of(rows) ** 2 / 6  # of how many of a class are told right
    if metric == "accuracy":
        return 2 * each / rows**2
    if not 0 < rare < rows:
        return math.nan
    if metric == "balanced_accuracy":
        return each * (1 / rare**2 + 1 / (rows - rare) ** 2) / 4
    return step_of(rare, of) ** 2 / 6 / rare**2 if metric == "auc" else math.nan


def has_enough_patients(many: float, of: int = 1) -> bool:
    """Whether a single site tells a score of so many patients; of fewer, one step would be most of its range."""
    return many * COARSEST >= TEN * of


def of_hits(hits: Floats, true: Floats) -> dict[str, float]:
    """Scores of classes, from how many patients of each class were told right, [class], and how many there are."""
    there, right = true > 0, np.clip(hits, 0, true)
    out = {"accuracy": float(right.sum() / true.sum())}
    out["balanced_accuracy"] = float((right[there] / true[there]).mean())
    if len(true) == 2:
        named = right + (true - right)[::-1]
        f1 = np.divide(2 * right, named + true, out=np.zeros(2), where=named + true > 0)
        out["f1"] = float((true * f1).sum() / true.sum())
        out["f1_event"] = float(f1[1]) if true[1] > 0 else math.nan
    return out


def count_of(metric: str, value: float, many: float, scale: float) -> float:
    """A score of so many patients as a count of them; `scale`: of a numeric target."""
    if metric == "rmse":
        return float((value / (WIDEST * scale)) ** 2 * many)
    return value * many / (WIDEST * scale if metric == "mae" else 1.0)


def score_of(metric: str, count: float, many: float, scale: float) -> float:
    """The score again, of a count that was rounded, or of a sum of such counts over sites; NaN of no patients."""
    if not many > 0:
        return math.nan
    share = count / many
    if metric in _SHARES or metric.partition("@")[0] in ("accuracy", "free"):
        return min(max(share, 0.0), 1.0)
    if metric == "rmse":
        return WIDEST * scale * math.sqrt(max(share, 0.0))
    return share * (WIDEST * scale if metric == "mae" else 1.0)


_SHARES = ("balanced_accuracy", "f1", "f1_event", "auc", "brier", "c_index", "doubt")


def bounded(y: NDArray[np.generic], p: Floats, scale: float) -> Floats:
    """Answers [..., row, answer] about a number, none further from the truth than an error may count."""
    truth = np.asarray(y, np.float64)[..., None]
    return np.asarray(np.clip(p, truth - WIDEST * scale, truth + WIDEST * scale))

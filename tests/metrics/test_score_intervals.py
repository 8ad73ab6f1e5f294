"""Intervals of scores on hold-out rows: by drawing rows, and of counts alone where the rows are elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitrail.metrics.score_intervals import interval_of_counts, score_intervals
from vitrail.metrics.scores import score


def drawn(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    y = (rng.random(rows) < 0.4).astype(np.int64)
    risk = 1 / (1 + np.exp(-(1.2 * y + rng.normal(size=rows) - 0.6)))
    return y, np.stack([1 - risk, risk], 1)


def test_the_value_is_the_score_and_lies_within() -> None:
    y, p = drawn(np.random.default_rng(1), 90)
    metrics = ("auc", "accuracy", "brier", "log_loss")
    own = score(metrics, y, p)
    for metric, (value, low, high) in score_intervals(metrics, y, p).items():
        assert value == own[metric]
        assert low < value < high


def test_whole_persons_are_drawn() -> None:
    """Four copies of each row are no more persons: the interval is as wide as that of the rows once."""
    y, p = drawn(np.random.default_rng(2), 80)
    once = score_intervals(("brier",), y, p)["brier"]
    copies = score_intervals(("brier",), np.repeat(y, 4), np.repeat(p, 4, 0), persons=np.repeat(np.arange(80), 4))
    as_rows = score_intervals(("brier",), np.repeat(y, 4), np.repeat(p, 4, 0))["brier"]
    width, whole = once.high - once.low, copies["brier"].high - copies["brier"].low
    assert whole == pytest.approx(width, rel=0.15)
    assert (as_rows.high - as_rows.low) < 0.65 * width


def test_hanley_and_mcneil_by_hand() -> None:
    area, rare, common = 0.8, 20.0, 60.0
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (rare - 1) * (q1 - area**2) + (common - 1) * (q2 - area**2)
    error = math.sqrt(spread / (rare * common))
    told = interval_of_counts("auc", area, rare + common, rare)
    assert (told.low, told.high) == (pytest.approx(area - 1.959964 * error), pytest.approx(area + 1.959964 * error))


def test_no_interval_is_made_up() -> None:
    for metric in ("log_loss", "rmse", "r2", "c_index", "f1"):
        assert math.isnan(interval_of_counts(metric, 0.5, 100, 30).low)
    assert math.isnan(interval_of_counts("auc", 0.8, 100, math.nan).low), "it is not known how many had the event"
    assert math.isnan(interval_of_counts("accuracy", math.nan, 100, 30).low)
    sure = interval_of_counts("accuracy", 1.0, 50, 10)
    assert sure.low < 0.95, "50 of 50 is not certainty"

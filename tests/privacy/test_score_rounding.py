"""Counts of patients rounded to tens by chance: right on average, never fewer than ten apart, within stated bounds."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.metrics.scores import score_all
from vitrail.privacy.score_rounding import (
    LARGEST_LOSS,
    SMALLEST,
    TEN,
    WIDEST,
    ScoredRows,
    bounded,
    count_of,
    has_enough_patients,
    of_hits,
    patients,
    rounded,
    score_of,
    step_of,
)

EVENLY = (np.arange(10_000) + 0.5) / 10_000


@pytest.mark.parametrize(("count", "many"), [(0.0, 50), (3.0, 50), (10.0, 50), (47.0, 50), (99.5, 100), (401.0, 900)])
def test_a_count_is_right_on_average_and_a_multiple_of_ten_or_more(count: float, many: int) -> None:
    told = [rounded(count, many, u) for u in EVENLY]
    step = step_of(many)
    assert step >= TEN
    assert np.mean(told) == pytest.approx(count, abs=1e-2)
    assert {n % step for n in told} == {0}
    assert max(told) - min(told) <= step


@pytest.mark.parametrize(("count", "many"), [(0, 50), (7, 50), (10, 50), (42, 200)])
def test_one_patient_changes_one_answer_in_ten_or_fewer(count: int, many: int) -> None:
    changed = np.mean([rounded(count, many, u) != rounded(count + 1, many, u) for u in EVENLY])
    assert changed == pytest.approx(1 / step_of(many), abs=1e-3)
    assert changed <= 1 / TEN + 1e-3


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "f1", "f1_event", "auc", "log_loss", "brier"])
def test_one_patient_moves_a_score_by_no_more_than_it_is_said_to(metric: str) -> None:
    """Any answer about any one patient, over many tables; and some answer comes near the bound."""
    rng, largest = np.random.default_rng(1), 0.0
    for _ in range(300):
        n = int(rng.integers(8, 40))
        y = rng.permutation(np.arange(n) % 2 if rng.random() < 0.5 else (np.arange(n) < max(2, n // 5)).astype(int))
        p = np.zeros((2, n, 2))
        p[:, :, 1] = rng.random(n).round(2)
        i = rng.integers(n)
        p[1, i, 1] = rng.choice([0.0, 1.0, rng.random()])
        p[:, :, 0] = 1 - p[:, :, 1]
        real = np.ones((2, n), bool)
        one, other = score_all((metric,), np.stack([y, y]), p, real, least=SMALLEST)[metric]
        rows = ScoredRows(n, int(np.bincount(y).min()), 2)
        moved = abs(one - other) * patients(metric, rows)
        assert moved <= 1 + 1e-9
        largest = max(largest, moved)
    assert largest > 0.5


def test_numbers_have_errors_with_a_bound() -> None:
    y, p = np.array([[0.0, 1.0]]), np.array([[[50.0], [1.5]]])
    assert bounded(y, p, 1.0)[0, :, 0].tolist() == [WIDEST, 1.5]
    for metric in ("rmse", "mae", "r2", "accuracy"):
        assert score_of(metric, count_of(metric, 0.4, 80, 2.0), 80, 2.0) == pytest.approx(0.4)
    assert pytest.approx(-np.log(SMALLEST)) == LARGEST_LOSS


def test_scores_from_hits_are_those_of_the_metrics() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        y, guess = rng.integers(0, 2, 30), rng.integers(0, 2, 30)
        y[:2] = 0, 1
        p = np.eye(2)[guess]
        names = ("accuracy", "balanced_accuracy", "f1", "f1_event")
        exact = score_all(names, y[None], p[None], np.ones((1, 30), bool))
        hits = np.bincount(y[guess == y], minlength=2).astype(float)
        told = of_hits(hits, np.bincount(y, minlength=2).astype(float))
        assert told == pytest.approx({k: float(exact[k][0]) for k in names})


def test_of_few_patients_nothing_is_told() -> None:
    assert not has_enough_patients(patients("accuracy", ScoredRows(39)))
    assert has_enough_patients(patients("accuracy", ScoredRows(40)))
    assert not has_enough_patients(patients("uno_c", ScoredRows(1000, 500)))
    assert not has_enough_patients(patients("auc", ScoredRows(1000, 0)))

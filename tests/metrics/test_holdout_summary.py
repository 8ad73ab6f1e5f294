"""What figures are made of is what the rows say, and comes back from a file as it went in."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from vitrail.metrics.calibration import counted
from vitrail.metrics.holdout_summary import (
    PER_CENT,
    FeatureEffect,
    HeldOutAnswers,
    HoldOutSummary,
    SummaryScore,
    confusion_of,
    count_risks,
    expected_risks,
    group_values,
)
from vitrail.metrics.survival import by_risk, curves_by_risk


def answers(y: np.ndarray, p: np.ndarray, thresholds: np.ndarray | None = None) -> HeldOutAnswers:
    return HeldOutAnswers(y, p, None, None, thresholds, np.empty((0, 0)), lambda x: x)


@pytest.fixture
def classes() -> HeldOutAnswers:
    rng = np.random.default_rng(1)
    y, risk = rng.integers(0, 2, 70), rng.random(70)
    return answers(y, np.stack([1 - risk, risk], 1), np.array([0.7, 0.3]))


def test_confusion_is_by_the_sites_own_thresholds(classes: HeldOutAnswers) -> None:
    named = classes.p[:, 1] / 0.3 > classes.p[:, 0] / 0.7
    assert confusion_of(classes) == tuple(map(tuple, confusion_matrix(classes.y, named).tolist()))
    broken = classes._replace(p=np.full_like(classes.p, np.nan))
    assert confusion_of(broken) is None
    assert count_risks(broken) is None


def test_persons_count_once(classes: HeldOutAnswers) -> None:
    whole, half = count_risks(classes), count_risks(classes, 0.5)
    assert whole is not None
    assert half is not None
    assert (whole.total, half.total) == (70, 35)
    assert whole.events.sum() == classes.y.sum()


def test_groups_of_a_number_are_ten_rows_or_more() -> None:
    rng = np.random.default_rng(2)
    p = rng.normal(50, 10, 57)
    y = p + rng.normal(0, 3, 57)
    groups = group_values(y, p)
    assert groups is not None
    assert groups.rows.min() >= 10
    assert groups.rows.sum() == 57
    assert (np.diff(groups.expected) > 0).all()
    order = np.argsort(p)[: int(groups.rows[0])]
    assert groups.observed[0] == pytest.approx(y[order].mean())
    assert groups.spread[0] == pytest.approx(y[order].std(ddof=1))
    assert group_values(y[:9], p[:9]) is None
    assert group_values(y, np.full(57, np.nan)) is None


def test_expected_risks_are_of_the_groups_whose_curves_are_drawn() -> None:
    rng = np.random.default_rng(3)
    p = np.sort(rng.random((90, 4)), 1)[:, ::-1]
    y = np.where(rng.random(90) < 0.6, 1, -1) * rng.uniform(0.1, 4, 90)
    risks = expected_risks(p)
    assert risks[0] < risks[1] < risks[2]
    assert np.mean(risks) == pytest.approx((1 - p[:, -1]).mean())
    told = by_risk(y, p, np.ones(90), 10).reshape(2, 3, 4)[0]
    for k, curve in enumerate(curves_by_risk(y, p, (1.0, 2.0, 3.0, 4.0))):
        shares = [curve.at_time(float(end))[0] for end in (1, 2, 3, 4)]
        assert [s for s, t in zip(shares, told[k], strict=True) if t == t] == pytest.approx(told[k][told[k] == told[k]])


def test_it_comes_back_from_a_file(classes: HeldOutAnswers) -> None:
    rng = np.random.default_rng(4)
    p = np.sort(rng.random((40, 2)), 1)[:, ::-1]
    y = np.where(rng.random(40) < 0.6, 1, -1) * rng.uniform(0.1, 2, 40)
    summary = HoldOutSummary(
        70,
        {"auc": SummaryScore(0.8, 0.7, 0.9, 0.5), "r2": SummaryScore(0.1, float("nan"), float("nan"), 0.0)},
        counted(classes.p[:, 1], classes.y == 1, PER_CENT),
        confusion_of(classes),
        group_values(rng.normal(size=40), rng.normal(size=40)),
        expected_risks(p),
        tuple(curves_by_risk(y, p, (10.0, 20.0))),
        (FeatureEffect("age", ("40", "50", "60"), (0.1, 0.2, 0.4), True),),
    )
    text = json.dumps(summary.plain, allow_nan=False)
    again = HoldOutSummary.of(json.loads(text))
    assert json.dumps(again.plain) == text
    assert again.effects == summary.effects
    assert again.scores["auc"] == summary.scores["auc"]
    assert np.isnan(again.scores["r2"].low)
    assert HoldOutSummary.of(json.loads(json.dumps(HoldOutSummary(0, {}).plain))) == HoldOutSummary(0, {})

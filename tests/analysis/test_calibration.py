"""Calibration and net benefit against slow versions by hand; a model that is off is told, one that is not is told as
rarely as is said."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.analysis.calibration import (
    FINE,
    brier_parts,
    counts_test,
    fit_line,
    judge,
    net_benefit,
    observed_expected,
    wilson,
)
from vitrail.metrics.calibration import (
    BEDSIDE,
    EDGES,
    RiskCounts,
    counted,
    merged,
    pack_counts,
    read_counts,
    risks,
    score_bedside,
)
from vitrail.metrics.scores import FEWEST, score


def rows(n: int, seed: int, slope: float = 1.0, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Risks that a model says, and events; with slope 1 and shift 0 risks come true."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1.3, n)
    return 1 / (1 + np.exp(-z)), rng.random(n) < 1 / (1 + np.exp(-(shift + slope * z)))


def test_net_benefit_by_hand() -> None:
    risk, event = rows(150, 1)
    told = net_benefit(counted(risk, event, FINE), draws=10)
    for i, t in enumerate(told.at):
        acted = risk >= t
        by_hand = (acted & event).mean() - (acted & ~event).mean() * t / (1 - t)
        assert told.model[i] == pytest.approx(by_hand)
        assert told.all[i] == pytest.approx(event.mean() - (~event).mean() * t / (1 - t))


def test_intervals_hold_what_they_say() -> None:
    """Drawing counts again is drawing rows again; the interval at 30 % holds the truth in about 95 of 100."""
    risk, event = rows(400_000, 2)
    true = net_benefit(counted(risk, event, (0.3,)), draws=2).model[0]
    held = 0
    for i in range(200):
        part = slice(500 * i, 500 * i + 500)
        found = net_benefit(counted(risk[part], event[part], (0.3,)), draws=200, seed=i)
        held += found.low[0] <= true <= found.high[0]
    assert 0.9 <= held / 200 <= 0.985


def test_a_model_that_knows_nothing_is_seldom_said_to_help() -> None:
    """In at most 5 of 100 samples, of all thresholds together; one that knows something is, mostly."""
    wrongly = rightly = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        risk = np.clip(rng.normal(0.3, 0.1, 200), 0.01, 0.99)
        wrongly += net_benefit(counted(risk, rng.random(200) < 0.3, FINE), draws=200).useful is not None
        rightly += net_benefit(counted(*rows(200, seed), FINE), draws=200).useful is not None
    assert wrongly <= 0.05 * 200 + 2 * (200 * 0.05 * 0.95) ** 0.5
    assert rightly >= 190


def test_line_is_that_of_a_slow_search() -> None:
    """Against scikit-learn's regression without a penalty."""
    from sklearn.linear_model import LogisticRegression

    risk, event = rows(300, 3, slope=0.6, shift=0.5)
    x = np.log(risk / (1 - risk))[:, None]
    slow = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, event)
    line = fit_line(risk, event)
    assert line is not None
    assert line.slope.value == pytest.approx(slow.coef_[0, 0], abs=1e-4)
    assert line.slope.low < 0.6 < line.slope.high


def test_nothing_can_be_fitted_to_one_outcome_or_to_no_mistake() -> None:
    risk = np.linspace(0.1, 0.9, 20)
    assert fit_line(risk, np.ones(20, bool)) is None
    assert fit_line(risk, risk > 0.5) is None


@pytest.mark.parametrize("rows_each", [60, 300])
def test_calibrated_models_are_blamed_as_rarely_as_is_said(rows_each) -> None:
    """At most 5 in 100 of 400 by counts, and about 5 by rows; a model whose risks are too high is told."""
    blamed = np.zeros(4)
    for seed in range(400):
        risk, event = rows(rows_each, seed)
        line = fit_line(risk, event)
        blamed[0] += counts_test(merged(counted(risk, event, EDGES))) < 0.05
        blamed[1] += line is not None and line.p < 0.05
        risk, event = rows(rows_each, seed, shift=-1.0)
        line = fit_line(risk, event)
        blamed[2] += counts_test(merged(counted(risk, event, EDGES))) < 0.05
        blamed[3] += line is not None and line.p < 0.05
    blamed /= 400
    assert blamed[0] <= 0.075  # two standard errors above 5 in 100
    assert blamed[1] <= 0.085  # its chi-squared holds in large samples
    assert (blamed[2:] >= (0.5 if rows_each == 60 else 0.98)).all()


def test_words_say_which_way() -> None:
    for given, word in (({"shift": -1.0}, "too high"), ({"shift": 1.0}, "too low"), ({"slope": 0.4}, "too extreme"),
                        ({"slope": 2.5}, "too timid"), ({}, "no sign")):  # fmt: skip
        risk, event = rows(2000, 7, **given)
        assert word in judge(merged(counted(risk, event, EDGES)), fit_line(risk, event))


def test_brier_is_the_sum_of_its_parts() -> None:
    """Exactly, where a model says one risk in each group."""
    risk = np.repeat([0.1, 0.45, 0.8], 40)
    event = np.random.default_rng(1).random(120) < risk
    kept = counted(risk, event, EDGES)
    used = kept.rows > 0
    parts = brier_parts(RiskCounts(*(values[used] for values in kept)))
    whole = score(("brier",), event.astype(int), np.stack([1 - risk, risk], 1))["brier"]
    assert parts.off - parts.apart + parts.left == pytest.approx(whole)


def test_wilson_and_ratio() -> None:
    assert wilson(0, 10).low == pytest.approx(0, abs=1e-12)
    assert wilson(5, 10) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    ratio = observed_expected(RiskCounts(np.array([0.0]), np.array([100.0]), np.array([30.0]), np.array([20.0])))
    assert ratio.value == pytest.approx(1.5)
    assert ratio.low < 1.5 < ratio.high


def test_no_group_that_leaves_a_site_has_fewer_than_ten_rows() -> None:
    rng = np.random.default_rng(4)
    for n in [0, 1, 9, 10, 11, 19, 20, 25, 57, 200]:
        for spread in (0.2, 2.0):
            risk = 1 / (1 + np.exp(-rng.normal(rng.normal(), spread, n)))
            event = rng.random(n) < risk
            found = merged(counted(risk, event, EDGES))
            assert (found.rows >= FEWEST).all()
            assert found.total == (n if n >= FEWEST else 0)
            assert found.events.sum() == (event.sum() if n >= FEWEST else 0)


def test_what_a_site_tells_is_read_again_and_nonsense_is_not() -> None:
    risk, event = rows(90, 5)
    found = merged(counted(risk, event, EDGES))
    said = dict(zip(BEDSIDE, pack_counts(found), strict=True))
    again = read_counts(said)
    assert again is not None
    for mine, theirs in zip(found, again, strict=True):
        np.testing.assert_allclose(mine, theirs)
    for wrong in ({"events@0": 1e9}, {"expected@0": -1.0}, {"rows@0": -5.0}, {"rows@0": np.nan}, {"events@0": np.nan}):
        assert read_counts({**said, **wrong}) is None
    assert read_counts({}) is None


def test_padding_and_a_model_that_diverged_tell_nothing() -> None:
    y = np.array([[0, 1] * 10, [0, 1] * 10])
    p = np.full((2, 20, 2), 0.5)
    p[1, 3] = np.nan
    real = np.ones((2, 20), bool)
    real[0, 12:] = False
    found = score_bedside(y, p, real)
    assert found["rows@0"][0] == 12
    assert all(np.isnan(v[1]) for v in found.values())


def test_of_several_classes_the_named_one_is_judged() -> None:
    p = np.array([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
    risk, event = risks(np.array([1, 1]), p)
    assert risk.tolist() == [0.5, 0.7]
    assert event.tolist() == [True, False]

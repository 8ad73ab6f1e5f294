"""Scores against scikit-learn."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from vitrail.metrics.scores import (
    DOUBT,
    FEWEST,
    NAN,
    SUREST,
    TABLE,
    score,
    score_all,
    score_uncertainty,
    surest,
    surest_shares,
)
from vitrail.study.validation import CLASS_METRICS, NUMBER_METRICS

FUZZ = settings(max_examples=50, deadline=None)


@st.composite
def predictions(draw: Any, least: int = 2, most: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Labels (some classes may be absent) and probabilities on a coarse grid, so that ties are common."""
    classes, n = draw(st.integers(least, most)), draw(st.integers(1, 40))
    y = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n)))
    weights = draw(st.lists(st.integers(1, 4), min_size=n * classes, max_size=n * classes))
    p = np.array(weights, dtype=float).reshape(n, classes)
    return y, p / p.sum(1, keepdims=True)


def one(name: str, y: np.ndarray, p: np.ndarray) -> float:
    return score((name,), y, p)[name]


def by_sklearn(name: str, y: np.ndarray, p: np.ndarray) -> float:
    labels = list(range(p.shape[1]))
    guess = p.argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of guessed classes that do not occur
        if name == "accuracy":
            return float(sk.accuracy_score(y, guess))
        if name == "balanced_accuracy":
            return float(sk.balanced_accuracy_score(y, guess))
        if name == "f1":
            return float(sk.f1_score(y, guess, average="weighted", zero_division=0))
        if name == "f1_event":
            return float(sk.f1_score(y, guess, pos_label=1, zero_division=0))
        if name == "brier":
            return float(sk.brier_score_loss(y, p, labels=labels, scale_by_half=True))
        if name == "log_loss":
            return float(sk.log_loss(y, p, labels=labels))
        if p.shape[1] == 2:
            return float(sk.roc_auc_score(y, p[:, 1]))
        return float(sk.roc_auc_score(y, p, multi_class="ovo", average="macro", labels=labels))


@pytest.mark.parametrize("name", CLASS_METRICS)
@FUZZ
@given(predictions())
def test_class_metrics(name: str, case: tuple[np.ndarray, np.ndarray]) -> None:
    y, p = case
    ours = one(name, y, p)
    if (name == "auc" and len(np.unique(y)) < 2) or (name == "f1_event" and (p.shape[1] != 2 or not (y == 1).any())):
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(by_sklearn(name, y, p), abs=1e-12)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.1, 0.5, 0.5, 0.9])), min_size=2, max_size=30))
def test_binary_auc_is_the_chance_to_rank_a_pair(rows: list[tuple[int, float]]) -> None:
    """By its meaning: over all pairs, 1 when the positive scores higher, a half on a tie."""
    y, s = (np.array(v) for v in zip(*rows, strict=True))
    pairs = [(a > b) + (a == b) / 2 for a in s[y == 1] for b in s[y == 0]]
    ours = one("auc", y, np.stack([1 - s, s], 1))
    assert ours == pytest.approx(np.mean(pairs)) if pairs else math.isnan(ours)


def test_two_of_three_classes() -> None:
    """Of three classes two occur: the mean is over the pairs that exist."""
    y = np.array([0, 0, 2, 2])
    p = np.array([[0.6, 0.1, 0.3], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6], [0.4, 0.5, 0.1]])
    # class 0 against 2 by p0: 0.6, 0.3 / 0.2, 0.4 -> 3 of 4; by p2: 0.6, 0.1 / 0.3, 0.4 -> 2 of 4
    assert one("auc", y, p) == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert by_sklearn("auc", y, p) == pytest.approx(one("auc", y, p))


values = st.floats(-1e6, 1e6).map(lambda v: round(v, 3))


@FUZZ
@given(st.lists(st.tuples(values, values), min_size=1, max_size=40))
def test_number_metrics(rows: list[tuple[float, float]]) -> None:
    y, p = (np.array(v) for v in zip(*rows, strict=True))
    ours = score(NUMBER_METRICS, y, p[:, None])
    assert ours["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p), rel=1e-9, abs=1e-12)
    assert ours["mae"] == pytest.approx(sk.mean_absolute_error(y, p), rel=1e-9, abs=1e-12)
    if len(set(y)) > 1:
        assert ours["r2"] == pytest.approx(sk.r2_score(y, p), rel=1e-6, abs=1e-9)


def test_undefined_is_nan() -> None:
    none = score((*CLASS_METRICS,), np.array([], dtype=int), np.zeros((0, 2)))
    assert all(math.isnan(v) for v in none.values())
    assert all(math.isnan(v) for v in score(NUMBER_METRICS, np.array([]), np.zeros((0, 1))).values())
    ill = np.array([1, 1, 1])
    assert math.isnan(one("auc", ill, np.full((3, 2), 0.5)))
    assert math.isnan(one("auc", ill, np.full((3, 3), 1 / 3)))
    assert math.isnan(one("r2", np.array([4.0]), np.array([[3.0]])))  # one row has no spread
    assert math.isnan(NAN)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1, -3.3])
def test_r2_of_a_constant_is_undefined(value: float) -> None:
    assert math.isnan(one("r2", np.full(7, value), np.zeros((7, 1))))


@pytest.mark.parametrize("name", list(TABLE))
def test_predictions_that_are_no_numbers_score_nothing(name: str) -> None:
    """A model that diverged has no score; it does not pass for one that always says the first class."""
    y = np.array([0, 0, 1]) if name in CLASS_METRICS else np.array([0.0, 1.0, 2.0])
    p = np.full((3, 2 if name in CLASS_METRICS else 1), np.nan)
    assert math.isnan(one(name, y, p))


def test_certain_and_wrong_is_finite() -> None:
    loss = one("log_loss", np.array([0]), np.array([[0.0, 1.0]]))
    assert 30 < loss < 40  # -log(1e-15)


# --- all sites at once ---


def pad(
    sites: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, p and which rows are real, in places drawn at random; what lies between them is no number."""
    most = max(len(y) for y, _ in sites) + 3
    some_y, some_p = sites[0]
    y = rng.integers(0, 2, (len(sites), most)).astype(some_y.dtype)
    p = np.full((len(sites), most, some_p.shape[1]), np.nan)
    real = np.zeros((len(sites), most), dtype=bool)
    for i, (own_y, own_p) in enumerate(sites):
        at = np.sort(rng.permutation(most)[: len(own_y)])
        real[i, at], y[i, at], p[i, at] = True, own_y, own_p
    return y, p, real


def same(ours: dict[str, np.ndarray], sites: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Bit for bit: nobody's scores depend on who else is scored."""
    for name, values in ours.items():
        assert values.shape == (len(sites),)
        np.testing.assert_array_equal(values, [one(name, y, p) for y, p in sites], name)


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("coarse", [True, False], ids=["ties", "no ties"])
def test_all_sites_at_once_are_each_alone(classes: int, coarse: bool) -> None:
    """Ragged sites: some without rows, of one row, of one class, with a model that diverged."""
    rng = np.random.default_rng(classes)
    sites = []
    for n in (40, 0, 1, 7, 120, 33, 0, 12):
        p = rng.dirichlet(np.ones(classes), n)
        sites.append((rng.integers(0, classes, n), (1 + rng.multinomial(4, p)) / (4 + classes) if coarse else p))
    sites[3] = (np.full(7, classes - 1), sites[3][1])
    sites[5][1][4, 0] = np.inf
    sites[7][1][11, 1] = np.nan
    ours = score_all(CLASS_METRICS, *pad(sites, rng))
    same(ours, sites)
    if classes != 2:
        assert np.isnan(ours.pop("f1_event")).all(), "of several classes none is the event"
    for name, values in ours.items():
        without = {"auc": (2, 3), "f1_event": [i for i, (y, _) in enumerate(sites) if not (y == 1).any()]}.get(name, ())
        defined = [i for i in range(len(sites)) if i not in (1, 5, 6, 7) and i not in without]
        assert np.flatnonzero(np.isfinite(values)).tolist() == defined, name
        np.testing.assert_allclose(values[defined], [by_sklearn(name, *sites[i]) for i in defined], atol=1e-12)


def test_numbers_of_all_sites_at_once() -> None:
    rng = np.random.default_rng(0)
    sites = [(rng.normal(50, 9, n), rng.normal(50, 9, (n, 1))) for n in (40, 0, 1, 90, 8, 5)]
    sites[4] = (np.full(8, 0.1), sites[4][1])  # nothing to explain
    sites[5][1][2] = np.nan
    ours = score_all(NUMBER_METRICS, *pad(sites, rng))
    same(ours, sites)
    assert np.flatnonzero(np.isfinite(ours["mae"])).tolist() == [0, 2, 3, 4]
    assert np.flatnonzero(np.isfinite(ours["r2"])).tolist() == [0, 3]


def test_all_the_same_score_is_a_coin() -> None:
    y, p = np.tile([0, 1, 2, 2], (2, 3)), np.full((2, 12, 3), 1 / 3)
    assert score_all(("auc",), y, p, np.ones((2, 12), dtype=bool))["auc"].tolist() == [0.5, 0.5]


def test_no_site_at_all() -> None:
    found = score_all(CLASS_METRICS, np.zeros((0, 4), dtype=int), np.zeros((0, 4, 3)), np.zeros((0, 4), dtype=bool))
    assert all(values.shape == (0,) for values in found.values())


# --- what doubt is worth ---


def doubted(sites: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """By the last column, which is the doubt."""
    y, p, real = pad(sites, rng)
    return score_uncertainty(y, p[..., :-1], p[..., -1], real)


def by_hand(right: np.ndarray, unsure: np.ndarray, share: int, rng: np.random.Generator) -> float:
    """The mean over many orders of rows with the same doubt."""
    found = []
    for _ in range(4000):
        order = np.lexsort((rng.random(len(right)), unsure))
        found.append(right[order[: surest(len(right), share)]].mean())
    return float(np.mean(found))


def test_doubt_of_all_sites_at_once_is_each_alone() -> None:
    """Ragged sites; some with ties, one that diverged, one whose doubt is no number, one that is never wrong."""
    rng, sites = np.random.default_rng(1), []
    for i, n in enumerate((60, 0, 9, 10, 11, 40, 30, 25, 12)):
        p = rng.dirichlet(np.ones(3), n)
        unsure = rng.random(n) if i % 2 else rng.integers(0, 4, n) / 4
        sites.append((rng.integers(0, 3, n), np.column_stack([p, unsure])))
    sites[5][1][3, 0] = np.inf
    sites[6][1][3, 3] = np.nan
    sites[7] = (sites[7][1][:, :3].argmax(1), sites[7][1])
    found = doubted(sites, rng)
    assert tuple(found) == DOUBT
    for i, site in enumerate(sites):
        alone = doubted([site], rng)
        assert all(np.array_equal(alone[k][0], v[i], equal_nan=True) for k, v in found.items()), i
        y, p, unsure = site[0], site[1][:, :-1], site[1][:, -1]
        broken, right = i in (5, 6), p.argmax(1) == y
        for share in SUREST:
            told = found[f"accuracy@{share}"][i]
            assert math.isnan(told) == (broken or share not in surest_shares(len(y))), (i, share)
            if not math.isnan(told):
                assert told == pytest.approx(by_hand(right, unsure, share, rng), abs=0.01)
        assert math.isnan(found["doubt"][i]) == (broken or len(y) < FEWEST)
        assert math.isnan(found["auroc"][i]) == (broken or len(y) < FEWEST or right.all())
        if not math.isnan(found["auroc"][i]):
            assert found["doubt"][i] == pytest.approx(unsure.mean())
            assert found["auroc"][i] == pytest.approx(sk.roc_auc_score(~right, unsure))
    assert [math.isnan(v) for v in found["accuracy@60"]] == [i not in (0, 7) for i in range(len(sites))]


def test_the_order_of_rows_says_nothing_where_doubt_is_the_same() -> None:
    rng = np.random.default_rng(2)
    y, p = rng.integers(0, 2, 50), rng.dirichlet(np.ones(2), 50)
    wrong_last = np.argsort(p.argmax(1) != y, kind="stable")
    for order in (wrong_last, wrong_last[::-1]):
        site = y[order], np.column_stack([p[order], np.full(50, 0.5)])
        found = doubted([site], rng)
        points = [found[f"accuracy@{share}"][0] for share in surest_shares(50)]
        assert points == pytest.approx([(p.argmax(1) == y).mean()] * 5)
        assert found["auroc"][0] == 0.5

"""ROC curves, their areas and tables at a threshold, from counts by risk: against scikit-learn on the same groups, and
DeLong's variance against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as sk

from vitrail.metrics.calibration import EDGES, RiskCounts, counted, merged, recut
from vitrail.metrics.holdout_summary import PER_CENT
from vitrail.metrics.roc import Confusion, confusion_at, roc_area, roc_points

Floats = NDArray[np.float64]


def rows(n: int, seed: int, gap: float = 1.2) -> tuple[Floats, NDArray[np.bool_]]:
    """Risks and whether the event came."""
    rng = np.random.default_rng(seed)
    event = rng.random(n) < 0.4
    return 1 / (1 + np.exp(-(gap * event + rng.normal(size=n) - 0.6))), event


def binned(risk: Floats) -> Floats:
    return np.searchsorted(np.array(PER_CENT), risk, side="right").astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_points_and_area_are_sklearns_on_the_same_groups(seed: int) -> None:
    risk, event = rows(150, seed)
    counts = counted(risk, event, PER_CENT)
    false, true = roc_points(counts)
    expected = sk.roc_curve(event, binned(risk), drop_intermediate=False)
    found = set(zip(false.round(9), true.round(9), strict=True))
    assert set(zip(expected[0].round(9), expected[1].round(9), strict=True)) == found
    area, low, high = roc_area(counts)
    assert area == pytest.approx(sk.roc_auc_score(event, binned(risk)))
    assert low < area < high
    assert area == pytest.approx(sk.roc_auc_score(event, risk), abs=0.01), "a group is one per cent wide"


def delong(risk: Floats, event: NDArray[np.bool_]) -> float:
    """The variance of the area by its definition, over all pairs."""
    x, y = risk[event][:, None], risk[~event][None]
    wins = (x > y) + 0.5 * (x == y)
    return float(wins.mean(1).var(ddof=1) / len(x) + wins.mean(0).var(ddof=1) / y.shape[1])


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_is_delongs(seed: int) -> None:
    risk, event = rows(80, seed)
    area, low, high = roc_area(counted(risk, event, PER_CENT))
    error = math.sqrt(delong(binned(risk), event)) / (area * (1 - area))
    middle = math.log(area / (1 - area))
    ends = [1 / (1 + math.exp(-(middle + side * 1.959964 * error))) for side in (-1, 1)]
    assert (low, high) == pytest.approx(ends)


def test_told_apart_without_a_mistake_it_is_not_sure_of_it() -> None:
    """Three of each: the interval is not from 1 to 1."""
    counts = counted(np.array([0.1, 0.15, 0.2, 0.8, 0.85, 0.9]), np.arange(6) > 2, PER_CENT)
    area, low, high = roc_area(counts)
    assert (area, high) == (1.0, pytest.approx(1.0))
    assert low < 0.6
    assert all(math.isnan(v) for v in roc_area(counted(np.array([0.1, 0.4]), np.array([True, True]), PER_CENT)))


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.55, 0.95])
def test_a_table_at_a_threshold_counts_the_rows(threshold: float) -> None:
    risk, event = rows(200, 3)
    cut = confusion_at(counted(risk, event, PER_CENT), threshold)
    assert cut is not None
    named = risk >= threshold
    (rests, alarms), (misses, hits) = sk.confusion_matrix(event, named)
    assert cut == Confusion(hits, misses, alarms, rests)
    assert cut.sensitivity == (hits, event.sum())
    assert cut.specificity == (rests, (~event).sum())
    assert cut.positive_value == (hits, named.sum())
    assert cut.negative_value == (rests, (~named).sum())


def test_no_table_where_counts_are_not_cut() -> None:
    """What a site tells has groups of ten or more: between their edges nobody can say."""
    told = merged(recut(counted(*rows(60, 1), PER_CENT), EDGES))
    answers = {edge: confusion_at(told, edge) for edge in EDGES}
    assert {edge for edge, cut in answers.items() if cut} == set(told.low[1:].tolist())
    assert any(cut is None for cut in answers.values())


def test_counts_are_cut_anew_without_losing_a_row() -> None:
    risk, event = rows(500, 2)
    coarse, direct = recut(counted(risk, event, PER_CENT), EDGES), counted(risk, event, EDGES)
    assert coarse.low.tolist() == direct.low.tolist()
    for a, b in zip(coarse[1:], direct[1:], strict=True):
        assert a == pytest.approx(b)
    assert isinstance(coarse, RiskCounts)

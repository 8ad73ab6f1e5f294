"""Groups of sites by mutual trust, and what a run's facts say."""

from __future__ import annotations

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from vitrail.core import facts as means
from vitrail.core.facts import Fact, Facts
from vitrail.explain.groups import joined
from vitrail.explain.trust import groups, read_trust


def test_joins_are_those_of_scipy() -> None:
    rng = np.random.default_rng(3)
    for n in (2, 5, 9):
        apart = rng.random((n, n))
        apart = (apart + apart.T) / 2 * (1 - np.eye(n))
        order, joins = joined(apart)
        assert sorted(order) == list(range(n))
        expected = linkage(squareform(apart), "average")
        assert np.allclose([j.apart for j in joins], expected[:, 2])
        for join in joins:  # a group is a run of neighbours: no two joins cross
            at = sorted(order.index(i) for i in join.first + join.second)
            assert at == list(range(at[0], at[0] + len(at)))


def test_two_camps_come_out_as_two_groups() -> None:
    trust = np.full((6, 6), 0.1)
    for camp in ([0, 3, 5], [1, 2, 4]):
        trust[np.ix_(camp, camp)] = 0.8
    trust[0, 3] = 0.2  # one-sided doubt is halved
    order, joins = groups(trust)
    assert {frozenset(order[:3]), frozenset(order[3:])} == {frozenset([0, 3, 5]), frozenset([1, 2, 4])}
    assert joins[-1].apart == 0.9
    assert {frozenset(joins[-1].first), frozenset(joins[-1].second)} == {frozenset([0, 3, 5]), frozenset([1, 2, 4])}


def named(told: dict[str, torch.Tensor]) -> Facts:
    """Facts by what they mean, under names that say nothing."""
    return {f"fact {i}": Fact(value, means=means) for i, (means, value) in enumerate(told.items())}


def facts(alpha: list[list[list[float]]], **more: torch.Tensor) -> Facts:
    path = torch.tensor(alpha)
    rounds, n = path.shape[:2]
    none = torch.zeros(rounds, n, dtype=torch.bool)
    held = {means.TRUST: path, means.DISTANCE: path, means.VANISHED: none, means.STOPPED: none}
    held |= {means.GRADIENTS: torch.ones(rounds, 2), means.ROUND: torch.arange(1, rounds + 1)}
    return named(held | {getattr(means, k): v for k, v in more.items()})


def test_what_happened_to_a_user() -> None:
    nan = float("nan")
    path = [[[1, 0.5], [0.9, 1]], [[1, 0.0], [0.8, 1]], [[1, 0.0], [0.7, 1]]]
    stopped = torch.tensor([[False, False], [False, True], [False, True]])
    trust = read_trust(["a", "b"], facts(path, STOPPED=stopped))
    assert trust is not None
    assert (trust.alone_from(0), trust.alone_from(1)) == (2, None)
    assert (trust.stop_round(0), trust.stop_round(1)) == (None, 2)
    assert np.allclose(trust.mean, [[1, 0.5 / 3], [0.8, 1]])
    late = read_trust(["a", "b"], facts([[[1, nan], [nan, nan]], [[1, 0.4], [0.6, 1]]]))
    assert late is not None
    assert np.allclose(late.mean, [[1, 0.4], [0.6, 1]])
    assert late.alone_from(0) is None, "who never met has not lost trust"
    assert read_trust(["a"], named({means.TRUST: torch.ones(1)})) is None


def test_shares_of_a_model() -> None:
    nan = float("nan")
    path = [[[nan, nan], [nan, nan]], [[0.4, 0.6], [1.0, 0.0]], [[1.0, 0.0], [nan, nan]]]
    trust = read_trust(["a", "b"], named({means.SHARE: torch.tensor(path), means.ROUND: torch.arange(1, 4)}))
    assert trust is not None
    assert trust.shares
    assert np.allclose(trust.mean, [[0.7, 0.3], [1, 0]])
    assert (trust.alone_from(0), trust.alone_from(1)) == (3, None), "b gave all to a, then was away"
    assert trust.stop_round(0) is None
    unknown = named({means.SHARE: torch.full((1, 2, 2), nan), means.ROUND: torch.ones(1)})
    assert read_trust(["a", "b"], unknown) is None

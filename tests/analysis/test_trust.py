"""Groups of sites by mutual trust, and what a run's facts say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.analysis.trust import groups, read_trust
from vitrail.core import facts as means
from vitrail.core.facts import Fact, Facts
from vitrail.stats.linkage import order_by_linkage


def test_joins_by_their_meaning() -> None:
    """Each time the two groups that are closest on average; in the order each is a run of neighbours, turned so that
    the nearest of their ends meet."""
    rng = np.random.default_rng(3)
    for n in (2, 5, 9):
        apart = rng.random((n, n))
        apart = (apart + apart.T) / 2 * (1 - np.eye(n))
        order, joins = order_by_linkage(apart)
        assert sorted(order) == list(range(n))
        there = {frozenset([i]) for i in range(n)}
        for join in joins:
            means = {(a, b): apart[np.ix_(list(a), list(b))].mean() for a in there for b in there if a != b}
            pair = frozenset(join.first), frozenset(join.second)
            assert join.apart == pytest.approx(means[pair])
            assert join.apart == pytest.approx(min(means.values()))
            there = there - set(pair) | {pair[0] | pair[1]}
            assert min(join.first) < min(join.second)
            at = sorted(order.index(i) for i in join.first + join.second)
            assert at == list(range(at[0], at[0] + len(at)))
            meets = next(k for k in at if (order[k] in pair[0]) != (order[k + 1] in pair[0]))
            ends = [apart[i, j] for i in (join.first[0], join.first[-1]) for j in (join.second[0], join.second[-1])]
            assert apart[order[meets], order[meets + 1]] == min(ends)
        assert there == {frozenset(range(n))}


def test_of_one_thing_and_of_none() -> None:
    assert order_by_linkage(np.zeros((1, 1))) == ([0], [])
    assert order_by_linkage(np.zeros((0, 0))) == ([], [])


def test_two_camps_come_out_as_two_groups() -> None:
    trust = np.full((6, 6), 0.1)
    for camp in ([0, 3, 5], [1, 2, 4]):
        trust[np.ix_(camp, camp)] = 0.8
    trust[0, 3] = 0.2  # one-sided doubt is halved
    order, joins = groups(trust)
    assert {frozenset(order[:3]), frozenset(order[3:])} == {frozenset([0, 3, 5]), frozenset([1, 2, 4])}
    assert joins[-1].apart == 0.9
    assert {frozenset(joins[-1].first), frozenset(joins[-1].second)} == {frozenset([0, 3, 5]), frozenset([1, 2, 4])}


def test_trust_is_the_mean_of_both() -> None:
    """Whoever is trusted by one and does not trust back is not of its group; and users might as well be sites."""
    trust = np.array([[1.0, 0.9, 0.2], [0.1, 1.0, 0.3], [0.8, 0.5, 1.0]])  # between two: 0.5, 0.5 and 0.4
    trust[0, 2] = 0.3
    order, joins = groups(trust)
    assert (joins[0].first, joins[0].second) == ((0,), (2,))
    assert [j.apart for j in joins] == pytest.approx([1 - 0.55, 1 - (0.5 + 0.4) / 2])
    assert groups(trust.T) == (order, joins)
    trust[0, 1] = np.nan  # they never met: no trust
    assert groups(trust)[1][1].apart == pytest.approx(1 - (0.05 + 0.4) / 2)


def facts(path: list[list[list[float]]], what: str = means.TRUST, stopped: torch.Tensor | None = None) -> Facts:
    """What a run tells of these weights [round, user, site], under names that nobody knows."""
    told = {what: torch.tensor(path), means.ROUND: torch.arange(1, len(path) + 1)}
    if stopped is not None:
        told[means.STOPPED] = stopped
    return {f"fact {i}": Fact(value, means=of) for i, (of, value) in enumerate(told.items())}


def test_what_happened_to_a_user() -> None:
    nan = float("nan")
    path = [[[1, 0.5], [0.9, 1]], [[1, 0.0], [0.8, 1]], [[1, 0.0], [0.7, 1]]]
    stopped = torch.tensor([[False, False], [False, True], [False, True]])
    trust = read_trust(["a", "b"], facts(path, stopped=stopped))
    assert trust is not None
    assert (trust.alone_from(0), trust.alone_from(1)) == (2, None)
    assert (trust.stop_round(0), trust.stop_round(1)) == (None, 2)
    assert np.allclose(trust.mean, [[1, 0.5 / 3], [0.8, 1]])
    late = read_trust(["a", "b"], facts([[[1, nan], [nan, nan]], [[1, 0.4], [0.6, 1]]]))
    assert late is not None
    assert np.allclose(late.mean, [[1, 0.4], [0.6, 1]])
    assert late.alone_from(0) is None, "who never met has not lost trust"
    assert read_trust(["a"], {"alpha": Fact(torch.ones(1), means=means.DISTANCE)}) is None
    never = [[1, 0.0, nan], [0.0, 1, nan], [nan, nan, nan]]  # c has not come yet
    three = read_trust(["a", "b", "c"], facts([never, never]))
    assert three is not None
    assert three.alone_from(0) is None, "who has lost trust in one may still trust another"


def test_shares() -> None:
    nan = float("nan")
    path = [[[nan, nan], [nan, nan]], [[0.4, 0.6], [1.0, 0.0]], [[1.0, 0.0], [nan, nan]]]
    trust = read_trust(["a", "b"], facts(path, means.SHARE))
    assert trust is not None
    assert trust.shares
    assert np.allclose(trust.mean, [[0.7, 0.3], [1, 0]])
    assert (trust.alone_from(0), trust.alone_from(1)) == (3, None), "b gave all to a, then was away"
    assert trust.stop_round(0) is None
    assert read_trust(["a", "b"], facts([[[nan, nan], [nan, nan]]], means.SHARE)) is None

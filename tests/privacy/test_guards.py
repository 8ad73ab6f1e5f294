"""Guards between a report and its merge: what a site that lies can do, with them and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.exchange import AnyExchange
from vitrail.core.facts import OUTLYING
from vitrail.core.tensors import flatten, map_tensors
from vitrail.engine.batches import gather_sites
from vitrail.engine.rounds import Training
from vitrail.methods import TABLE
from vitrail.privacy import Guards
from vitrail.privacy.robust import apart, centre

KINDS = ("median", "trimmed", "multikrum", "clipping")
LIAR = "site 3"
SIZES = (37, 20, 15, 53, 18, 22)


def sites() -> Any:
    rows = make_rows(sizes=SIZES)
    x = rows[0][1]
    assert x.dtype == torch.double
    return gather_sites(rows)


class Lie:
    """One site says something else from a round on."""

    def __init__(self, by: float, first: int = 0) -> None:
        self.by, self.first, self.seen = by, first, 0

    def __call__(self, names: tuple[str, ...], ex: AnyExchange, up: Any) -> Any:
        if LIAR not in names:
            return up
        self.seen += 1
        if self.seen <= self.first:
            return up
        at = names.index(LIAR)

        def turned(t: Tensor) -> Tensor:
            if t.dim() < 2:  # what it counts
                return t
            t = t.clone()
            t[at] *= self.by
            return t

        return map_tensors(turned, up)


def moved(engine: Any, last: Any) -> dict[str, Tensor]:
    return {k: v - engine.task.start[k] for k, v in engine.method.shared(last.coord).items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox", "ifedavg"])
def test_one_liar_is_outvoted(kind: str, name: str) -> None:
    """What one site of six moves by its lie, with a guard against what it moves without."""
    method, moves = methods.build(name), []
    for guards in (Guards(), Guards(robust=kind)):
        honest, lied = (moved(*train(method, sites=sites(), guards=guards, lies=lie)) for lie in (None, Lie(-10)))
        moves.append(sum(float((v - honest[k]).square().sum()) for k, v in lied.items()) ** 0.5)
    plain, guarded = moves
    assert guarded < 0.35 * plain


@pytest.mark.parametrize("kind", KINDS)
def test_who_lies_lies_furthest_and_the_run_says_so(kind: str) -> None:
    engine, last = train(methods.build("fedavg"), sites=sites(), lies=Lie(-10), guards=Guards(robust=kind))
    (told,) = [f for f in last.facts.values() if f.means == OUTLYING]
    assert engine.names[int(told.value.argmax())] == LIAR
    assert float(told.value.max()) > 3


def test_centres_by_hand() -> None:
    rows = torch.randn(9, 5, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    plain = rows.numpy()
    np.testing.assert_allclose(centre(rows, "median"), np.median(plain, 0))
    np.testing.assert_allclose(centre(rows[:8], "median"), np.median(plain[:8], 0))
    np.testing.assert_allclose(centre(rows, "trimmed"), np.sort(plain, 0)[2:7].mean(0))  # two of nine may lie
    square = ((plain[:, None] - plain[None]) ** 2).sum(-1)
    score = np.sort(square, 1)[:, 1:6].sum(1)  # nine less two less two others
    np.testing.assert_allclose(centre(rows, "multikrum"), plain[np.argsort(score)[:7]].mean(0))
    size = np.linalg.norm(plain - np.median(plain, 0), axis=1)
    np.testing.assert_allclose(apart(rows, centre(rows, "median")), size / np.median(size))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_reports_have_themselves_as_their_centre(kind: Any) -> None:
    rows = torch.arange(4.0).expand(6, 4)
    torch.testing.assert_close(centre(rows, kind), rows[0])


@pytest.mark.parametrize(
    "name", [n for n, kind in TABLE.items() if kind.catalogue.federated and not kind.catalogue.required_net]
)
def test_guards_that_do_nothing_change_nothing(name: str) -> None:
    method = methods.build(name)
    one, other = train(method, sites=sites()), train(method, sites=sites(), guards=Guards(clip=1e12))
    assert gap(models(*one), models(*other)) < 1e-9


def test_no_change_is_longer_than_the_clip() -> None:
    engine, last = train(methods.build("fedavg"), sites=sites(), guards=Guards(clip=0.01), training=Training(rounds=1))
    size = sum(float(v.square().sum()) for v in moved(engine, last).values()) ** 0.5
    assert 0 < size <= 0.01 + 1e-12
    weighted = methods.build("fedavg", {"weights": "rows"})
    engine, last = train(weighted, sites=sites(), guards=Guards(clip=0.01), training=Training(rounds=1))
    assert sum(float(v.square().sum()) for v in moved(engine, last).values()) ** 0.5 <= 0.01 + 1e-12


@pytest.mark.parametrize("by", [3e38, 1e200, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "weight_erosion", "ripfl", "cfl"])
def test_what_is_no_report_ends_nothing(by: float, name: str) -> None:
    """The site is named and not asked again; the others go on as if it had been away from then on."""
    method = methods.build(name)
    away = torch.tensor([n == LIAR for n in gather_sites(make_rows(sizes=SIZES)).names])
    engine, last = train(method, sites=sites(), lies=Lie(by, first=2))
    alone, end = train(method, sites=sites(), absent=lambda s, r: away & (r >= 2))
    assert list(engine.aggregator.excluded) == [LIAR]
    assert [(n["event"], n["site"]) for n in engine.aggregator.pending_events if n["event"] == "set aside"] == [
        ("set aside", LIAR)
    ]
    others = [n for n in engine.names if n != LIAR]
    for (k, one), (_, other) in zip(flatten(engine.settled(last)), flatten(alone.settled(end)), strict=True):
        for site in others:
            i = engine.names.index(site)
            torch.testing.assert_close(one[i], other[i], rtol=1e-9, atol=1e-12, msg=f"{k} of {site}")


@pytest.mark.parametrize("by", [-20.0, 1e3])
def test_a_change_far_longer_than_the_others_leaves_an_event(by: float) -> None:
    engine, _ = train(methods.build("fedavg"), sites=sites(), lies=Lie(by, first=1))
    assert next(n["site"] for n in engine.aggregator.pending_events if n["event"] == "unusual") == LIAR
    assert engine.aggregator.unusual[LIAR] >= 1
    quiet, _ = train(methods.build("fedavg"), sites=sites())
    assert not quiet.aggregator.pending_events


def test_engines_agree_under_guards() -> None:
    for guards in (Guards(clip=0.05, noise=0.5), Guards(robust="median")):
        one = train(methods.build("fedavg"), sites=sites(), guards=guards, chunk=6)
        other = train(methods.build("fedavg"), sites=sites(), guards=guards, chunk=1)
        assert gap(models(*one), models(*other)) < 1e-12


def test_noise_is_what_it_says() -> None:
    """Each site adds its own: noise times clip."""
    still = Training(rounds=1, lr=1e-12)
    task = make_task(hidden=(30, 30))
    engine, last = train(methods.build("fedavg"), task, sites(), still, guards=Guards(clip=2.0, noise=3.0))
    got = torch.cat([v.flatten() for v in moved(engine, last).values()]) * len(SIZES)
    assert float(got.std()) == pytest.approx(6.0 * len(SIZES) ** 0.5, rel=0.1)
    assert abs(float(got.mean())) < 6 * 4 * len(SIZES) ** 0.5 / len(got) ** 0.5

"""inDISCO's options against a plain computation: a part of a site's own prototypes, prototypes shown, cosine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.indisco_by_hand import (
    HELD,
    NEAR,
    ROWS,
    SHARED_BY,
    TRAINING,
    K,
    M,
    by_hand,
    differ,
    goes_on,
    pushed_by_hand,
    run,
    site,
    task,
    usual,
)
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.core.facts import OWN, PROTOTYPES_KEPT, RELEASED, RELEASED_APART, SHARED, find_value
from vitrail.engine.local import Engine
from vitrail.methods.blocks.prototypes import kept, net_of
from vitrail.nets import prototypes
from vitrail.privacy.budget import Budget, noise_for
from vitrail.testing.federation import LOSSES, PICTURE, task_of

PLAIN: dict[str, Any] = {"travel": False, "alone_too": False, "least": 2}


@pytest.mark.parametrize(("personal", "share"), [("distance", "prototypes"), ("half", "add-on")])
def test_a_run_with_a_part_of_ones_own_prototypes(personal: str, share: str) -> None:
    """Round by round against autograd, one site after the other; and what is pushed is the mixed model."""
    engine, state, _ = run(share=share, personal=personal, **PLAIN)
    now, _, _ = by_hand(engine, SHARED_BY[share], personal)
    held = engine.method.models(engine.task, state)
    for i in range(3):
        pushed, where = pushed_by_hand(engine, now[i], i)
        assert torch.allclose(held[OWN]["prototypes"][i], pushed["prototypes"], atol=NEAR)
        assert engine.method.patches(state)[OWN][i].tolist() == where
        others = {k: v for k, v in now[i].items() if k != "prototypes"}
        assert differ({k: held[SHARED][k][i] for k in others}, others) < NEAR
    shared = held[SHARED]["prototypes"]
    assert torch.equal(shared[0], shared[1]), "what is shared stays the same for all"
    assert differ(state.shared, usual(share)[1].shared) > 1e-4, "and training took another way"


def test_how_much_is_kept_follows_the_distance() -> None:
    net = net_of(task())
    g = torch.Generator().manual_seed(2)
    local, other = (torch.rand(2, K * M, 4, generator=g, dtype=torch.double) for _ in range(2))
    assert not kept(net, "distance", local, local).any(), "of what all have nothing is kept"
    assert torch.equal(kept(net, "half", local, other), torch.full((2, K), 0.5))
    near, far = (kept(net, "distance", local, local + by * (other - local)) for by in (0.1, 1.0))
    assert (near < far).all()
    assert ((far > 0) & (far < 1)).all()
    one = torch.arange(K * M) // M == 1  # the shared ones of one class lie elsewhere: the others are taken as they are
    moved = kept(net, "distance", local, torch.where(one[:, None], other, local))
    assert (moved[:, 1] > 0).all()
    assert not moved[:, [0, 2]].any()
    for i in range(2):
        there = goes_on(local[i], other[i], "distance")
        part = kept(net, "distance", local, other)[i].repeat_interleave(M)[:, None]
        assert torch.allclose(other[i] + part * (local[i] - other[i]), there)
    assert torch.allclose(kept(net, "distance", 7 * local, 7 * other), kept(net, "distance", local, other)), "no scale"


def test_a_site_may_show_how_much_it_keeps() -> None:
    _, state, last = run(personal="distance", **PLAIN)
    told = find_value(last.facts, PROTOTYPES_KEPT)
    assert told is not None
    net = net_of(task())
    assert torch.allclose(told, kept(net, "distance", state.local["prototypes"], state.shared["prototypes"]))
    assert (told > 0).all()


def test_where_nothing_is_shared_nothing_is_kept_beside_it() -> None:
    with pytest.raises(VitrailError, match="nothing is shared"):
        methods.build("indisco", {"share": "no", "personal": "half"})
    for bad in ({"release_epsilon": 0}, {"release_delta": 1.0}, {"release_clip": -1.0}, {"release_count": 0}):
        with pytest.raises(VitrailError, match=next(iter(bad))):
            methods.build("indisco", {"release": "noise", **bad})
    with pytest.raises(VitrailError, match="release"):
        methods.build("indisco_central", {"release": "noise"})


def shown_by(**given: Any) -> tuple[Engine, Any, Any]:
    return run(share="prototypes", **PLAIN, **given)


def test_prototypes_are_shown_as_they_were_pushed() -> None:
    engine, state, last = shown_by(release="plain")
    shown, apart = (find_value(last.facts, k) for k in (RELEASED, RELEASED_APART))
    assert shown is not None
    assert apart is not None
    exact = engine.method.models(engine.task, state)[OWN]["prototypes"]
    assert torch.allclose(shown + 0.5, exact)
    for i in range(3):
        others = torch.stack([exact[j] for j in range(3) if j != i]).mean(0)
        assert torch.allclose(apart[i], (exact[i] - others).norm(dim=1).view(K, M).mean(1))
    few = find_value(shown_by(release="plain", release_count=1)[2].facts, RELEASED)
    assert few is not None
    assert torch.allclose(few, shown[:, ::M])


def test_under_a_budget_they_are_shortened_and_noise_is_added() -> None:
    """Nearly without noise the numbers are those of a plain clipping; with it, they lie as far off as was said."""
    _, state, last = shown_by(release="noise", release_epsilon=1e6, release_clip=0.16)
    exact = state.ending["prototypes"] - 0.5
    short = exact * (0.16 / exact.norm(dim=-1, keepdim=True)).clamp(max=1)
    told = find_value(last.facts, RELEASED)
    assert told is not None
    assert (exact.norm(dim=-1) > 0.16).any()
    assert (told - short).abs().max() < 0.05
    loud = find_value(shown_by(release="noise", release_epsilon=1.0, release_clip=0.16)[2].facts, RELEASED)
    assert loud is not None
    wanted = 2 * 0.16 * (K * M) ** 0.5 * noise_for(Budget(1.0, 1e-5), 1)
    assert 0.7 * wanted < float((loud - short).std()) < 1.4 * wanted
    assert not torch.allclose(loud[0], loud[1], atol=wanted), "each site draws its own"


def test_who_refuses_shows_no_prototype() -> None:
    method = methods.build("indisco", {"release": "noise", "warm": 2, **PLAIN})
    refuses = lambda s, r: torch.tensor([s == 3 and i == 1 for i in range(3)])  # noqa: E731
    engine = Engine(task(), method, ROWS, TRAINING, 5, absent=refuses, held=HELD)
    *_, last = engine.run()
    for means in (RELEASED, RELEASED_APART):
        value = find_value(last.facts, means)
        assert value is not None
        assert not value[1].any()
        assert value[0].any()


def test_a_run_between_machines_adds_noise_from_each_sites_own_generator() -> None:
    """With a secret nobody draws it again, and it lies on a grid; the exact numbers are in no message."""
    method = methods.build("indisco", {"release": "noise", "warm": 2, **PLAIN})
    told = []
    for secret in ("a", "a", "b"):
        secrets = {name: f"{secret} {name}" for name in ROWS.names}
        engine = Engine(task(), method, ROWS, TRAINING, 5, held=HELD, secrets=secrets)
        *_, last = engine.run()
        told.append(find_value(last.facts, RELEASED))
    assert torch.equal(told[0], told[1])
    assert not torch.allclose(told[0], told[2])


def test_with_cosine_the_last_layer_is_fitted_to_cosines() -> None:
    """The only place outside of the network where a similarity is computed."""
    net = prototypes(PICTURE, K, width=2, per_class=M, latent=4, measure="cosine")
    of = task_of(net, LOSSES["classes"])
    engine = Engine(of, methods.build("indisco", {"warm": 2, **PLAIN}), ROWS, replace(TRAINING, rounds=2), 5)
    *_, last = engine.run()
    state = engine.settled(last)
    held = engine.method.models(of, state)[OWN]
    start = engine.sites.starts[0]
    x, y = (v[start : start + engine.sites.sizes[0]] for v in (engine.sites.x, engine.sites.y))
    mine = {k: v[:1] for k, v in held.items()}
    alike = 1 - net.forward(mine, x[None], tape=False).features[0]
    assert (alike <= 1).all()

    def objective(weight: torch.Tensor) -> float:
        fit = torch.nn.functional.cross_entropy(alike @ weight.T, y.argmax(1), weight=None)
        return float(fit + 1e-4 * (weight * ~net.own(weight)).abs().sum())

    before = {**state.own, **state.shared}[net.HEAD][0]
    assert objective(site(held, 0)[net.HEAD]) < objective(before) - 0.01

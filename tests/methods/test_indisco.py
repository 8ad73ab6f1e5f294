"""inDISCO against a short version of its equations: a loop over sites and batches with autograd and torch's own Adam;
its limits; and what a site shows only if it agrees."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.support.indisco_by_hand import (
    HELD,
    NEAR,
    OF,
    ROWS,
    SHARED_BY,
    TRAINING,
    K,
    M,
    by_hand,
    differ,
    distances,
    objective,
    own_rows,
    pushed_by_hand,
    run,
    scores,
    site,
    stepped,
    task,
    usual,
)
from vitrail import methods
from vitrail.core.exchange import Rows
from vitrail.core.facts import ALONE, EASY, MARGIN, OWN, PIECE, PROTOTYPE_DISTANCE, SHARED, TRAVEL, find_value
from vitrail.core.task import Batch
from vitrail.core.tensors import Params
from vitrail.engine.local import Engine
from vitrail.methods.blocks.prototypes import nearest_patches, sparse_last
from vitrail.nets import prototypes
from vitrail.nets.prototype_network import similarity


@pytest.mark.parametrize("share", SHARED_BY)
def test_a_whole_run(share: str) -> None:
    engine, state, last = usual(share)
    now, before, easy = by_hand(engine, SHARED_BY[share] or ("none",))
    alone = by_hand(engine, ("none",)) if share != "no" else (now, before, easy)
    held = engine.method.models(engine.task, state)
    assert set(held) == ({OWN} if share == "no" else {OWN, SHARED, ALONE})
    for i in range(3):
        if share != "no":
            assert differ(site(held[SHARED], i), now[i]) < NEAR
        for name, params in ((OWN, now[i]), (ALONE, alone[0][i])):
            if name not in held:
                continue
            pushed, where = pushed_by_hand(engine, params, i)
            assert torch.allclose(held[name]["prototypes"][i], pushed["prototypes"], atol=NEAR)
            assert engine.method.patches(state)[name][i].tolist() == where
            assert torch.allclose(held[name]["last.weight"][i], stepped(engine, pushed, i, 100), atol=1e-6)
    assert torch.allclose(find_value(last.facts, EASY), alone[2], atol=1e-7)  # type: ignore[arg-type]
    if share != "no":
        far = [(alone[1][i]["prototypes"] - now[i]["prototypes"]).norm(dim=1).view(K, M).mean(1) for i in range(3)]
        assert torch.allclose(find_value(last.facts, PROTOTYPE_DISTANCE), torch.stack(far), atol=NEAR)  # type: ignore[arg-type]


def test_weight_decay_leaves_alone_what_stands_still() -> None:
    engine, state, _ = run(share="all", how=replace(TRAINING, weight_decay=0.1))
    held, now = engine.method.models(engine.task, state), by_hand(engine, SHARED_BY["all"])[0]
    assert differ(site(held[SHARED], 0), now[0]) < NEAR
    assert differ(state.shared, usual("all")[1].shared) > 1e-3


def test_the_last_layer_comes_to_its_optimum() -> None:
    """As other steps find it, many and small."""
    engine, state, _ = usual("all")
    net, rows = engine.task.net, Rows(engine.counts, None, lambda: engine.sites.blocks(range(3)))
    whole = {**state.own, **state.shared}
    found = sparse_last(net, whole, rows, 1e-4, 20000)
    for i in range(3):
        p = site(whole, i)
        best = p | {"last.weight": torch.zeros_like(p["last.weight"])}
        leaf = best["last.weight"].requires_grad_()
        rule = torch.optim.Adam([leaf], 0.03)
        x, y, w = own_rows(engine, i)
        s = similarity(distances(p, x)[0].amin(2))
        for _ in range(4000):
            rule.zero_grad()
            fit = (w * F.cross_entropy(s @ leaf.T, y, reduction="none")).sum() / w.sum()
            (fit + 1e-4 * (leaf * (torch.arange(K)[:, None] != OF)).abs().sum()).backward()
            rule.step()
        there, here = (objective(engine, p | {"last.weight": v}, i) for v in (leaf.detach(), found[i]))
        assert here < there + 1e-3


def test_travel_counts_what_each_model_tells_right() -> None:
    engine, state, last = usual("all")
    found, alone = find_value(last.facts, TRAVEL), state.alone
    assert found is not None
    assert found.shape == (3, 3, K, 2)
    for j, name in enumerate(engine.names):
        at = HELD.names.index(name)
        mine = slice(HELD.starts[at], HELD.starts[at] + HELD.sizes[at])
        y = HELD.y[mine].argmax(1)
        for u in range(3):
            said = scores(site(alone, u), HELD.x[mine]).argmax(1)
            for c in range(K):
                rows = int((y == c).sum())
                there = [int(((said == c) & (y == c)).sum()), rows] if rows >= 2 else [0, 0]
                assert found[u, j, c].tolist() == there
    assert found.sum() > 0
    assert not last.coord.offers.any(), "the coordinator forgot them"
    assert not any(v.any() for v in last.coord.offered.values())


def test_margins_say_how_sure_each_model_is() -> None:
    """By hand: log-odds cut at 4, from 0 to 1, summed over the hold-out pictures of a class."""
    engine, state, last = usual("all")
    found = find_value(last.facts, MARGIN)
    assert found is not None
    for j, name in enumerate(engine.names):
        at = HELD.names.index(name)
        mine = slice(HELD.starts[at], HELD.starts[at] + HELD.sizes[at])
        y = HELD.y[mine].argmax(1)
        for u, c in product(range(3), range(K)):
            p = scores(site(state.alone, u), HELD.x[mine]).softmax(1)[:, c]
            odds = (p / (1 - p)).log()[y == c]
            there = [((odds.clamp(-4, 4) + 4) / 8).sum(), len(odds)] if len(odds) >= 2 else [0, 0]
            assert torch.allclose(found[u, j, c], torch.tensor(there).to(found), atol=1e-5)
    assert found[..., 1].equal(find_value(last.facts, TRAVEL)[..., 1])  # type: ignore[index]


def test_a_pushed_prototype_is_a_patch_of_its_picture() -> None:
    """Its distance there is nothing; of a class without a picture it stays as it is."""
    engine, state, _ = usual("prototypes")
    held = engine.method.models(engine.task, state)
    for name, patches in engine.method.patches(state).items():
        for i in range(3):
            x, y, _ = own_rows(engine, i)
            d, _ = distances(site(held[name], i), x)
            for p, (row, cell) in enumerate(patches[i].tolist()):
                if row < 0:
                    assert OF[p] not in y
                    assert torch.equal(held[name]["prototypes"][i, p], trained(name, state)["prototypes"][i, p])
                else:
                    assert y[row] == OF[p]
                    assert d[row, p, cell] < 1e-20


def trained(name: str, state: Any) -> Params:
    return {OWN: {**state.own, **state.shared}, ALONE: state.alone}[name]


def test_the_last_layer_loses_what_it_does_not_need() -> None:
    engine, state, _ = usual("all")
    net, whole = engine.task.net, {**state.own, **state.shared}
    rows = Rows(engine.counts, None, lambda: engine.sites.blocks(range(3)))
    strong = sparse_last(net, whole, rows, 0.05, 500)
    wrong = ~net.own(strong)
    assert (strong[:, wrong] == 0).float().mean() > 0.5
    assert (sparse_last(net, whole, rows, 0.0, 500)[:, wrong] == 0).float().mean() < 0.1


def test_of_equal_places_the_first_is_taken() -> None:
    """A picture without content has the same patch everywhere but at its edges: rounding does not choose."""
    net = prototypes((1, 32, 32), 2, width=2, per_class=2, latent=3)
    params = {k: v[None].double() for k, v in net.init(torch.Generator().manual_seed(1)).items()}
    x, y = torch.zeros(1, 6, 1, 32, 32, dtype=torch.double), torch.eye(2, dtype=torch.double)[None, [0, 1] * 3]
    rows = Rows(torch.tensor([6.0]), None, lambda: iter([Batch(x, y, torch.ones(1, 6, 1, dtype=torch.double))]))
    _, where = nearest_patches(net, params, rows)
    assert where[0, :, 0].tolist() == [0, 0, 1, 1]


def test_who_refuses_lets_no_model_go_and_tells_nothing() -> None:
    refuses = lambda s, r: torch.tensor([s == 3 and i == 1 for i in range(3)])  # noqa: E731
    engine = Engine(task(), methods.build("indisco", {"least": 1}), ROWS, TRAINING, 5, absent=refuses, held=HELD)
    *_, last = engine.run()
    found = find_value(last.facts, TRAVEL)
    assert found is not None
    assert not found[1].any()
    assert not found[:, 1].any()
    assert found[0, 2].any()
    for means in (EASY, PIECE, PROTOTYPE_DISTANCE):
        value = find_value(last.facts, means)
        assert value is not None
        assert value[0].any()
        assert not value[1].any()


def test_fewer_than_so_many_are_not_told() -> None:
    _, _, last = run(least=1000)
    for means in (TRAVEL, PIECE, EASY):
        assert not find_value(last.facts, means).any()  # type: ignore[union-attr]

"""A piece of a site's pictures that convinces its own model and no other: against plain loops, and with a mark that one
site has, that all have, that nobody has."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.indisco_by_hand import K, own_rows, scores, site, usual
from vitrail import methods
from vitrail.analysis.shortcuts.detector import judge
from vitrail.core.exchange import Rows
from vitrail.core.facts import PIECE, find_value
from vitrail.core.occlusion import filled, painted, places
from vitrail.core.task import Task
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.patch_transplant import DONORS, OTHERS, WINDOWS, rises
from vitrail.nets import prototypes

SIDE = 16


def odds(params: Any, x: Tensor, c: int) -> Tensor:
    z = scores(params, x)
    return z[:, c] - torch.logsumexp(z[:, [k for k in range(K) if k != c]], 1)


def test_what_is_told_is_what_plain_loops_find() -> None:
    engine, state, last = usual("all")
    found = find_value(last.facts, PIECE)
    assert found is not None
    compared = 0
    for i in range(3):
        x, y, _ = own_rows(engine, i)
        mine = site(state.alone, i)
        for c in range(K):
            own, others = x[y == c], torch.cat([x[y == k] for k in range(K) if k != c])
            if min(len(own), len(others)) < 2:
                assert not found[i, :, c].any()
                continue
            others = others[np.linspace(0, len(others) - 1, OTHERS).astype(int)] if len(others) > OTHERS else others
            side = max(2, x.shape[-1] // 4)
            falls = []
            corners = [
                (v, u) for v in places(x.shape[-2], side, side // 2) for u in places(x.shape[-1], side, side // 2)
            ]
            for v, u in corners:
                falls.append((odds(mine, own, c) - odds(mine, painted(own, v, u, side), c)).tolist())
            score = [np.mean(sorted(f)[-max(1, len(own) // 4) :]) for f in falls]
            best = None
            for at in np.argsort(-np.round(score, 6), kind="stable")[:WINDOWS]:
                donors = np.argsort(-np.round(falls[at], 6), kind="stable")[:DONORS]
                rise = []
                for params in (mine, *(site(state.alone, j) for j in range(3))):
                    put = [odds(params, filled(others, own[d], *corners[at], side), c).mean() for d in donors]
                    bare = odds(params, painted(others, *corners[at], side), c).mean()
                    rise.append(float(sum(put) / len(put) - bare))
                lead = rise[0] - float(np.median(rise[1:]))
                if best is None or lead > best[0] + 1e-6:
                    best = lead, rise[1:]
            assert best is not None
            assert found[i, :, c].tolist() == pytest.approx(best[1], abs=1e-7)
            compared += 1
    assert compared > 3


def federation(marked: tuple[int, ...]) -> Any:
    """Three sites with pictures of noise in two classes, told by how bright the lower half is; at those of `marked` the
    first class has a white square in a corner."""
    rng, out = np.random.default_rng(1), []
    for i in range(3):
        y = np.arange(48) % 2
        x = rng.integers(60, 120, (48, 1, SIDE, SIDE)).astype(float)
        x[:, :, SIDE // 2 :] += 15 * y[:, None, None, None]
        if i in marked:
            x[y == 0, :, 1:5, 1:5] = 255
        hot = torch.nn.functional.one_hot(torch.from_numpy(y)).float()
        out.append((f"site {i}", torch.from_numpy(x.clip(0, 255).astype(np.uint8)), hot, torch.ones(48, 1)))
    return gather_sites(out)


def leads(marked: tuple[int, ...]) -> Any:
    net = dataclasses.replace(prototypes((1, SIDE, SIDE), 2, width=4, per_class=2), normalise="centred")
    rows = federation(marked)
    method = methods.build("indisco", {"warm": 1, "share": "prototypes"})
    task = Task(net, net.init(torch.Generator().manual_seed(1)))
    engine = Engine(task, method, rows, Training(12, 4, 12, 0.003, decays=0, mean=True), 1, held=rows)
    *_, last = engine.run()
    order = [engine.names.index(f"site {i}") for i in range(3)]
    value = find_value(last.facts, PIECE)
    assert value is not None
    standing = judge(piece=value[order][:, order].double().numpy())
    assert standing is not None
    return standing.piece


def test_a_mark_convinces_its_own_model_only_where_one_site_has_it() -> None:
    found = leads((0,))
    assert found.argmax() // found.shape[1] == 0  # which of its two classes leads depends on the machine's arithmetic
    assert found.max() > 2 * found[1:].max()
    for marked in ((), (0, 1, 2)):
        assert leads(marked).max() < found.max() / 1.25, marked


def test_maps_of_a_frozen_backbone_tell_nothing() -> None:
    engine, state, _ = usual("all")
    frozen = dataclasses.replace(engine.task.net, shape=(4, 3, 3))  # rows are no pictures then
    blocks = Rows(engine.counts, None, lambda: engine.sites.blocks(range(3)))
    models = {k: v.expand(3, *v.shape) for k, v in state.alone.items()}
    asked = dataclasses.replace(engine.task, net=frozen)
    assert not rises(asked, state.alone, models, torch.ones(3, 3), blocks, 1).any()
    assert rises(engine.task, state.alone, models, torch.ones(3, 3), blocks, 1).any()


def test_windows_paint_and_fill_what_they_should() -> None:
    assert places(10, 4, 2) == [0, 2, 4, 6]
    assert places(4, 4, 2) == [0]
    x = torch.zeros(1, 1, 8, 8)
    x[:, :, 2:6, 2:6] = 1
    assert not painted(x, 2, 2, 4).any(), "in the colour around it"
    assert torch.equal(painted(x * 0 + 3, 0, 0, 2), x * 0 + 3), "no colour changes where all is one"
    source = torch.full((1, 8, 8), 5.0)
    put = filled(x, source, 2, 2, 4)
    assert torch.equal(put[0, 0, 2:6, 2:6], torch.full((4, 4), 5.0))
    assert put.sum() == 16 * 5
    assert torch.equal(x[0, 0, 2:6, 2:6], torch.ones(4, 4)), "in a copy"
    assert filled(x, source, 0, 0, 8)[0, 0, 0, 0] == 2.5, "and fades in where there is room"

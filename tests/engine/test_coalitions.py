"""Many federations of the same sites in one stack: the same numbers as one after the other."""

from __future__ import annotations

import itertools

import pytest
import torch

import vitrail as vt
from tests.support.small import make_sites, make_task
from vitrail.core.tensors import flatten
from vitrail.engine.coalitions import Coalitions
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.testing.federation import in_this_order, worst

TRAINING = Training(rounds=4, batch=8, lr=0.02, momentum=0.5)
FEDAVG = vt.methods.FedAvg
METHODS = [FEDAVG(weights="rows"), FEDAVG(invited=2), vt.methods.FedProx(), vt.methods.Scaffold(), vt.methods.FedPer()]


def some_away(stage: int, round_: int) -> torch.Tensor:
    return torch.tensor([False, round_ == 2, False, round_ == 1, round_ != 3])


@pytest.mark.parametrize("absent", [None, some_away])
@pytest.mark.parametrize("method", METHODS)
def test_as_one_after_the_other(method, absent) -> None:
    task, sites = make_task(), make_sites()
    members = torch.tensor([m for m in itertools.product((False, True), repeat=5) if any(m)])
    stack = Coalitions(task, method, sites, TRAINING, 5, members, absent)
    made = stack.train()
    assert len(made) == 31
    for mask, names, coord in zip(members, stack.names, made, strict=True):
        at = mask.nonzero()[:, 0].tolist()
        assert names == tuple(sites.names[i] for i in at)
        spans = [slice(sites.starts[i], sites.starts[i] + sites.sizes[i]) for i in at]
        rows = [(n, sites.x[s], sites.y[s], sites.w[s]) for n, s in zip(names, spans, strict=True)]
        away = None if absent is None else lambda s, r, at=at: absent(s, r)[at]
        *_, last = Engine(task, method, in_this_order(rows), TRAINING, 5, absent=away).run()
        gap, where = worst(dict(flatten(coord)), dict(flatten(last.coord)))
        assert gap < 1e-12, (names, where)


def test_rows_are_held_once() -> None:
    sites = make_sites()
    again = sites.again([0, 0, 2])
    assert again.x is sites.x
    assert again.names == (sites.names[0], sites.names[0], sites.names[2])
    assert again.starts == [0, 0, sites.starts[2]]

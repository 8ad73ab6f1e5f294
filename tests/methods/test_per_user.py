"""Methods in which every site is the user once, against their equations: whom it trusts, weighs and stops for."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from tests.support.small import gap, make_rows, make_task, train
from vitrail import methods
from vitrail.core.facts import TRUST, find_value
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import gather_sites
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.basics import EarlyStopping
from vitrail.methods.influence import weigh

LR, ROUNDS = 0.01, 5
SITES = gather_sites(make_rows())
ROWS = {name: (x, y, w) for name, x, y, w in make_rows()}
AWAY: list[set[str]] = [{"site 4"}, {"site 1"}, set(), {"site 0", "site 2"}, set()]  # in each round


def update(task: Task, params: Params, site: str) -> Tensor:
    """A site's step from there, on all its rows, as one vector."""
    leaves = {k: v.detach().clone()[None].requires_grad_() for k, v in params.items()}
    x, y, w = ROWS[site]
    task.value(leaves, Batch(x[None], y[None], w[None])).sum().backward()
    return -LR * torch.cat([v.grad.flatten() for v in leaves.values()])


def moved(params: Params, by: Tensor) -> Params:
    parts = by.split([v.numel() for v in params.values()])
    return {k: v + part.view(v.shape) for (k, v), part in zip(params.items(), parts, strict=True)}


@pytest.mark.parametrize(("size", "p_s"), [("penalty", 0.2), ("weight", 0.2)])
def test_weight_erosion_with_sites_that_come_and_go(size: str, p_s: float) -> None:
    task, p_d = make_task(hidden=(5,), dropout=0.0), 0.12
    names = list(SITES.names)
    models = dict.fromkeys(names, task.start)
    alpha, met = ({(u, i): float(value) for u in names for i in names} for value in (1, 0))
    for r in range(ROUNDS):
        here = [n for n in names if n not in AWAY[r]]
        before = dict(met)
        for u in here:
            g = {i: update(task, models[u], i) for i in here if alpha[u, i] > 0}
            known = [alpha[u, i] for i in names if before[u, i] > 0]
            for i in g:
                if before[u, i] == 0 and before[u, u] > 0:  # it comes after the user's first round
                    alpha[u, i] = statistics.median(known)
            for i in g:
                penalty = 1 + p_s * before[u, i] if size == "penalty" else 1.0  # every round draws all rows
                alpha[u, i] = max(0.0, alpha[u, i] - penalty * p_d * float((g[i] - g[u]).norm() / g[u].norm()))
                met[u, i] += 1
            weight = {i: alpha[u, i] * (len(ROWS[i][0]) if size == "weight" else 1) for i in g}
            models[u] = moved(models[u], sum(weight[i] * g[i] for i in g) / sum(weight.values()))  # type: ignore[arg-type]
    method = methods.build("weight_erosion", {"p_d": p_d, "p_s": p_s, "size": size, "beside": False})
    training = Training(rounds=ROUNDS, batch=64, lr=LR, decays=0)
    absent = lambda s, r: torch.tensor([n in AWAY[r] for n in names])  # noqa: E731
    e, last = train(method, task, SITES, training, absent=absent)
    assert tuple(names) == e.names
    assert {0.0} < set(alpha.values()) != {0.0, 1.0}, "some trust is lost, some is left"
    assert gap({n: {k: v[i] for k, v in last.coord.models.items()} for i, n in enumerate(names)}, models) < 1e-10
    trust = find_value(last.facts, TRUST)
    assert trust is not None
    want = torch.tensor([[alpha[u, i] for i in names] for u in names], dtype=torch.double)
    torch.testing.assert_close(trust, want, rtol=0, atol=1e-9)


def test_influence_weighs_by_what_is_gained() -> None:
    """Shares of the reduction; none of a model that was never sent, is no number, or does not help."""
    nan, own = float("nan"), torch.eye(4)
    before = torch.tensor([1.0, 1.0, 1.0, 1.0])
    after = torch.tensor(
        [[0.9, 0.7, 1.2, 0.2], [0.5, nan, 0.5, 0.9], [1.0, 1.0, 1.0, 0.5], [-torch.inf, 0.5, 2.0, 3.0]]
    )
    known = torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(4, 4)
    want = torch.tensor([[0.25, 0.75, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 1.0, 0], [0, 1.0, 0, 0]])
    torch.testing.assert_close(weigh(before, after, known, own), want)


def test_early_stopping() -> None:
    """A user stops when its loss has not fallen for so many of its rounds, and goes back to its best model."""
    losses = [  # of two users; the second is away in the third round
        ([5.0, 5.0], [True, True]),
        ([4.0, 6.0], [True, True]),
        ([4.5, 1.0], [True, False]),
        ([4.0, 4.0], [True, True]),
        ([3.0, 3.0], [True, True]),
        ([9.0, 2.0], [True, True]),
    ]
    models = {"w": torch.tensor([[0.0], [0.0], [0.0]])}  # the third is nobody's
    watch = EarlyStopping.of(models, 2, True)
    stopped, ends = [], []
    for r, (loss, here) in enumerate(losses):
        models = {"w": torch.tensor([[r + 1.0], [r + 1.0], [r + 1.0]])}
        watch, models = watch.observe(models, torch.tensor(loss), torch.tensor(here), patience=2)
        stopped.append(watch.stopped.tolist())
        ends.append(models["w"][:, 0].tolist())
    assert stopped == [[False, False]] * 3 + [[True, False]] * 3
    assert ends[3] == [2.0, 4.0, 4.0], "the first goes back to its model of the second round"
    assert watch.loss.tolist() == [4.0, 2.0]
    assert ends[4] == [5.0, 5.0, 5.0]

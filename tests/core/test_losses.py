"""Evidence: its closed-form slope is autograd's, also where scores are large; what it says of doubt; its pace."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Dirichlet, kl_divergence

from tests.support.small import make_rows, make_task
from vitrail.core.losses import CrossEntropy, Evidence, ScheduledLoss, SquaredError, UncertaintyLoss, log_shares
from vitrail.core.task import Batch, Out
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import build


def made(spread: float, classes: int = 5) -> tuple[torch.Tensor, Batch]:
    draw = torch.Generator().manual_seed(3)
    z = torch.randn(2, 7, classes, generator=draw, dtype=torch.double) * spread
    y = torch.nn.functional.one_hot(torch.randint(classes, (2, 7), generator=draw), classes).double()
    w = torch.rand(2, 7, 1, generator=draw, dtype=torch.double)
    w[:, -2:] = 0
    return z, Batch(z, y, w)


@pytest.mark.parametrize("prior", [0.0, 2.5])
@pytest.mark.parametrize("kl", [0.0, 0.7])
@pytest.mark.parametrize("spread", [1.0, 8.0, 40.0])
def test_the_slope_is_autograds(spread: float, kl: float, prior: float) -> None:
    z, batch = made(spread)
    z.requires_grad_()
    loss = Evidence(kl, anneal=0)
    loss.rows(Out(z, z), batch, prior).sum().backward()
    by_hand = loss.grad(Out(z.detach(), z), batch, prior)
    assert z.grad is not None
    assert torch.allclose(z.grad, by_hand, rtol=1e-8, atol=1e-10)
    single = loss.grad(Out(z.detach().float(), z), batch._replace(y=batch.y.float(), w=batch.w.float()), prior)
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), by_hand, rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_papers() -> None:
    z, batch = made(2.0)
    loss, bound = Evidence(0.3, anneal=0, bound=1e6), torch.exp(z) + 1
    wrong = batch.y + (1 - batch.y) * bound
    fit = (batch.y * (torch.digamma(bound.sum(-1, keepdim=True)) - torch.digamma(bound))).sum(-1)
    nothing = kl_divergence(Dirichlet(wrong), Dirichlet(torch.ones_like(wrong)))
    assert torch.allclose(loss.rows(Out(z, z), batch), (fit + 0.3 * nothing) * batch.w[..., 0])


def test_doubt_is_all_without_evidence_and_shrinks_with_it() -> None:
    loss = Evidence()
    unsure, sure = torch.full((1, 4), -50.0), torch.tensor([[9.0, -9.0, -9.0, -9.0]])
    assert loss.uncertainty(unsure).item() > 0.999
    assert loss.uncertainty(sure).item() < 0.01
    assert torch.allclose(loss.predictions(unsure), torch.full((1, 4), 0.25), atol=1e-3)
    assert CrossEntropy().uncertainty(torch.zeros(1, 4)).item() == pytest.approx(1)
    assert CrossEntropy().uncertainty(sure).item() < 0.01
    assert not isinstance(SquaredError(), UncertaintyLoss)
    huge = torch.tensor([[1e30, -1e30, 0.0]])  # exp of neither is a number
    assert loss.uncertainty(huge).isfinite().all()
    assert loss.predictions(huge).sum().item() == pytest.approx(1)


def test_the_weight_of_wrong_evidence_grows_by_epochs_and_over_stages() -> None:
    loss = Evidence(0.2, anneal=10)
    assert [loss.at(n).weight for n in (0, 5, 10, 500)] == [0.0, 0.1, 0.2, 0.2]
    assert loss.at(11) == loss.at(99), "a captured round fits all that come after it"
    assert not isinstance(CrossEntropy(), ScheduledLoss)
    task = make_task("classes", (4,))
    task = type(task)(task.net, task.start, loss)
    method = build("fine_tune", {"epochs": 2})
    engine = Engine(task, method, gather_sites(make_rows("classes")), Training(rounds=3, epochs=2), 1)
    found = [engine.task_at(s, r).loss.weight for s, stage in enumerate(engine.stages) for r in range(stage.rounds)]
    assert found == pytest.approx([0.0, 0.04, 0.08, 0.12, 0.16])


def test_training_with_evidence_is_training_by_its_slope() -> None:
    """Two rounds of the engine against steps by autograd."""
    rows = [r for r in make_rows("classes") if len(r[1]) >= 8][:1]
    task = make_task("classes", (), 0.0)
    task = type(task)(task.net, task.start, Evidence(0.5, anneal=2))
    steps = Training(rounds=2, batch=len(rows[0][1]), lr=0.01, momentum=0.0, decays=0)
    *_, last = Engine(task, build("local"), gather_sites(rows), steps, 1).run()
    leaves = {k: v[None].clone().requires_grad_() for k, v in task.start.items()}
    _, x, y, w = rows[0]
    for epoch in range(2):
        z = x[None] @ leaves["head.weight"] + leaves["head.bias"][:, None]
        task.loss.at(epoch).rows(Out(z, z), Batch(x[None], y[None], w[None])).sum().backward()
        with torch.no_grad():
            for v in leaves.values():
                v -= 0.01 * v.grad
                v.grad = None
    off = {k: float((last.state.params[k] - v.detach()).abs().max()) for k, v in leaves.items()}
    assert max(off.values()) < 1e-9, off
    assert not math.isclose(float(leaves["head.bias"].abs().sum()), 0)


def test_shares_are_those_of_the_loss() -> None:
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    assert torch.allclose(log_shares(CrossEntropy(), z).exp(), z.softmax(-1))
    assert torch.allclose(log_shares(Evidence(), z).exp(), Evidence().predictions(z))
    assert log_shares(CrossEntropy(), 1e4 * z).isfinite().all(), "though a share is nothing"

"""The gradients written by hand equal autograd's, for every shape of network and loss."""

from __future__ import annotations

import itertools

import pytest
import torch

from small import make_rows, make_task
from vitrail.core.random import keep_mask, odd32
from vitrail.core.task import Batch
from vitrail.core.tensors import copied, to_all


def make_batch(kind: str, task) -> Batch:
    rows = [r for r in make_rows(kind) if len(r[1]) >= 8]
    x, y, w = (torch.stack([r[i][:8] for r in rows]) for i in (1, 2, 3))
    w[:, -2:] = 0  # padding
    n = len(rows)
    keep: tuple[torch.Tensor, ...] = ()
    if task.dropout:
        widths = list(task.net.widths)
        keep = keep_mask(odd32(torch.arange(n), 8), odd32(torch.tensor([9]), sum(widths))[0], 0.3).split(widths, 2)
    return Batch(x, y, w, keep)


@pytest.mark.parametrize("kind", ["classes", "number"])
@pytest.mark.parametrize("hidden", [(), (9,), (9, 7)])
@pytest.mark.parametrize(
    ("dropout", "ends_in", "ends_out"),
    list(itertools.product([0.0, 0.3], [False, True], ["no", "each", "scalar"])),
)
def test_gradient_is_autograds(kind, hidden, dropout, ends_in, ends_out) -> None:
    task = make_task(kind, hidden, dropout, affine_in=ends_in, affine_out=ends_out)
    batch = make_batch(kind, task)
    params = copied(to_all(task.start, len(batch.x)))
    by_hand = task.grad(params, batch._replace(x=batch.x.clone()))

    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    h, used, scale = batch.x, 0, 1 / (1 - dropout)

    def thin(h):
        nonlocal used
        if not batch.keep:
            return h
        used += 1
        return h * (batch.keep[used - 1] == -1) * scale

    if ends_in:
        h = (h + leaves["input.shift"][:, None]) * leaves["input.scale"][:, None]
    for name in task.net.layers:
        h = thin(h) @ leaves[f"{name}.weight"] + leaves[f"{name}.bias"][:, None]
        if name != "head":
            h = h.tanh()
    if ends_out != "no":
        h = (h + leaves["output.shift"][:, None]) * leaves["output.scale"][:, None]
    if kind == "number":
        rows = (h - batch.y) ** 2
    else:
        rows = torch.nn.functional.cross_entropy(h.transpose(1, 2), batch.y.argmax(2), reduction="none")[..., None]
    (rows * batch.w).sum().backward()
    for k, leaf in leaves.items():
        assert torch.allclose(by_hand[k], leaf.grad, atol=1e-12), k
    if not dropout:
        assert torch.allclose(task.loss(params, batch), (rows * batch.w).sum((1, 2)))


def test_velocity_is_torchs_momentum() -> None:
    task = make_task(dropout=0.0)
    batch = make_batch("classes", task)
    params = copied(to_all(task.start, len(batch.x)))
    theirs = {k: v.clone().requires_grad_() for k, v in params.items()}
    optimiser = torch.optim.SGD(theirs.values(), lr=0.05, momentum=0.7)
    velocity = {k: torch.zeros_like(v) for k, v in params.items()}
    for _ in range(3):
        task.descend(params, velocity, batch, 0.05, 0.7)
        optimiser.zero_grad()
        task.loss(theirs, batch).sum().backward()
        optimiser.step()
    assert all(torch.allclose(params[k], theirs[k], atol=1e-12) for k in params)

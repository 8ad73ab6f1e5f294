"""The gradients written by hand equal autograd's, for every shape of network and loss."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.support.small import make_rows, make_task
from vitrail.core import optimizers
from vitrail.core.declarations import Adapters
from vitrail.core.kernels import adam_step
from vitrail.core.optimizers import SGD, Adam
from vitrail.core.random import keep_mask, odd32
from vitrail.core.task import Batch
from vitrail.core.tensors import Params, clone, proximal_term, to_all
from vitrail.engine.rounds import Training
from vitrail.methods import build
from vitrail.nets import MLP, Module
from vitrail.nets.mlp import PACE


def make_batch(kind: str, task) -> Batch:
    rows = [r for r in make_rows(kind) if len(r[1]) >= 8]
    x, y, w = (torch.stack([r[i][:8] for r in rows]) for i in (1, 2, 3))
    w[:, -2:] = 0  # padding
    n = len(rows)
    keep: tuple[torch.Tensor, ...] = ()
    if task.net.dropout:
        widths = list(task.net.units)
        keep = keep_mask(odd32(torch.arange(n), 8), odd32(torch.tensor([9]), sum(widths))[0], 0.3).split(widths, 2)
    return Batch(x, y, w, keep)


@pytest.mark.parametrize("kind", ["classes", "number", "time"])
@pytest.mark.parametrize("hidden", [(), (9,), (9, 7)])
@pytest.mark.parametrize(
    ("dropout", "ends_in", "ends_out"),
    list(itertools.product([0.0, 0.3], [False, True], ["no", "each", "scalar", "shift", "factor"])),
)
def test_gradient_is_autograds(kind, hidden, dropout, ends_in, ends_out) -> None:
    shared = kind == "time"
    task = make_task(kind, hidden, dropout, affine_in=ends_in, affine_out=ends_out, proportional=shared)
    assert task.start["head.weight"].shape[1] == (1 if kind in ("number", "time") else 3)
    batch = make_batch(kind, task)
    params = clone(to_all(task.start, len(batch.x)))
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
        unit = PACE if shared and name == "head" else 1.0
        h = thin(h) @ leaves[f"{name}.weight"] + unit * leaves[f"{name}.bias"][:, None]
        if name != "head":
            h = h.tanh()
    if ends_out in ("each", "scalar", "shift"):
        h = h + leaves["output.shift"][:, None]
    if ends_out in ("each", "scalar", "factor"):
        h = h * leaves["output.scale"][:, None]
    if kind == "number":
        rows = (h - batch.y) ** 2
    elif kind == "time":
        seen = batch.y >= 0
        rows = torch.nn.functional.binary_cross_entropy_with_logits(h, batch.y * seen, reduction="none") * seen
        rows = rows.sum(-1, keepdim=True)
    else:
        rows = torch.nn.functional.cross_entropy(h.transpose(1, 2), batch.y.argmax(2), reduction="none")[..., None]
    (rows * batch.w).sum().backward()
    for k, leaf in leaves.items():
        assert torch.allclose(by_hand[k], leaf.grad, atol=1e-12), k
    if not dropout:
        assert torch.allclose(task.value(params, batch), (rows * batch.w).sum((1, 2)))


def theirs_of(kind: str, params: Params, lr: float, head: float, decay: float) -> torch.optim.Optimizer:
    """Torch's own, with another rate for the head."""
    groups = [
        {"params": [v for k, v in params.items() if k.startswith("head") == last], "lr": lr * (head if last else 1)}
        for last in (False, True)
    ]
    if kind == "adam":
        return torch.optim.Adam(groups, weight_decay=decay)
    return torch.optim.SGD(groups, momentum=0.7, weight_decay=decay)


@pytest.mark.parametrize("head", [1.0, 3.0])
@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_rules_are_torchs(kind: str, mu: float, decay: float, head: float) -> None:
    """With a method's own term in the gradient, weight decay and a rate for each group."""
    task = make_task(dropout=0.0)
    batch = make_batch("classes", task)
    params = clone(to_all(task.start, len(batch.x)))
    start = clone(params)
    theirs = {k: v.clone().requires_grad_() for k, v in params.items()}
    optimiser = theirs_of(kind, theirs, 0.05, head, decay)
    training = Training(lr=0.05, momentum=0.7, optimiser=kind, weight_decay=decay, rates=(("head", head),))
    if head == 1.0:
        training = replace(training, rates=())
    rule = training.rule(task.net, build("fedavg"))
    memory = rule.state(params)
    for _ in range(3):
        rule.step(task, params, memory, batch, proximal_term(params, start, mu))
        optimiser.zero_grad()
        pull = sum(((v - start[k]) ** 2).sum() for k, v in theirs.items())
        (task.value(theirs, batch).sum() + mu / 2 * pull).backward()
        optimiser.step()
    assert all(torch.allclose(params[k], theirs[k], atol=1e-12) for k in params)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("case", ["together", "away", "strided"])
def test_adam_is_torchs_at_every_site(case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many steps; also where sites were away, so that they are not at the same step, and where a gradient does not
    lie in one piece. In one pass where that can be."""
    once: set[bool] = set()
    monkeypatch.setattr(optimizers, "adam_step", lambda *given: _told(once, adam_step(*given)))
    g, sites = torch.Generator().manual_seed(0), 5
    shapes = {"body.weight": (6, 37), "body.bias": (37,), "head.weight": (37, 3)}
    params = {k: torch.randn(sites, *shape, generator=g, dtype=dtype) for k, shape in shapes.items()}
    rule = Adam(0.01, decay=0.1, factors=(("head.weight", 3.0),))
    memory = rule.state(params)
    apart = [{k: v[i].clone().requires_grad_() for k, v in params.items()} for i in range(sites)]
    theirs = [theirs_of("adam", site, 0.01, 3.0, 0.1) for site in apart]
    for step in range(60):
        slope = {k: torch.randn(v.shape, generator=g, dtype=dtype) for k, v in params.items()}
        if case == "strided":
            slope["body.weight"] = slope["body.weight"].mT.contiguous().mT
        here = [i for i in range(sites) if case != "away" or (i * 7 + step * 3) % 4]
        some, held = ({k: v[here] for k, v in tree.items()} for tree in (params, memory))
        grads = {k: v if len(here) == sites else v[here] for k, v in slope.items()}
        for i in here:
            for k, v in apart[i].items():
                v.grad = slope[k][i].clone()
            theirs[i].step()
        rule.apply(some, held, grads)
        for tree, new in ((params, some), (memory, held)):
            for k, v in new.items():
                tree[k][here] = v
    near = 1e-5 if dtype == torch.float else 1e-12
    assert all(torch.allclose(v[i], apart[i][k], atol=near, rtol=near) for k, v in params.items() for i in range(sites))
    assert once == ({True} if case == "together" else {True, False})


def _told(to: set[bool], said: bool) -> bool:
    to.add(said)
    return said


def test_memory_held_is_gone_on_with() -> None:
    """A round that begins with what was kept is the same as not having stopped."""
    task = make_task(dropout=0.0)
    batch = make_batch("classes", task)
    for rule in (SGD(0.05, 0.7), Adam(0.01)):
        whole, parts = (clone(to_all(task.start, len(batch.x))) for _ in range(2))
        memory, held = rule.state(whole), rule.state(parts)
        for _ in range(4):
            rule.step(task, whole, memory, batch)
        for _ in range(2):
            held = rule.state(parts, held)
            for _ in range(2):
                rule.step(task, parts, held, batch)
        assert all(torch.equal(whole[k], parts[k]) for k in whole)
        fresh = rule.state(parts)
        assert all(not bool(v.any()) for v in fresh.values())


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    "ends",
    [Adapters(), *(Adapters(True, output) for output in ("each", "scalar", "shift", "factor"))],
    ids=lambda ends: ends.output,
)
@pytest.mark.parametrize("net", ["mlp", "module"])
def test_features_have_a_slope_of_their_own(net: str, ends: Adapters) -> None:
    """What a loss on the features adds, which is how model-contrastive methods learn."""
    made = MLP(6, 3, (9, 7)) if net == "mlp" else Module(small_cnn, (1, 5, 5))
    framed = made.framed(ends)
    start = {k: v.double() + 0.1 for k, v in framed.init(torch.Generator().manual_seed(0)).items()}
    params = clone(to_all(start, 4))
    g = torch.Generator().manual_seed(1)
    x = torch.randn(4, 8, *framed.shape, generator=g, dtype=torch.double)
    out = framed.forward(params, x)
    slopes = torch.randn(out.z.shape, generator=g).double(), torch.randn(out.features.shape, generator=g).double()
    into = {k: torch.zeros_like(v) for k, v in params.items()}
    framed.backward(params, out.tape, slopes[0], into, 0.0, 1.0, slopes[1])
    for k in params:  # a difference quotient along one direction of each parameter
        way = torch.randn(params[k].shape, generator=g).double()
        ends_of = []
        for by in (1e-6, -1e-6):
            moved = framed.forward({**params, k: params[k] + by * way}, x, tape=False)
            ends_of.append(float((moved.z * slopes[0]).sum() + (moved.features * slopes[1]).sum()))
        assert (ends_of[0] - ends_of[1]) / 2e-6 == pytest.approx(float((into[k] * way).sum()), rel=1e-5, abs=1e-7), k

"""Each method against the equations on top of its file, as plain loops over sites with autograd. A round is one or two
steps on all rows of a site, so that nothing is left to chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.newcomer import Newcomer

LR, ROUNDS, EPOCHS = 0.03, 3, 2
TRAINING = Training(rounds=ROUNDS, epochs=EPOCHS, batch=64, lr=LR, momentum=0.0, decays=0)
NEAR = 1e-12
Term = Callable[[Params], Tensor]  # what a method adds to the loss
ROWS = {name: (x, y, w) for name, x, y, w in make_rows()}
SITES = gather_sites(make_rows())


def grad(task: Task, params: Params, site: str, term: Term | None = None) -> Params:
    leaves = {k: v.detach().clone()[None].requires_grad_() for k, v in params.items()}
    x, y, w = ROWS[site]
    loss = task.value(leaves, Batch(x[None], y[None], w[None])).sum()
    if term is not None:
        loss = loss + term({k: v[0] for k, v in leaves.items()})
    loss.backward()
    return {k: v.grad[0] for k, v in leaves.items()}


def trained(task: Task, params: Params, site: str, term: Term | None = None, steps: int = EPOCHS) -> Params:
    for _ in range(steps):
        slope = grad(task, params, site, term)
        params = {k: v - LR * slope[k] for k, v in params.items()}
    return params


def distance(one: Params, other: Params) -> Tensor:
    return sum(((one[k] - v) ** 2).sum() for k, v in other.items())  # type: ignore[return-value]


def mean(sites: dict[str, Params], weight: Callable[[str], float] = lambda site: 1.0) -> Params:
    total = sum(weight(s) for s in sites)
    return {k: sum(weight(s) * p[k] for s, p in sites.items()) / total for k in next(iter(sites.values()))}  # type: ignore[misc]


def run(name: str, task: Task, training: Training = TRAINING, absent: Any = None, **given: Any) -> tuple[Any, Any]:
    return train(methods.build(name, given), task, SITES, training, absent=absent)


def tasked(**ends: Any) -> Task:
    return make_task(hidden=(5,), dropout=0.0, **ends)


@pytest.mark.parametrize("weights", ["uniform", "rows"])
@pytest.mark.parametrize("mu", [None, 3.0])
def test_fedavg_and_fedprox(weights: str, mu: float | None) -> None:
    task = tasked()
    w = task.start
    for _ in range(ROUNDS):
        pull = (lambda p, w=w: mu / 2 * distance(p, w)) if mu else None
        found = {s: trained(task, w, s, pull) for s in ROWS}
        w = mean(found, lambda s: len(ROWS[s][0]) if weights == "rows" else 1.0)
    _, last = run("fedprox" if mu else "fedavg", task, weights=weights, **({"mu": mu} if mu else {}))
    assert gap({"": last.coord.params}, {"": w}) < NEAR


def test_ditto() -> None:
    """lam goes with the loss: where that is a sum over rows, it counts for each of them."""
    task, lam = tasked(), 0.1
    w, own = task.start, dict.fromkeys(ROWS, task.start)

    def pull(w: Params, site: str) -> Term:
        rows = float(ROWS[site][2].sum())
        return lambda p: rows * lam / 2 * distance(p, w)

    for _ in range(ROUNDS):
        own = {s: trained(task, own[s], s, pull(w, s)) for s in ROWS}
        w = mean({s: trained(task, w, s) for s in ROWS})
    e, last = run("ditto", task, lam=lam)
    assert gap({"": last.coord.params}, {"": w}) < NEAR
    assert gap(models(e, last), {s: {f"params/{k}": v for k, v in p.items()} for s, p in own.items()}) < NEAR


@pytest.mark.parametrize("server_lr", [1.0, 0.4])
def test_scaffold_with_sites_that_come_and_go(server_lr: float) -> None:
    """c is divided by all sites, x by those that answered."""
    task, names = tasked(), SITES.names
    away = [{names[(r + i) % 5] for i in range(r)} for r in range(ROUNDS)]  # nobody, one, two
    zero = {k: torch.zeros_like(v) for k, v in task.start.items()}
    x, c, own = task.start, zero, dict.fromkeys(ROWS, zero)
    for r in range(ROUNDS):
        here = [s for s in ROWS if s not in away[r]]
        moves, changes = {}, {}
        for s in here:
            y = x
            for _ in range(EPOCHS):
                slope = grad(task, y, s)
                y = {k: v - LR * (slope[k] - own[s][k] + c[k]) for k, v in y.items()}
            after = {k: own[s][k] - c[k] + (x[k] - y[k]) / (EPOCHS * LR) for k in y}
            moves[s] = {k: y[k] - x[k] for k in y}
            changes[s] = {k: after[k] - own[s][k] for k in y}
            own = {**own, s: after}
        x = {k: v + server_lr / len(here) * sum(m[k] for m in moves.values()) for k, v in x.items()}
        c = {k: v + sum(m[k] for m in changes.values()) / len(ROWS) for k, v in c.items()}
    absent = lambda s, r: torch.tensor([n in away[r] for n in names])  # noqa: E731
    e, last = run("scaffold", task, absent=absent, server_lr=server_lr)
    assert gap({"": last.coord.params}, {"": x}) < NEAR
    assert gap({"": last.coord.control}, {"": c}) < NEAR
    assert gap({n: {k: v[i] for k, v in last.state.control.items()} for i, n in enumerate(e.names)}, own) < 1e-10


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl(adaptive: bool) -> None:
    task = tasked()
    w, own, a = task.start, dict.fromkeys(ROWS, task.start), dict.fromkeys(ROWS, torch.tensor(0.3, dtype=torch.double))
    for _ in range(ROUNDS):
        found = {}
        for s in ROWS:
            mine, theirs = own[s], w
            for _ in range(EPOCHS):
                mixed = {k: a[s] * v + (1 - a[s]) * theirs[k] for k, v in mine.items()}
                slope, shared = grad(task, mixed, s), grad(task, theirs, s)
                turn = sum(((mine[k] - theirs[k]) * slope[k]).sum() for k in mine)
                mine = {k: v - LR * a[s] * slope[k] for k, v in mine.items()}
                theirs = {k: v - LR * shared[k] for k, v in theirs.items()}
                a = {**a, s: (a[s] - LR * turn).clamp(0, 1) if adaptive else a[s]}
            own, found = {**own, s: mine}, {**found, s: theirs}
        w = mean(found)
    e, last = run("apfl", task, alpha=0.3, adaptive=adaptive)
    settled = models(e, last)
    for s in ROWS:
        want = {"alpha": a[s], **{f"own/{k}": v for k, v in own[s].items()}, **{f"params/{k}": v for k, v in w.items()}}
        assert gap({s: settled[s]}, {s: want}) < 1e-10


def test_apfl_mixes_between_none_and_all() -> None:
    """At a pace at which alpha would leave 0 to 1 at once, in either direction."""
    found = []
    for alpha in (0.02, 0.98):
        _, last = run("apfl", tasked(), replace(TRAINING, lr=0.3, rounds=10), alpha=alpha)
        found += last.state.alpha.tolist()
    assert all(0 <= a <= 1 for a in found)
    assert {0.0, 1.0} & set(found), "somebody stands at an end"


@pytest.mark.parametrize("output", ["no", "each", "scalar", "shift", "factor"])
@pytest.mark.parametrize("identity", [0.0, 2.0])
def test_ifedavg(output: str, identity: float) -> None:
    """The pull is lambda/2 |f - id|^2 of the private layers alone, which never become anybody else's."""
    task = tasked(affine_in=True, affine_out=output)
    ends = {k: torch.full_like(v, float(k.endswith("scale"))) for k, v in task.start.items() if k[:2] in ("in", "ou")}
    w = {k: v for k, v in task.start.items() if k not in ends}
    own = {s: {k: task.start[k] for k in ends} for s in ROWS}
    for _ in range(ROUNDS):
        found = {s: trained(task, {**w, **own[s]}, s, lambda p: identity / 2 * distance(p, ends)) for s in ROWS}
        own = {s: {k: p[k] for k in ends} for s, p in found.items()}
        w = mean({s: {k: p[k] for k in w} for s, p in found.items()})
    e, last = run("ifedavg", task, output=output, identity=identity)
    assert gap(models(e, last), {s: {f"params/{k}": v for k, v in (w | own[s]).items()} for s in ROWS}) < NEAR


@pytest.mark.parametrize(("half", "other"), [("shift", "output.scale"), ("factor", "output.shift")])
def test_half_an_output_layer_is_the_whole_one_whose_other_half_has_no_gradient(half: str, other: str) -> None:
    """A program of its own: the whole f_out by autograd, with one half's gradient set to zero by hand."""
    task = tasked(affine_in=True, affine_out=half)
    start = task.start | {other: torch.full((3,), float(half == "shift"), dtype=torch.double)}
    shared = {k: v for k, v in start.items() if k.startswith(("body", "head"))}
    own = {s: {k: v for k, v in start.items() if k not in shared} for s in ROWS}
    for _ in range(ROUNDS):
        trained_at = {}
        for s, (x, y, w) in ROWS.items():
            p = {k: v.clone().requires_grad_() for k, v in (shared | own[s]).items()}
            for _ in range(EPOCHS):
                h = (x + p["input.shift"]) * p["input.scale"]
                h = torch.tanh(h @ p["body.0.weight"] + p["body.0.bias"]) @ p["head.weight"] + p["head.bias"]
                z = (h + p["output.shift"]) * p["output.scale"]
                slopes = torch.autograd.grad(-(w * y * z.log_softmax(1)).sum(), list(p.values()))
                p = {
                    k: (v - LR * slope * (k != other)).detach().requires_grad_()
                    for (k, v), slope in zip(p.items(), slopes, strict=True)
                }
            trained_at[s] = {k: v.detach() for k, v in p.items()}
        own = {s: {k: p[k] for k in own[s]} for s, p in trained_at.items()}
        shared = mean({s: {k: p[k] for k in shared} for s, p in trained_at.items()})
    settled = models(*run("ifedavg", task, output=half))
    want = {s: {f"params/{k}": v for k, v in (shared | own[s]).items() if k != other} for s in ROWS}
    assert gap(settled, want) < NEAR
    moved = f"output.{'shift' if half == 'shift' else 'scale'}"
    assert all(float((own[s][moved] - start[moved]).abs().max()) > 1e-3 for s in ROWS)


@pytest.mark.parametrize("identity", [0.0, 2.0])
def test_a_newcomer_fits_its_layers_and_nothing_else(identity: float) -> None:
    task = tasked(affine_in=True, affine_out="each")
    ends = {k: torch.full_like(v, float(k.endswith("scale"))) for k, v in task.start.items() if k[:2] in ("in", "ou")}
    params = task.start
    for _ in range(ROUNDS * EPOCHS):
        slope = grad(task, params, "site 0", lambda p: identity / 2 * distance(p, ends))
        params = {k: v - LR * slope[k] if k in ends else v for k, v in params.items()}
    one = gather_sites([("site 0", *ROWS["site 0"])])
    e, last = train(Newcomer(output="each", identity=identity), task, one, TRAINING)
    assert gap(models(e, last), {"site 0": {f"params/{k}": v for k, v in params.items()}}) < NEAR


def test_fedper_keeps_head_and_output() -> None:
    task = tasked(affine_out="each")
    kept = [k for k in task.start if k.startswith(("head", "output"))]
    w = {k: v for k, v in task.start.items() if k not in kept}
    own = {s: {k: task.start[k] for k in kept} for s in ROWS}
    for _ in range(ROUNDS):
        found = {s: trained(task, {**w, **own[s]}, s) for s in ROWS}
        own = {s: {k: p[k] for k in kept} for s, p in found.items()}
        w = mean({s: {k: p[k] for k in w} for s, p in found.items()})
    e, last = run("fedper", task)
    assert set(last.coord.params) == set(w)
    assert gap(models(e, last), {s: {f"params/{k}": v for k, v in (w | own[s]).items()} for s in ROWS}) < NEAR


@pytest.mark.parametrize("part", ["all", "head"])
def test_fine_tuning_moves_all_or_the_last_layer(part: str) -> None:
    task = tasked(affine_out="each")
    w = dict(task.start)
    for _ in range(ROUNDS):
        w = mean({s: trained(task, w, s) for s in ROWS})
    own = dict.fromkeys(ROWS, w)
    for _ in range(4 * EPOCHS):
        after = {s: trained(task, p, s, steps=1) for s, p in own.items()}
        if part == "head":
            after = {s: w | {k: v for k, v in p.items() if k.startswith(("head", "output"))} for s, p in after.items()}
        own = after
    e, last = run("fine_tune", task, epochs=4, part=part)
    assert gap(models(e, last), {s: {f"params/{k}": v for k, v in p.items()} for s, p in own.items()}) < NEAR


@pytest.mark.parametrize("name", [n for n, kind in methods.TABLE.items() if kind().wire.aggregation == "sum"])
@pytest.mark.parametrize("engine", [{"keep_reports": True}, {"keep_reports": True, "chunk": 2}], ids=str)
def test_keeping_reports_changes_nothing_and_they_say_changes(name: str, engine: dict) -> None:
    """Kept reports are each site's own; with a rate of 0 who answers has changed nothing; of who is absent all is 0."""
    method, task = methods.build(name), tasked()
    absent = lambda s, r: torch.tensor([n == "site 0" for n in SITES.names])  # noqa: E731
    plain = models(*train(method, task, SITES, TRAINING, absent=absent))
    assert gap(plain, models(*train(method, task, SITES, TRAINING, absent=absent, **engine))) < NEAR
    still = Engine(task, replace(method, lr=0.0), SITES, TRAINING, 5, absent=absent, **engine)
    next(iter(still.run()))
    told = {k: v for k, v in still.reports._asdict().items() if isinstance(v, dict)}
    assert told
    assert all(not bool(v.any()) for part in told.values() for v in part.values())
    moving = Engine(task, method, SITES, TRAINING, 5, absent=absent, **engine)
    next(iter(moving.run()))
    for part in moving.reports._asdict().values():
        # of one class alone, which is all that site 1 has, a balanced softmax learns nothing
        silent = {"site 0", "site 1"} if name == "fed_rod" and isinstance(part, dict) else {"site 0"}
        for v in part.values() if isinstance(part, dict) else [part]:
            assert [bool(row.any()) for row in v] == [n not in silent for n in moving.names]

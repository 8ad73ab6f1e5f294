"""What an optimiser remembers from round to round, the rates of its groups, and the pace of the rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.small import SIZES, gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.core.optimizers import SGD, Adam, of_parameter
from vitrail.core.task import Batch
from vitrail.core.tensors import Params, clone, to_all
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training

LR, ROUNDS = 0.02, 4
WHOLE = Training(rounds=ROUNDS, batch=64, lr=LR, momentum=0.9, decays=0)  # a round is one step on all rows of a site
NEAR = 1e-10


def optimiser_of(kind: str, params: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=LR) if kind == "adam" else torch.optim.SGD(params, lr=LR, momentum=0.9)


def alone(task: Any, rows: Any, start: Params, kind: str, steps: int, lasts: bool) -> Params:
    """One site by itself with torch's optimiser, which forgets after every step unless its memory lasts."""
    _, x, y, w = rows
    batch = Batch(x[None], y[None], w[None])
    params = {k: v.detach().clone()[None].requires_grad_() for k, v in start.items()}
    optimiser = optimiser_of(kind, list(params.values()))
    for _ in range(steps):
        if not lasts:
            optimiser = optimiser_of(kind, list(params.values()))
        optimiser.zero_grad()
        task.value(params, batch).sum().backward()
        optimiser.step()
    return {k: v.detach()[0] for k, v in params.items()}


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("memory", ["fresh", "own", "kept"])
def test_alone_nothing_is_shared_so_that_its_memory_is_a_sites_own(memory: Any, kind: Any, late: int) -> None:
    """Also where every other site comes only after some rounds."""
    task, rows = make_task(hidden=(5,), dropout=0.0), make_rows()
    sites, training = gather_sites(rows), replace(WHOLE, memory=memory, optimiser=kind)
    missed = {name: late * (i % 2) for i, name in enumerate(sites.names)}

    def absent(_: int, round_: int) -> torch.Tensor:
        return torch.tensor([round_ < missed[name] for name in sites.names])

    got = models(*train(methods.build("local"), task, sites, training, absent=absent))
    want = {}
    for site in rows:
        model = alone(task, site, task.start, kind, ROUNDS - missed[site[0]], memory != "fresh")
        want[site[0]] = {f"params/{k}": v for k, v in model.items()}
    assert gap(got, want) < NEAR


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("memory", "kept"), [("fresh", set()), ("own", {"head"}), ("kept", {"body.0", "body.1", "head"})]
)
def test_of_which_parameters_it_lasts(memory: Any, kept: set[str], kind: Any) -> None:
    """FedPer: of the shared front only where all is kept."""
    task, method = make_task(dropout=0.0), methods.build("fedper")
    training = replace(WHOLE, memory=memory, optimiser=kind)
    e, last = train(method, task, training=training)
    assert {of_parameter(k).rpartition(".")[0] for k in last.state.memory} == kept
    if kept:
        assert all(bool(v.any()) for v in last.state.memory.values())
        assert all(not bool(v.any()) for v in e.start().state.memory.values())


def test_kept_memory_of_what_is_shared_is_gone_on_with() -> None:
    """One site in the federation: then the shared model is its own, and "kept" makes FedAvg Local."""
    task, one = make_task(dropout=0.0), gather_sites(make_rows()[:1])

    def end(name: str, memory: Any, optimiser: Any) -> Any:
        return models(*train(methods.build(name), task, one, replace(WHOLE, memory=memory, optimiser=optimiser)))

    for kind in ("sgd", "adam"):
        assert gap(end("fedavg", "kept", kind), end("local", "own", kind)) < NEAR
        assert gap(end("fedavg", "own", kind), end("fedavg", "fresh", kind)) == 0
        assert gap(end("fedavg", "own", kind), end("local", "own", kind)) > 1e-4


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("memory", ["fresh", "own", "kept"])
def test_fine_tuning_alone_remembers_from_its_first_step_on(memory: Any, kind: Any) -> None:
    """From the shared model so many epochs with one memory, which begins empty; and not one epoch more."""
    task, rows = make_task(hidden=(5,), dropout=0.0), make_rows()
    training, epochs = replace(WHOLE, rounds=2, memory=memory, optimiser=kind), 3
    e = Engine(task, methods.build("fine_tune", {"epochs": epochs}), gather_sites(rows), training, 5)
    moments = [(m.stage, m.round) for m in e.run()]
    assert moments == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]
    e, last = train(methods.build("fine_tune", {"epochs": epochs}), task, gather_sites(rows), training)
    shared = last.coord.params
    want = {
        site[0]: {f"params/{k}": v for k, v in alone(task, site, shared, kind, epochs, memory != "fresh").items()}
        for site in rows
    }
    assert gap(models(e, last), want) < NEAR


@pytest.mark.parametrize("name", ["ditto", "apfl", "influence", "weight_erosion", "fed_rod"])
def test_models_of_ones_own_remember(name: str) -> None:
    """What stays at a site is trained with its own memory, under "own" and under "kept"."""
    given = {"update": "local"} if name == "weight_erosion" else {}
    method = methods.build(name, given | ({"momentum": 0.9} if name in ("apfl", "weight_erosion") else {}))
    task, training = make_task(dropout=0.0), replace(WHOLE, batch=8)
    ends = {m: models(*train(method, task, training=replace(training, memory=m))) for m in ("fresh", "own", "kept")}
    if name != "influence":  # which sends its whole model
        assert gap(ends["fresh"], ends["own"]) > 1e-6
    assert gap(ends["fresh"], ends["kept"]) > 1e-6


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_rates_are_of_groups(kind: Any) -> None:
    """With a rate of 0 a group stands still; with another, its first step is so many times as long."""
    task = make_task(dropout=0.0)

    def first(**rates: float) -> Params:
        training = replace(WHOLE, rounds=1, momentum=0.0, optimiser=kind, rates=tuple(rates.items()))
        _, last = train(methods.build("fedavg"), task, training=training)
        return {k: last.coord.params[k] - v for k, v in task.start.items()}

    plain, still, fast = first(), first(head=0.0), first(body=3.0)
    for k, step in plain.items():
        assert torch.allclose(still[k], step * (0 if k.startswith("head") else 1), atol=1e-15)
        assert torch.allclose(fast[k], step * (1 if k.startswith("head") else 3), rtol=1e-9)
    with pytest.raises(VitrailError, match="no group"):
        first(heart=2.0)


def test_the_rule_is_the_studys_unless_the_method_has_its_own() -> None:
    net, training = make_task().net, Training(lr=0.3, momentum=0.7, weight_decay=0.1)
    assert training.rule(net, methods.build("fedavg")) == SGD(0.3, 0.7, 0.1)
    assert training.rule(net, methods.build("fedavg", {"lr": 0.2, "momentum": 0.4})) == SGD(0.2, 0.4, 0.1)
    assert replace(training, optimiser="adam").rule(net, methods.build("fedavg")) == Adam(0.3, decay=0.1)


def test_the_rate_decays_so_many_times() -> None:
    training, rule = Training(lr=1.0, decay=0.5, decays=4), SGD(1.0)
    rates = [training.schedule_rate(rule, r, 8).lr for r in range(8)]
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert replace(training, decays=0).schedule_rate(rule, 7, 8).lr == 1


def test_the_mean_over_a_batch_is_over_its_real_rows() -> None:
    """The site of 5 rows has one batch of 8, of which 3 are padding."""
    task, rows = make_task(hidden=(), dropout=0.0), make_rows()[2:3]
    (_, x, y, w) = rows[0]
    _, last = train(methods.build("fedavg"), task, gather_sites(rows), Training(1, batch=8, lr=LR, mean=True, decays=0))
    assert len(x) == SIZES[2] == 5
    slope = task.grad(clone(to_all(task.start, 1)), Batch(x[None], y[None], w[None]))
    for k, v in task.start.items():
        assert torch.allclose(last.coord.params[k], v - LR * slope[k][0] / 5, atol=1e-14)


@pytest.mark.parametrize("more", [{"optimiser": "adam"}, {"rates": (("head", 2.0),)}], ids=str)
def test_a_method_that_clashes_with_the_optimiser_is_refused(more: dict) -> None:
    """SCAFFOLD's control variates are those of plain SGD with one rate."""
    with pytest.raises(VitrailError, match="for plain SGD"):
        train(methods.build("scaffold"), training=replace(WHOLE, momentum=0.0, **more))

"""APPLE against its equations, written with autograd and torch's own optimiser; and its limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail as vt
from tests.support.deploy.forms import clause, line_of
from tests.support.small import gap, make_rows, make_task, train
from vitrail.core.exchange import Roster
from vitrail.core.facts import AGREED, MIXED, find_value
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import APPLE, build
from vitrail.methods.apple import Coord, Down
from vitrail.nets import MLP
from vitrail.testing.federation import LOSSES, task_of

LR, ROUNDS, EPOCHS = 0.03, 5, 2
TRAINING = Training(rounds=ROUNDS, epochs=EPOCHS, batch=64, lr=LR, momentum=0.4, decays=0)
ROWS = {name: (x, y, w) for name, x, y, w in make_rows()}
SITES = gather_sites(make_rows())
NAMES = SITES.names
# who is not there, in each round; of the first, also when rows are counted
AWAY: list[set[str]] = [{"site 3"}, {"site 1"}, set(), {"site 0", "site 2"}, set()]


def tasked() -> Task:
    return make_task(hidden=(5,), dropout=0.0)


def absent(away: list[set[str]]) -> Any:
    return lambda s, r: torch.tensor([s == 0 and n in away[r] for n in NAMES])


def mixed(p: Tensor, cores: dict[str, Params]) -> Params:
    """sum_j p_j c_j, the cores in the order of NAMES."""
    return {k: sum(p[j] * cores[n][k] for j, n in enumerate(NAMES)) for k in cores[NAMES[0]]}  # type: ignore[misc]


def fall(schedule: str, r: int, last: int) -> float:
    if r >= last:
        return 0.0
    return 0.001 ** (r / last) if schedule == "exponential" else (1 + math.cos(math.pi * r / last)) / 2


def by_the_equations(
    task: Task, weights: str, mu: float, rate: float, last: int, schedule: str, away: list[set[str]]
) -> tuple[dict[str, Params], dict[str, Tensor]]:
    """Cores, and mixtures p_i."""
    counted = [float(len(ROWS[n][0])) for n in NAMES if n not in away[0]]
    rows = [len(ROWS[n][0]) if n not in away[0] else sum(counted) / len(counted) for n in NAMES]
    begin = torch.tensor(rows if weights == "rows" else [1.0] * len(NAMES), dtype=torch.double)
    begin = begin / begin.sum()
    cores, p = dict.fromkeys(NAMES, task.start), dict.fromkeys(NAMES, begin)
    for r in range(ROUNDS):
        sent = dict(cores)
        for n in NAMES:
            if n in away[r]:
                continue
            core = {k: v.detach().clone().requires_grad_() for k, v in sent[n].items()}
            mine = p[n].clone().requires_grad_()
            groups = [{"params": list(core.values())}, {"params": [mine], "lr": rate * LR}]
            optimiser = torch.optim.SGD(groups, lr=LR, momentum=TRAINING.momentum)
            x, y, w = ROWS[n]
            for _ in range(EPOCHS):
                optimiser.zero_grad()
                own = {k: v[None] for k, v in mixed(mine, {**sent, n: core}).items()}
                loss = task.value(own, Batch(x[None], y[None], w[None])).sum()
                (loss + fall(schedule, r, last) * mu / 2 * ((mine - begin) ** 2).sum()).backward()
                optimiser.step()
            cores[n] = {k: v.detach() for k, v in core.items()}
            p[n] = mine.detach()
    return cores, p


@pytest.mark.parametrize("away", [AWAY, [set()] * ROUNDS], ids=["some away", "all there"])
@pytest.mark.parametrize(
    ("weights", "mu", "rate", "last", "schedule"),
    [("rows", 2.0, 0.5, 3, "exponential"), ("uniform", 5.0, 0.1, 4, "cosine"), ("rows", 0.0, 1.0, 1, "cosine")],
)
def test_the_equations(weights: str, mu: float, rate: float, last: int, schedule: str, away: list[set[str]]) -> None:
    task = tasked()
    method = build("apple", {"weights": weights, "mu": mu, "rate": rate, "fades": last, "schedule": schedule})
    e, end = train(method, task, SITES, TRAINING, absent=absent(away))
    cores, p = by_the_equations(task, weights, mu, rate, last, schedule, away)
    assert gap({n: {k: v[i] for k, v in end.coord.cores.items()} for i, n in enumerate(NAMES)}, cores) < 1e-10
    shown = find_value(end.facts, MIXED)
    assert shown is not None
    assert gap({n: {"p": shown[i]} for i, n in enumerate(NAMES)}, {n: {"p": v} for n, v in p.items()}) < 1e-10
    assert float((shown.sum(1) - 1).abs().max()) > 1e-3, "nothing keeps the sum at 1"
    own = method.models(task, e.settled(end))["own"]
    want = {n: mixed(p[n], cores) for n in NAMES}
    assert gap({n: {k: v[i] for k, v in own.items()} for i, n in enumerate(NAMES)}, want) < 1e-10


@dataclass(frozen=True)
class Alone(APPLE):
    """p_i begins with the site's own core and nothing else."""

    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        down = super().send(task, coord, roster)
        return down._replace(begin=down.own)


def own_models(method: vt.methods.AnyMethod, sites: Any = SITES, training: Training = TRAINING) -> dict[str, Params]:
    task = make_task(dropout=0.2)
    e, end = train(method, task, sites, training)
    own = method.models(task, e.settled(end))["own"]
    return {n: {k: v[i] for k, v in own.items()} for i, n in enumerate(e.names)}


def test_a_site_that_mixes_in_nobody_is_alone() -> None:
    still = Alone(weights="uniform", mu=0.0, rate=0.0)
    assert gap(own_models(build("local")), own_models(still)) < 1e-12
    assert gap(own_models(build("local")), own_models(replace(still, rate=0.1))) > 1e-4


def test_one_site_is_local_but_for_the_size_of_its_model() -> None:
    one = gather_sites(make_rows()[:1])
    assert (
        gap(own_models(build("local"), one), own_models(build("apple", {"rate": 0.0, "weights": "uniform"}), one))
        < 1e-12
    )
    assert gap(own_models(build("local"), one), own_models(build("apple", {"weights": "uniform"}), one)) > 1e-4


def test_with_equal_weights_that_stand_still_it_is_fedavg_n_times_as_slow() -> None:
    """One step in a round, so that sites do not drift."""
    training = Training(rounds=6, batch=64, lr=LR, momentum=0.0, decays=0)
    apple = own_models(build("apple", {"weights": "uniform", "rate": 0.0}), training=training)
    assert gap(apple, own_models(build("fedavg", {"lr": LR / len(NAMES)}), training=training)) < 1e-12
    assert gap(apple, own_models(build("fedavg"), training=training)) > 1e-3


def test_the_pull_holds_the_mixture_where_it_began() -> None:
    """As long as it lasts."""
    far = []
    for mu in (0.0, 100.0):
        _, end = train(build("apple", {"mu": mu, "fades": 100, "schedule": "cosine"}), tasked(), SITES, TRAINING)
        shown = find_value(end.facts, MIXED)
        assert shown is not None
        begin = torch.tensor([len(ROWS[n][0]) for n in NAMES], dtype=torch.double)
        far.append(float((shown - begin / begin.sum()).norm()))
    assert far[1] < far[0] / 2


def test_sites_of_one_kind_mix_each_other_in() -> None:
    """Labels of half of the sites are turned round: everybody ends with more of its own kind's cores."""
    rows = []
    for i in range(6):
        x = torch.randn(30, 4, generator=torch.Generator().manual_seed(i), dtype=torch.double)
        label = ((x[:, 0] - x[:, 1] > 0) ^ (i % 2 == 1)).long()
        y = torch.nn.functional.one_hot(label, 2).double()
        rows.append((f"site {i}", x, y, torch.ones(30, 1, dtype=torch.double)))
    task, sites = task_of(MLP(4, 2, ()), LOSSES["classes"]), gather_sites(rows)
    training = Training(rounds=40, batch=64, lr=0.05, momentum=0.0, decays=0)
    _, end = train(build("apple", {"rate": 0.2, "mu": 0.0}), task, sites, training)
    p = find_value(end.facts, MIXED)
    assert p is not None
    kind = torch.tensor([int(n[-1]) % 2 for n in sites.names])
    same = kind[:, None] == kind
    assert float(p[same].min()) > float(p[~same].max())
    assert float(p.min()) < 0, "weights may be below nothing"


@pytest.mark.parametrize(("schedule", "middle"), [("exponential", 0.001**0.5), ("cosine", 0.5)])
def test_the_pull_fades(schedule: str, middle: float) -> None:
    method = build("apple", {"schedule": schedule, "fades": 8})
    assert isinstance(method, APPLE)
    said = method.pulls(torch.tensor([0.0, 4.0, 7.99, 8.0, 80.0], dtype=torch.double))
    assert said[[0, 1]].tolist() == pytest.approx([1.0, middle])
    assert 0 < float(said[2]) < 0.002
    assert said[3:].tolist() == [0, 0]


def test_who_refuses_to_show_its_mixture_does_not() -> None:
    e = Engine(
        tasked(),
        build("apple"),
        SITES,
        TRAINING,
        5,
        absent=lambda s, r: torch.tensor([s == 1 and n == "site 1" for n in NAMES]),
    )
    *_, end = e.run()
    shown, agreed = find_value(end.facts, MIXED), find_value(end.facts, AGREED)
    assert shown is not None
    assert agreed is not None
    assert [bool(row.any()) for row in shown] == agreed.tolist() == [n != "site 1" for n in NAMES]


@pytest.mark.parametrize("shows", [True, False])
def test_the_consent_form_says_what_is_told(shows: bool) -> None:
    """The mixture is promised to stay only where a site does not agree to show it."""
    study = vt.Study.infer(vt.datasets.heart_disease(), target="disease").with_changes(method={"name": "apple"})
    form = contract_text(Agreement.of(study, None, 4), "va", list(vt.datasets.heart_disease()), shows)
    leaves, never = line_of(form.split("WHAT COMES IN")[0]), clause(form, "WHAT NEVER LEAVES")
    words = "how much of each core is mixed into your own model"
    assert (words in leaves) is shows
    assert (words in never) is not shows
    assert "how many rows you train on; every site receives your share of all rows" in leaves

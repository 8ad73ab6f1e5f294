"""RIPFL against the paper's equations written down once more, its limits, and what it does when sites are away."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Dirichlet, kl_divergence
from torch.func import functional_call

import vitrail as vt
from tests.support.small import gap, make_rows, make_task, train
from vitrail import methods
from vitrail.core import facts as means
from vitrail.core.facts import OWN, RECEIVED
from vitrail.core.losses import CrossEntropy, Evidence, SquaredError
from vitrail.core.random import key, mixed
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training, clock_of
from vitrail.methods.blocks.similar_models import cosines, ranked, rear_of
from vitrail.methods.ripfl import RIPFL
from vitrail.nets import Module
from vitrail.testing.federation import PICTURE, Row, in_this_order, task_of

SIZES = (37, 20, 5, 53, 8, 11, 30)
SEED, ROUNDS, EPOCHS, EVERY = 5, 8, 2, 3
WHOLE = Training(ROUNDS, EPOCHS, 64, 0.01, 0.5, decays=0)  # one batch holds all rows of any site
LAM, KL, ANNEAL = 0.7, 0.3, 9
EXACT = 1e-12
Away = Callable[[int], set[str]]  # round -> who does not answer


def nobody(r: int) -> set[str]:
    return set()


def some(r: int) -> set[str]:
    """One has never come before the last rounds; two others come and go."""
    return {"site 3" if r < 6 else "", "site 0" if r in (2, 3) else "", "site 6" if r in (3, 5) else ""}


# --- the paper once more: plain loops and autograd, nothing of the method's own ---------------------------------------


def evidence(z: Tensor) -> Tensor:
    return torch.exp(10 * torch.tanh(z / 10))


def loss(z: Tensor, y: Tensor, w: Tensor, prior: Tensor, kl: float) -> Tensor:
    alpha = evidence(z) + prior + 1
    wrong = y + (1 - y) * alpha
    fit = (y * (torch.digamma(alpha.sum(1, keepdim=True)) - torch.digamma(alpha))).sum(1)
    return ((fit + kl * kl_divergence(Dirichlet(wrong), Dirichlet(torch.ones_like(wrong)))) * w[:, 0]).sum()


def cosine(one: Params, other: Params) -> float:
    flat = (torch.cat([v.flatten() for v in model.values()]) for model in (one, other))
    return float(torch.nn.functional.cosine_similarity(*flat, dim=0))


def by_the_paper(
    f: Any,
    start: Params,
    rear: list[str],
    rows: list[Row],
    adam: bool,
    away: Away,
    own_too: bool = True,
    part: float = 1,
) -> list[dict]:
    """`own_too`: whether a site's own model may be in its mix; `part`: the share of the surer half that is chosen."""
    names, told = [site for site, *_ in rows], []
    own, given, mix = (dict.fromkeys(names, start) for _ in range(3))
    u, share = dict.fromkeys(names, 1.0), {}
    for r in range(ROUNDS):
        here, front = [s for s in names if s not in away(r)], [k for k in start if k not in rear or r % EVERY == 0]
        for s, x, y, w in (row for row in rows if row[0] in here):
            given[s] = given[s] | {k: mix[s][k] for k in front}
            leaves = {k: (mix[s] if k in front else own[s])[k].clone().requires_grad_() for k in start}
            prior, kl = LAM * evidence(f(given[s], x)), KL * min(1, r * EPOCHS / ANNEAL)
            steps: Any = torch.optim.Adam if adam else lambda p, lr: torch.optim.SGD(p, lr, momentum=0.5)
            rule = steps(leaves.values(), lr=WHOLE.lr)
            for _ in range(EPOCHS):
                rule.zero_grad()
                loss(f(leaves, x), y, w, prior.detach(), kl).backward()
                rule.step()
            own[s] = {k: v.detach() for k, v in leaves.items()}
            u[s] = float((y.shape[1] / (evidence(f(own[s], x)) + 1).sum(1)).mean())
        half, order = -(-len(here) // 2), sorted(here, key=u.__getitem__)
        clock = torch.tensor(clock_of(0, r, int(r % EVERY > 0)))
        lot = {s: int(mixed(torch.tensor(key(SEED, s, "coordinator")), clock)) for s in names}
        better, poor = (sorted(some, key=lot.__getitem__) for some in (order[:half], order[half:]))
        chosen = better[: max(1, round(half * part))] + poor[: max(1, round(len(poor) / 3))]
        low, high = u[order[0]], u[order[-1]]
        for s in names:
            others = [k for k in chosen if own_too or k != s]
            c = min(len(others), round(2 + (len(others) - 2) * min(1, max(0, (u[s] - low) / (high - low)))))
            near = sorted(others, key=lambda k: -cosine(own[s], own[k]))[:c]
            mix[s] = {k: sum(own[n][k] for n in near) / c for k in start}  # type: ignore[misc]
            share[s] = {n: 1 / c if n in near else 0.0 for n in names}
        last = {s: own[s] | {k: mix[s][k] for k in start if k not in rear} for s in names}
        said = {"u": dict(u), "sure": set(order[:half]), "chosen": set(chosen), "share": {s: share[s] for s in here}}
        told.append({"own": dict(own), "received": last, **said})
    return told


# --- networks ---------------------------------------------------------------------------------------------------------


def small_net() -> nn.Module:
    front = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten())  # 8 -> 6 -> 3
    return nn.Sequential(front, nn.Sequential(nn.Linear(36, 6), nn.Tanh()), nn.Linear(6, 3))


def pictures() -> tuple[Task, Any, list[Row]]:
    net = Module(small_net, PICTURE, {"front": ("0",), "rear": ("1",), "head": ("2",)})
    module = small_net().double()
    rows = make_rows("classes", SIZES, PICTURE)
    return task_of(net, CrossEntropy()), lambda p, x: functional_call(module, p, (x,)), rows


def table() -> tuple[Task, Any, list[Row]]:
    def f(params: Params, x: Tensor) -> Tensor:
        for layer in ("body.0", "body.1"):
            x = torch.tanh(x @ params[f"{layer}.weight"] + params[f"{layer}.bias"])
        return x @ params["head.weight"] + params["head.bias"]

    return make_task(dropout=0.0), f, make_rows("classes", SIZES)


def absent(away: Away, names: tuple[str, ...]) -> Callable[[int, int], Tensor]:
    return lambda s, r: torch.tensor([n in away(r) for n in names])


def held(e: Engine, state: Any, model: str) -> dict[str, Params]:
    """Each site's model of that kind."""
    found = e.method.models(e.task, state)[model]
    return {n: {k: v[i] for k, v in found.items()} for i, n in enumerate(e.names)}


@pytest.mark.parametrize("away", [nobody, some])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("made", [table, pictures])
def test_it_is_the_papers(made: Any, optimiser: Any, away: Away) -> None:
    task, f, rows = made()
    rear = [k for k in task.start if k.startswith(("body.1", "head") if made is table else ("1.", "2."))]
    want = by_the_paper(f, task.start, rear, rows, optimiser == "adam", away)
    sites, training = gather_sites(rows), replace(WHOLE, optimiser=optimiser)
    method = RIPFL(lam=LAM, kl=KL, anneal=ANNEAL, rear=EVERY)
    e = Engine(task, method, sites, training, SEED, absent=absent(away, sites.names))
    for moment, told in zip(e.run(), want, strict=True):
        settled, value = e.settled(moment), {k: v.value for k, v in moment.facts.items()}
        assert gap(held(e, settled, OWN), told["own"]) < 1e-9
        assert gap(held(e, settled, RECEIVED), told["received"]) < 1e-9
        for i, n in enumerate(e.names):
            here = n in told["share"]
            assert (n in told["chosen"], n in told["sure"]) == (bool(value["chosen"][i]), bool(value["sure"][i]))
            unsure, shares = float(value["uncertainty"][i]), value["share"][i].tolist()
            if here:
                assert unsure == pytest.approx(told["u"][n], abs=1e-9)
                assert shares == pytest.approx([told["share"][n][k] for k in e.names], abs=EXACT)
            else:
                assert all(math.isnan(v) for v in (unsure, *shares))
    counts = {len(t["chosen"]) for t in want} | {round(1 / max(s.values())) for t in want for s in t["share"].values()}
    assert len(counts) > 2, "mixes of several sizes"


@pytest.mark.parametrize("away", [nobody, some])
@pytest.mark.parametrize(("own_too", "part"), [(False, 1.0), (True, 0.5), (False, 0.5)])
def test_remaining_clients_and_a_part_of_the_sure(own_too: bool, part: float, away: Away) -> None:
    """The mix that the paper's words describe leaves a site's own model out; table 2 draws a part of the sure. The
    program of one setting is not that of another."""
    task, f, rows = table()
    rear = [k for k in task.start if k.startswith(("body.1", "head"))]
    want = by_the_paper(f, task.start, rear, rows, False, away, own_too, part)
    usual = by_the_paper(f, task.start, rear, rows, False, away)
    sites = gather_sites(rows)
    method = RIPFL(lam=LAM, kl=KL, anneal=ANNEAL, rear=EVERY, count_self=own_too, drawn_sure=part)
    e = Engine(task, method, sites, WHOLE, SEED, absent=absent(away, sites.names))
    for moment, expected in zip(e.run(), want, strict=True):
        settled = e.settled(moment)
        assert gap(held(e, settled, OWN), expected["own"]) < 1e-9
        assert gap(held(e, settled, RECEIVED), expected["received"]) < 1e-9
        assert [n for n, c in zip(e.names, moment.facts["chosen"].value, strict=True) if c] == [
            n for n in e.names if n in expected["chosen"]
        ]
    assert gap(held(e, settled, RECEIVED), usual[-1]["received"]) > 1e-5
    for one in want:
        itself = {s: one["share"][s][s] > 0 for s in one["share"]}
        assert not any(itself.values()) if not own_too else all(itself[s] for s in one["chosen"])


# --- limits -----------------------------------------------------------------------------------------------------------


def test_of_two_sites_that_count_themselves_out_each_gets_the_others_model() -> None:
    task, sites = make_task(hidden=(5,)), gather_sites(make_rows("classes", SIZES[:2]))
    for own_too in (False, True):
        method = RIPFL(selection="all", takes=1, rear=1, count_self=own_too)
        e, last = train(method, task, sites, Training(3, 1, 8, 0.02))
        trained, received = (held(e, e.settled(last), kind) for kind in (OWN, RECEIVED))
        swapped = dict(zip(trained, reversed(trained.values()), strict=True))
        assert gap(received, trained if own_too else swapped) < EXACT
        assert gap(received, swapped if own_too else trained) > 1e-5


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("away", [nobody, some])
@pytest.mark.parametrize(("rear", "name"), [(1, "fedavg"), ("never", "fedper")])
def test_with_everybody_chosen_and_taken_it_is(rear: Any, name: str, away: Away, optimiser: Any) -> None:
    """By mini-batches and with dropout; FedPer keeps one layer, as a network with one hidden layer does."""
    task = make_task(hidden=(5,), affine_out="each")
    sites = gather_sites(make_rows("classes", SIZES))
    steps = Training(ROUNDS, 1, 8, 0.02, 0.5, optimiser=optimiser)
    plain = replace(task, loss=Evidence(kl=0.0))
    there = absent(away, sites.names)
    e, last = train(methods.build(name), plain, sites, steps, absent=there)
    method = RIPFL(lam=0.0, kl=0.0, selection="all", takes=len(SIZES), rear=rear)
    mine, end = train(method, task, sites, steps, absent=there)
    one, other = held(e, e.settled(last), OWN), held(mine, mine.settled(end), RECEIVED)
    assert gap(one, other) < (EXACT if optimiser == "sgd" else 1e-9)
    for changed in ({"lam": 0.3}, {"kl": 0.5}, {"selection": "uncertainty"}, {"takes": 2}, {"rear": 2}):
        mine, end = train(replace(method, **changed), task, sites, steps, absent=there)
        assert gap(one, held(mine, mine.settled(end), RECEIVED)) > 1e-5, changed


def test_without_evidence_it_trains_by_the_studys_loss() -> None:
    task, sites = make_task(hidden=(5,)), gather_sites(make_rows("classes", SIZES))
    steps = Training(4, 1, 8, 0.02)
    e, last = train(methods.build("fedavg"), task, sites, steps)
    method = RIPFL(evidence=False, selection="all", takes=len(SIZES), rear=1)
    mine, end = train(method, task, sites, steps)
    assert isinstance(mine.task.loss, CrossEntropy)
    assert gap(held(e, e.settled(last), OWN), held(mine, mine.settled(end), RECEIVED)) < EXACT
    z = [mine.task.output({k: v[i][None] for k, v in end.state.params.items()}, x[None]) for i, (_, x, *_) in enumerate(
        sorted(make_rows("classes", SIZES), key=lambda row: (-len(row[1]), row[0])))]  # fmt: skip
    want = torch.stack([CrossEntropy().uncertainty(one).mean() for one in z])
    assert torch.allclose(end.facts["uncertainty"].value, want)


def test_whose_evidence_it_is_judged_by() -> None:
    assert RIPFL().training_loss(CrossEntropy()) == Evidence()
    assert RIPFL(kl=0.0, anneal=3).training_loss(CrossEntropy()) == Evidence(0.0, 3)
    assert RIPFL().training_loss(Evidence(0.7, 4)) == Evidence(0.7, 4), "the study's own"
    assert RIPFL(kl=0.0).training_loss(Evidence(0.7, 4)) == Evidence(0.0, 4)
    assert RIPFL(evidence=False).training_loss(CrossEntropy()) == CrossEntropy()
    assert RIPFL(evidence=False).training_loss(Evidence(0.7)) == Evidence(0.7)
    assert RIPFL().incompatibilities(replace(make_task(), loss=RIPFL().training_loss(SquaredError())))


# --- who is chosen and taken ------------------------------------------------------------------------------------------


def chosen_by(doubt: list[float], fit: list[bool] | None = None, **given: Any) -> tuple[list[int], list[int]]:
    """Places of the sure and of the chosen; lots fall in the order of the sites."""
    u = torch.tensor(doubt, dtype=torch.double)
    here = torch.ones(len(u), dtype=torch.bool) if fit is None else torch.tensor(fit)
    sure, chosen = RIPFL(**given).choose(u, here, torch.arange(len(u)))
    return sure.nonzero()[:, 0].tolist(), chosen.nonzero()[:, 0].tolist()


def test_the_surer_half_and_some_of_the_others() -> None:
    seven = [0.7, 0.1, 0.6, 0.2, 0.5, 0.3, 0.4]
    assert chosen_by(seven) == ([1, 3, 5, 6], [0, 1, 3, 5, 6])
    assert chosen_by(seven, drawn=0.0)[1] == [1, 3, 5, 6]
    assert chosen_by(seven, drawn=1.0)[1] == list(range(7))
    assert chosen_by(seven, drawn_sure=0.5) == ([1, 3, 5, 6], [0, 1, 3]), "two of the four, by lot"
    assert chosen_by(seven, drawn_sure=0.1)[1] == [0, 1], "at least one"
    assert chosen_by(seven, drawn_sure=0.0, drawn=1.0)[1] == [0, 2, 4]
    assert chosen_by(seven, drawn_sure=0.5, selection="random")[1] == [0, 1, 2], "as many, by lot"
    thirty = [i / 30 for i in range(30)]
    splits = {(15, 5): (1.0, 1 / 3), (10, 10): (2 / 3, 2 / 3), (5, 15): (1 / 3, 1.0)}  # of the paper's table 2
    for (better, poor), (of_better, of_poor) in splits.items():
        _, chosen = chosen_by(thirty, drawn_sure=of_better, drawn=of_poor)
        assert (sum(i < 15 for i in chosen), sum(i >= 15 for i in chosen)) == (better, poor)
    assert chosen_by(seven, selection="all")[1] == list(range(7))
    assert chosen_by(seven, selection="random")[1] == [0, 1, 2, 3, 4], "as many, by lot"
    assert chosen_by(seven, [True, False, True, True, True, False, True]) == ([3, 4, 6], [0, 3, 4, 6])
    assert chosen_by([0.5] * 4) == ([0, 1], [0, 1, 2]), "equal ones by lot"
    assert chosen_by([0.5]) == ([0], [0])
    assert chosen_by([0.5, torch.nan], [True, False]) == ([0], [0])


def taken_by(doubt: list[float], alike: Tensor, chosen: list[bool], **given: Any) -> list[list[int]]:
    n, here = len(doubt), torch.tensor(chosen)
    roster = vt.core.exchange.Roster(("",) * n, here, torch.arange(n), torch.tensor(1))
    u = torch.tensor(doubt, dtype=torch.double)
    share = RIPFL(**given).mixed_of(alike.double(), u, torch.ones(n, dtype=torch.bool), here, roster)
    assert torch.allclose(share.sum(1), torch.ones(n, dtype=torch.double))
    assert all(len({float(v) for v in row if v > 0}) == 1 for row in share), "all that are taken count alike"
    return [row.nonzero()[:, 0].tolist() for row in share]


def test_the_unsure_take_more_and_everyone_the_most_alike() -> None:
    place = torch.arange(6.0)
    alike = 1 - 0.1 * (place - place[:, None]).abs()  # neighbours are most alike
    doubt, chosen = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [True, True, False, True, True, True]
    took = taken_by(doubt, alike, chosen)
    assert [len(t) for t in took] == [2, 3, 3, 4, 4, 5]
    assert took[0] == [0, 1]
    assert took[1] == [0, 1, 3]
    assert set(took[2]) <= {0, 1, 3, 4}
    assert 2 not in {s for t in took for s in t}, "who is not chosen is in no mix, not even in its own"
    assert took[5] == [0, 1, 3, 4, 5]
    assert [len(t) for t in taken_by(doubt, alike, chosen, takes=3)] == [3] * 6
    assert taken_by(doubt, alike, chosen, takes=1)[:2] == [[0], [1]], "its own first"
    assert [len(t) for t in taken_by([0.5] * 6, alike, chosen)] == [2] * 6, "nobody is less sure than another"
    by_lot = taken_by(doubt, alike, chosen, similarity=False)
    assert [len(t) for t in by_lot] == [len(t) for t in took]
    assert by_lot != took
    assert taken_by(doubt, alike, [False] * 6) == [[i] for i in range(6)], "nobody to learn from"
    assert taken_by(doubt, alike, [False, True] + [False] * 4) == [[1]] * 6
    others = taken_by(doubt, alike, chosen, count_self=False)
    assert [len(t) for t in others] == [2, 2, 3, 3, 4, 4], "2 to all that remain: four of five, or five of who is out"
    assert not any(i in t for i, t in enumerate(others))
    assert others[0] == [1, 3]
    assert others[5] == [0, 1, 3, 4]
    assert taken_by(doubt, alike, [False, True] + [False] * 4, count_self=False) == [[1]] * 6, (
        "its own, having no other"
    )


def test_places_by_value_then_by_lot() -> None:
    lots = torch.tensor([30, 10, 20, 40])
    assert ranked(torch.tensor([0.2, 0.3, 0.2, 0.1]).double(), lots).tolist() == [2, 3, 1, 0]
    near = torch.tensor([0.1, 0.1 + 1e-16, 0.1 - 1e-16, torch.inf], dtype=torch.double)
    assert len(near.unique()) == 4
    assert ranked(near, lots).tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize("given", [{}, {"similarity": False}, {"selection": "random"}], ids=str)
def test_twins_stand_by_lot_and_not_by_place(given: dict) -> None:
    """Sites with the same rows are equally unsure and alike: whoever stands first, the same ones are chosen."""
    (_, x, y, w), (_, x1, y1, w1), *_ = make_rows("classes", (12, 12))
    twins = [(n, x, y, w) for n in "abcd"] + [(n, x1, y1, w1) for n in "efg"]
    task, found = make_task(hidden=(5,), dropout=0.0), []
    for order in (range(7), (3, 6, 0, 2, 5, 1, 4)):
        e = Engine(task, RIPFL(rear=2, **given), in_this_order([twins[i] for i in order]), replace(WHOLE, rounds=4), 3)
        at = torch.tensor([e.names.index(n) for n in "abcdefg"])
        told = [means.in_order(fact, at).value for moment in e.run() for fact in moment.facts.values()]
        found.append(told)
    assert all(torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(*found, strict=True))


# --- absence, and models that are no numbers --------------------------------------------------------------------------


def test_who_is_away_is_not_mixed_and_gets_what_suits_it_later() -> None:
    rows = make_rows("classes", SIZES)
    sites, task = gather_sites(rows), make_task(hidden=(5,), dropout=0.0)
    away = {1: "site 3", 2: "site 3"}
    e = Engine(
        task, RIPFL(rear=2), sites, replace(WHOLE, rounds=4), 3, absent=absent(lambda r: {away.get(r, "")}, sites.names)
    )
    at, before = sites.names.index("site 3"), None
    for r, moment in enumerate(e.run()):
        share, alike = moment.coord.share, moment.facts["similarity"].value
        if r in away:
            assert not bool(moment.facts["chosen"].value[at])
            assert float(share[:, at].max()) == 0, "its last model is in no mix"
            assert torch.isnan(alike[at]).all()
            assert torch.isnan(alike[:, at]).all()
            assert torch.isnan(moment.facts["uncertainty"].value[at])
            assert before is not None
            assert all(torch.equal(before[k], v[at]) for k, v in moment.coord.models.items()), "it is held as it was"
            assert float(share[at].sum()) == pytest.approx(1), "it will be given a mix all the same"
        before = {k: v[at].clone() for k, v in moment.coord.models.items()}
        kept = {k: v[at] for k, v in moment.state.params.items()}
        assert gap({"": before}, {"": kept}) < EXACT, "the coordinator knows what the site has"


def test_a_model_that_is_no_number_is_never_mixed() -> None:
    rows = make_rows("classes", SIZES)
    rows[0][1][3] = torch.inf
    sites = gather_sites(rows)
    at = sites.names.index("site 0")
    for given in ({}, {"selection": "all"}, {"selection": "random", "similarity": False}):
        e = Engine(make_task(hidden=(5,), dropout=0.0), RIPFL(rear=2, **given), sites, replace(WHOLE, rounds=4), 3)
        *_, last = e.run()
        assert not last.state.params["body.0.weight"][at].isfinite().all(), "it diverged"
        assert not bool(last.facts["chosen"].value[at])
        others = [i for i in range(len(SIZES)) if i != at]
        assert all(v[others].isfinite().all() for v in last.state.params.values())
        assert last.coord.share.isfinite().all()


# --- what travels -----------------------------------------------------------------------------------------------------


def test_most_messages_hold_the_front_only() -> None:
    task = make_task(dropout=0.0)
    rear = rear_of(task)
    assert rear == ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
    e, _ = train(RIPFL(rear=3), task, training=replace(WHOLE, rounds=7))
    size = {k: v.numel() * v.element_size() for k, v in task.start.items()}
    front, whole = sum(v for k, v in size.items() if k not in rear), sum(size.values())
    found = {(line["stage"], line["direction"]): line for line in e.ledger.rows() if line["site"] == "site 0"}
    down, both = found["train, front", "to site"], found["train, front and rear", "to site"]
    assert (down["messages"], down["bytes"]) == (4 + 1, 5 * front), "and the last word"
    assert (both["messages"], both["bytes"]) == (3, 3 * whole)
    for stage, times in (("train, front", 4), ("train, front and rear", 3)):
        assert found[stage, "from site"]["bytes"] == times * (whole + 8), "the whole model, and how unsure it is"
    spared, _ = train(RIPFL(rear="never"), task, training=replace(WHOLE, rounds=7))
    assert {line["bytes"] for line in spared.ledger.rows() if line["direction"] == "to site"} == {8 * front}


@pytest.mark.parametrize(
    ("hidden", "rear"),
    [((), ("head",)), ((5,), ("head",)), ((5, 4), ("body.1", "head")), ((6, 5, 4), ("body.2", "head"))],
)
def test_the_rear_is_the_last_two_linear_layers_if_a_front_remains(hidden: tuple, rear: tuple) -> None:
    task = make_task(hidden=hidden, affine_in=True, affine_out="each")
    assert {k.rpartition(".")[0] for k in rear_of(task)} == {*rear, "output"}


def test_the_rear_of_a_module() -> None:
    task, *_ = pictures()
    assert rear_of(task) == ("1.0.weight", "1.0.bias", "2.weight", "2.bias")
    nameless = task_of(Module(small_net, PICTURE), CrossEntropy())
    assert rear_of(nameless) == rear_of(task), "the linear layer before the head"

    def two() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 2, 6), nn.Flatten(), nn.Linear(2, 3))

    assert rear_of(task_of(Module(two, PICTURE), CrossEntropy())) == ("4.weight", "4.bias"), (
        "convolutions are the front"
    )


def test_a_site_settles_on_the_front_whatever_else_it_is_told() -> None:
    """Between machines a model is scored by the word at hand, which in some rounds holds the rear too."""
    task = make_task(dropout=0.0)
    method = RIPFL(rear=2)
    ((whole, front),) = (stage.exchanges for stage in method.plan(4))
    coord, state = method.coord(task, 1), method.state(task, 1)
    coord = coord._replace(models={k: v + 1 for k, v in coord.models.items()})
    told = [ex.send(task, coord, None) for ex in (whole, front)]
    assert set(told[0].params) > set(told[1].params)
    one, other = (front.settle(task, state, word) for word in told)
    assert gap({"": one.received}, {"": other.received}) == 0
    assert all(torch.equal(v, state.params[k]) == (k in rear_of(task)) for k, v in one.received.items())


def test_cosines_of_whole_models() -> None:
    found, numbers = cosines({"a": torch.tensor([[3.0], [0.0], [3.0]]), "b": torch.tensor([[4.0], [2.0], [torch.inf]])})
    assert found[0, 1] == pytest.approx(0.8)
    assert numbers.tolist() == [True, True, False]


# --- in a study -------------------------------------------------------------------------------------------------------


def test_what_a_study_may_set() -> None:
    assert methods.problems("ripfl", {"rear": "never", "lam": 0, "selection": "all", "takes": 4}, "method") == []
    assert methods.problems("ripfl", {"rear": 3}, "method") == []
    wrong = methods.problems("ripfl", {"rear": "seldom", "selection": "best", "drawn": -1}, "method")
    assert [p.where for p in wrong] == ["method.rear", "method.selection", "method.drawn"]
    assert "a whole number >= 1 or 'never', got 'seldom'" in wrong[0].what
    assert "expected a number >= 0 and <= 1, got 1.5" in methods.problems("ripfl", {"drawn": 1.5}, "method")[0].what


def test_a_number_is_refused_in_words() -> None:
    frames = vt.datasets.heart_disease()
    study = vt.Study.infer(frames, target="age")
    with pytest.raises(vt.VitrailError, match="how unsure models are"):
        vt.federate(study, frames, "ripfl", rounds=1)


def test_its_updates_cannot_be_kept(tmp_path: Any) -> None:
    frames = vt.datasets.heart_disease()
    with pytest.raises(vt.VitrailError, match="one model for each site"):
        vt.federate(vt.Study.infer(frames, target="disease"), frames, "ripfl", 1, out=tmp_path / "r", keep_updates=True)


def test_both_models_of_a_site_are_scored() -> None:
    """The one that it trained, which it predicts with, and the one that it was given."""
    frames = vt.datasets.heart_disease()
    study = vt.Study.infer(frames, target="disease").with_changes(training={"rounds": 12, "lr": 0.01})
    run = vt.federate(study, frames, RIPFL(rear=3))
    both = run.history[run.history["round"] == 12].pivot_table(
        index=["site", "metric"], columns="split", values="value", observed=True
    )
    assert {"test", f"test:{RECEIVED}", "train"} <= set(both.columns)
    assert (both["test"] != both[f"test:{RECEIVED}"]).any()
    shares = run.influence().to_numpy()
    assert shares.sum(1) == pytest.approx([1.0] * 4)
    u = run.fact(means.UNCERTAINTY)
    assert u is not None
    assert u.shape == (12, 4)
    assert bool(((u > 0) & (u < 1)).all())
    said = run.predict("va", frames["va"])
    assert ((said > 0) & (said < 1)).all().all()

"""Centres: its limits, its equations as plain loops, and what it finds where the truth is known."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.facts import ALONE, CHOICE, COSTS, GROUP, OWN, SHARED, find_value
from vitrail.core.random import mixed
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.centre_stages import ChooseCentres, SplitCentres
from vitrail.methods.blocks.model_copies import fitted
from vitrail.methods.centres import Centres
from vitrail.nets import MLP

LR, ROUNDS = 0.03, 4
TRAINING = Training(rounds=ROUNDS, batch=64, lr=LR, momentum=0.0, decays=0)
ROWS = {name: (x, y, w) for name, x, y, w in make_rows()}
SITES = gather_sites(make_rows())
exact = 1e-12


def chosen(engine: Engine, moments: list) -> tuple[int, int, float]:
    facts = {k: f for m in moments for k, f in m.facts.items()}
    k, b, a = find_value(facts, CHOICE).tolist()
    return int(k), int(b), a


def some_away(stage: int, round_: int) -> Tensor:
    return torch.tensor([(i + round_) % 3 == 0 for i in range(5)])


def test_one_group_and_nothing_of_ones_own_is_fedavg() -> None:
    task = make_task(dropout=0.2)
    for given in ({}, {"weights": "rows"}, {"invited": 2}):
        one = Centres(groups=1, constant=False, alpha=0.0, **given)
        e, last = train(one, task, absent=some_away)
        whole = models(*train(methods.build("fedavg", given), task, absent=some_away))
        mine = {s: {f"params/{k}": v for k, v in part.items()} for s, part in split(e, last, OWN).items()}
        assert gap(mine, whole) < exact
    x = torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    state = e.settled(last)
    assert torch.equal(one.predict(task, state, x), task.output(state.params, x))


def test_groups_do_not_change_what_all_sites_share() -> None:
    task = make_task(dropout=0.2)
    e, last = train(Centres(folds=2), task)
    whole = models(*train(methods.build("fedavg"), task))
    assert gap({s: {f"params/{k}": v for k, v in p.items()} for s, p in split(e, last, SHARED).items()}, whole) < exact


def test_everything_of_ones_own_is_local() -> None:
    task = make_task(dropout=0.2)
    e, last = train(Centres(folds=2, starts=1, alpha=1.0), task)
    alone = models(*train(methods.build("local"), task))
    assert gap({s: {f"params/{k}": v for k, v in p.items()} for s, p in split(e, last, ALONE).items()}, alone) < exact
    x = torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    state = e.settled(last)
    assert torch.equal(e.method.predict(task, state, x), task.output({k: v[:, -1] for k, v in state.own.items()}, x))


def split(engine: Engine, last: object, model: str) -> dict[str, Params]:
    held = engine.method.models(engine.task, engine.settled(last))[model]
    return {site: {k: v[i] for k, v in held.items()} for i, site in enumerate(engine.names)}


# the equations


def loss(task: Task, params: Params, site: str, keep: Tensor) -> Tensor:
    x, y, w = ROWS[site]
    out = task.value({k: v[None] for k, v in params.items()}, Batch(x[None], y[None], (w * keep[:, None])[None]))
    return out.sum()


def stepped(task: Task, params: Params, site: str, keep: Tensor) -> Params:
    """One step: all rows are one batch."""
    leaves = {k: v.detach().clone().requires_grad_() for k, v in params.items()}
    loss(task, leaves, site, keep).backward()
    return {k: v.detach() - LR * v.grad for k, v in leaves.items()}


def mean(some: list[Params]) -> Params:
    return {k: sum(p[k] for p in some) / len(some) for k in some[0]}  # type: ignore[misc]


def scores(task: Task, params: Params, site: str) -> Tensor:
    return task.output({k: v[None] for k, v in params.items()}, ROWS[site][0][None])[0]


def test_it_is_its_equations() -> None:
    """K = 1, 2, 3 from the second of four rounds on, two starts, two folds; the table of all alternatives, the choice,
    and what a site ends with."""
    task, folds, starts = make_task(hidden=(), dropout=0.0), 2, 2
    method = Centres(folds=folds, starts=starts, warm=0.25, constant=False, margin=0.0)
    e = Engine(task, method, SITES, TRAINING, 5)
    began = e.start().coord
    roster = e.roster(e.everyone, 0, 0, 1)
    away = {k: v[0] - task.start[k] for k, v in SplitCentres(method).send(task, began, roster).centres.items()}
    away = {k: v[0] for k, v in away.items()}  # [start, centre, ...]: the first random steps, the same for all versions
    lot = e.keys.sum()
    fold = {s: mixed(lot, torch.arange(1, 1 + len(x))) % folds for s, (x, _, _) in ROWS.items()}
    costs, ends = torch.zeros(3, 11, dtype=torch.double), {}
    left_out: dict = {}
    empties = 0
    for version in (*range(folds), None):
        keep = {
            s: (f != version).double() if version is not None else torch.ones(len(f)).double() for s, f in fold.items()
        }
        shared, alone = task.start, dict.fromkeys(ROWS, task.start)
        centres: dict = {}
        for r in range(ROUNDS):
            shared = mean([stepped(task, shared, s, keep[s]) for s in ROWS])
            alone = {s: stepped(task, alone[s], s, keep[s]) for s in ROWS}
            if r < 1:
                continue
            if not centres:
                for many, start in ((m, q) for m in (2, 3) for q in range(starts)):
                    at = range(2) if many == 2 else range(2, 5)
                    centres[many, start] = [{k: v + away[k][start, c] for k, v in shared.items()} for c in at]
            fit = {}
            for key, some in centres.items():
                z = {s: min(range(len(some)), key=lambda c: float(loss(task, some[c], s, keep[s]))) for s in ROWS}
                fit[key] = sum(float(loss(task, some[z[s]], s, keep[s])) for s in ROWS)
                for c in range(len(some)):
                    mine = [stepped(task, some[c], s, keep[s]) for s in ROWS if z[s] == c]
                    first = {k: v + away[k][key[1], c + key[0] * (key[0] - 1) // 2 - 1] for k, v in shared.items()}
                    empties += not mine
                    some[c] = mean(mine) if mine else first
        kept = {1: [shared]}
        for many in (2, 3):
            kept[many] = centres[many, min(range(starts), key=lambda q: fit[many, q])]
        for many, some in kept.items():
            for s in ROWS:
                z = min(range(many), key=lambda c: float(loss(task, some[c], s, keep[s])))
                theirs, mine = scores(task, some[z], s), scores(task, alone[s], s)
                ends[many, s] = some[z], z
                for i in range(11):
                    mix = (i / 10) * mine + (1 - i / 10) * theirs
                    rows = -(mix.log_softmax(-1) * ROWS[s][1] * ROWS[s][2]).sum(-1)
                    left = 1 - keep[s]
                    costs[many - 1, i] += (rows * left).sum()
                    left_out[many, i, s] = left_out.get((many, i, s), 0) + (rows * left).sum()
    costs = costs / sum(w.sum() for _, _, w in ROWS.values())
    assert empties, "a group without sites is among the cases"
    moments = list(e.run())
    facts = {k: f for m in moments for k, f in m.facts.items()}
    assert torch.allclose(find_value(facts, COSTS)[:, 0], costs, rtol=0, atol=exact)
    there = SplitCentres(method).send(task, moments[-1].coord, roster).centres  # [site, version, start, centre, ...]
    for (many, start), some in centres.items():
        for c, centre in enumerate(some, many * (many - 1) // 2 - 1):
            assert gap({"": {n: v[0, -1, start, c] for n, v in there.items()}}, {"": centre}) < exact
    k, _, alpha = chosen(e, moments)
    assert (k - 1, round(10 * alpha)) == divmod(int(costs.argmin()), 11)  # with margin = 0
    state = e.settled(moments[-1])
    assert not state.constant.any()
    for i, s in enumerate(e.names):
        centre, z = ends[k, s]
        assert int(state.group[i]) == z + 1
        assert gap({"": {n: v[i] for n, v in state.params.items()}}, {"": centre}) < exact
        per_row = left_out[k, round(10 * alpha), s] / ROWS[s][2].sum()
        assert abs(float(state.loss[i]) - float(per_row)) < exact


def test_rows_of_a_fold_are_unknown_to_the_version_without_it() -> None:
    """Other answers there: the models without the fold stay what they were, all others change."""
    task, method = make_task(hidden=(), dropout=0.0), Centres(folds=3, starts=1)
    e = Engine(task, method, SITES, TRAINING, 5)
    fold = torch.cat([mixed(e.keys.sum(), torch.arange(1, 1 + n)) % 3 for n in SITES.sizes])
    y = torch.where((fold == 1)[:, None], SITES.y.roll(1, 1), SITES.y)
    other = Engine(task, method, Sites(SITES.names, SITES.x, y, SITES.w, SITES.sizes), TRAINING, 5)
    one, two = ([m for m in run.run() if m.stage == 0][-1] for run in (e, other))
    for before, after in zip(
        [*one.coord.params.values(), *one.coord.offset.values(), *(v.transpose(0, 1) for v in one.state.own.values())],
        [*two.coord.params.values(), *two.coord.offset.values(), *(v.transpose(0, 1) for v in two.state.own.values())],
        strict=True,
    ):
        assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [False, True, False, False]


def test_more_groups_must_earn_it() -> None:
    costs = torch.full((3, 1, 2), 100.0)
    for two, three, margin, want in (
        (99.5, 98.2, 0.01, 5),
        (99.5, 99.2, 0.01, 0),
        (98.0, 97.5, 0.01, 3),
        (99.9, 99.8, 0.0, 5),
        (100.0, 100.0, 0.0, 0),
    ):
        costs[1, 0, 1], costs[2, 0, 1] = two, three
        assert int(ChooseCentres(Centres(margin=margin, constant=False)).lowest(costs)) == want
    costs[0], costs[1, 0, 1], costs[2] = torch.inf, 7.0, torch.inf
    assert int(ChooseCentres(Centres(constant=False)).lowest(costs)) == 3
    assert int(ChooseCentres(Centres(constant=False)).lowest(torch.full_like(costs, torch.inf))) == 0


def test_a_constant_is_where_the_slope_is_nothing() -> None:
    g, hold = torch.Generator().manual_seed(2), 5.0
    z, w = torch.randn(3, 2, 50, 3, generator=g, dtype=torch.double), torch.rand(3, 1, 50, 1, generator=g).double()
    y = torch.nn.functional.one_hot(torch.randint(0, 3, (3, 50), generator=g), 3).double()[:, None]
    task = make_task()
    b = fitted(task, z, y, w, hold).requires_grad_()
    cost = -((z + b[..., None, :]).log_softmax(-1) * y * w).sum((-1, -2)) + hold / 2 * (b**2).sum(-1)
    cost.sum().backward()
    assert float(b.grad.abs().max()) < 1e-2 * float(w.sum((2, 3)).min())
    assert hold * float(b.detach().abs().max()) > 2 * float(w.sum((2, 3)).max()) * 1e-2


# what it finds


def world(groups: list[int], by_lot: tuple[int, ...] = (), rows: int = 80) -> Sites:
    """Logistic rows; group g's truth is turned from the others'."""
    g = torch.Generator().manual_seed(4)
    truths = torch.randn(1 + max(groups), 5, generator=g) * 1.5
    out = []
    for i, group in enumerate(groups):
        x = torch.randn(rows, 5, generator=g)
        label = (torch.rand(rows, generator=g) < torch.sigmoid(x @ truths[group])).long()
        if i in by_lot:
            label = torch.randint(0, 2, (rows,), generator=g)
        out.append((f"{i}", x, torch.nn.functional.one_hot(label, 2).float(), torch.ones(rows, 1)))
    return gather_sites(out)


def found(sites: Sites) -> tuple[tuple[int, int, float], dict[str, int]]:
    """What was chosen, and who is in which group."""
    net = MLP(5, 2, ())
    task = Task(net, net.init(torch.Generator().manual_seed(1)))
    e = Engine(task, Centres(), sites, Training(20, batch=20, lr=0.5, momentum=0.0, decays=0, mean=True), 3)
    moments = list(e.run())
    facts = {k: f for m in moments for k, f in m.facts.items()}
    state = e.settled(moments[-1])
    assert bool(state.constant.any()) == bool(chosen(e, moments)[1]), "constants are added where they were chosen"
    return chosen(e, moments), dict(zip(e.names, find_value(facts, GROUP).tolist(), strict=True))


def test_two_hidden_groups_are_found() -> None:
    (k, _, alpha), group = found(world([0, 1] * 4))
    assert (k, len(set(group.values()))) == (2, 2)
    assert len({group[f"{i}"] for i in range(0, 8, 2)}) == 1 == len({group[f"{i}"] for i in range(1, 8, 2)})
    assert alpha < 0.5


def test_labels_by_lot_are_left_among_themselves() -> None:
    (k, *_), group = found(world([0] * 9, by_lot=(2, 5, 8)))
    assert k > 1
    honest = {group[f"{i}"] for i in range(9) if i % 3 != 2}
    assert len(honest) == 1
    assert not honest & {group[f"{i}"] for i in (2, 5, 8)}


def test_where_all_are_alike_there_is_one_group() -> None:
    (k, _, alpha), group = found(world([0] * 8))
    assert k == 1
    assert alpha < 0.3
    assert set(group.values()) == {1}


def test_who_is_absent_at_the_choice_has_the_group_of_its_last_round_and_no_constant() -> None:
    task = make_task(hidden=(), dropout=0.0)
    training = Training(rounds=8, batch=64, lr=0.1, momentum=0.0, decays=0)
    at = SITES.names.index("site 0")
    absent = lambda s, r: torch.tensor([s == 1 and i == at for i in range(5)])  # noqa: E731
    e, last = train(Centres(folds=2, starts=1), task, SITES, training, absent=absent)
    before = [m for m in Engine(task, e.method, SITES, training, 5, absent=absent).run() if m.stage == 0][-1]
    state = e.settled(last)
    k = int(torch.unravel_index(last.coord.choice, e.method.table)[0])
    assert not state.constant[at].any()
    assert int(state.group[at]) == int(before.state.groups[at, 0, k]) + 1
    assert float(state.loss[at]) == 0.0


def test_of_a_linear_model_the_own_is_what_it_predicts_with() -> None:
    task = make_task(hidden=(), dropout=0.0)
    for alpha in (0.0, 0.3, 1.0):
        e, last = train(Centres(folds=2, alpha=alpha), task)
        state, x = e.settled(last), torch.randn(5, 4, 6, dtype=torch.double)
        own = task.output(e.method.models(task, state)[OWN], x)
        assert torch.allclose(own, e.method.predict(task, state, x), atol=exact)

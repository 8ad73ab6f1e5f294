"""Agreed mix: its limits, its sums as plain loops, and what it chooses where the truth is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.facts import AGAINST_ALONE, AGREED, ALONE, ALONE_LEFT_OUT, LEFT_OUT, MIX, MIX_COSTS, OWN, find_value
from vitrail.core.random import mixed
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training
from vitrail.methods.agreed_mix import AgreedMix
from vitrail.methods.blocks.mix_choice import ChooseMix
from vitrail.nets import MLP

LR, ROUNDS = 0.03, 3
TRAINING = Training(rounds=ROUNDS, batch=64, lr=LR, momentum=0.0, decays=0)
ROWS = {name: (x, y, w) for name, x, y, w in make_rows()}
SITES = gather_sites(make_rows())
exact = 1e-12


def some_away(stage: int, round_: int) -> Tensor:
    return torch.tensor([stage == 0 and (i + round_) % 3 == 0 for i in range(5)])


def some_rows() -> Tensor:
    return torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)


def facts_of(moments: list[Snapshot]) -> dict:
    return {k: f for m in moments for k, f in m.facts.items()}


INNER = [
    "fedavg",
    "fedavg:weights=rows",
    "fedavg:invited=2",
    "fedper",
    "apfl",
    "scaffold",
    "ditto",
    "fine_tune:epochs=2",
    "moon",
    "fed_rod",
]


@pytest.mark.parametrize("inner", INNER)
def test_nothing_of_ones_own_is_the_method_as_it_is(inner: str) -> None:
    """Also with sites absent: the version with all rows is not touched by the others."""
    task, x = make_task(hidden=(5,), dropout=0.2), some_rows()
    e, last = train(AgreedMix(inner=inner, folds=2, tuned=(), alpha=0.0), task, absent=some_away)
    plain, end = train(methods.build(*methods.split_name(inner)), task, absent=some_away)
    want = plain.method.predict(plain.task, plain.settled(end), x)
    assert torch.allclose(e.method.predict(e.task, e.settled(last), x), want, rtol=0, atol=exact)
    assert {ALONE, OWN} <= e.method.models(e.task, e.settled(last)).keys()


def test_everything_of_ones_own_is_local() -> None:
    task, x = make_task(dropout=0.2), some_rows()
    e, last = train(AgreedMix(folds=2, tuned=(1, 2), alpha=1.0), task)
    plain, end = train(methods.build("local"), task)
    alone = e.method.models(task, e.settled(last))[ALONE]
    held = {s: {f"params/{k}": v[i] for k, v in alone.items()} for i, s in enumerate(e.names)}
    assert gap(held, models(plain, end)) < exact
    want = plain.method.predict(task, plain.settled(end), x)
    assert torch.allclose(e.method.predict(task, e.settled(last), x), want, rtol=0, atol=exact)


def test_a_rate_of_ones_own_is_that_of_a_local_run() -> None:
    e, last = train(AgreedMix(folds=2, tuned=(), own_rate=0.5), make_task())
    alone = e.method.models(e.task, e.settled(last))[ALONE]
    held = {s: {f"params/{k}": v[i] for k, v in alone.items()} for i, s in enumerate(e.names)}
    assert gap(held, models(*train(methods.build("local", {"lr": 0.01}), make_task()))) < exact


@pytest.mark.parametrize("inner", ["local", "cfl", "weight_erosion", "centres", "agreed_mix", "no_such", "fedavg:mu=1"])
def test_what_has_no_shared_model_made_of_one_sum_is_refused(inner: str) -> None:
    (problem,) = methods.problems("agreed_mix", {"inner": inner}, "method")
    assert inner in problem.what
    assert methods.problems("agreed_mix", {"inner": "fedavg", "tuned": [3, 1]}, "method")


def test_momentum_is_that_of_the_method_inside_unless_it_is_given() -> None:
    net, training = MLP(6, 3), Training(momentum=0.5)
    assert training.rule(net, AgreedMix()).momentum == 0.5  # type: ignore[attr-defined]
    assert training.rule(net, AgreedMix(inner="apfl")).momentum == 0.0  # type: ignore[attr-defined]
    assert training.rule(net, AgreedMix(inner="apfl", momentum=0.7)).momentum == 0.7  # type: ignore[attr-defined]


# the sums


def value(task: Task, params: Params, site: str, w: Tensor) -> Tensor:
    x, y, _ = ROWS[site]
    return task.value({k: v[None] for k, v in params.items()}, Batch(x[None], y[None], w[None, :, None])).sum()


def stepped(task: Task, params: Params, site: str, w: Tensor) -> Params:
    """One step: all rows are one batch."""
    leaves = {k: v.detach().clone().requires_grad_() for k, v in params.items()}
    value(task, leaves, site, w).backward()
    return {k: v.detach() - LR * v.grad for k, v in leaves.items()}


def test_it_is_its_equations() -> None:
    """FedAvg and alone with all rows and without each of three folds, tuned for one and two epochs; what each mix
    costs, what all agree on, and what a site ends with and is told of itself."""
    task, folds = make_task(hidden=(), dropout=0.0), 3
    e = Engine(task, AgreedMix(folds=folds, tuned=(1, 2), slack=0.0), SITES, TRAINING, 5)
    fold = {s: mixed(e.keys.sum(), torch.arange(1, 1 + len(x))) % folds for s, (x, _, _) in ROWS.items()}
    lost = {s: torch.zeros(3, 11, len(f), dtype=torch.double) for s, f in fold.items()}  # of each row
    by_itself = {s: torch.zeros(len(f), dtype=torch.double) for s, f in fold.items()}
    ends: dict = {}
    for version in range(folds + 1):
        left = {s: (f == version).double() for s, f in fold.items()}
        more = folds / (folds - 1) if version < folds else 1.0
        w = {s: (1 - left[s]) * more * ROWS[s][2][:, 0] for s in ROWS}
        shared, alone = task.start, dict.fromkeys(ROWS, task.start)
        for _ in range(ROUNDS):
            sent = [stepped(task, shared, s, w[s]) for s in ROWS]
            shared = {k: sum(p[k] for p in sent) / len(sent) for k in shared}  # type: ignore[misc]
            alone = {s: stepped(task, alone[s], s, w[s]) for s in ROWS}
        for s, (x, y, weight) in ROWS.items():
            starts = [shared]
            for _ in range(2):
                starts.append(stepped(task, starts[-1], s, w[s]))
            ends[s] = alone[s], starts

            def scores(params: Params, x: Tensor = x) -> Tensor:
                return task.output({k: v[None] for k, v in params.items()}, x[None])[0]

            def cost(z: Tensor, y: Tensor = y, weight: Tensor = weight) -> Tensor:
                return -(z.log_softmax(-1) * y * weight).sum(-1)

            # what is left out counts; to it the model of all rows, less the mean of those without a fold (Burman)
            counts = left[s] - 1 / folds if version < folds else 1.0
            by_itself[s] += counts * cost(scores(alone[s]))
            for i, start in enumerate(starts):
                for j in range(11):
                    z = j / 10 * scores(alone[s]) + (1 - j / 10) * scores(start)
                    lost[s][i, j] += counts * cost(z)
    total = {s: w.sum() for s, (_, _, w) in ROWS.items()}
    costs = sum(v.sum(-1) for v in lost.values()) / sum(total.values())  # type: ignore[arg-type]
    sums = torch.zeros(4, 3, 11, dtype=torch.double)
    for s, v in lost.items():
        more = v - by_itself[s]
        mean, w = more.sum(-1) / total[s], ROWS[s][2][:, 0]
        n = len(w)
        error = ((more - mean[..., None] * w) ** 2).sum(-1) / total[s] ** 2 * n / (n - 1)
        sums += torch.stack([torch.ones_like(mean), mean, mean**2, error])
    moments = list(e.run())
    facts = facts_of(moments)
    assert torch.allclose(find_value(facts, MIX_COSTS), costs, rtol=0, atol=exact)
    assert torch.allclose(find_value(facts, AGAINST_ALONE), sums, rtol=0, atol=exact)
    place = int(costs.argmin())
    start, j = divmod(place, 11)
    assert find_value(facts, MIX).tolist() == [start, j / 10]
    state, x = e.settled(moments[-1]), some_rows()
    said = e.method.predict(task, state, x)
    for i, s in enumerate(e.names):
        alone, starts = ends[s]  # the last version: all rows
        want = [task.output({k: v[None] for k, v in p.items()}, x[i : i + 1])[0] for p in (alone, starts[start])]
        assert torch.allclose(said[i], j / 10 * want[0] + (1 - j / 10) * want[1], rtol=0, atol=exact)
        assert abs(float(find_value(facts, LEFT_OUT)[i] - lost[s].flatten(0, 1)[place].sum() / total[s])) < exact
        assert abs(float(find_value(facts, ALONE_LEFT_OUT)[i] - by_itself[s].sum() / total[s])) < exact


def test_rows_of_a_fold_are_unknown_to_the_version_without_it() -> None:
    """Other answers there: the models without the fold stay what they were, all others change."""
    task, method = make_task(hidden=(), dropout=0.0), AgreedMix(folds=3, tuned=(1,))
    e = Engine(task, method, SITES, TRAINING, 5)
    fold = torch.cat([mixed(e.keys.sum(), torch.arange(1, 1 + n)) % 3 for n in SITES.sizes])
    y = torch.where((fold == 1)[:, None], SITES.y.roll(1, 1), SITES.y)
    other = Engine(task, method, Sites(SITES.names, SITES.x, y, SITES.w, SITES.sizes), TRAINING, 5)
    one, two = ([m for m in run.run() if m.stage == 1][-1] for run in (e, other))

    def versions(m: Snapshot) -> list[Tensor]:
        own = [v.transpose(0, 1) for v in m.state.own.values()]
        return [*m.coord.of.params.values(), *own, *(v[:, 0].transpose(0, 1) for v in m.state.tuned.values())]

    for before, after in zip(versions(one), versions(two), strict=True):
        assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [False, True, False, False]


# what it chooses


def world(turned: Callable[[int], bool], rows: int = 60, sites: int = 8) -> Sites:
    g = torch.Generator().manual_seed(4)
    truth, out = torch.randn(5, generator=g) * 1.5, []
    for i in range(sites):
        x = torch.randn(rows, 5, generator=g)
        label = (torch.rand(rows, generator=g) < torch.sigmoid(x @ truth)).long()
        label = 1 - label if turned(i) else label
        out.append((f"{i}", x, torch.nn.functional.one_hot(label, 2).float(), torch.ones(rows, 1)))
    return gather_sites(out)


def agreed(sites: Sites, **given: object) -> tuple[Engine, list[Snapshot], list[float]]:
    net = MLP(5, 2, ())
    task = Task(net, net.init(torch.Generator().manual_seed(1)))
    training = Training(20, batch=20, lr=0.5, momentum=0.0, decays=0, mean=True)
    e = Engine(task, AgreedMix(**given), sites, training, 3)  # type: ignore[arg-type]
    moments = list(e.run())
    return e, moments, find_value(facts_of(moments), MIX).tolist()


def test_where_sharing_harms_everybody_keeps_its_own() -> None:
    """Half of the sites have the opposite labels: what they say of the same rows is the opposite, too."""
    e, moments, _ = agreed(world(lambda i: i % 2 == 0))
    costs = find_value(facts_of(moments), MIX_COSTS)
    assert float(costs[0, 0]) > float(costs[0, -1]) + 0.1  # the shared model alone would have cost
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(1)).expand(8, -1, -1)
    says = e.method.predict(e.task, e.settled(moments[-1]), x).argmax(-1)
    turned = [says[e.names.index(f"{i}")] for i in range(8)]
    for one, other in zip(turned[::2], turned[1::2], strict=True):
        assert float((one != other).float().mean()) > 0.8


def test_where_sites_are_alike_all_use_what_is_shared() -> None:
    _, moments, (_, own) = agreed(world(lambda i: False, rows=30))
    costs = find_value(facts_of(moments), MIX_COSTS)
    assert own < 0.5
    assert float(costs[0, -1]) > float(costs[0, 0]) + 0.01  # alone would have cost


def test_who_shows_nothing_is_not_told_of_and_has_the_same_model() -> None:
    sites = world(lambda i: False)
    e, moments, choice = agreed(sites)
    refuses = sites.names.index("3")
    shows = [s for s, stage in enumerate(e.stages) if stage.last.consent]
    absent = lambda s, r: torch.tensor([s in shows and i == refuses for i in range(8)])  # noqa: E731
    other = Engine(e.task, e.method, sites, e.training, 3, absent=absent)
    *_, last = other.run()
    facts = last.facts
    assert find_value(facts, AGREED).tolist() == [i != refuses for i in range(8)]
    assert float(find_value(facts, LEFT_OUT)[refuses]) == 0.0 < float(find_value(facts, LEFT_OUT)[0])
    x = torch.randn(8, 3, 5)
    one, two = (run.method.predict(run.task, run.settled(m), x) for run, m in ((e, moments[-1]), (other, last)))
    assert torch.equal(one, two)
    assert find_value(facts_of(moments), MIX).tolist() == choice


def test_who_is_absent_at_the_choice_takes_what_the_others_agree_on() -> None:
    sites = world(lambda i: False)
    e, _, _ = agreed(sites)
    at, choose = sites.names.index("2"), [s.name for s in e.stages].index("choose")
    absent = lambda s, r: torch.tensor([s == choose and i == at for i in range(8)])  # noqa: E731
    other = Engine(e.task, e.method, sites, e.training, 3, absent=absent)
    moments = list(other.run())
    state, facts = other.settled(moments[-1]), facts_of(moments)
    assert float(find_value(facts, AGAINST_ALONE)[0, 0, 0]) == 7
    assert len(set(state.choice.tolist())) == 1
    assert float(state.loss[at]) == 0.0


def test_of_a_linear_model_the_own_is_what_it_predicts_with() -> None:
    task = make_task(hidden=(), dropout=0.0)
    for alpha in (0.0, 0.3, 1.0):
        e, last = train(AgreedMix(folds=2, tuned=(1,), alpha=alpha), task)
        state, x = e.settled(last), some_rows()
        own = task.output(e.method.models(task, state)[OWN], x)
        assert torch.allclose(own, e.method.predict(task, state, x), atol=exact)


def test_what_diverges_is_not_chosen() -> None:
    costs = torch.tensor([[torch.inf, 5.0], [4.0, torch.inf]])
    against = torch.full((4, 2, 2), torch.nan)
    for slack in (0.0, 0.01):
        assert int(ChooseMix(AgreedMix(slack=slack)).lowest(costs, against)) == 2
        assert int(ChooseMix(AgreedMix(slack=slack)).lowest(torch.full_like(costs, torch.inf), against)) == 0


def test_of_those_that_cost_hardly_more_the_least_harmful_is_taken() -> None:
    """Ten sites: the lowest serves half of them worse than alone, one that costs .4 % more nobody, and the best for
    everybody costs 2 % more."""
    costs = torch.tensor([[100.0, 100.4, 102.0]])
    mean, spread = torch.tensor([[0.0, -0.02, -0.05]]), 0.01
    squares = 10 * mean**2 + 9 * spread**2
    against = torch.stack([torch.full_like(mean, 10), 10 * mean, squares, torch.zeros_like(mean)])
    for slack, want in ((0.0, 0), (0.001, 0), (0.005, 1), (0.03, 2)):
        assert int(ChooseMix(AgreedMix(slack=slack)).lowest(costs, against)) == want
    noise = torch.stack([*against[:3], 10 * torch.full_like(mean, spread**2)])  # all of the spread is the rows'
    assert int(ChooseMix(AgreedMix(slack=0.005)).lowest(costs, noise)) == 1

"""Laws that every method in the table keeps. A method added to the table is tested by being listed."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from small import gap, make_rows, make_task, models, pooled, train
from vitrail import methods
from vitrail.core.exchange import Method
from vitrail.core.tensors import each, tensors
from vitrail.engines.local import Engine, Training
from vitrail.engines.sites import gather_sites
from vitrail.engines.wire import spec_of, trace

every = pytest.mark.parametrize("name", list(methods.TABLE))
exact = 1e-12


def some_absent(stage: int, round_: int) -> torch.Tensor:
    return torch.tensor([(i * 7 + round_ * 3 + stage) % 4 == 0 for i in range(5)])


def absent_for(method: Method) -> object:
    return None if method.pools_rows else some_absent


@every
@pytest.mark.parametrize("ends", [{}, {"affine_in": True, "affine_out": "each"}], ids=["plain", "affine ends"])
def test_engines_agree(name: str, ends: dict) -> None:
    method = methods.build(name)
    task = make_task(**ends)
    whole = models(*train(method, task))
    assert gap(whole, models(*train(method, task, looped=True))) < exact
    assert gap(whole, models(*train(method, task, chunk=2))) < exact


@every
def test_engines_agree_with_absent_sites(name: str) -> None:
    method = methods.build(name)
    runs = [train(method, absent=absent_for(method), **k) for k in ({}, {"looped": True}, {"chunk": 3})]
    assert max(gap(models(*runs[0]), models(*r)) for r in runs[1:]) < exact


@every
@pytest.mark.parametrize("kind", ["classes", "number"])
def test_permuting_sites_permutes_results(name: str, kind: str) -> None:
    method, rows = methods.build(name), make_rows(kind)
    task = make_task(kind)
    one = models(*train(method, task, gather_sites(rows)))
    other = models(*train(method, task, gather_sites([rows[i] for i in (3, 0, 4, 2, 1)])))
    assert gap(one, other) < exact


@every
def test_identical_sites_get_identical_models(name: str) -> None:
    _, x, y, w = make_rows()[0]
    sites = gather_sites([(n, x, y, w) for n in ("a", "b", "c")])
    # batches of all rows and no dropout: nothing is left to chance
    got = models(*train(methods.build(name), make_task(dropout=0.0), sites, Training(rounds=4, batch=64, lr=0.01)))
    first = next(iter(got.values()))
    for other in got.values():
        assert all(torch.allclose(first[k], other[k], atol=1e-10) for k in first)


@every
def test_only_declared_tensors_travel(name: str) -> None:
    """The contract is traced on rows of zeros; the messages of a real run have exactly its names, shapes and types."""
    method, task = methods.build(name), make_task()
    seen: list[tuple[str, dict]] = []

    def spy(stage: int, exchange: object) -> object:
        class Spy(type(exchange)):  # type: ignore[misc]
            def send(self, *a):
                down = super().send(*a)
                seen.append((f"{stage} down", spec_of(down)))
                return down

            def report(self, *a):
                state, up = super().report(*a)
                seen.append((f"{stage} up", spec_of(up)))
                return state, up

        return (
            Spy(**{f.name: getattr(exchange, f.name) for f in dataclasses.fields(exchange)})
            if dataclasses.is_dataclass(exchange)
            else Spy()
        )

    e = Engine(task, method, pooled(method, gather_sites(make_rows())), Training(rounds=2, batch=8), 1)
    e.stages = tuple(s._replace(exchanges=tuple(spy(i, x) for x in s.exchanges)) for i, s in enumerate(e.stages))
    for _ in e.run():
        pass
    declared = {
        f"{i} {side}": spec for i, (c,) in enumerate(e.contracts) for side, spec in (("down", c.down), ("up", c.up))
    }
    assert {place for place, _ in seen} == set(declared)
    for place, spec in seen:
        assert spec == declared[place]


@every
def test_private_state_never_travels(name: str) -> None:
    """No tensor a site keeps for itself appears in a message, by value."""
    method, task = methods.build(name), make_task()
    e = Engine(task, method, pooled(method, gather_sites(make_rows())), Training(rounds=3, batch=8), 5)
    last = next(itertools.islice(e.run(), 2, None))  # the end of training
    if method.pools_rows or not any(c.up for (c,) in e.contracts):
        return  # pooled rows travel by declaration; silence reveals nothing
    coord = [t for _, t in tensors(last.coord)]
    for key, kept in tensors(last.state):
        for i in range(kept.shape[0]):
            mine = kept[i]
            if mine.numel() > 1:
                assert not any(c.shape == mine.shape and torch.equal(c, mine) for c in coord), key


@every
def test_stop_and_resume_equals_not_stopping(name: str) -> None:
    method, task = methods.build(name), make_task()
    training = Training(rounds=4, batch=8, lr=0.02)
    sites = pooled(method, gather_sites(make_rows()))
    whole = models(*train(method, task, gather_sites(make_rows()), training, absent=absent_for(method)))
    rounds = sum(s.rounds for s in method.plan(training.rounds))
    for stop in {1, 3, 4, rounds - 1} & set(range(1, rounds)):
        first = Engine(task, method, sites, training, 5, absent=absent_for(method))
        moment = next(itertools.islice(first.run(), stop - 1, None))
        kept = moment._replace(coord=each(torch.clone, moment.coord), state=each(torch.clone, moment.state))
        second = Engine(task, method, sites, training, 5, absent=absent_for(method))
        last = kept
        for last in second.run(kept):  # noqa: B007
            pass
        got = models(second, last)
        assert all(torch.equal(got[s][k], whole[s][k]) for s in whole for k in whole[s]), f"stopped after {stop}"


@every
def test_another_seed_gives_another_model(name: str) -> None:
    method = methods.build(name)
    assert gap(models(*train(method, seed=5)), models(*train(method, seed=6))) > 1e-4


@every
def test_an_absent_site_changes_nothing_while_away(name: str) -> None:
    """Its private state is what it was, and the others' models are those of a federation where it never spoke."""
    method, task = methods.build(name), make_task()
    if method.pools_rows:
        pytest.skip("all rows are in one place: nobody can be absent")
    e = Engine(
        task,
        method,
        gather_sites(make_rows()),
        Training(rounds=3, batch=8),
        5,
        absent=lambda s, r: torch.tensor([i == 2 for i in range(5)]),
    )
    before = {k: v[2].clone() for k, v in tensors(e.start().state)}
    moments = iter(e.run())
    moment = next(moments)
    assert all(torch.equal(before[k], v[2]) for k, v in tensors(moment.state))
    assert e.ledger.counts.get("train|from site", [0, 0, 0, 0, 0])[2] == 0


@every
def test_nobody_present_is_harmless(name: str) -> None:
    method = methods.build(name)
    if method.pools_rows:
        pytest.skip("all rows are in one place: nobody can be absent")
    away = models(*train(method, absent=lambda s, r: torch.ones(5, dtype=torch.bool)))
    e = Engine(make_task(), method, gather_sites(make_rows()), Training(rounds=4, batch=8), 5)
    assert all(
        torch.equal(v[i], away[site][k])
        for k, v in tensors(e.settled(e.start()))
        for i, site in enumerate(e.sites.names)
    )


def test_limits_give_the_simpler_method() -> None:
    task = make_task(dropout=0.2)

    def shared(name: str, **given: object) -> dict:
        return models(*train(methods.build(name, given), task))

    plain = shared("fedavg")
    assert gap(plain, shared("fedprox", mu=0.0)) < exact
    assert gap(plain, shared("fedprox", mu=0.5)) > 1e-5
    alone = shared("local")
    assert gap(alone, shared("ditto", lam=0.0)) < exact
    assert gap(alone, shared("ditto", lam=0.5)) > 1e-5
    apfl = shared("apfl", alpha=0.0, adaptive=False)
    still = shared("fedavg", momentum=0.0)
    for site in still:  # with alpha = 0 the shared half is FedAvg and predicts alone
        assert all(torch.allclose(apfl[site][f"params/{k.removeprefix('params/')}"], v) for k, v in still[site].items())
    linear = make_task(hidden=())
    head_only = models(*train(methods.build("fedper"), linear))
    assert gap(head_only, models(*train(methods.build("local"), linear))) < exact


def test_one_site_alone_is_local() -> None:
    rows = make_rows()[:1]
    task = make_task(dropout=0.2)
    alone = models(*train(methods.build("local"), task, gather_sites(rows)))
    for name in ("fedavg", "fedprox", "fedper", "centralized"):
        given = {"mu": 0.0} if name == "fedprox" else {}
        sites = gather_sites(rows)
        got = models(*train(methods.build(name, given), task, sites))
        if name == "centralized":  # draws as "all sites", so only its kind of result is the same
            assert gap({"x": alone["site 0"]}, {"x": got["all sites"]}) < 1.0
            continue
        assert gap(alone, got) < exact


@every
def test_a_sum_is_all_that_a_sum_method_needs(name: str) -> None:
    """What the coordinator keeps does not grow with the sites when it is given totals only."""
    method = methods.build(name)
    if method.sees == "sum":
        _, last = train(method)
        assert [t.shape for _, t in tensors(last.coord)] == [t.shape for _, t in tensors(method.coord(make_task(), 1))]
    else:
        assert not any(c.up for (c,) in trace(make_task(), method, 2)) or method.sees == "each"

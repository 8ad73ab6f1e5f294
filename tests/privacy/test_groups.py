"""Sums of groups and two servers: a liar is outvoted by what tells of no single report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.core.exchange import Roster
from vitrail.core.facts import OUTLYING
from vitrail.core.tensors import map_tensors
from vitrail.engine.batches import gather_sites
from vitrail.engine.rounds import Training
from vitrail.privacy import Guards
from vitrail.privacy.robust import centre
from vitrail.privacy.secure_sum.groups import groups_of, opened_groups
from vitrail.privacy.two_server import krum as chosen
from vitrail.privacy.two_server.krum import PLACES, choose_reports
from vitrail.privacy.two_server.protocol import ShareServer, deal, shared, squares, to_fixed_point, within
from vitrail.privacy.two_server.protocol import opened as opened_by_two

SIZES = (37, 20, 15, 53, 18, 22, 30, 25, 19, 28)
LIAR = "site 3"
GUARDS = {"groups": Guards(sum="groups", least=3), "two servers": Guards(clip=1.0, sum="two servers", least=3)}


def sites() -> Any:
    return gather_sites(make_rows(sizes=SIZES))


def lie(names: tuple[str, ...], ex: Any, up: Any) -> Any:
    if LIAR not in names:
        return up
    by = torch.ones(len(names), dtype=torch.double)
    by[names.index(LIAR)] = -10
    return map_tensors(lambda t: t if t.dim() < 2 else t * by.view(-1, *[1] * (t.dim() - 1)).to(t), up)


def moved(engine: Any, last: Any) -> torch.Tensor:
    return torch.cat([(v - engine.task.start[k]).flatten() for k, v in engine.method.shared(last.coord).items()])


@pytest.mark.parametrize("how", GUARDS)
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_one_liar_is_outvoted(how: str, name: str) -> None:
    method, moves = methods.build(name), []
    for guards in (Guards(), GUARDS[how]):
        honest, lied = (moved(*train(method, sites=sites(), guards=guards, lies=lies)) for lies in (None, lie))
        moves.append(float((lied - honest).norm()))
    # of three groups the liar takes two honest sites with it, and a median of three is a rough one
    assert moves[1] < (0.65 if how == "groups" else 0.35) * moves[0]


@pytest.mark.parametrize("how", GUARDS)
def test_engines_agree_and_the_order_of_sites_is_nothing(how: str) -> None:
    method, guards = methods.build("fedavg"), GUARDS[how]
    one, other = (train(method, sites=sites(), guards=guards, chunk=c) for c in (10, 1))
    assert gap(models(*one), models(*other)) < 1e-12
    turned = train(method, sites=gather_sites(make_rows(sizes=SIZES)[::-1]), guards=guards)
    assert float((moved(*turned) - moved(*one)).abs().max()) < 1e-12


def test_the_group_of_the_liar_lies_furthest() -> None:
    engine, last = train(methods.build("fedavg"), sites=sites(), lies=lie, guards=GUARDS["groups"])
    (told,) = [f for f in last.facts.values() if f.means == OUTLYING]
    group = groups_of(engine.keys, 3)
    far = told.value == told.value.max()
    assert far.tolist() == (group == group[engine.names.index(LIAR)]).tolist(), "of a group it is not told who"


@pytest.mark.parametrize("least", [3, 4, 5])
@pytest.mark.parametrize("count", [9, 10, 14, 31])
def test_no_group_is_smaller_than_agreed(count: int, least: int) -> None:
    seeds = torch.arange(count) * 7919
    group = groups_of(seeds, least)
    assert int(group.bincount().min()) >= least
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    assert torch.equal(groups_of(seeds[order], least), group[order])
    here = torch.ones(count, dtype=torch.bool)
    here[(group == 0).nonzero()[: int((group == 0).sum()) - least + 1, 0]] = False
    assert len(opened_groups(group, here, least)) == int(group.max()), "one of too few stays closed"


def test_only_totals_of_groups_decide() -> None:
    """Two worlds that differ within a group and not in its total come to the same."""
    method, task = methods.build("fedavg"), make_task()
    ex, n = method, 9
    roster = Roster(
        tuple(f"s{i}" for i in range(n)), torch.ones(n, dtype=torch.bool), torch.arange(n) * 13, torch.tensor(1)
    )
    state, coord = method.state(task, n), method.coord(task, n)
    down = ex.send(task, coord, roster)
    from vitrail.core.exchange import Rows, SiteContext

    site = SiteContext(task, Rows(torch.full((n,), 5.0, dtype=torch.double)), task.rule)
    _, up = ex.report(site, state, ex.begin(site, state, down), down)
    g = torch.Generator().manual_seed(3)
    up = map_tensors(lambda t: t if t.dim() < 2 else torch.randn(t.shape, generator=g, dtype=t.dtype), up)
    group = groups_of(roster.seeds, 3)
    a, b = (group == 0).nonzero()[:2, 0].tolist()
    step = torch.zeros(n, dtype=torch.double)
    step[a], step[b] = 5.0, -5.0
    other = map_tensors(lambda t: t if t.dim() < 2 else t + step.view(-1, *[1] * (t.dim() - 1)), up)
    guards = GUARDS["groups"]
    one, two = (dict(_flat(guards.total(ex, u, roster.present, roster.seeds)[0])) for u in (up, other))
    assert all(torch.allclose(v, two[k], atol=1e-12) for k, v in one.items())


def _flat(tree: Any) -> Any:
    from vitrail.core.tensors import flatten

    return flatten(tree)


def test_a_total_of_too_few_is_not_opened() -> None:
    away = torch.tensor([i >= 2 for i in range(len(SIZES))])
    for guards in (Guards(clip=1.0, noise=0.1, least=3), GUARDS["two servers"], GUARDS["groups"]):
        engine, last = train(methods.build("fedavg"), sites=sites(), guards=guards, absent=lambda s, r: away)
        assert float(moved(engine, last).abs().max()) == 0


def reports(n: int = 8, d: int = 300, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(d) / np.sqrt(d) + 0.5 * rng.standard_normal((n, d)) / np.sqrt(d)
    x[:, 7] = 0  # where nobody says anything
    return x


def test_two_servers_find_what_one_that_reads_all_finds() -> None:
    x = reports()
    x[2] *= -1.5
    got, chosen = opened_by_two([shared(v, 2.0) for v in x], 2.0)
    assert 2 not in chosen
    np.testing.assert_allclose(got, centre(torch.from_numpy(x), "multikrum").numpy(), atol=1e-6)


def test_a_half_is_noise_and_two_halves_of_the_same_are_not_alike() -> None:
    x = reports()[0]
    one, other = (shared(x, 2.0) for _ in range(2))
    assert not (one[0] == other[0]).any()
    for half in (*one, *other):
        top = (half >> np.uint64(60)).astype(int)
        assert np.bincount(top, minlength=16).max() < 3 * len(x) / 16
    np.testing.assert_allclose((one[0] + one[1]).view(np.int64) / 2.0**PLACES * 2.0, x, atol=1e-6)


def test_longer_than_the_clip_is_not_shared_and_not_counted() -> None:
    x = reports()
    with pytest.raises(VitrailError, match="not split between the servers"):
        shared(x[0] * 100, 2.0)
    noise = np.zeros(x.shape[1], np.uint64)
    long = [(noise, to_fixed_point(v * 4, 2.0) - noise) for v in x]  # whoever lies does not ask how long it is
    assert opened_by_two(long, 2.0)[1] == []


def test_more_liars_than_are_reckoned_with_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of eight multiply their change by 20 and stay within the clip. Multi-Krum reckons with two."""
    x, liars = reports() / 100, [1, 4, 6]
    x[liars] *= -20
    halves = [shared(v, 2.0) for v in x]
    assert opened_by_two(halves, 2.0)[1] == [0, 2, 3, 5, 7]
    monkeypatch.setattr(chosen, "LONGEST", np.inf)  # the control
    assert set(opened_by_two(halves, 2.0)[1]) & set(liars)


def test_who_is_too_long_is_one_of_those_who_may_lie() -> None:
    """Of four sites one is refused: the three others stay, since of fewer no total is opened."""
    x = reports(4) / 100
    x[1] *= -20
    assert opened_by_two([shared(v, 2.0) for v in x], 2.0)[1] == [0, 2, 3]


@pytest.mark.parametrize("power", [32, 40, 63])
def test_a_square_that_is_nothing_mod_two_to_the_64_is_noticed(power: int) -> None:
    """2^32 where all others are 0: its length and all distances look like those of an honest report."""
    halves = [shared(v, 2.0) for v in reports()]
    halves[1][1][7] += np.uint64(1 << power)
    n, d = len(halves), len(halves[0][0])
    servers = [ShareServer(i == 0, 2.0, deck) for i, deck in enumerate(deal(n, d))]
    for site, pair in enumerate(halves):
        for server, half in zip(servers, pair, strict=True):
            server.take(site, half)
    e = [server.blinded(list(range(n))) for server in servers]
    found = squares(servers[0].products(list(range(n)), *e), servers[1].products(list(range(n)), *e[::-1]), 2.0)
    assert 1 in choose_reports(found, np.ones(n, bool), 2.0), "by distances alone it would be taken"
    sound = within(*(server.tested(list(range(n)), (b"a", b"b")) for server in servers))
    assert sound.tolist() == [i != 1 for i in range(n)]
    assert 1 not in opened_by_two(halves, 2.0)[1]


def test_nobody_reports_twice_or_in_another_shape() -> None:
    server = ShareServer(True, 2.0, deal(4, 10)[0])
    half = np.zeros(10, np.uint64)
    server.take(1, half)
    for site, said in ((1, half), (7, half), (2, half[:9]), (2, half.astype(np.int64))):
        with pytest.raises(VitrailError, match="refused"):
            server.take(site, said)


def test_noise_for_sites_is_enough_for_the_fewest_that_are_opened() -> None:
    """The promised noise is there when only `least` answer, and one of those knows its own."""
    import vitrail as vt
    from tests.support.small import opposed_tables
    from vitrail.privacy.budget import Budget, noise_for
    from vitrail.runs.protection.budget import guards_of, spent_after

    tables = opposed_tables(dict.fromkeys(("a", "b", "c", "d", "e"), 40))
    study = vt.Study.infer(
        tables, "sick", network={"kind": "linear"}, training={"rounds": 4}, method={"name": "fedavg"}
    )
    found = study.with_changes(protect={"sites": {"epsilon": 5.0, "delta": 1e-2}, "clip": 0.5, "least": 4})
    guards, wanted = guards_of(found), noise_for(Budget(5.0, 1e-2), 4)
    assert guards.noise * 3**0.5 == pytest.approx(wanted)
    assert spent_after(found, found.build_method(), 4) == pytest.approx(5.0, abs=1e-6)
    assert spent_after(found, found.build_method(), 1) < 3.0
    still = Training(rounds=1, lr=1e-12)
    engine, last = train(methods.build("fedavg"), make_task(hidden=(30, 30)), sites(), still, guards=guards)
    assert float(moved(engine, last).std()) * len(SIZES) == pytest.approx(
        guards.noise * 0.5 * len(SIZES) ** 0.5, rel=0.1
    )

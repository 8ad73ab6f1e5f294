"""Several exchanges a round, exchanges in turns, invited sites, and what an exchange is told of a site's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.support.small import SIZES, gap, make_rows, make_sites, make_task, models, train
from tests.support.toys import Relay, Turns
from vitrail import methods
from vitrail.core.declarations import Needs
from vitrail.core.exchange import Roster
from vitrail.core.random import key
from vitrail.core.tensors import Params, flatten
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.fedavg import FedAvg, Shared, Up
from vitrail.testing.federation import LOSSES, PICTURE, in_this_order, small_cnn, task_of

LR = 0.02
WHOLE = Training(rounds=6, batch=64, lr=LR, momentum=0.0, decays=0)  # one batch holds all rows of any site
ENGINES: list[dict[str, Any]] = [{}, {"looped": True}, {"chunk": 2}]
AGAINST_PLAIN = 1e-12
SOME = methods.build("fedper", {"invited": 2})  # sites a round, drawn anew each time; the head stays at the site


def slopes(task: Any, params: Params, rows: Any) -> tuple[Tensor, Params]:
    """One site's loss and its gradient, by autograd."""
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    _, x, y, w = rows
    h = x
    for name in ("body.0", "head"):
        h = h @ leaves[f"{name}.weight"] + leaves[f"{name}.bias"]
        h = h.tanh() if name != "head" else h
    loss = (torch.nn.functional.cross_entropy(h, y.argmax(1), reduction="none") * w[:, 0]).sum()
    loss.backward()
    return loss.detach(), {k: v.grad for k, v in leaves.items()}


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("away", [False, True])
def test_two_exchanges_of_a_round_pass_something_on(engine: dict, away: bool) -> None:
    """The second one needs what the site kept, and what the coordinator found, in the first: against a plain loop."""
    task, rows = make_task(hidden=(5,), dropout=0.0), make_rows()
    names = gather_sites(rows).names
    gone = [{"site 1", "site 3"} if away and r % 2 else set() for r in range(WHOLE.rounds)]
    absent = (lambda s, r: torch.tensor([n in gone[r] for n in names])) if away else None
    e, last = train(Relay(), task, gather_sites(rows), WHOLE, absent=absent, **engine)
    params = dict(task.start)
    for r in range(WHOLE.rounds):
        there = [site for site in rows if site[0] not in gone[r]]
        found = [slopes(task, params, site) for site in there]
        losses = [loss / len(site[1]) for (loss, _), site in zip(found, there, strict=True)]
        usual = sum(losses) / len(losses)
        for k in params:
            change = sum(-LR * slope[k] * loss / usual for (_, slope), loss in zip(found, losses, strict=True))
            params[k] = params[k] + change / len(there)
    assert gap({"": last.coord.params}, {"": params}) < AGAINST_PLAIN
    told = dict(zip(names, last.facts["losses"].value, strict=True))  # a round's facts are those of all its exchanges
    assert all(torch.allclose(told[site[0]], loss) for site, loss in zip(there, losses, strict=True))
    counts = {(line["site"], line["stage"], line["direction"]): line["messages"] for line in e.ledger.rows()}
    for name in names:
        took_part = sum(name not in g for g in gone)
        assert counts[name, "train, measure", "from site"] == counts[name, "train, learn", "from site"] == took_part
        assert counts[name, "train, measure", "to site"] == took_part
        assert counts[name, "train, learn", "to site"] == took_part + 1  # and the last word


def test_present_is_who_answered_all_exchanges() -> None:
    class Fickle(Engine):
        def ask(self, s: int, r: int, place: int, *given: Any) -> Any:
            away = {(1, 0): 2, (2, 1): 3}.get((r, place))  # another site is absent from either exchange
            self.absent = lambda *_: torch.tensor([i == away for i in range(5)])
            return super().ask(s, r, place, *given)

    e = Fickle(make_task(dropout=0.0), Relay(), make_sites(), replace(WHOLE, rounds=3), 5)
    present = [m.present.tolist() for m in e.run()]
    assert present == [[True] * 5, [i != 2 for i in range(5)], [i != 3 for i in range(5)]]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_exchanges_in_turns(engine: dict) -> None:
    """Twice only the front is learned, then all: against a plain loop, round by round."""
    task, rows = make_task(hidden=(5,), dropout=0.0), make_rows()
    e = Engine(task, Turns(), gather_sites(rows), WHOLE, 5, **engine)
    params = dict(task.start)
    for r, moment in enumerate(e.run()):
        found = [slopes(task, params, site)[1] for site in rows]
        for k in params:
            if r % 3 == 2 or k.startswith("body"):
                params[k] = params[k] - LR * sum(slope[k] for slope in found) / len(rows)
        assert gap({"": moment.coord.params}, {"": params}) < AGAINST_PLAIN, f"round {r + 1}"
    counts = {(line["stage"], line["direction"]): line["messages"] for line in e.ledger.rows()}
    assert counts == {
        ("train, front", "to site"): 4,
        ("train, front", "from site"): 4,
        ("train, all", "to site"): 3,  # and the last word
        ("train, all", "from site"): 2,
    }
    front, whole = e.contracts[0]
    assert (front.rounds, whole.rounds) == (4, 2)
    assert {n for n in front.up if "head" in n} == set()
    assert {n for n in whole.up if "head" in n} == {"change/head.weight", "change/head.bias"}


def test_two_exchanges_of_a_round_draw_their_own_batches() -> None:
    """And their own units for dropout; so do two rounds, and two stages."""
    e = Engine(make_task(dropout=0.3), Relay(), make_sites(), Training(rounds=1, batch=8), 5)
    first, *others = ((e.sampler.set(*at), e.sampler.draw())[1] for at in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)))
    for draw in others:
        for part in ("rows", "row_key", "unit_key"):
            assert not torch.equal(getattr(first, part), getattr(draw, part)), part


def invited(e: Engine) -> list[set[str]]:
    """Who took part, round by round."""
    return [{n for n, here in zip(e.names, m.present.tolist(), strict=True) if here} for m in e.run()]


def test_the_same_sites_are_invited_whatever_their_order() -> None:
    """All have as many rows, so that any order is allowed."""
    rows, task = make_rows(sizes=(10,) * 5), make_task()
    orders = [(0, 1, 2, 3, 4), (3, 0, 4, 2, 1)]
    engines = [Engine(task, SOME, in_this_order([rows[i] for i in order]), WHOLE, 5) for order in orders]
    one, other = (invited(e) for e in engines)
    assert one == other
    assert all(len(who) == 2 for who in one)
    assert len({frozenset(who) for who in one}) > 1, "drawn anew in each round"
    assert invited(Engine(task, SOME, in_this_order(rows), WHOLE, 6)) != one, "by the study's seed"


def test_keys_are_of_site_and_exchange() -> None:
    e = Engine(make_task(), Relay(), make_sites(), WHOLE, 5)
    assert e.keys.tolist() == [key(5, name, "coordinator") for name in e.names]
    rosters = [e.roster(e.everyone, *at) for at in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))]
    assert len({tuple(r.key.tolist()) for r in rosters}) == 4


@pytest.mark.parametrize("training", [WHOLE, Training(rounds=5, epochs=2, batch=8, lr=LR)], ids=["whole", "batches"])
def test_only_the_invited_are_drawn_trained_and_entered(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(dropout=0.3)
    e = Engine(task, SOME, make_sites(), training, 5)
    drawn: list[int] = []
    real = e.sampler.draw
    monkeypatch.setattr(
        e.sampler, "draw", lambda here=None: (drawn.append(5 if here is None else len(here)), real(here))[1]
    )
    state = {k: v.clone() for k, v in flatten(e.start().state)}
    times = dict.fromkeys(e.names, 0)
    for m in e.run():
        now = {k: v.clone() for k, v in flatten(m.state)}
        for i, (name, here) in enumerate(zip(e.names, m.present.tolist(), strict=True)):
            assert here != all(torch.equal(now[k][i], state[k][i]) for k in now), name
            times[name] += here
        state = now
    assert drawn == [2] * training.rounds
    assert sum(times.values()) == 2 * training.rounds
    told = {line["site"]: line["messages"] for line in e.ledger.rows() if line["direction"] == "from site"}
    assert told == times
    told = {line["site"]: line["messages"] for line in e.ledger.rows() if line["direction"] == "to site"}
    assert told == {name: n + 1 for name, n in times.items()}  # all hear the last word
    whole = models(*train(SOME, task, training=training))
    for engine in ENGINES[1:]:
        assert gap(whole, models(*train(SOME, task, training=training, **engine))) < AGAINST_PLAIN


def test_what_the_roster_says_to_whom() -> None:
    """To `invite` who could be asked, to `send` who is asked, to `merge` who answered."""
    heard: list[tuple[str, list[bool]]] = []

    @dataclass(frozen=True)
    class Listening(FedAvg):
        def invite(self, task: Any, coord: Any, roster: Roster) -> Tensor:
            heard.append(("invite", roster.present.tolist()))
            return torch.tensor([i in (1, 2, 4) for i in range(len(roster.names))])

        def send(self, task: Any, coord: Any, roster: Roster) -> Any:
            heard.append(("send", roster.present.tolist()))
            return super().send(task, coord, roster)

        def merge(self, task: Any, coord: Any, up: Any, roster: Roster) -> Any:
            heard.append(("merge", roster.present.tolist()))
            return super().merge(task, coord, up, roster)

    away = torch.tensor([i in (0, 2) for i in range(5)])
    e = Engine(make_task(), Listening(), make_sites(), replace(WHOLE, rounds=1), 5, absent=lambda s, r: away)
    heard.clear()  # what was rehearsed
    (moment,) = e.run()
    asked, answered = [i in (1, 2, 4) for i in range(5)], [i in (1, 4) for i in range(5)]
    everyone = [True] * 5
    assert heard == [("invite", everyone), ("send", asked), ("merge", answered), ("send", everyone)]
    assert moment.present.tolist() == answered


class Placed(NamedTuple):
    params: Params
    memory: Params
    received: Params
    total: Tensor  # [site]: by which a site is known here


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("away", [(), (0, 3)])
def test_a_batch_says_which_rows_it_holds(engine: dict, away: tuple) -> None:
    seen: list[tuple[Tensor, Any]] = []

    @dataclass(frozen=True)
    class Looking(FedAvg):
        needs = Needs(row_indices=True)

        def begin(self, site: Any, state: Any, down: Any) -> Any:
            return Placed(*super().begin(site, state, down), site.rows.total)

        def step(self, site: Any, work: Any, batch: Any) -> None:
            seen.append((work.total.clone(), batch._replace(x=batch.x.clone(), w=batch.w.clone())))
            super().step(site, work, batch)

    task, rows = make_task(dropout=0.0), make_rows()
    own = {len(x): (x, w) for _, x, _, w in rows}
    absent = lambda s, r: torch.tensor([i in away for i in range(len(rows))])  # noqa: E731
    e = Engine(task, Looking(), gather_sites(rows), Training(rounds=1, batch=8), 5, absent=absent, **engine)
    seen.clear()  # what was rehearsed
    list(e.run())
    times = {n: torch.zeros(n, dtype=torch.int64) for n in own}
    for totals, batch in seen:
        assert batch.at is not None
        for i, n in enumerate(totals.int().tolist()):
            real = batch.w[i, :, 0] > 0
            at = batch.at[i][real]
            x, w = own[n]
            assert torch.equal(x[at], batch.x[i][real])
            assert torch.equal(w[at], batch.w[i][real])
            assert ((batch.at[i] >= 0) & (batch.at[i] < n)).all()
            times[n] += torch.bincount(at, minlength=n)
    here = {len(x) for i, (x, _) in enumerate(own[n] for n in e.sites.sizes) if i not in away}
    assert all(bool((count == (n in here)).all()) for n, count in times.items()), "every row once"


@pytest.mark.parametrize("block", [16, 256])
def test_blocks_hold_every_row_once_and_in_order(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.engine.batches.BLOCK", block)
    rows = make_rows()
    sites, own = gather_sites(rows), {name: rest for name, *rest in rows}
    for at in ([0, 1, 2, 3, 4], [1, 4], [3]):
        blocks = list(sites.blocks(at))
        assert len(blocks) == -(-sites.sizes[at[0]] // block)
        for k, i in enumerate(at):
            x, y, w, place = (torch.cat([getattr(b, part)[k] for b in blocks]) for part in ("x", "y", "w", "at"))
            real, n = w[:, 0] != 0, sites.sizes[i]
            assert int(real.sum()) == n, "what is no row of the site has no weight"
            for got, want in zip((x, y, w), own[sites.names[i]], strict=True):
                assert torch.equal(got[real], want)
            assert torch.equal(place[real], torch.arange(n))


@pytest.mark.parametrize("most", [None, 1, 3])
def test_no_more_batches_than_an_exchange_asks_for(most: int | None) -> None:
    steps: list[int] = []

    @dataclass(frozen=True)
    class Short(FedAvg):
        def batches(self) -> int | None:
            return most

        def step(self, site: Any, work: Any, batch: Any) -> None:
            steps.append(len(batch.x))
            super().step(site, work, batch)

    e = Engine(make_task(), Short(), make_sites(), Training(rounds=1, batch=8, epochs=2), 5)
    steps.clear()  # what was rehearsed
    list(e.run())
    want = [min(2 * -(-n // 8), most or 99) for n in SIZES]
    assert steps == [sum(n > t for n in want) for t in range(max(want))]


def test_reports_outlive_the_memory_they_were_made_in() -> None:
    """A site may say what it has in hand: the next site's work is done in the same place."""

    @dataclass(frozen=True)
    class Careless(FedAvg):
        wire = replace(FedAvg.wire, aggregation="each")

        def report(self, site: Any, state: Any, work: Any, down: Any) -> Any:
            for k, v in work.params.items():
                v.sub_(down.params[k])
            return state, Up(work.params, torch.ones_like(site.rows.total))

        def merge(self, task: Any, coord: Any, up: Any, roster: Roster) -> Any:
            change = {k: (v * torch.arange(len(v)).view(-1, *[1] * (v.dim() - 1))).sum(0) for k, v in up.change.items()}
            return Shared({k: v + 0.1 * change[k] for k, v in coord.params.items()}), {}

    one, *others = (models(*train(Careless(), **engine)) for engine in ENGINES)
    assert all(gap(one, other) < AGAINST_PLAIN for other in others)


def as_bytes(sites: Sites) -> tuple[Sites, Sites]:
    """Pictures as a file has them, and as a network takes them."""
    g = torch.Generator().manual_seed(7)
    x = torch.randint(0, 256, sites.x.shape, generator=g, dtype=torch.uint8)
    return replace(sites, x=x), replace(sites, x=x.double() / 255)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize("engine", [{}, {"looped": True}, {"chunk": 3}], ids=str)
def test_pictures_of_bytes_train_as_their_numbers(name: str, engine: dict) -> None:
    method = methods.build(name)
    task = task_of(small_cnn(method.needs.adapters), LOSSES["classes"])
    whole, numbers = as_bytes(gather_sites(make_rows("classes", (9, 5, 3), PICTURE)))
    training = Training(rounds=2, batch=4, lr=0.05)
    one, other = (models(*train(method, task, sites, training, **engine)) for sites in (whole, numbers))
    assert gap(one, other) == 0
    for few, many in zip(whole.blocks([0, 1]), numbers.blocks([0, 1]), strict=True):
        assert torch.equal(few.x, many.x)


def test_equal_sites_stand_by_name() -> None:
    """Whatever the order in which they come: largest first, then by name."""
    rows = make_rows(sizes=(8, 12, 8, 8))
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        sites = gather_sites([rows[i] for i in order])
        assert sites.names == ("site 1", "site 0", "site 2", "site 3")
        assert torch.equal(sites.x[:12], rows[1][1])
        assert torch.equal(sites.x[12:20], rows[0][1])


@dataclass(frozen=True)
class Counts(FedAvg):
    """Keeps what it is given of the hold-out rows."""

    seen: ClassVar[list[Any]] = []

    def begin(self, site, state, down):
        self.seen.append(site.rows.holdout)
        return super().begin(site, state, down)


@dataclass(frozen=True)
class Holds(Counts):
    needs = Needs(holdout=True)


@pytest.mark.parametrize("kind", [Counts, Holds])
def test_hold_out_rows_reach_only_those_exchanges_that_say_so(kind: type[Counts]) -> None:
    sites = make_sites()
    held = gather_sites([(name, x + 9, y, w) for name, x, y, w in make_rows("classes", (4, 11, 7, 2, 5))])
    kind.seen.clear()
    e = Engine(make_task(), kind(), sites, replace(WHOLE, rounds=1), 5, looped=True, held=held)
    kind.seen.clear()  # the rehearsal's
    list(e.run())
    assert len(kind.seen) == len(SIZES)
    if kind is Counts:
        assert kind.seen == [None] * len(SIZES)
        return
    assert e.held is not None
    for i, name in enumerate(e.names):
        at = held.names.index(name)
        count, mine = held.sizes[at], held.x[held.starts[at] : held.starts[at] + held.sizes[at]]
        assert int((e.held.w[i] > 0).sum()) == count
        assert torch.equal(e.held.x[i, :count], mine)
        assert any(torch.equal(batch.x[0, :count], mine) for batch in kind.seen)

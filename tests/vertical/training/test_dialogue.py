"""Host and guests: the laws of the conversation, on rows that are aligned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.vertical.talks import WIDTHS, people, talk, through_bytes
from vitrail.core.errors import VitrailError
from vitrail.core.losses import SquaredError
from vitrail.core.optimizers import SGD, Adam
from vitrail.vertical.mailbox import LocalMail
from vitrail.vertical.messages import Levels, Masked, Numbers, Slope
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest, levels, nearest
from vitrail.vertical.training.host import Host, answer_scores
from vitrail.vertical.training.logistic import Logistic
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.split_network import features
from vitrail.vertical.training.terms import GuestOffer, Terms
from vitrail.vertical.wire import Wire


@pytest.mark.parametrize("rule", [SGD(0.5, momentum=0.9), Adam(0.05, decay=0.01)])
def test_vertical_logistic_is_the_central_one(rule: Any) -> None:
    """On bare slopes to 1e-12; the central model is torch's own, from the same start, over the same batches."""
    told = talk(rule=rule, protect=False)
    told.train()
    parts, y = people()
    x, model = torch.cat(parts, 1), nn.Linear(sum(WIDTHS), 1).double()
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    if isinstance(rule, SGD):
        optimiser: Any = torch.optim.SGD(model.parameters(), rule.lr, rule.momentum)
    else:
        optimiser = torch.optim.Adam(model.parameters(), rule.lr, weight_decay=rule.decay)
    for step in range(told.terms.steps):
        rows = told.terms.rows_at(step)
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows, 1]).backward()
        optimiser.step()
    ours = torch.cat([told.host.params["weight"][0], *(g.params["weight"][0] for g in told.guests)])[:, 0]
    assert (ours - model.weight.detach()[0]).abs().max() < 1e-12
    assert ours.abs().min() > 0.1, "it learned something"
    z = told.predict(told.terms.test).scores
    assert (z[:, 1] - z[:, 0] - model(x[told.terms.test]).detach()[:, 0]).abs().max() < 1e-12


def test_shares_change_gradients_by_less_than_a_millionth() -> None:
    """After one step of rate 1 the weights are minus the gradient."""
    bare, dealt = talk(rule=SGD(1.0), protect=False), talk(rule=SGD(1.0))
    for d in (bare, dealt):
        d.turn()
    for one, other in zip(bare.guests, dealt.guests, strict=True):
        off = (one.params["weight"] - other.params["weight"]).abs().max()
        assert 0 < off < 2**-20, "fixed point, and near"
    for d in (bare, dealt):
        d.train()
    assert (bare.predict(bare.terms.test).scores - dealt.predict(dealt.terms.test).scores).abs().max() < 1e-4


def test_a_split_model_learns_what_a_weighted_sum_cannot() -> None:
    """y holds a product of a host's and a guest's column."""
    got = {}
    for kind in ("logistic", "split"):
        d = talk(kind, rule=Adam(0.03), epochs=60, ration=60)
        d.train()
        rows = d.terms.test
        got[kind] = float((d.predict(rows).scores.argmax(1) == d.host.y[rows].argmax(1)).double().mean())
    assert got["split"] > got["logistic"] + 0.02, got


def test_noisy_answers_are_weighed() -> None:
    """A fixed share of the score that is half noise is worse than one the host may trust less."""
    parts, y = people()
    right = []
    for weighs in (0, 2):
        terms = Terms(len(y), (GuestOffer("lab", 3, noise=2.0), GuestOffer("insurer", 2, noise=2.0)), epochs=20)
        joint, rule = Logistic(4, weighs=weighs), Adam(0.05)
        start = {k: v.to(y) for k, v in joint.init().items()}
        host = Host("clinic", terms, parts[0], y, joint, start, rule)
        guests = [
            Guest(o, terms, parts[i + 1], rule, RationAccount(o.name, len(y), 30, 600), secret=bytes([i]))
            for i, o in enumerate(terms.offers)
        ]
        d = Dialogue(host, guests)
        d.train()
        right.append(float((d.predict(terms.test).scores.argmax(1) == y[terms.test].argmax(1)).double().mean()))
    assert right[1] > right[0] + 0.01, right
    assert d.host.params["trust"].max() < 0.9


def test_numbers_are_learned_too() -> None:
    parts, _ = people()
    y = torch.cat(parts, 1).sum(1, keepdim=True)
    terms = Terms(len(y), (GuestOffer("lab", 3, 1, 0, 0), GuestOffer("insurer", 2, 1, 0, 0)), epochs=20, alone=0)
    joint, rule = Logistic(4, classes=False), SGD(0.2)
    host = Host(
        "clinic", terms, parts[0], y, joint, {k: v.to(y) for k, v in joint.init().items()}, rule, SquaredError()
    )
    guests = [
        Guest(o, terms, parts[i + 1], rule, RationAccount(o.name, len(y), 20, 600)) for i, o in enumerate(terms.offers)
    ]
    d = Dialogue(host, guests)
    d.train()
    assert (d.predict(terms.test).scores - y[terms.test]).abs().max() < 1e-3


def test_a_message_goes_through_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    here = talk("split", bits=2)
    here.train()
    monkeypatch.setattr(LocalMail, "carry", staticmethod(through_bytes))
    there = talk("split", bits=2)
    there.train()
    assert torch.equal(here.predict(here.terms.test).scores, there.predict(there.terms.test).scores)


def test_only_what_was_declared_crosses() -> None:
    seen: list[tuple[str, str, str]] = []
    d = talk("split", bits=3, wire=Wire(watch=lambda a, b, m: seen.append((a, b, type(m).__name__))))
    d.train()
    d.predict(d.terms.test)
    allowed = {
        ("GUEST", "clinic", "Levels"), ("GUEST", "clinic", "Masked"), ("clinic", "GUEST", "Slope"),
        ("clinic", "GUEST", "Wanted"), ("dealer", "clinic", "HostTriple"), ("dealer", "GUEST", "GuestTriple"),
    }  # fmt: skip
    guest = {g.name for g in d.guests}
    assert {tuple("GUEST" if p in guest else p for p in way) for way in seen} == allowed
    with pytest.raises(VitrailError, match=r"Numbers from lab to clinic, tensor values: not declared"):
        d.wire.cross("lab", "clinic", Numbers(torch.zeros(5, 1, dtype=torch.float64)))
    wide = Levels(torch.zeros(5, 2, dtype=torch.uint8), torch.zeros(8, 2, dtype=torch.float64))
    with pytest.raises(VitrailError, match=r"tensor level: declared as"):
        d.wire.cross("lab", "clinic", wide)
    with pytest.raises(VitrailError, match="not a finite number"):
        talk().wire.cross("lab", "clinic", Numbers(torch.full((5, 1), torch.nan, dtype=torch.float64)))
    few = Levels(torch.zeros(5, 1, dtype=torch.uint8), torch.zeros(8, 1, dtype=torch.float64))
    with pytest.raises(VitrailError, match="got 5"):
        d.host.hear(0, {"lab": few})
    with pytest.raises(VitrailError, match="levels below 8, got 9"):
        answer_scores(few._replace(level=few.level + 9))
    for party in ("lab", "clinic"):
        assert all(len(line.words) > 20 for line in d.wire.lines(party, d.terms.asked))


def test_the_ledger_counts_what_crossed() -> None:
    d = talk("split", bits=2)
    d.train()
    rows = {(r["from"], r["message"]): r for r in d.wire.rows() if "insurer" in (r["from"], r["to"])}
    trained, steps = len(d.terms.train), d.terms.steps
    assert rows["insurer", "Levels"]["rows"] == 3 * trained
    assert rows["insurer", "Levels"]["bytes"] == 3 * trained + steps * 4 * 8, "a byte per row, and four levels"
    assert rows["insurer", "Masked"]["rows"] == trained, "the same masked columns serve every epoch"
    assert rows["clinic", "Slope"]["messages"] == steps


def test_masks_hide_columns_and_slopes() -> None:
    """What crosses in shares is spread over all of 2^64, whatever it hides, and is new where it must be."""
    seen: list[Any] = []
    d = talk(wire=Wire(watch=lambda a, b, m: seen.append(m)), guests=1)
    d.train()
    for kind, name in ((Masked, "columns"), (Slope, "masked"), (Slope, "product")):
        words = torch.cat([getattr(m, name).flatten() for m in seen if isinstance(m, kind)]).double() / 2**63
        assert abs(float(words.mean())) < 6 / (3 * len(words)) ** 0.5
        assert abs(float(words.std()) - 3**-0.5) < 5 / len(words) ** 0.5
    slopes = [m.masked for m in seen if isinstance(m, Slope)]
    one, again = [s for s in range(d.terms.steps) if d.terms.batch_at(s) == 0][:2]
    change = (slopes[one] - slopes[again]).double() / 2**63  # of the same rows: under one mask it would be small
    assert abs(float(change.std()) - 3**-0.5) < 5 / len(change) ** 0.5


def test_batches_are_fixed_and_large() -> None:
    terms = Terms(26000, (GuestOffer("lab", 60),))
    sizes = {len(b) for b in terms.batches}
    assert min(sizes) >= 32 * 60
    assert torch.equal(torch.cat(terms.batches).sort().values, terms.train)
    one = [terms.batch_at(s) for s in range(len(terms.batches))]
    assert sorted(one) == list(range(len(terms.batches)))
    small = Terms(300, (GuestOffer("lab", 60),))
    assert len(small.batches) == 1, "or all"
    assert torch.equal(Terms(26000, (GuestOffer("lab", 60),)).rows_at(7), terms.rows_at(7)), "drawn alike at both ends"


def test_bad_terms_are_refused_all_at_once() -> None:
    with pytest.raises(VitrailError) as told:
        Terms(100, (GuestOffer("lab", 0, 0, 9), GuestOffer("lab", 3)), epochs=0, batch=64, held_out=1.0)
    text = str(told.value)
    for part in ("epochs", "held_out", "answer", "columns", "bits", "same name", "at least 1024"):
        assert part in text


def test_answers_are_rounded_to_few_levels() -> None:
    z = torch.randn(5000, 2, generator=torch.Generator().manual_seed(1))
    values = levels(z, 4)
    near = values.gather(0, nearest(z, values))
    spread = ((near - z.clamp(z.quantile(0.01), z.quantile(0.99))) ** 2).mean()
    assert 0.05 < float(spread) < 0.14, "four levels of a normal: .1175 is the least without the tails"
    assert (values.diff(dim=0) > 0).all()
    d = talk("split", bits=2, guests=1)
    d.train()
    assert d.host.said["lab"][d.terms.train].unique().numel() <= 4 * len(d.terms.batches)


def test_noise_is_the_same_whenever_a_row_is_asked() -> None:
    told = [talk("split", bits=0, noise=0.5, rule=SGD(0.5)) for _ in range(2)]
    for d in told:
        d.train()
    rows = told[0].terms.test
    one, again, other = (answer_scores(d.ask(rows)["lab"]) for d in (told[0], *told))
    assert torch.equal(one, again)
    assert torch.equal(one, other), "from the same secret"
    g = told[0].guests[0]
    off = (one - g.scores(g.columns[rows])) / g.scores(g.columns[told[0].terms.train]).std()
    assert 0.45 < float(off.std()) < 0.55
    secret = Guest(g.offer, g.terms, g.columns, g.rule, g.ration)
    assert not torch.equal(secret.noise, g.noise), "else nobody knows it"


def test_noise_hangs_on_the_person_and_not_on_the_place() -> None:
    d = talk("split", bits=0, noise=0.5)
    g, n = d.guests[0], d.terms.rows
    people = [f"id-{i}" for i in range(n)]
    once = Guest(g.offer, g.terms, g.columns, g.rule, g.ration, secret=b"s", people=people)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    again = Guest(
        g.offer, g.terms, g.columns[order], g.rule, g.ration, secret=b"s", people=[people[i] for i in order.tolist()]
    )
    assert torch.equal(again.noise, once.noise[order]), "a second match draws nothing anew"
    other = Guest(g.offer, g.terms, g.columns, g.rule, g.ration, secret=b"t", people=people)
    assert abs(float(torch.corrcoef(torch.cat([once.noise, other.noise], 1).T)[0, 1])) < 0.1, "the secret counts"
    assert abs(float(once.noise.mean())) < 0.1
    assert 0.9 < float(once.noise.std()) < 1.1
    some = order[:7]
    told = once.tell(g.columns[some], [people[i] for i in some.tolist()])
    assert torch.equal(answer_scores(told), answer_scores(once._said(g.columns[some], once.noise[some])))


def test_a_host_learns_by_itself_and_asks_nobody() -> None:
    d = talk("split", rule=Adam(0.03), epochs=2, alone=10, ration=3)
    before = talk("split", rule=Adam(0.03), epochs=2, alone=10)
    before.host.train_alone()
    assert not before.wire.ledger, "nothing crossed"
    d.train()
    d.train()  # nothing is left to do
    answered = d.wire.ledger["lab", "clinic", "Numbers"]
    assert answered.rows == 3 * len(d.terms.train) == d.terms.asked * len(d.terms.train)
    assert d.wire.ledger["clinic", "lab", "Slope"].rows == 2 * len(d.terms.train)
    assert torch.equal(d.host.said["lab"][d.terms.train], d.guests[0].scores(d.guests[0].columns[d.terms.train]))
    rows, few = d.terms.test, talk("split", rule=Adam(0.03), epochs=3)
    few.train()
    right = [float((e.predict(rows).scores.argmax(1) == d.host.y[rows].argmax(1)).double().mean()) for e in (d, few)]
    assert right[0] > right[1] + 0.02, "as often asked, and better"


def test_columns_with_bends() -> None:
    x = torch.randn(10, 3, dtype=torch.float64)
    a = features(x, 5, seed=2)
    assert a.shape == (10, 8)
    assert torch.equal(a[:, :3], x)
    assert torch.equal(a, features(x, 5, seed=2))
    assert not torch.equal(a, features(x, 5, seed=3))
    assert torch.equal(features(x, 0, seed=2), x)

"""Parties that talk over sealed letters: the same numbers as in one process, nothing to read on the way, and what is
refused, in words."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.support.deploy.talking import SEED, Houses, study, tables
from vitrail.core.errors import VitrailError
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.identity.sealing import SealedSession
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.vertical.messages import KINDS, Offered, read, written
from vitrail.deploy.vertical.postrun import RUN, PostrunRequest
from vitrail.deploy.vertical.process import Officer
from vitrail.deploy.vertical.session import MATCH, carry_over
from vitrail.vertical.matching.match import Match
from vitrail.vertical.matching.protocol import List
from vitrail.vertical.messages import Ask
from vitrail.vertical.run import VerticalRun
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.party_side import agree, keep_secret, make_guest, make_host, offer_of, own_rows

SENT = ("Levels", "Masked", "List", "Slope")  # letters with something of rows in them
FEW = 400  # rows of tests that are not about numbers: one batch


class Ended:
    """What the host came to."""

    def __init__(self, rows: int = 40) -> None:
        self.rows, self.talk = rows, dict[str, Any]()

    def __call__(self, talk: Dialogue, side: Any, home: Path) -> None:
        wanted = talk.terms.test[: self.rows]
        self.talk |= {"params": talk.host.params, "predicted": talk.predict(wanted), "off": talk.off()}
        self.talk |= {"ledger": talk.wire.rows(), "steps": talk.step}


def near(houses: Houses) -> Dialogue:
    """The same in one process, with the places and secrets that the parties have."""
    found: dict[str, Match] = {n: Match.load(houses.home(n) / MATCH) for n in houses.parties}
    rows = {n: own_rows(houses.study, n, houses.frames[n], match) for n, match in found.items()}
    host, *guests = houses.study.parties
    offers = [offer_of(houses.study, rows[g]) for g in guests]
    terms = agree(houses.study, len(rows[host].places), offers, SEED)
    sides = [make_guest(houses.study, rows[g], terms, keep_secret(houses.folder / g)).guest for g in guests]
    return Dialogue(make_host(houses.study, rows[host], terms).host, sides)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Houses, Ended]:
    ended = Ended()
    houses = Houses(tmp_path_factory.mktemp("houses"), study(), tables(), clinic={"after": ended})
    houses.connect()
    return houses, ended


def test_the_same_numbers_as_in_one_process(done: tuple[Houses, Ended]) -> None:
    """To the last bit: shares are whole numbers, and both ends draw alike."""
    houses, ended = done
    one = near(houses)
    one.train()
    assert ended.talk["steps"] == one.terms.steps > 3
    for k, v in one.host.params.items():
        assert torch.equal(ended.talk["params"][k], v), k
    assert torch.equal(ended.talk["predicted"].scores, one.predict(one.terms.test[:40]).scores)
    assert ended.talk["predicted"].words == "With the answers of all guests."
    one.off()
    mine, theirs = (
        {(r["from"], r["to"], r["message"]): r for r in ledger if "clinic" in (r["to"], r["from"])}
        for ledger in (ended.talk["ledger"], one.wire.rows())
    )
    assert mine == theirs


def test_places_are_the_same_people(done: tuple[Houses, Ended]) -> None:
    houses, _ = done
    people = {}
    for name, party in houses.study.parties.items():
        match = Match.load(houses.home(name) / MATCH)
        assert list(match.places) == [name], "its own places alone"
        people[name] = houses.frames[name][party.id].to_numpy()[match.places[name]].tolist()
    first, *others = people.values()
    assert all(other == first for other in others)
    held = set.intersection(*(set(houses.frames[n][p.id]) for n, p in houses.study.parties.items()))
    assert set(first) == held
    assert {(rows, mark) for _, rows, mark in houses.consents} == {(len(held), match.mark)}
    assert {name for name, *_ in houses.consents} == set(houses.study.parties)


def needles(houses: Houses) -> dict[str, list[bytes]]:
    """What nobody but its owner, or its owner and whom it was meant for, may read; by bytes that would be there."""
    out: dict[str, list[bytes]] = {"ids": [], "names": [], "columns": [], "outcomes": []}
    one = near(houses)
    for side in (one.host, *one.guests):
        rows = side.columns[: 4 * 16 : 4]
        out["columns"] += [t.contiguous().numpy().tobytes() for t in (rows, rows.double(), rows.T)]
    y = one.host.y[:64]
    out["outcomes"] = [t.contiguous().numpy().tobytes() for t in (y, y.double(), y.argmax(1), y.argmax(1).byte())]
    for name, party in houses.study.parties.items():
        frame = houses.frames[name]
        out["ids"] += [one.encode() for one in frame[party.id].head(50)]
        if name != houses.study.host:
            out["names"] += [c.encode() for c in frame.columns if len(c) > 3 and c != party.id]
        box = Outbox(houses.folder / name)
        for entry in (e for e in box.entries() if e.direction == "out" and e.kind in SENT):
            for tensor in box.show(entry.number or 0).tensors.values():
                if len(set(raw := tensor.numpy().tobytes()[:64])) > 3:  # else it may be anywhere
                    out.setdefault(entry.kind, []).append(raw)
    return out


def hits(wanted: dict[str, list[bytes]], seen: bytes) -> dict[str, int]:
    return {kind: sum(one in seen for one in patterns) for kind, patterns in wanted.items()}


def test_the_coordinator_sees_sizes(
    done: tuple[Houses, Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that it ever held, bytes of questions and answers, nothing can be read. The same search finds every
    answer, slope, masked column and locked id where letters are not sealed; and ids, columns and outcomes, which are in
    no letter anyway, where somebody puts them into one."""
    houses, _ = done
    wanted = needles(houses)
    assert min(map(len, wanted.values())) >= 3
    assert hits(wanted, b"".join(houses.seen)) == dict.fromkeys(wanted, 0)

    def bare(self: SealedSession, receiver: str, text: bytes) -> tuple[int, bytes]:
        number = self.sent[receiver]
        self.sent[receiver] += 1
        return number, text

    planted: Any = {}
    seal = SealedSession.seal
    monkeypatch.setattr(SealedSession, "seal", bare)
    monkeypatch.setattr(SealedSession, "open", lambda self, sender, number, data: data)
    clear = Houses(tmp_path, study(), tables(FEW), clinic={"after": Ended()})
    clear.connect()
    wanted = needles(clear)
    found = hits(wanted, b"".join(clear.seen))
    assert found == {kind: len(wanted[kind]) if kind in SENT else 0 for kind in wanted}, "sealing is what hides them"

    def plant(talk: Dialogue, side: Any, home: Path) -> None:
        for i, text in enumerate(one for kind in planted for one in planted[kind]):
            talk.mailbox.post("lab", List("lab", text + bytes([i % 251])))

    for sealed in (False, True):
        if sealed:
            monkeypatch.setattr(SealedSession, "seal", seal)
        houses = Houses(tmp_path / str(sealed), study(), tables(FEW), clinic={"after": plant})
        planted |= {kind: wanted[kind] for kind in wanted if kind not in SENT}
        with contextlib.suppress(VitrailError):  # the lab refuses such letters
            houses.connect()
        found = hits(planted, b"".join(houses.seen))
        assert found == {kind: 0 if sealed else len(planted[kind]) for kind in planted}


def test_outbox_shows_it_before_it_is_sealed(done: tuple[Houses, Ended]) -> None:
    houses, _ = done
    box = Outbox(houses.folder / "lab")
    left = [e for e in box.entries() if e.direction == "out"]
    assert {e.kind for e in left} <= KINDS.keys()
    assert {e.words["to"] for e in left} == {"clinic", "insurer"}
    answers = [box.show(e.number or 0) for e in left if e.kind == "Levels"]
    assert len(answers) == 6 + 2  # steps; rows afterwards, and the reference
    assert all(a.tensors["level"].dtype == torch.uint8 for a in answers)


# a coordinator that does more than carry


def refused(houses: Houses, match: str, **more: Any) -> str:
    with pytest.raises(VitrailError) as caught:
        houses.connect(**more)
    assert re.search(match, str(caught.value)), caught.value
    return str(caught.value)


def few(tmp_path: Path, **given: Any) -> Houses:
    return Houses(tmp_path, given.pop("study", study()), tables(FEW), **given)


def test_tampered_bytes(tmp_path: Path) -> None:
    houses = few(tmp_path)

    def flip(name: str, asked: Message) -> Message:
        if name == "clinic" and "letter/0" in asked.tensors:
            asked.tensors["letter/0"][7] ^= 1
        return asked

    houses.change = flip
    told = refused(houses, "a sealed letter was refused")
    assert "letter 0 from lab: it was not sealed with the expected key" in told


@pytest.mark.parametrize("how", ["again", "later", "other"])
def test_replayed_and_reordered(tmp_path: Path, how: str) -> None:
    houses, kept = few(tmp_path), list[tuple[list[Any], Any]]()

    def change(name: str, asked: Message) -> Message:
        if name != "lab" or not asked.words["letters"]:
            return asked
        if kept and how == "again":
            asked.words["letters"], asked.tensors["letter/0"] = [kept[0][0]], kept[0][1]
        elif how == "later":
            asked.words["letters"][0][1] += 1
        elif how == "other":
            asked.words["letters"][0][0] = "insurer" if asked.words["letters"][0][0] == "clinic" else "clinic"
        kept.append((list(asked.words["letters"][0]), asked.tensors["letter/0"].clone()))
        return asked

    houses.change = lambda name, asked: change(name, asked) if asked.kind == "relay" else asked
    told = refused(houses, "a sealed letter was refused|a message was refused")
    expected = {
        "again": "received before",
        "later": "expected letter number 0 next",
        "other": "not sealed with",
    }[how]
    assert expected in told, told


def test_a_session_key_that_was_swapped(tmp_path: Path) -> None:
    """Without the lasting keys nobody can put itself between two parties."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from vitrail.deploy.identity.party_keys import public

    houses, evil = few(tmp_path), public(X25519PrivateKey.generate()).hex()

    def change(name: str, asked: Message) -> Message:
        if asked.kind == "relay" and asked.words["keys"] and name != "lab":
            asked.words["keys"]["lab"] = evil
        return asked

    houses.change = change
    refused(houses, "a sealed letter was refused")


def test_a_lost_answer_is_given_again(tmp_path: Path) -> None:
    """The same question has the same answer, byte for byte; another with its number is refused."""
    houses = few(tmp_path, clinic={"after": Ended()})
    ask, lost = houses.ask, set[str]()

    def lose(questions: dict[str, Message], deadline: float) -> Any:
        heard = ask(questions, deadline)
        for name in [n for n in heard.answers if n not in lost and questions[n].kind == "relay"]:
            lost.add(name)
            first = heard.answers.pop(name)
            again = houses.parties[name].answer(questions[name])
            assert again.pack() == first.pack()
            heard.trouble[name] = "no answer"
        return heard

    houses.ask = lose  # type: ignore[method-assign]
    houses.connect()
    assert lost == {"clinic", "lab", "insurer"}
    lab = houses.parties["lab"]
    number, _, _ = lab._last
    words = {"run": lab.home.name, "session": lab._session, "keys": {}, "letters": [], "dealt": [], "away": []}
    for wrong in (number, number + 2):
        with pytest.raises(VitrailError, match="a message was refused"):
            lab.answer(Message("relay", {**words, "number": wrong, "away": ["insurer"]}))


def test_another_agreement(tmp_path: Path) -> None:
    houses = few(tmp_path)

    def change(name: str, asked: Message) -> Message:
        return asked._replace(words={**asked.words, "agreement": "0" * 24}) if asked.kind == "hello" else asked

    houses.change = change
    refused(houses, "this is not what the site agreed to")


def test_a_second_run_needs_a_second_yes(tmp_path: Path) -> None:
    houses = few(tmp_path, clinic={"after": Ended()})
    houses.connect()
    second = houses.switch()
    second.run = "f" * 16
    with pytest.raises(VitrailError, match="in one run at a time"):
        second.connect()


# officers and rations


def test_no_places_without_consent(tmp_path: Path) -> None:
    """The lab's officer says nothing: the number was told, and nothing else."""
    from types import SimpleNamespace

    say = list[str]()
    kit: Any = SimpleNamespace(home=tmp_path)
    houses = few(tmp_path / "h", lab={"consent": Officer(kit, False, say.append)})
    refused(houses, "the places of common rows need consent")
    assert re.search(r"\d+ ids in common with all parties", say[0])
    assert not list(houses.folder.glob(f"*/*/{MATCH}/*"))
    kinds = [e.kind for e in Outbox(houses.folder / "clinic").entries() if e.direction == "out"]
    assert "Count" in kinds
    assert "Places" not in kinds


def test_too_few_in_common(tmp_path: Path) -> None:
    houses = few(tmp_path, study=study(match={"at_least": 100_000}))
    told = refused(houses, "fewer than 100000 ids are in common; their number is not disclosed")
    assert "350" not in told
    assert not houses.consents


def test_a_smaller_ration_makes_fewer_epochs_or_refuses(tmp_path: Path) -> None:
    houses = few(tmp_path, lab={"ration": (1, 0)})
    refused(houses, "a ration is too small")
    free = study(method={"name": "split", "hidden": [4]})
    small = few(
        tmp_path / "b", study=free, lab={"ration": (4, 10)}, clinic={"after": PostrunRequest(free, SEED, print, 5)}
    )
    small.connect()
    spent = json.loads((small.home("lab") / "ration.json").read_text())
    assert max(spent["asked"]) == 4
    assert spent["answered"] <= 10
    run = VerticalRun.load(small.home("clinic") / RUN)
    assert run.info["scored"] <= 10
    assert (small.home("clinic") / RUN / "explained.html").exists()


def test_a_host_that_asks_for_more_is_refused(tmp_path: Path) -> None:
    """After training the guest says no and what is left; in training it stops."""
    told = list[str]()

    def after(talk: Dialogue, side: Any, home: Path) -> None:
        try:
            talk.ask(torch.arange(11))
        except VitrailError as error:
            told.append(str(error))
        assert len(talk.ask(torch.arange(3))["insurer"].level) == 3, "the answer to the first question is not left over"
        talk.mailbox.post("lab", Ask(0))
        talk.ask(torch.arange(1))

    houses = few(tmp_path, lab={"ration": (9, 10)}, clinic={"after": after})
    told.append(refused(houses, "expected step 3 of 3, got step 0"))
    assert "the request is for 11 rows, but only 10 of 10 are left" in told[0]


def test_a_new_match_does_not_refill_a_ration(tmp_path: Path) -> None:
    file = tmp_path / "ration.json"
    file.write_text(json.dumps({"guest": "lab", "answered": 7, "asked": [1, 3, 2]}))
    carry_over(file, "lab", 5)
    assert json.loads(file.read_text()) == {"guest": "lab", "answered": 7, "asked": [3] * 5}


# who goes away


def test_a_guest_that_is_away_in_training_stops_it_and_it_goes_on(tmp_path: Path) -> None:
    """Three deadlines, then words; started again, from the last epoch that all kept, to the same numbers."""
    ended = Ended()
    houses = Houses(tmp_path, study(), tables(), clinic={"after": ended})
    steps = houses.home("lab") / "steps" / "lab"
    ask = houses.ask

    def lose(questions: dict[str, Message], deadline: float) -> Any:
        if not houses.away and steps.exists() and any(steps.iterdir()):  # it kept an epoch, and dies
            houses.away.add("lab")
            houses.parties["lab"] = houses.party("lab")
        return ask(questions, deadline)

    houses.ask = lose  # type: ignore[method-assign]
    began = time.monotonic()
    told = refused(houses, "training stopped at a checkpoint: lab is away", deadline=0.3)
    assert time.monotonic() - began > 3 * 0.3
    assert "Training continues from the last epoch that all parties kept" in told
    assert not ended.talk
    houses.ask = ask  # type: ignore[method-assign]
    houses.away.clear()
    houses.parties = {name: houses.party(name) for name in houses.parties}  # all are started again
    houses.connect()
    one = near(houses)
    one.train()
    for k, v in one.host.params.items():
        assert torch.equal(ended.talk["params"][k], v), k
    spent = json.loads((houses.home("lab") / "ration.json").read_text())["asked"]
    asked = np.array(spent)[one.terms.train.numpy()]
    assert one.terms.asked <= asked.max() <= one.terms.asked + 1, "an epoch at most is asked again"


def test_a_guest_that_never_comes(tmp_path: Path) -> None:
    houses = few(tmp_path)
    houses.away.add("lab")
    refused(houses, "the study stopped before training: lab is away", deadline=0.1)


def test_a_guest_keeps_its_last_step_also_where_nobody_asks(tmp_path: Path) -> None:
    houses = few(tmp_path)
    houses.connect()
    for name in houses.parties:
        steps = sorted((houses.home(name) / "steps" / name).iterdir())
        assert steps[-1].name == "step-00000003.safetensors", name


def test_a_guest_started_anew_is_taken_back(tmp_path: Path) -> None:
    """Within the deadlines, without anybody starting anything else."""
    ended = Ended()
    houses = Houses(tmp_path, study(), tables(), clinic={"after": ended})
    steps, ask = houses.home("lab") / "steps" / "lab", houses.ask

    def renew(questions: dict[str, Message], deadline: float) -> Any:
        if steps.exists() and any(steps.iterdir()):
            houses.ask = ask  # type: ignore[method-assign]
            houses.parties["lab"] = houses.party("lab")
        return ask(questions, deadline)

    houses.ask = renew  # type: ignore[method-assign]
    houses.connect(deadline=30)
    assert [e for e, _ in houses.events] == ["new session"]
    one = near(houses)
    one.train()
    assert all(torch.equal(ended.talk["params"][k], v) for k, v in one.host.params.items())


def test_prediction_goes_on_without_a_guest_and_says_so(tmp_path: Path) -> None:
    said = list[str]()
    agreed = study()

    def after(talk: Dialogue, side: Any, home: Path) -> None:
        houses.away.add("lab")
        PostrunRequest(agreed, SEED, said.append, 5)(talk, side, home)

    houses = few(tmp_path, clinic={"after": after})
    houses.connect(deadline=0.3)
    assert ("without", {"sites": ["lab"]}) in houses.events
    assert any(s.startswith("Without lab: the median of its answers") for s in said)
    run = VerticalRun.load(houses.home("clinic") / RUN)
    assert run.info["away"] == ["lab"]
    # and again, with it
    houses.away.clear()
    houses.given["clinic"] = {"after": PostrunRequest(agreed, SEED, said.append, 5)}
    houses.parties = {name: houses.party(name) for name in houses.parties}
    houses.connect(may_miss=True)
    assert VerticalRun.load(houses.home("clinic") / RUN).info["away"] == []
    # and with nobody
    houses.away |= {"lab", "insurer"}
    houses.parties = {name: houses.party(name) for name in houses.parties}
    houses.connect(deadline=0.2, may_miss=True)
    assert VerticalRun.load(houses.home("clinic") / RUN).info["away"] == ["insurer", "lab"]


def test_new_people_are_looked_up_blindly(tmp_path: Path) -> None:
    """Where the guest allows it: it counts the question, and what reaches it does not tell whom it was about."""
    agreed, frames, said = study(), tables(FEW), list[str]()
    clinic, lab = frames["clinic"], set(frames["lab"].pid)
    held = set.intersection(*(set(frames[n][p.id]) for n, p in agreed.parties.items()))
    beyond = clinic[~clinic.patient.isin(held)]
    new = pd.concat([beyond[beyond.patient.isin(lab)].head(2), beyond[~beyond.patient.isin(lab)].head(2)])
    new = pd.concat([new, clinic[clinic.patient.isin(held)].head(2)]).drop(columns="sick")
    asks = PostrunRequest(agreed, SEED, said.append, 0, new)
    houses = Houses(tmp_path, agreed, frames, clinic={"after": asks}, lab={"looks_up": True})
    houses.connect()
    (file,) = (houses.home("clinic") / RUN).glob("predicted-*.csv")
    told = pd.read_csv(file)
    assert told.lab.tolist() == ["answer" if one in lab else "reference" for one in new.patient]
    assert set(told.insurer) == {"reference"}, "it does not allow look-ups, and prediction goes on without it"
    assert any("insurer refuses" in text and "it does not allow look-ups" in text for text in said)
    box = Outbox(houses.folder / "clinic")
    asked = [e.number or 0 for e in box.entries() if e.kind == "Asked" and e.words["to"] == "lab"]
    assert len({box.show(n).tensors["token"].numpy().tobytes() for n in asked}) == len(asked) > 0
    sent = [e.kind for e in Outbox(houses.folder / "lab").entries() if e.direction == "out"]
    assert sent.count("Told") == len(asked)


# letters


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_letters_are_read_as_they_were_written(kind: type[Any]) -> None:
    from typing import get_type_hints

    samples = {int: 3, str: "x", bytes: b"abc", list[int]: [1, 2], torch.Tensor: torch.arange(4)}
    letter = kind(**{k: copy.deepcopy(samples[hint]) for k, hint in get_type_hints(kind).items()})
    back = read(written(letter).pack(), "here")
    assert type(back) is kind
    for a, b in zip(letter, back, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize(
    "said",
    [
        Message("Evil", {}),
        Message("Ask", {"step": "1"}),
        Message("Ask", {"step": True}),
        Message("Ask", {"step": 1, "more": 2}),
        Message("Ask", {}),
        Message("Ask", {}, {"step": torch.ones(1)}),
        Message("Offered", {**Offered(1, 2, 3)._asdict(), "columns": [1]}),
        Message("Settled", {"columns": [1.5], "training": [1], "after": [1], "step": 0}),
        Message("List", {"owner": "lab"}, {"tokens": torch.ones(4)}),
        Message("Slope", {"masked": 1}, {"product": torch.ones(4)}),
    ],
)
def test_letters_that_are_none(said: Message) -> None:
    with pytest.raises(VitrailError, match="a message was refused"):
        read(said.pack(), "here")

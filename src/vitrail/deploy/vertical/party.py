"""A party's half: what it is asked by the coordinator, who carries letters that it cannot read.

hello    which session begins           -> a public key drawn for it; whatever ran before is over
relay    letters, dealt triples, away   -> letters, what the dealer is asked for, whether it waits
finish   the last word
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from vitrail.core.errors import AgreementMismatch, MessageRefused
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.identity.party_keys import public
from vitrail.deploy.identity.sealing import SealedSession, SealingKeys
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.run_log import RunLog, is_run
from vitrail.deploy.vertical.agreement import FORMAT, PartyAgreement
from vitrail.deploy.vertical.mailbox import Collection, Envelope, RemoteMailbox
from vitrail.privacy.key_agreement import SIZE
from vitrail.vertical.mailbox import Triple
from vitrail.vertical.messages import GuestTriple, HostTriple

PATIENCE = 5.0  # seconds that a question waits for a program that is busy
LONGEST = 1 << 30  # bytes of a question: lists of ids are long
HELLO = {"run": str, "session": int, "format": int, "agreement": str}
RELAY = {"run": str, "session": int, "number": int, "keys": dict, "letters": list, "dealt": list, "away": list}
FINISH = {"run": str}
FORMS: dict[str, dict[str, Any]] = {"hello": HELLO, "relay": RELAY, "finish": FINISH}
NOTHING = -1, "", Message("", {})  # number, hash and answer of the last question, before there is one
TRIPLES: dict[str, type[Any]] = {"HostTriple": HostTriple, "GuestTriple": GuestTriple}


class PartyEndpoint:
    """`program(line, home)` is what this party does in a session; `home`: its folder for this run."""

    longest = LONGEST

    def __init__(
        self,
        name: str,
        pact: PartyAgreement,
        key: X25519PrivateKey,
        base: Path,
        outbox: Outbox,
        program: Callable[[RemoteMailbox, Path], None],
        another: bool = False,
    ) -> None:
        """`another`: somebody here says that one more run may begin, though the last has not ended."""
        self.name, self.pact, self.key, self.base, self.outbox, self.program = name, pact, key, base, outbox, program
        self.runs, self.home = RunLog(base, another), base  # the home of the run at hand
        self.notices = list[str]()
        self.line: RemoteMailbox | None = None
        self._over: RemoteMailbox | None = None  # of the session before, whose program may still be busy
        self._drawn: X25519PrivateKey | None = None
        self._session = -1
        self._last = NOTHING

    @property
    def agreed(self) -> PartyEndpoint:
        """Where the door looks for how long a question may be."""
        return self

    def answer(self, asked: Message) -> Message:
        form = FORMS.get(asked.kind)
        if form is None or asked.words.keys() != form.keys():
            raise MessageRefused("message", f"expected one of {', '.join(FORMS)}, each with its own fields.")
        if wrong := [k for k, kind in form.items() if type(asked.words[k]) is not kind]:
            raise MessageRefused("message", f"its fields {', '.join(wrong)} are not as agreed.")
        if not is_run(asked.words["run"]):
            raise MessageRefused("run", f"{asked.words['run'][:20]!r} is not the name of a run.")
        answer: Message = getattr(self, f"_on_{asked.kind}")(asked)
        return answer

    def _on_hello(self, asked: Message) -> Message:
        words = asked.words
        if words["format"] != FORMAT or words["agreement"] != self.pact.hash:
            what = (
                f"the coordinator's agreement is {words['agreement'][:40]}, but this party accepted {self.pact.hash}."
            )
            hint = "Ask the coordinator what changed, and join again with the new invitation or approval."
            raise AgreementMismatch("agreement", what, hint)
        if self.line is not None:
            self.line.end()
            self._over, self.line = self.line, None
        self._enter(words["run"])
        self._drawn, self._session, self._last = (
            X25519PrivateKey.generate(),
            words["session"],
            (-1, "", Message("", {})),
        )
        return Message("hello", {"key": public(self._drawn).hex()})

    def _enter(self, run: str) -> None:
        """One run for each time that somebody here joined; one that was begun before is gone on with."""
        if self.home != self.base / run:
            self.home = self.runs.enter(run)

    def _on_relay(self, asked: Message) -> Message:
        words, number = asked.words, asked.words["number"]
        if (words["run"], words["session"]) != (self.home.name, self._session) or self._drawn is None:
            return Message("relay", {"state": "lost", "letters": [], "deal": [], "terms": []})
        mark = hashlib.sha256(asked.pack()).hexdigest()
        if number == self._last[0] and mark == self._last[1]:
            return self._last[2]  # the answer was lost on the way
        if number != self._last[0] + 1:
            raise MessageRefused("message", f"expected letter number {self._last[0] + 1}, got {number}.")
        if self._over is not None and self._over.runs:
            return self._busy()
        if self.line is None:
            self._begin(words["keys"], words["away"])
        assert self.line is not None
        self.line.feed(_letters(asked), _dealt(asked, self.name), [str(n) for n in words["away"]])
        answer = _answer(self.line.take(PATIENCE))
        self._last = number, mark, answer
        return answer

    def _busy(self) -> Message:
        """While the program of the session before goes on; the question will be asked again."""
        assert self._over is not None
        self._over.join(PATIENCE)
        return Message("relay", {"state": "again", "letters": [], "deal": [], "terms": []})

    def _begin(self, keys: dict[str, Any], away: list[Any]) -> None:
        assert self._drawn is not None
        mine, others = self.pact.keys, dict[str, SealingKeys]()
        for other in (other for other in mine if other != self.name and other not in away):
            try:
                key = bytes.fromhex(keys[other])
            except (KeyError, TypeError, ValueError):
                key = b""
            if len(key) != SIZE:
                raise MessageRefused(f"key of {other}", "expected a public key of 32 bytes for this session.")
            others[other] = SealingKeys(mine[other], key)
        about = f"{self.pact.hash} {self.home.name} {self._session}"
        seals = SealedSession(self.name, self.key, self._drawn, others, about)
        self.line = RemoteMailbox(self.name, seals, self._record)
        self.line.begin(lambda line: self.program(line, self.home))

    def _record(self, letter: Message, receiver: str) -> None:
        """In the clear, before it is sealed: what the officer may look at."""
        entry = letter._replace(words={**letter.words, "to": receiver})
        self.outbox.record(entry, entry.pack())

    def _on_finish(self, asked: Message) -> Message:
        RunLog.end(self.home)
        return Message("finish", {})


def _letters(asked: Message) -> list[Envelope]:
    out = []
    for i, label in enumerate(asked.words["letters"]):
        data = asked.tensors.get(f"letter/{i}")
        well = isinstance(label, list) and len(label) == 2 and type(label[0]) is str and type(label[1]) is int
        if not well or data is None or data.dtype != torch.uint8 or data.dim() != 1:
            raise MessageRefused(f"letter {i}", "expected its sender, its number and its bytes.")
        out.append(Envelope(label[0], label[1], data.numpy().tobytes()))
    return out


def _dealt(asked: Message, name: str) -> dict[Triple, Any]:
    out: dict[Triple, Any] = {}
    for i, label in enumerate(asked.words["dealt"]):
        try:
            guest, step, kind = label
            triple = TRIPLES[kind](**{k: asked.tensors[f"dealt/{i}/{k}"] for k in TRIPLES[kind]._fields})
        except (KeyError, TypeError, ValueError):
            raise MessageRefused(f"triple {i}", "expected numbers from the dealer.") from None
        out[Triple(str(guest), int(step))] = triple
    return out


def _answer(taken: Collection) -> Message:
    words = {"state": taken.state, "letters": [[x.whom, x.number] for x in taken.letters]}
    bodies = {f"letter/{i}": as_tensor(x.data) for i, x in enumerate(taken.letters)}
    return Message("relay", {**words, "deal": [list(t) for t in taken.deal], "terms": taken.terms}, bodies)


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)

"""The coordinator of a study with parties: carries sealed letters, deals triples, and sees sizes.

A session is one attempt. It begins with a key from each party, drawn for it; when a party was started anew, all begin
another, and go on from what each of them kept. A question that was not answered is asked again as it was.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from vitrail.core.errors import Problem, StudyStopped, VitrailError
from vitrail.deploy.coordinator.requests import SiteRemoved, Transport, error_text
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.vertical.agreement import FORMAT, PartyAgreement
from vitrail.deploy.vertical.mailbox import Envelope
from vitrail.deploy.vertical.party import as_tensor
from vitrail.vertical.training.triples import Dealer

DEADLINES = 3  # that a party may be away before training stops
PAUSE = 0.3  # seconds before somebody who is away is asked again
MOST_SESSIONS = 20  # begun by one `serve`, before somebody should look why
STATES = ("waits", "asks", "busy", "ended", "again", "lost")


class LetterRelay:
    def __init__(
        self,
        way: Transport,
        pact: PartyAgreement,
        run: str,
        deadline: float,
        dealer: Callable[[Sequence[int]], Dealer],
        may_miss: bool = False,
    ) -> None:
        """`dealer`: of the rows in common and the numbers that each guest weighs. `may_miss`: training is over, so that
        a guest who is away is gone on without."""
        self.way, self.pact, self.run, self.deadline = way, pact, run, deadline
        self.make_dealer, self.may_miss = dealer, may_miss
        self.parties, self.host = list(pact.study.parties), pact.study.host
        self.carried: dict[tuple[str, str], list[int]] = {}  # sender, receiver -> letters and bytes
        self.missed: dict[str, float] = {}  # since when a party has not answered
        self.trouble: dict[str, str] = {}

    def connect(self) -> None:
        """Until the host's program has ended."""
        for _ in range(MOST_SESSIONS):
            if RelaySession(self).run():
                return
        what = f"a party restarted during each of {MOST_SESSIONS} attempts."
        raise StudyStopped("parties", what, "Run vitrail doctor at each party.")

    def ask(self, questions: Mapping[str, Message]) -> dict[str, Message]:
        """Answers of those who gave one that is no error."""
        responses = self.way.ask(dict(questions), self.deadline)
        failed = []
        for name, answer in responses.answers.items():
            self.missed.pop(name, None)
            if answer.kind == "error":
                failed.append(Problem(name, f"{error_text(answer)}.", "Correct the problem at that party."))
            elif answer.kind != questions[name].kind:
                failed.append(
                    Problem(
                        name,
                        f"it answered with a message {answer.kind[:20]!r} to a message {questions[name].kind!r}.",
                        "Call it.",
                    )
                )
            if self.trouble.pop(name, ""):
                self.way.log("answers again", site=name, what="")
        for name, what in responses.trouble.items():
            self.missed.setdefault(name, time.monotonic())
            if isinstance(what, SiteRemoved):
                failed.append(
                    Problem(
                        name,
                        "it was removed from the study.",
                        "Make a new study without it, and invite the others again.",
                    )
                )
            if self.trouble.get(name) != what:
                self.way.log("trouble", site=name, what=what)
                self.trouble[name] = what
        if failed:
            raise StudyStopped(problems=failed)
        return responses.answers

    def late(self, deadlines: int, among: Sequence[str]) -> list[str]:
        """Who has not answered for so many deadlines."""
        now = time.monotonic()
        return [n for n in among if n in self.missed and now - self.missed[n] > deadlines * self.deadline]

    def stop(self, late: Sequence[str], training: bool = False) -> None:
        """Where somebody is late: in words, for who will start it again."""
        if not late:
            return
        hint = (
            "Have it join again, then start serve again. Training continues from the last epoch that all parties kept."
        )
        what = f"it has let {DEADLINES} deadlines of {self.deadline:g} seconds pass without an answer."
        title = "training stopped at a checkpoint" if training else "the study stopped before training"
        title += f": {' and '.join(late)} {'is' if len(late) == 1 else 'are'} away"
        raise VitrailError(title, [Problem(name, what, hint) for name in late])


class RelaySession:
    def __init__(self, switch: LetterRelay) -> None:
        self.to, self.number = switch, secrets.randbits(48)
        self.dealer: Dealer | None = None
        self.keys: dict[str, str] = {}
        self.letters: dict[str, list[Envelope]] = {party: [] for party in switch.parties}
        self.dealt: dict[str, list[tuple[str, int, Any]]] = {party: [] for party in switch.parties}
        self.next = dict.fromkeys(switch.parties, 0)  # number of a party's next question
        self.state = dict.fromkeys(switch.parties, "busy")
        self.away: list[str] = []
        self.told: list[str] = []  # who is away, as the host knows it
        self.standing: dict[str, Message] = {}  # questions without an answer

    def run(self) -> bool:
        """Whether it came to its end; False: somebody was started anew."""
        self._hello()
        while True:
            for party in self.to.parties:
                if party not in self.standing and party not in self.away and self._has_something(party):
                    self.standing[party] = self._question(party)
            if not self.standing and self.state[self.to.host] == "ended":
                return True
            if not self.standing:
                what = "each of these parties waits for a letter from another one."
                raise StudyStopped("parties", what, "Start serve again.")
            answers = self.to.ask(self.standing)
            for party, answer in answers.items():
                self._take(party, answer)
            if any(state == "lost" for state in self.state.values()):
                self.to.way.log("new session", sites=[p for p, state in self.state.items() if state == "lost"])
                return False
            self._miss()
            if not answers or "again" in self.state.values():
                time.sleep(PAUSE)

    def _hello(self) -> None:
        words = {"run": self.to.run, "session": self.number, "format": FORMAT, "agreement": self.to.pact.hash}
        while left := [p for p in self.to.parties if p not in self.keys and p not in self.away]:
            for party, answer in self.to.ask({p: Message("hello", words) for p in left}).items():
                self.keys[party] = str(answer.words.get("key", ""))
            guests = [p for p in left if p != self.to.host and self.to.may_miss]
            self.away += self.to.late(1, guests)
            self.to.stop(self.to.late(DEADLINES, [p for p in left if p not in self.away]))
            if set(left) - self.keys.keys():
                time.sleep(PAUSE)
        if self.away:
            self.to.way.log("without", sites=self.away)

    def _has_something(self, party: str) -> bool:
        if self.state[party] == "ended":
            return False
        news = party == self.to.host and self.told != self.away
        return self.state[party] == "busy" or bool(self.letters[party] or self.dealt[party]) or news

    def _question(self, party: str) -> Message:
        letters, dealt = self.letters[party], self.dealt[party]
        self.letters[party], self.dealt[party] = [], []
        bodies: dict[str, Tensor] = {f"letter/{i}": as_tensor(x.data) for i, x in enumerate(letters)}
        for i, (_, _, triple) in enumerate(dealt):
            bodies |= {f"dealt/{i}/{k}": v for k, v in triple._asdict().items()}
        first = self.next[party] == 0
        words = {
            "run": self.to.run, "session": self.number, "number": self.next[party],
            "keys": {p: k for p, k in self.keys.items() if p != party} if first else {},
            "letters": [[x.whom, x.number] for x in letters],
            "dealt": [[guest, step, type(triple).__name__] for guest, step, triple in dealt],
            "away": list(self.away),
        }  # fmt: skip
        if party == self.to.host:
            self.told = list(self.away)
        return Message("relay", words, bodies)

    def _take(self, party: str, answer: Message) -> None:
        try:
            state, letters = answer.words["state"], [(str(a), int(b)) for a, b in answer.words["letters"]]
            bodies = [answer.tensors[f"letter/{i}"].numpy().tobytes() for i in range(len(letters))]
            terms, deal = [int(n) for n in answer.words["terms"]], [(str(a), int(b)) for a, b in answer.words["deal"]]
            if state not in STATES or any(to not in self.letters or to == party for to, _ in letters):
                raise ValueError
            self.state[party] = state
            if state in ("lost", "again"):
                return
            del self.standing[party]
            self.next[party] += 1
            for (to, number), data in zip(letters, bodies, strict=True):
                self.letters[to].append(Envelope(party, number, data))
                seen = self.to.carried.setdefault((party, to), [0, 0])
                seen[0], seen[1] = seen[0] + 1, seen[1] + len(data)
            if party == self.to.host:
                self._deal(terms, deal)
        except (KeyError, TypeError, ValueError):
            what = "its answer does not match the agreement."
            raise StudyStopped(party, what, "Use the same version of Vitrail there.") from None

    def _deal(self, terms: list[int], deal: list[tuple[str, int]]) -> None:
        if terms:
            self.dealer = self.to.make_dealer(terms)
        for guest, step in deal:
            if self.dealer is None:
                raise ValueError
            mine, theirs = self.dealer.deal(guest, step)
            self.dealt[self.to.host].append((guest, step, mine))
            self.dealt[guest].append((guest, step, theirs))

    def _miss(self) -> None:
        """After training the host goes on without a guest; before, all wait, and then stop."""
        if self.state[self.to.host] in ("asks", "ended"):
            guests = [p for p in self.to.parties if p != self.to.host and p not in self.away]
            if late := self.to.late(1, guests):
                self.away += late
                self.to.way.log("without", sites=late)
                for party in late:
                    self.standing.pop(party, None)
        late = self.to.late(DEADLINES, [p for p in self.to.parties if p not in self.away])
        self.to.stop(late, training=self.dealer is not None)

"""The coordinator asks the sites, checks what they say, and waits until enough have answered."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vitrail.core.errors import StudyStopped, VitrailError
from vitrail.core.text import several
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.answer_validation import implausible_answer
from vitrail.deploy.protocol.message import FINAL, Message, check_form, unpack
from vitrail.storage.journal import write_once

MOST_FAILED = 3  # answers in a row that are errors: then a site is no longer asked
MOST_MISSED = 3  # deadlines in a row: then a site is asked now and then, and not waited for
PATIENCE = 3  # deadlines after which a site is no longer waited for, where the study can go on without it
FIRST_PAUSE, MOST_PAUSE = 2, 64  # deadlines until it is asked again: doubled each time


class SiteRemoved(str):
    """Why there is no answer of a site, in words. This class and the next say on which reasons a coordinator acts:
    the site was removed from the study."""


class SiteSilent(str):
    """It is connected, and let the deadline pass."""


class ConnectionEnded(str):
    """Its part of the transport ended by itself, and the transport has logged that."""


class AnswerTooLong(str):
    """Its answer was not read."""


class SiteStopped(str):
    """It answers nothing more in this run (`VitrailError.ends_run`)."""


REMOVED = SiteRemoved("it was removed")


class Responses(NamedTuple):
    """What came back: answers by site, and in words what went wrong at the others."""

    answers: dict[str, Message]
    trouble: dict[str, str]
    awake: frozenset[str] = frozenset()  # sites that gave a sign meanwhile, if only a late answer


class Transport(Protocol):
    """The way to the sites. Sites that are away come back by themselves."""

    def ask(self, questions: dict[str, Message], deadline: float, not_awaited: Set[str] = frozenset()) -> Responses:
        """Each site its question; waits for all that can be reached but those `not_awaited`, and at most `deadline`
        seconds."""

    def present(self) -> set[str]:
        """Sites that are there at the moment."""

    def log(self, event: str, **details: Any) -> None: ...


class SiteRequests:
    """Asks many sites, checks what they say, waits until enough have answered, and sets aside who always fails."""

    def __init__(
        self, way: Transport, agreement: Agreement, names: Sequence[str], run: str, quorum: int, deadline: float
    ) -> None:
        self.way, self.agreed, self.names, self.run = way, agreement, list(names), run
        self.quorum, self.deadline = quorum, deadline
        self.trouble: dict[str, str | None] = {}
        self.failed: dict[str, int] = {}  # times in a row that a site answered with an error
        self.missed: dict[str, int] = {}  # deadlines in a row that a site let pass
        self.rests: dict[str, tuple[float, float]] = {}  # who is silent -> when it is asked again, and after how long

    def all(
        self, make: Callable[[str], Message | None], quorum: int | None = None, patience: float = math.inf
    ) -> dict[str, Message]:
        """Answers by site: at least `quorum` of them (or the study's), asked again until then; or, after so many
        seconds, those that there are."""
        pause, answers, until = 0.2, dict[str, Message](), time.monotonic() + patience
        made = {n: q for n in self.names if (q := make(n)) is not None}
        questions = {n: q._replace(words={**q.words, "run": self.run}) for n, q in made.items()}
        need = min(self.quorum if quorum is None else quorum, len(questions))
        while True:
            active = self.active()
            asked = {n: q for n, q in questions.items() if n not in answers and n in active}
            if len(asked) + len(answers) < need:
                if patience < math.inf:
                    return answers
                self._give_up(need)
            asked, beside = self._now(asked, need - len(answers))
            responses = self.way.ask(asked, self.deadline, beside) if beside else self.way.ask(asked, self.deadline)
            self._note(responses, beside)
            wrong = {name: self._wrong(name, asked[name], answer) for name, answer in responses.answers.items()}
            wrong |= {name: what for name, what in responses.trouble.items() if isinstance(what, AnswerTooLong)}
            trouble = responses.trouble | {name: what for name, what in wrong.items() if what is not None}
            for name, what in wrong.items():
                if what is None:
                    answers[name] = responses.answers[name]
                    self.failed.pop(name, None)
                    continue
                self.failed[name] = self.failed.get(name, 0) + 1
                if self.failed[name] == MOST_FAILED:
                    self.way.log("set aside", site=name, why=what)
            for name in asked:
                if (what := trouble.get(name)) != self.trouble.get(name):  # said when it changes, not in every round
                    if not isinstance(what, ConnectionEnded):
                        self.way.log("trouble" if what else "answers again", site=name, what=what or "")
                    self.trouble[name] = what
            if len(answers) >= need or time.monotonic() > until:
                return answers
            missing = {n: trouble.get(n) or self.trouble.get(n) or "" for n in questions if n not in answers}
            self.way.log("waiting", answered=len(answers), needed=need, missing=missing)
            time.sleep(pause)
            pause = min(5.0, 2 * pause)

    def patient(self, make: Callable[[str], Message | None], need: int | None = None) -> dict[str, Message]:
        """Answers of all who answer within a few deadlines; then of at least `need` (or the study's quorum), who are
        waited for."""
        answers = self.all(make, len(self.names), PATIENCE * self.deadline)
        missing = (self.quorum if need is None else need) - len(answers)
        if missing > 0:
            answers |= self.all(lambda n: None if n in answers else make(n), missing)
        return answers

    def once(self, path: Path, make: Callable[[str], Message | None]) -> dict[str, Message]:
        """Answers of all who answer within a few deadlines. They are kept in that file: a coordinator that was started
        anew goes on with the same ones."""

        def ask() -> bytes:
            answers = self.all(make, len(self.names), PATIENCE * self.deadline)
            packed = {n: answers[n].pack() for n in self.names if n in answers}
            sizes = json.dumps([[n, len(data)] for n, data in packed.items()])
            return b"\n".join((sizes.encode(), b"".join(packed.values())))

        header, _, data = write_once(path, ask, private=False).partition(b"\n")
        out = dict[str, Message]()
        for name, size in json.loads(header):
            out[name], data = unpack(data[:size]), data[size:]
        return out

    def _now(self, asked: dict[str, Message], need: int) -> tuple[dict[str, Message], frozenset[str]]:
        """Whom to ask at once, and who of them is silent and not waited for; all of them, and waited for, where the
        others are too few."""
        quiet = asked.keys() & self.rests.keys()
        if len(asked) - len(quiet) < need:
            return asked, frozenset()
        due = frozenset(n for n in quiet if time.monotonic() >= self.rests[n][0])
        return {n: q for n, q in asked.items() if n not in quiet - due}, due

    def _note(self, responses: Responses, not_awaited: frozenset[str]) -> None:
        """Who let a deadline pass, and who is back."""
        for name in responses.answers.keys() | responses.awake:
            self.missed.pop(name, None)
            self.rests.pop(name, None)
        late = [n for n, what in responses.trouble.items() if isinstance(what, SiteSilent) and n not in responses.awake]
        for name in late:
            self.missed[name] = self.missed.get(name, 0) + 1
            if self.missed[name] < MOST_MISSED:
                continue
            _, pause = self.rests.get(name, (0.0, FIRST_PAUSE * self.deadline / 2))
            pause = min(2 * pause, MOST_PAUSE * self.deadline)
            if name not in self.rests:
                self.way.log("silent", site=name, deadlines=self.missed[name])
            if name not in self.rests or name in not_awaited:
                self.rests[name] = time.monotonic() + pause, pause

    def active(self) -> list[str]:
        """Sites that can still be asked."""
        return [n for n in self.names if self.failed.get(n, 0) < MOST_FAILED and not self._is_removed(n)]

    def _is_removed(self, name: str) -> bool:
        return isinstance(self.trouble.get(name), SiteRemoved)

    def _wrong(self, name: str, asked: Message, answer: Message) -> str | None:
        """What is wrong with an answer, in words; None if nothing is."""
        if answer.kind == "error":
            return error_text(answer)
        if answer.kind == "refused":
            may = asked.kind in ("round", "screen", "transfer", "mask", "second") or "sum" in asked.words
            return None if may else "it refused"
        if answer.kind != asked.kind:
            return f"it answered with a message {answer.kind[:20]!r} to a message {asked.kind!r}"
        try:
            check_form(answer, self.agreed.answer(answer.kind, asked.words), f"from {name}")
        except VitrailError as error:
            return "; ".join(f"{p.where}: {p.what}" for p in error.problems)
        return implausible_answer(self.agreed, asked, answer)

    def _give_up(self, need: int) -> None:
        lost = {n: f"failed {MOST_FAILED} times in a row" for n in self.names if self.failed.get(n, 0) >= MOST_FAILED}
        lost |= {n: "was removed" for n in self.names if self._is_removed(n)}
        hint = "Read their errors in events.jsonl, have them repaired at the sites, and start again. Nothing is lost."
        if stopped := [n for n in lost if isinstance(self.trouble.get(n), SiteStopped)]:
            hint = (
                f"{' and '.join(stopped)} stopped this run for good, because the weights that came were "
                "outside the bounds; restarting does not change that. Start a new run: "
                "vitrail serve STUDY --new. Every site stops vitrail join and starts it "
                "again with --another-run. If a site may have sent wrong reports, look "
                "for unused rounds in events.jsonl."
            )
        what = f"{several(need, 'site')} must answer, but too few are left: {', '.join(map(' '.join, lost.items()))}."
        raise StudyStopped("sites", what, hint)


def error_text(answer: Message) -> str:
    """What a site that answers with an error says of it."""
    text = f"it says: {str(answer.words.get('text', ''))[:500]}"
    return SiteStopped(text) if answer.words.get(FINAL) is True else text

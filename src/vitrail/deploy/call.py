"""The coordinator asks the sites, checks what they say, and waits until enough have answered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from vitrail.core.problems import Problem, VitrailError
from vitrail.deploy.agreement import Agreement
from vitrail.deploy.message import Message, check_form
from vitrail.report.words import several

REMOVED = "it was removed"  # what a way says of a site that was
MOST_FAILED = 3  # answers in a row that are errors: then a site is no longer asked


class Heard(NamedTuple):
    """What came back: answers by site, and in words what went wrong at the others."""

    answers: dict[str, Message]
    trouble: dict[str, str]


class Way(Protocol):
    """The way to the sites. Sites that are away come back by themselves."""

    def ask(self, questions: dict[str, Message], deadline: float) -> Heard:
        """Each site its question; waits for all that can be reached, and at most `deadline` seconds."""

    def present(self) -> set[str]:
        """Sites that are there at the moment."""

    def log(self, event: str, **details: Any) -> None: ...


class Call:
    """Asks many sites, checks what they say, waits until enough have answered, and sets aside who always fails."""

    def __init__(
        self, way: Way, agreement: Agreement, names: Sequence[str], run: str, quorum: int, deadline: float
    ) -> None:
        self.way, self.agreed, self.names, self.run = way, agreement, list(names), run
        self.quorum, self.deadline = quorum, deadline
        self.trouble: dict[str, str | None] = {}
        self.failed: dict[str, int] = {}  # times in a row that a site answered with an error

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
            heard = self.way.ask(asked, self.deadline)
            trouble = dict(heard.trouble)
            for name, said in heard.answers.items():
                if (what := self._wrong(name, asked[name], said)) is None:
                    answers[name] = said
                    self.failed.pop(name, None)
                else:
                    trouble[name] = what
                    self.failed[name] = self.failed.get(name, 0) + 1
                    if self.failed[name] == MOST_FAILED:
                        self.way.log("set aside", site=name, why=what)
            for name in asked:
                if (what := trouble.get(name)) != self.trouble.get(name):  # said when it changes, not in every round
                    self.way.log("trouble" if what else "answers again", site=name, what=what or "")
                    self.trouble[name] = what
            if len(answers) >= need or time.monotonic() > until:
                return answers
            self.way.log("waiting", answered=len(answers), needed=need)
            time.sleep(pause)
            pause = min(5.0, 2 * pause)

    def active(self) -> list[str]:
        """Sites that can still be asked."""
        return [n for n in self.names if self.failed.get(n, 0) < MOST_FAILED and self.trouble.get(n) != REMOVED]

    def _wrong(self, name: str, asked: Message, said: Message) -> str | None:
        """What is wrong with an answer, in words; None if nothing is."""
        if said.kind == "error":
            return f"it says: {str(said.words.get('text', ''))[:500]}"
        if said.kind == "refused":
            return None if asked.kind in ("round", "screen") else "it refused"
        if said.kind != asked.kind:
            return f"it answered {said.kind[:20]!r} to {asked.kind!r}"
        try:
            check_form(said, self.agreed.answer(said.kind, asked.words), f"from {name}")
        except VitrailError as error:
            return "; ".join(f"{p.where}: {p.what}" for p in error.problems)
        return None

    def _give_up(self, need: int) -> None:
        lost = {n: f"failed {MOST_FAILED} times in a row" for n in self.names if self.failed.get(n, 0) >= MOST_FAILED}
        lost |= {n: "was removed" for n in self.names if self.trouble.get(n) == REMOVED}
        hint = "See what they say in events.jsonl, have it repaired there, and start again: nothing is lost."
        what = f"{several(need, 'site')} needed, and {', '.join(f'{n} {why}' for n, why in lost.items())}."
        raise VitrailError("the study cannot go on", [Problem("sites", what, hint)])

"""The host's program: it trains with its guests, a message per batch, and asks them afterwards.

    Ask -> answer;  the host learns;  triple, Masked -> Slope -> the guest learns       each batch
    Wanted, Off, Open -> answer, or why not                                             afterwards

Sides hold nothing in common: they are given numbers of steps and messages, and give messages. The guests' program is in
guest.py. Both run over a mailbox (vertical/mailbox.py), on one machine or between machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import GuestRefused, Problem, VitrailError
from vitrail.vertical.mailbox import LocalMail, LocalMailbox, Mailbox, Triple
from vitrail.vertical.matching.lookup import LookupHost, Table, Told, opened
from vitrail.vertical.messages import Ask, Keep, Levels, Masked, Numbers, Off, Open, Refused, Wanted
from vitrail.vertical.training.checkpoints import keep_state, kept_steps, load_state
from vitrail.vertical.training.guest import Guest, GuestProgram
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.triples import Dealer
from vitrail.vertical.wire import Way, Wire

Answers = dict[str, Levels | Numbers]


class Prediction(NamedTuple):
    scores: Tensor  # [row, output]
    answers: Tensor  # [row, output]: shares of classes, or the number
    words: str  # how it came about


class Dialogue:
    """A host with its guests: with `mailbox` between machines, else with these on this one."""

    def __init__(
        self,
        host: Host,
        guests: Sequence[Guest] = (),
        wire: Wire | None = None,
        *,
        mailbox: Mailbox | None = None,
        rehearsal: bool = False,
    ) -> None:
        self.host, self.guests, self.terms, self.wire = host, list(guests), host.terms, wire or Wire()
        self.names = [offer.name for offer in self.terms.offers]
        self.programs: dict[str, GuestProgram] = {}  # of guests on this machine
        if mailbox is None:
            mailbox = self._bring_together()
        self.mailbox, mailbox.crosses = mailbox, self.wire.cross
        self.wire.declared = None if rehearsal else rehearsed(self)
        self.step, self.done = 0, False
        self.asked = 0  # rows, after training
        # rows that each guest still lets be asked about, and times in training beyond what is needed: as the host knows
        self.left, self.spare = ({g.name: g.ration.left[k] for g in self.guests} for k in ("after", "training"))

    def _bring_together(self) -> Mailbox:
        if [g.offer for g in self.guests] != list(self.terms.offers):
            what = f"expected {[o.name for o in self.terms.offers]}, got {[g.name for g in self.guests]}."
            raise VitrailError("these are not the guests of the agreement", [Problem("parties", what)])
        mail = LocalMail(Dealer(self.terms).deal, self.wire.cross)
        for guest in self.guests:
            program = GuestProgram(LocalMailbox(guest.name, mail), self.host.name, guest)
            self.programs[guest.name] = program
            mail.start(guest.name, program.run())
        return LocalMailbox(self.host.name, mail)

    def rations(self) -> dict[str, dict[str, int]]:
        """What is left of each guest's: as they count it here; between machines, as the host does."""
        if self.guests:
            return {g.name: g.ration.left for g in self.guests}
        return {name: {"training": self.spare[name], "after": self.left[name]} for name in self.left}

    def turn(self) -> None:
        """One batch."""
        host, mailbox, step, terms = self.host, self.mailbox, self.step, self.terms
        for name in self.names:
            mailbox.post(name, Ask(step))
        if terms.learns(step) and terms.protect:
            mailbox.ask_dealer([Triple(name, step) for name in self.names])
        host.hear(step, {name: mailbox.get(name, Levels, Numbers) for name in self.names})
        if terms.learns(step):
            host.learn(step)
            for name in self.names:
                mailbox.post(name, self._slope(name, step) if terms.protect else host.bare(name))
        self.step += 1

    def _slope(self, name: str, step: int) -> Any:
        mine, masked = self.mailbox.dealt(Triple(name, step)), None
        if (name, self.terms.batch_at(step)) not in self.host.masked:
            masked = self.mailbox.get(name, Masked)
        return self.host.share(name, step, mine, masked)

    def train(
        self, until: int | None = None, keep: Path | None = None, tick: Callable[[int, int], None] | None = None
    ) -> None:
        """All steps that are left, or up to one. With `keep`, every side's state is kept after each epoch, in a folder
        of its own. `tick` is told after each step how many of how many are done."""
        many = len(self.terms.batches)
        for program in self.programs.values():
            program.folder = keep
        if self.step == 0:
            self.host.train_alone()
        while self.step < (self.terms.steps if until is None else until):
            self.turn()
            if tick is not None:
                tick(self.step, self.terms.steps)
            if self.step % many == 0:
                if keep is not None:
                    self.save(keep)
                if self.step > many:
                    self._refuse_constant()
        if self.step == self.terms.steps and not self.done:
            self.host.train_alone()
            self.done = True

    def ask(self, rows: Tensor, without: Iterable[str] = ()) -> Answers:
        """The answers about these rows, of each guest that is there."""
        away = set(without)
        return self._answers([name for name in self.names if name not in away], Wanted(rows), len(rows))

    def off(self) -> Answers:
        """The answers at guests' references."""
        return self._answers(self.names, Off(1), 0)

    def _answers(self, names: Sequence[str], question: Wanted | Off, rows: int) -> Answers:
        """Of those who are there. All are heard before a refusal is told, so that none is left over."""
        here = [name for name in names if name not in self.mailbox.away]
        for name in here:
            self.mailbox.post(name, question)
        letters = {name: self.mailbox.get_unless_away(name, Levels, Numbers, Refused) for name in here}
        answers = {name: letter for name, letter in letters.items() if isinstance(letter, Levels | Numbers)}
        for name in answers:
            self._count(name, rows)
        for name, letter in letters.items():
            refuse(name, letter)
        return answers

    def look_up(self, name: str, people: Sequence[str], words: str) -> tuple[list[bytes | None], Table | None]:
        """Each one's answer, None who is not there; and the guest's table, None where it is away. `words`: what all
        ends put before an id."""
        self.mailbox.post(name, Open(len(people)))
        table = refuse(name, self.mailbox.get_unless_away(name, Table, Refused))
        if table is None:
            return [None] * len(people), None
        rows, questions = opened(table), [LookupHost(one, words) for one in people]
        for question in questions:
            self.mailbox.post(name, question.asked)
        letters = [self.mailbox.get_unless_away(name, Told, Refused) for _ in people]
        self._count(name, sum(isinstance(letter, Told) for letter in letters))
        answers = [refuse(name, letter) for letter in letters]
        return [None if a is None else q.read(a, rows) for q, a in zip(questions, answers, strict=True)], table

    def _count(self, name: str, rows: int) -> None:
        self.asked += rows
        self.left[name] = self.left.get(name, 0) - rows

    def predict(self, rows: Tensor, without: Iterable[str] = ()) -> Prediction:
        away = sorted(set(without))
        if unknown := sorted(set(away) - {*self.names}):
            hint = f"Guests: {', '.join(self.names)}."
            raise VitrailError("no such guest", [Problem(n, "this study has no such guest.", hint) for n in unknown])
        answers = self.ask(rows, away)
        away = [name for name in self.names if name not in answers]  # also who did not answer
        z = self.host.predict(rows, answers)
        words = "With the answers of all guests."
        if away:
            who = " and ".join(away)
            words = f"Without {who}: the median of its answers in training is used for everybody."
        return Prediction(z, self.host.loss.predictions(z), words)

    def save(self, folder: Path) -> None:
        """Each side's state in its own folder."""
        keep_state(self.host, folder, self.step)
        for name in self.names:
            self.mailbox.post(name, Keep(self.step))

    def resume(self, folder: Path) -> int:
        """All sides of this machine as they were at the last step that all of them kept; 0 where there is none."""
        names = [self.host.name, *self.programs]
        if steps := set.intersection(*({*kept_steps(folder, name)} for name in names)):
            self.go_on(folder, max(steps))
        return self.step

    def go_on(self, folder: Path, step: int) -> None:
        """After a step that was kept there."""
        load_state(self.host, folder, step)
        self.step, self.done = step, False
        for program in self.programs.values():
            program.go_on(folder, step)

    def _refuse_constant(self) -> None:
        problems = []
        for name, answers in self.host.said.items():
            if all(bool((answers[rows] == answers[rows[:1]]).all()) for rows in self.terms.batches):
                what = (
                    "its answers are the same for every row of a batch after an epoch, so nothing can be learned "
                    "from it."
                )
                problems.append(Problem(f"guest {name}", what, "Check whether its columns vary over the common rows."))
        if problems:
            raise VitrailError("a guest's answers do not vary", problems)


def refuse(name: str, letter: Any) -> Any:
    """The letter, unless this guest says in it that it does not answer."""
    if isinstance(letter, Refused):
        raise GuestRefused(name, letter.why[:200])
    return letter


def rehearsed(d: Dialogue) -> dict[Way, Any]:
    """One message of each kind, from a batch of zeros: names, shapes and types of all that may cross."""
    rows = d.terms.rows
    zeros, rule = d.host.columns.new_zeros, d.host.rule
    host = Host(
        d.host.name, d.terms, zeros(d.host.columns.shape), torch.zeros_like(d.host.y), d.host.joint,
        {k: v[0] for k, v in d.host.params.items()}, rule, d.host.loss,
    )  # fmt: skip
    guests = [
        Guest(o, d.terms, zeros(rows, o.columns), rule, RationAccount(o.name, rows, 1, 1)) for o in d.terms.offers
    ]
    blank = Dialogue(host, guests, rehearsal=True)
    blank.turn()
    blank.ask(torch.zeros(1, dtype=torch.int64))
    return blank.wire.traced

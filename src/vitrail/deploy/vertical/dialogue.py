"""What host and guests do in a session, each in its own process: find each other's rows, train, ask.

    guest    have ->                 meet    offered ->              answers until the host says that it ended
    host            -> begin         meet               -> settled   trains, asks, writes its run

The host runs the dialogue of `vertical/training/dialogue.py`; its guests are far. In a step the letters are two for
each guest: the question (with the slopes of the step before) and the answer (with its masked columns, once for a
batch).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from vitrail.core.errors import GuestRefused, MatchRefused, MessageRefused, Problem, RationSpent, VitrailError
from vitrail.deploy.vertical.mailbox import Mailbox
from vitrail.deploy.vertical.match_quota import RATIO, MatchQuota, check_lengths
from vitrail.deploy.vertical.matching import Consent, kept_match, meet
from vitrail.deploy.vertical.messages import Ask, Begin, Ended, Have, Keep, Off, Offered, Open, Refused, Settled
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.study.model import Study
from vitrail.vertical.matching.lookup import Asked, LookupGuest, LookupHost, Told, opened
from vitrail.vertical.matching.lookup import Table as Locked
from vitrail.vertical.matching.match import Match, domain
from vitrail.vertical.messages import Levels, Masked, Numbers, Slope, Wanted
from vitrail.vertical.training.dialogue import Dialogue, read_tensors, write_tensors
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import Host, answer_scores
from vitrail.vertical.training.party_side import (
    GuestSide,
    HostSide,
    OwnRows,
    agree,
    keep_secret,
    make_guest,
    make_host,
    offer_of,
    own_rows,
)
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.terms import GuestOffer, Terms
from vitrail.vertical.training.triples import Dealer

MATCH, STEPS, RATION, TRAINED = "match", "steps", "ration.json", "trained"  # in a party's folder of a run
Rations = dict[str, tuple[int, int]]  # guest -> times a row may be asked in training, rows afterwards


def with_rations(study: Study, rations: Rations) -> Study:
    """With what the guests' officers said in place of what the study asks for."""
    told = {k: v.model_dump() for k, v in study.parties.items()}
    for guest, (training, after) in rations.items():
        told[guest]["ration"] = {"training": training, "after": after}
    return study.with_changes(parties=told)


def terms_of(study: Study, rows: int, columns: Sequence[int], training: Sequence[int], seed: int) -> Terms:
    """The same at host, guests and dealer."""
    guests = study.guests
    if not len(columns) == len(training) == len(guests):
        what = f"expected numbers of {len(guests)} guests, got {len(columns)} and {len(training)}."
        raise MessageRefused("terms", what, "Use the same version everywhere.")
    said = ((study.parties[g], g, n) for g, n in zip(guests, columns, strict=True))
    offers = [GuestOffer(guest, n, party.answer, party.bits, party.noise) for party, guest, n in said]
    left = {g: (n, study.parties[g].ration.after) for g, n in zip(guests, training, strict=True)}
    return agree(with_rations(study, left), rows, offers, seed)


def dealer_of(study: Study, seed: int, told: Sequence[int]) -> Dealer:
    """At the coordinator, of what the host says: rows in common; of each guest, numbers weighed and ration."""
    many = len(study.guests)
    return Dealer(terms_of(study, told[0], told[1 : 1 + many], told[1 + many :], seed))


def carry_over(path: Path, guest: str, rows: int) -> None:
    """A new match does not refill a ration: its rows count as asked as often as any before them."""
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        asked = [max(kept["asked"], default=0)] * rows
        told = {"guest": guest, "answered": kept["answered"], "asked": asked}
        write_atomically(path, json.dumps(told), private=True)


class GuestDescription(NamedTuple):
    """What the host knows of one."""

    offer: GuestOffer

    @property
    def name(self) -> str:
        return self.offer.name


class RemoteDialogue(Dialogue):
    """The host's, with guests at the other end of its line."""

    def __init__(self, host: Any, line: Mailbox) -> None:
        guests: list[Any] = [GuestDescription(offer) for offer in host.terms.offers]
        super().__init__(host, guests)
        self.line, self.asked = line, 0
        self.left: dict[str, int] = {}  # rows that each guest still lets be asked about
        self.spare: dict[str, int] = {}  # times that it would let a row be asked in training, beyond what is needed

    @property
    def sides(self) -> Any:
        return (self.host,)

    def turn(self) -> None:
        host, cross, step, names = self.host, self.wire.cross, self.step, [g.name for g in self.guests]
        for name in names:
            self.line.post(name, Ask(step))
        learns = self.terms.learns(step)
        self.line.ask_dealer([(name, step) for name in names] if learns else [])
        host.hear(step, {n: cross(n, host.name, self.line.get(n, Levels, Numbers)) for n in names})
        if learns:
            host.learn(step)
            for name in names:
                mine = cross("dealer", host.name, self.line.dealt(name, step))
                masked = None
                if (name, self.terms.batch_at(step)) not in host.masked:
                    masked = cross(name, host.name, self.line.get(name, Masked))
                self.line.post(name, cross(host.name, name, host.share(name, step, mine, masked)))
        self.step += 1

    def save(self, folder: Path) -> None:
        super().save(folder)
        for guest in self.guests:
            self.line.post(guest.name, Keep(self.step))

    def ask(self, rows: Tensor, without: Iterable[str] = ()) -> dict[str, Levels | Numbers]:
        return self._heard([g.name for g in self.guests if g.name not in {*without}], Wanted(rows))

    def off(self) -> dict[str, Levels | Numbers]:
        return self._heard([g.name for g in self.guests], Off(1))

    def look_up(self, name: str, people: Sequence[str], words: str) -> tuple[list[bytes | None], int]:
        """Each one's answer, None who is not there; and the bytes of the table. None at all where the guest is away."""
        self.line.post(name, Open(len(people)))
        (table,) = self._answers([name], Locked)
        if table is None:
            return [None] * len(people), 0
        rows, questions = opened(table), [LookupHost(one, words) for one in people]
        for question in questions:
            self.line.post(name, question.asked)
        said = self._answers([name] * len(questions), Told)
        found = [None if told is None else q.read(told, rows) for q, told in zip(questions, said, strict=True)]
        self.left[name] = self.left.get(name, 0) - len(people)
        return found, len(table.rows)

    def _answers(self, names: Sequence[str], *kinds: type[Any]) -> list[Any]:
        """One of each, None of who is away; all are heard before a refusal is told, so that none is left over."""
        said = [self.line.get_unless_away(name, *kinds, Refused) for name in names]
        refused = {name: one.why for name, one in zip(names, said, strict=True) if isinstance(one, Refused)}
        for name, why in refused.items():
            raise GuestRefused(name, why[:200])
        return said

    def _heard(self, names: Sequence[str], question: Any) -> dict[str, Levels | Numbers]:
        """Of those who are there."""
        found: dict[str, Levels | Numbers] = {}
        asked = [name for name in names if name not in self.line.away]
        for name in asked:
            if isinstance(question, Wanted):
                self.wire.cross(self.host.name, name, question)
            self.line.post(name, question)
        for name, said in zip(asked, self._answers(asked, Levels, Numbers), strict=True):
            if said is not None:
                if isinstance(question, Wanted):
                    self.asked += len(question.rows)
                    self.left[name] = self.left.get(name, 0) - len(question.rows)
                found[name] = self.wire.cross(name, self.host.name, said)
        return found


After = Callable[[RemoteDialogue, HostSide, Path], None]  # what the host does when training is over


@dataclass
class PartyProgram:
    """One party: its table, and what its officer agreed to."""

    study: Study
    party: str
    seed: int
    frame: pd.DataFrame
    home: Path  # of the party, over all runs
    consent: Consent
    ration: tuple[int, int] = (0, 0)  # of a guest
    after: After | None = None  # at the host, when training is over
    say: Callable[[str], None] = lambda text: None
    looks_up: bool = False  # of a guest: whether people who are not in common may be looked up blindly
    list_ratio: float = RATIO  # how many times as long as this party's another's list may be

    def run(self, line: Mailbox, home: Path) -> None:
        """The program of a session. `home`: of this run."""
        if self.party == self.study.host:
            self._host(line, home)
        else:
            self._guest(line, home)

    def _match(self, line: Mailbox, home: Path, kept: Match | None, anew: bool) -> OwnRows:
        if anew or kept is None:
            for old in [home / TRAINED, *(home / STEPS).glob("*/step-*")]:
                old.unlink(missing_ok=True)  # of rows in another order
            begin = partial(self._begin, home.name)
            kept = meet(line, self.study, self.frame, self.consent, home / MATCH, begin)
        return own_rows(self.study, self.party, self.frame, kept)

    def _begin(self, run: str, lengths: dict[str, int]) -> None:
        """The officer sees how long the lists are; then the match is counted, and this party's list may leave."""
        others = ", ".join(f"{party} {length}" for party, length in lengths.items() if party != self.party)
        self.say(f"Ids in the lists: {others}; here {lengths[self.party]}.")
        check_lengths(self.party, lengths, self.list_ratio)
        MatchQuota(self.home).begin(run, lengths)

    def _host(self, line: Mailbox, home: Path) -> None:
        kept, guests = kept_match(home / MATCH, self.party, self.frame), self.study.guests
        trained = (home / TRAINED).exists()  # then a guest may be away
        have = {g: line.get_unless_away(g, Have, waits=not trained) for g in guests}
        here = {g: said for g, said in have.items() if said is not None}
        anew = kept is None or any(said.mark != kept.mark for said in here.values())
        if anew and len(here) < len(guests):
            what = "they are needed for a match, and not all are there."
            raise VitrailError("no match without all guests", [Problem(", ".join(guests), what, "Have all join.")])
        for guest in here:
            line.post(guest, Begin(int(anew)))
        rows = self._match(line, home, kept, anew)
        offers = self._offers(line, home, here, anew)
        columns, training, after = ([offers[g][i] for g in guests] for i in range(3))
        terms = terms_of(self.study, len(rows.places), columns, training, self.seed)
        side = make_host(self.study, rows, terms)
        talk = RemoteDialogue(side.host, line)
        talk.left = dict(zip(guests, after, strict=True))
        talk.spare = {guest: n - terms.asked for guest, n in zip(guests, training, strict=True)}
        step = 0 if anew else self._common_step(home, [said.kept for said in here.values()])
        for guest in here:
            line.post(guest, Settled(columns, training, after, step))
        line.ask_dealer([], [terms.rows, *columns, *training])
        if step:
            _load(talk.host, home, step)
            talk.step = step
            self.say(f"{step} of {terms.steps} steps were taken before.")
        if step < terms.steps and len(here) < len(guests):
            what = f"of {terms.steps} steps {step} were kept by all, and training goes on only with all guests."
            raise VitrailError("training cannot go on", [Problem(", ".join(guests), what, "Have all of them join.")])
        talk.train(keep=home / STEPS)
        write_atomically(home / TRAINED, "")
        if self.after is not None:
            self.after(talk, side, home)
        for guest in (guest for guest in here if guest not in line.away):
            line.post(guest, Ended(talk.asked))

    def _offers(self, line: Mailbox, home: Path, here: dict[str, Have], anew: bool) -> dict[str, list[int]]:
        """Numbers weighed and ration of each guest. What training follows from stays as it was first said in a match:
        a guest that allows less meanwhile refuses when it is asked too often."""
        place = home / "offers.json"
        known: dict[str, list[int]] = json.loads(place.read_text()) if place.exists() and not anew else {}
        for guest in here:
            said = list(line.get(guest, Offered))
            known[guest] = [*known.get(guest, said)[:2], said[2]]
        write_atomically(place, json.dumps(known))
        return known

    def _common_step(self, home: Path, kept: Sequence[Sequence[int]]) -> int:
        """The last that this party and all of these kept."""
        return max(set(_steps(home, self.party)).intersection(*kept), default=0)

    def _guest(self, line: Mailbox, home: Path) -> None:
        host = self.study.host
        kept = kept_match(home / MATCH, self.party, self.frame)
        line.post(host, Have(kept.mark if kept else "", _steps(home, self.party)))
        anew = bool(line.get(host, Begin).anew)
        rows = self._match(line, home, kept, anew)
        if anew:
            carry_over(home / RATION, self.party, len(rows.places))
        mine = with_rations(self.study, {self.party: self.ration})
        left = RationAccount(self.party, len(rows.places), *self.ration, home / RATION).left["after"]
        line.post(host, Offered(offer_of(self.study, rows).columns, self.ration[0], left))
        settled = line.get(host, Settled)
        terms = terms_of(self.study, len(rows.places), settled.columns, settled.training, self.seed)
        side = make_guest(mine, rows, terms, keep_secret(self.home), home / RATION)
        if settled.step:
            _load(side.guest, home, settled.step)
        words = domain(self.study) if self.looks_up else ""
        GuestProgram(line, host, side, home, settled.step, words).stay()


class GuestProgram:
    """A guest that answers its host, step after step; then whatever its ration allows."""

    def __init__(self, line: Mailbox, host: str, side: GuestSide, home: Path, step: int, words: str) -> None:
        """`words`: what all ends put before an id; "" where nobody may be looked up."""
        self.line, self.host, self.side, self.home, self.step, self.words = line, host, side, home, step, words
        self.guest = side.guest
        self.mine: Any = None  # the triple of this step
        self.desk: LookupGuest | None = None

    def stay(self) -> None:
        while True:
            said = self.line.get(self.host, Ask, Slope, Keep, Wanted, Off, Open, Asked, Ended)
            if isinstance(said, Ended):
                return
            getattr(self, f"on_{type(said).__name__.lower()}")(said)

    def on_ask(self, said: Ask) -> None:
        terms = self.guest.terms
        if said.step != self.step or said.step >= terms.steps or self.mine is not None:
            raise _wrong(self.host, f"step {self.step} of {terms.steps} comes next, got {said.step}.")
        self.line.post(self.host, self.guest.answer(self.step))
        if not terms.learns(self.step):
            self.step += 1
            return
        self.mine = self.line.dealt(self.guest.name, self.step)
        if (masked := self.guest.mask(self.step, self.mine)) is not None:
            self.line.post(self.host, masked)

    def on_slope(self, said: Slope) -> None:
        guest, rows = self.guest, len(self.guest.terms.rows_at(self.step))
        wide, answer = guest.offer.columns, guest.offer.answer
        got = [(tuple(t.shape), t.dtype) for t in said]
        if self.mine is None or got != [((rows, answer), torch.int64), ((wide, answer), torch.int64)]:
            raise _wrong(self.host, f"these are no slopes of step {self.step}.")
        guest.take(self.step, said, self.mine)
        self.step, self.mine = self.step + 1, None

    def on_keep(self, said: Keep) -> None:
        if said.step != self.step:
            raise _wrong(self.host, f"step {self.step} was the last, and not {said.step}.")
        folder = private_folder(self.home / STEPS / self.guest.name)
        write_tensors(folder / f"step-{self.step:08d}.safetensors", self.guest.state())
        for old in sorted(folder.glob("step-*.safetensors"))[:-2]:
            old.unlink()

    def on_wanted(self, said: Wanted) -> None:
        if said.rows.dtype != torch.int64 or said.rows.dim() != 1 or not len(said.rows):
            raise _wrong(self.host, "expected places of rows.")
        try:
            self.line.post(self.host, self.guest.reply(said))
        except (MessageRefused, MatchRefused, RationSpent) as error:
            self.line.post(self.host, Refused(error.to_outside()))

    def on_open(self, said: Open) -> None:
        """A table of this party's people, each with its answer, locked; made anew whenever it is asked for."""
        side, left = self.side, self.guest.ration.left["after"]
        if not self.words or said.people > left:
            why = f"{said.people} people would be looked up, and {left} are left of its ration."
            self.line.post(self.host, Refused(why if self.words else "it lets nobody be looked up (join --look-up)."))
            return
        z = answer_scores(self.guest.tell(side.features(side.rows.whole), side.rows.people)).float()
        told = [row.numpy().tobytes() for row in z]
        self.desk = LookupGuest(self.guest.name, side.rows.people, told, self.words, self.guest.ration.answer)
        self.line.post(self.host, self.desk.table)

    def on_asked(self, said: Asked) -> None:
        if self.desk is None:
            raise _wrong(self.host, "there is no table in which somebody could be looked up.")
        try:
            self.line.post(self.host, self.desk.tell(said))
        except (MessageRefused, MatchRefused, RationSpent) as error:
            self.line.post(self.host, Refused(error.to_outside()))

    def on_off(self, said: Off) -> None:
        self.line.post(self.host, self.guest.off())


def _steps(home: Path, party: str) -> list[int]:
    files = sorted((home / STEPS / party).glob("step-*.safetensors"))
    return [int(file.name.removeprefix("step-").partition(".")[0]) for file in files]


def _load(side: Host | Guest, home: Path, step: int) -> None:
    side.load(read_tensors(home / STEPS / side.name / f"step-{step:08d}.safetensors", side.state()))


def _wrong(host: str, what: str) -> VitrailError:
    return MessageRefused(f"letter from {host}", what, "Nothing was told.")

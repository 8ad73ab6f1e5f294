"""A session between machines, each party in its own process: what is kept from before, the match, the terms, and then
the programs of vertical/training, over sealed letters.

    guest    have ->                 the match    offered ->              answers until the host says that it ended
    host            -> begin         the match               -> settled   trains, asks, writes its run

On one machine there is no such opening: all tables are looked at before anything is done, one folder holds what every
party kept, and the study says the rations.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from vitrail.core.errors import MessageRefused, Problem, VitrailError
from vitrail.deploy.vertical.mailbox import RemoteMailbox
from vitrail.deploy.vertical.match_quota import RATIO, MatchQuota, check_lengths
from vitrail.deploy.vertical.messages import Begin, Have, Offered, Settled
from vitrail.storage.atomic_files import write_atomically
from vitrail.study.model import Study
from vitrail.vertical.mailbox import Mailbox
from vitrail.vertical.matching.curve import SIZE
from vitrail.vertical.matching.match import Match, domain, fingerprint, too_few
from vitrail.vertical.matching.protocol import Consent, End, find_common
from vitrail.vertical.messages import Ended
from vitrail.vertical.store import RATION
from vitrail.vertical.training.checkpoints import kept_steps
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import GuestProgram
from vitrail.vertical.training.party_side import (
    HostSide,
    OwnRows,
    agree,
    keep_secret,
    make_guest,
    make_host,
    offer_of,
    own_rows,
    usable_ids,
)
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.terms import GuestOffer, Terms
from vitrail.vertical.training.triples import Dealer

MATCH, STEPS, TRAINED = "match", "steps", "trained"  # in a party's folder of a run
Rations = dict[str, tuple[int, int]]  # guest -> times a row may be asked in training, rows afterwards


def with_rations(study: Study, rations: Rations) -> Study:
    """With what the guests' officers said in place of what the study asks for."""
    parties = {k: v.model_dump() for k, v in study.parties.items()}
    for guest, (training, after) in rations.items():
        parties[guest]["ration"] = {"training": training, "after": after}
    return study.with_changes(parties=parties)


def terms_of(study: Study, rows: int, columns: Sequence[int], training: Sequence[int], seed: int) -> Terms:
    """The same at host, guests and dealer."""
    guests = study.guests
    if not len(columns) == len(training) == len(guests):
        what = (
            f"expected numbers of columns and rations for {len(guests)} guests, got {len(columns)} and {len(training)}."
        )
        raise MessageRefused("terms", what, "Use the same version of Vitrail at all parties.")
    wide = ((study.parties[g], g, n) for g, n in zip(guests, columns, strict=True))
    offers = [GuestOffer(guest, n, party.answer, party.bits, party.noise) for party, guest, n in wide]
    left = {g: (n, study.parties[g].ration.after) for g, n in zip(guests, training, strict=True)}
    return agree(with_rations(study, left), rows, offers, seed)


def dealer_of(study: Study, seed: int, numbers: Sequence[int]) -> Dealer:
    """At the coordinator, of what the host says: rows in common; of each guest, numbers weighed and ration."""
    many = len(study.guests)
    return Dealer(terms_of(study, numbers[0], numbers[1 : 1 + many], numbers[1 + many :], seed))


def carry_over(path: Path, guest: str, rows: int) -> None:
    """A new match does not refill a ration: its rows count as asked as often as any before them."""
    if path.exists():
        spent = json.loads(path.read_text(encoding="utf-8"))
        asked = [max(spent["asked"], default=0)] * rows
        ration = {"guest": guest, "answered": spent["answered"], "asked": asked}
        write_atomically(path, json.dumps(ration), private=True)


def kept_match(folder: Path, party: str, frame: pd.DataFrame) -> Match | None:
    """The match that this party kept, if its table is still the one that was matched."""
    if not (folder / f"{party}.json").exists():
        return None
    match = Match.load(folder)
    match.take({party: frame})
    return match


After = Callable[[Dialogue, HostSide, Path], None]  # what the host does when training is over


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

    def run(self, mailbox: RemoteMailbox, home: Path) -> None:
        """The program of a session. `home`: of this run."""
        if self.party == self.study.host:
            self._host(mailbox, home)
        else:
            self._guest(mailbox, home)

    def _match(self, mailbox: Mailbox, home: Path, before: Match | None, anew: bool) -> OwnRows:
        if anew or before is None:
            for old in [home / TRAINED, *(home / STEPS).glob("*/step-*")]:
                old.unlink(missing_ok=True)  # of rows in another order
            before = self._match_anew(mailbox, home)
        return own_rows(self.study, self.party, self.frame, before)

    def _match_anew(self, mailbox: Mailbox, home: Path) -> Match:
        """This party's rows in the common order, kept in its folder. It draws its own secret."""
        me, study, folder = self.party, self.study, home / MATCH
        assert study.match is not None
        ids = usable_ids(study, me, self.frame)
        end = End(me, ids.spelled, secrets.token_bytes(SIZE), domain(study), study.match)
        begin = partial(self._begin, home.name)
        count, shared, places = mailbox.run(find_common(mailbox, end, study, begin, self.consent))
        if places is None:
            raise too_few(study, {me: ids})
        secret, rows = secrets.token_bytes(SIZE), {me: len(ids.spelled)}
        match = Match(
            study.host, count.rows, count.mark, rows, shared, {me: places}, {me: fingerprint(self.frame, secret)},
            {me: end.answered}, secrets={me: secret},
        )  # fmt: skip
        for old in folder.glob("*.json"):
            old.unlink()
        match.save(folder)
        return match

    def _begin(self, run: str, lengths: dict[str, int]) -> None:
        """The officer sees how long the lists are; then the match is counted, and this party's list may leave."""
        others = ", ".join(f"{party} {length}" for party, length in lengths.items() if party != self.party)
        self.say(f"Ids in the other lists: {others}; in your list: {lengths[self.party]}.")
        check_lengths(self.party, lengths, self.list_ratio)
        MatchQuota(self.home).begin(run, lengths)

    def _host(self, mailbox: RemoteMailbox, home: Path) -> None:
        before, guests = kept_match(home / MATCH, self.party, self.frame), self.study.guests
        trained = (home / TRAINED).exists()  # then a guest may be away
        have = {g: mailbox.get_unless_away(g, Have, waits=not trained) for g in guests}
        here = {g: letter for g, letter in have.items() if letter is not None}
        anew = before is None or any(letter.mark != before.mark for letter in here.values())
        if anew and len(here) < len(guests):
            what = "a match needs all guests, and these are absent."
            raise VitrailError(
                "not all guests are present for the match", [Problem(", ".join(guests), what, "Have all join.")]
            )
        for guest in here:
            mailbox.post(guest, Begin(int(anew)))
        rows = self._match(mailbox, home, before, anew)
        offers = self._offers(mailbox, home, here, anew)
        columns, training, after = ([offers[g][i] for g in guests] for i in range(3))
        terms = terms_of(self.study, len(rows.places), columns, training, self.seed)
        side = make_host(self.study, rows, terms)
        talk = Dialogue(side.host, mailbox=mailbox)
        talk.left = dict(zip(guests, after, strict=True))
        talk.spare = {guest: n - terms.asked for guest, n in zip(guests, training, strict=True)}
        step = 0 if anew else self._common_step(home, [letter.kept for letter in here.values()])
        for guest in here:
            mailbox.post(guest, Settled(columns, training, after, step))
        mailbox.ask_dealer([], [terms.rows, *columns, *training])
        if step:
            talk.go_on(home / STEPS, step)
            self.say(f"{step} of {terms.steps} steps were done before.")
        if step < terms.steps and len(here) < len(guests):
            what = f"all parties kept {step} of {terms.steps} steps, but training can only continue with all guests."
            raise VitrailError("training cannot go on", [Problem(", ".join(guests), what, "Have all of them join.")])
        talk.train(keep=home / STEPS)
        write_atomically(home / TRAINED, "")
        if self.after is not None:
            self.after(talk, side, home)
        for guest in (guest for guest in here if guest not in mailbox.away):
            mailbox.post(guest, Ended(talk.asked))

    def _offers(self, mailbox: Mailbox, home: Path, here: dict[str, Have], anew: bool) -> dict[str, list[int]]:
        """Numbers weighed and ration of each guest. What training follows from stays as it was first said in a match:
        a guest that allows less meanwhile refuses when it is asked too often."""
        place = home / "offers.json"
        offers: dict[str, list[int]] = json.loads(place.read_text()) if place.exists() and not anew else {}
        for guest in here:
            offer = list(mailbox.get(guest, Offered))
            offers[guest] = [*offers.get(guest, offer)[:2], offer[2]]
        write_atomically(place, json.dumps(offers))
        return offers

    def _common_step(self, home: Path, steps: Sequence[Sequence[int]]) -> int:
        """The last that this party and all of these kept."""
        return max(set(kept_steps(home / STEPS, self.party)).intersection(*steps), default=0)

    def _guest(self, mailbox: RemoteMailbox, home: Path) -> None:
        host, steps = self.study.host, home / STEPS
        before = kept_match(home / MATCH, self.party, self.frame)
        mailbox.post(host, Have(before.mark if before else "", kept_steps(steps, self.party)))
        anew = bool(mailbox.get(host, Begin).anew)
        rows = self._match(mailbox, home, before, anew)
        if anew:
            carry_over(home / RATION, self.party, len(rows.places))
        mine = with_rations(self.study, {self.party: self.ration})
        left = RationAccount(self.party, len(rows.places), *self.ration, home / RATION).left["after"]
        mailbox.post(host, Offered(offer_of(self.study, rows).columns, self.ration[0], left))
        settled = mailbox.get(host, Settled)
        terms = terms_of(self.study, len(rows.places), settled.columns, settled.training, self.seed)
        side = make_guest(mine, rows, terms, keep_secret(self.home), home / RATION)
        program = GuestProgram(mailbox, host, side.guest)
        program.folder, program.everybody = steps, side.everybody(mine)
        program.words = domain(self.study) if self.looks_up else ""
        if settled.step:
            program.go_on(steps, settled.step)
        mailbox.run(program.run())

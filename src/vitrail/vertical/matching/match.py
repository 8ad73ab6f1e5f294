"""Whom the parties have in common: the number first; after consent, each party's rows in one common order."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets as random_secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, TooFewInCommon, VitrailError
from vitrail.data.readers.tables import place_columns
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.untrusted_files import LONGEST_MODEL, read_text
from vitrail.study.model import Study
from vitrail.vertical.mailbox import LocalMail, LocalMailbox
from vitrail.vertical.matching.ids import ParsedIds, lacks_check_digit, look, other_forms, shape, tell, write
from vitrail.vertical.matching.protocol import Agreed, Count, End, Length, List, Places, find_common, size

AGAIN = "Match again: places are row numbers of the table as it was then."


WORDS: dict[type[Any], str] = {  # of what crosses, in this order
    Length: "length of the list of {}",
    List: "list of {}",
    Count: "number in common",
    Places: "places in the list of {}",
}


class MatchMessage(NamedTuple):
    """One message."""

    sender: str
    receiver: str
    what: str
    bytes: int


@dataclass(frozen=True)
class Match:
    """What came of it. Before consent there are no places."""

    host: str
    common: int
    mark: str  # the match's name, the same at every party
    rows: dict[str, int]  # ids of each party
    with_some: dict[tuple[str, ...], int]  # guests -> how many the host has in common with all of these
    places: dict[str, np.ndarray] = field(repr=False)  # party -> its row numbers (from 0), in the common order
    fingerprint: dict[str, str]  # party -> of its table
    answered: dict[str, int]  # party -> tokens of others that it locked
    crossed: list[MatchMessage] = field(repr=False, default_factory=list)
    secrets: dict[str, bytes] = field(repr=False, default_factory=dict)  # party -> what its fingerprint is made with

    def take(self, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Each party's rows in the common order. A table that is not the one that was matched is refused."""
        problems = []
        for party, frame in tables.items():
            file = str(frame.attrs.get("file", f"{party}'s table"))
            if party not in self.places:
                problems.append(Problem(file, f"{party} has no places in this match.", "Match with consent first."))
            elif fingerprint(frame, self.secrets[party]) != self.fingerprint[party]:
                problems.append(Problem(file, f"the table of {party} has changed since the match.", AGAIN))
        if problems:
            raise VitrailError("these are not the tables that were matched", problems)
        return {party: frame.iloc[self.places[party]] for party, frame in tables.items()}

    def save(self, folder: Path) -> list[Path]:
        """A file for each party, which holds its own places and nothing of another's."""
        folder.mkdir(parents=True, exist_ok=True)
        taken = [folder / f"{party}.json" for party in self.places if (folder / f"{party}.json").exists()]
        if taken:
            problems = [Problem(str(file), "it exists already.", "Choose another --out.") for file in taken]
            raise VitrailError("nothing was overwritten", problems)
        for party in self.places:
            self.write(party, folder / f"{party}.json")
        return [folder / f"{party}.json" for party in self.places]

    def write(self, party: str, file: Path) -> None:
        """One party's own part; nobody else on its machine can read it."""
        part = {"party": party, "host": self.host, "mark": self.mark, "rows": self.rows[party]}
        part |= {"places": self.places[party].tolist(), "answered": self.answered[party]}
        part |= {"fingerprint": self.fingerprint[party], "secret": self.secrets[party].hex()}
        write_atomically(file, json.dumps(part), private=True)

    @classmethod
    def load(cls, folder: Path) -> Match:
        """What the parties' files in this folder say; at one party, its own alone."""
        return cls.read(sorted(Path(folder).glob("*.json")), str(folder))

    @classmethod
    def read(cls, files: Sequence[Path], where: str) -> Match:
        """From parties' own files."""
        parts = [_read(file) for file in files]
        if len({(one["mark"], one["host"], len(one["places"])) for one in parts}) != 1:
            what = "the files belong to different matches." if parts else "there is no file of a match."
            raise VitrailError("cannot read the match", [Problem(where, what, "Match again: vitrail match.")])
        by = {one["party"]: one for one in parts}
        return cls(
            parts[0]["host"],
            len(parts[0]["places"]),
            parts[0]["mark"],
            {party: one["rows"] for party, one in by.items()},
            {},
            {party: np.array(one["places"], np.int64) for party, one in by.items()},
            {party: one["fingerprint"] for party, one in by.items()},
            {party: one["answered"] for party, one in by.items()},
            secrets={party: bytes.fromhex(one["secret"]) for party, one in by.items()},
        )


_KINDS = {"party": str, "host": str, "mark": str, "rows": int, "answered": int, "fingerprint": str, "secret": str}


def _read(file: Path) -> dict[str, Any]:
    try:
        part = json.loads(read_text(file, LONGEST_MODEL))
        places = part["places"]
        typed = all(type(part[key]) is kind for key, kind in _KINDS.items()) and bytes.fromhex(part["secret"])
        rows = all(type(p) is int and 0 <= p < part["rows"] for p in places) and len(set(places)) == len(places)
        if not (typed and rows):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        what = "expected a party's file of a match, got something else."
        raise VitrailError("cannot read the match", [Problem(str(file), what, "Match again: vitrail match.")]) from None
    return dict(part)


def fingerprint(frame: pd.DataFrame, secret: bytes) -> str:
    """Of names, cells and their order. Without the secret, which stays at home, it tells nothing of them."""
    made = hmac.new(secret, digestmod="sha256")
    for name, column in frame.items():
        cells = [write(cell) for cell in column.tolist()]
        made.update(json.dumps([str(name), cells]).encode())
    return made.hexdigest()[:32]


def match(
    study: Study,
    tables: Mapping[str, pd.DataFrame],
    *,
    places: bool = True,
    secrets: Mapping[str, bytes] | None = None,
) -> Match:
    """All ends on one machine. `places=False` stops at the number, as ends do that have not consented.

    The order of the common rows comes from the ends' secrets: those given (32 bytes each), else the study's first seed,
    so that a simulation can be repeated. Between machines every end draws its own. `study` names the parties and their
    columns of ids, `tables` has the table of each.
    """
    ids = read_ids(study, tables)
    drawn = secrets or {party: _drawn(study, party) for party in study.parties}
    rules, crossed, order = study.match, list[tuple[int, int, MatchMessage]](), list(study.parties)
    assert rules is not None

    def note(sender: str, receiver: str, letter: Any) -> Any:
        if not isinstance(letter, Agreed):  # which says nothing of a list
            owner, words = getattr(letter, "owner", sender), WORDS[type(letter)].format
            message = MatchMessage(sender, receiver, words(owner), size(letter))
            crossed.append(([*WORDS].index(type(letter)), order.index(owner), message))
        return letter

    ends = {party: End(party, ids[party].spelled, drawn[party], domain(study), rules) for party in study.parties}
    mail = LocalMail(crosses=note)
    agree = (lambda *_: None) if places else None
    programs = {
        party: find_common(LocalMailbox(party, mail), end, study, lambda _: None, agree) for party, end in ends.items()
    }
    parts = mail.run(programs)
    count, shared, _ = parts[study.host]
    if not count.rows:
        raise too_few(study, ids)
    fingers = {party: random_secrets.token_bytes(32) for party in ends}
    return Match(
        study.host,
        count.rows,
        count.mark,
        {party: len(end.ids) for party, end in ends.items()},
        shared,
        {party: part.places for party, part in parts.items() if part.places is not None},
        {party: fingerprint(tables[party], fingers[party]) for party in ends},
        {party: end.answered for party, end in ends.items()},
        [message for *_, message in sorted(crossed, key=lambda one: one[:2])],
        fingers,
    )


def domain(study: Study) -> str:
    """What all ends of a study put before an id; of another study, the same id is another point."""
    return f"vitrail match 1|{study.name}"


def _drawn(study: Study, party: str) -> bytes:
    return hashlib.sha256(f"vitrail match|{study.seeds[0]}|{party}".encode()).digest()


def read_ids(study: Study, tables: Mapping[str, pd.DataFrame]) -> dict[str, ParsedIds]:
    """Each party's ids; all that is wrong with any of them, before anything crosses."""
    if not study.parties:
        what = "the study has no parties."
        raise VitrailError("there is nothing to match", [Problem("[parties]", what, "Add [parties.NAME] sections.")])
    problems = [Problem(p, "there is no table of this party.", "Give one.") for p in study.parties if p not in tables]
    problems += [Problem(t, "the study has no such party.", "Remove it.") for t in tables if t not in study.parties]
    out = {}
    for party in (party for party in study.parties if party in tables):
        seen, findings = look(tables[party], study, party)
        problems += tell(party, tables[party], findings)
        if seen:
            out[party] = seen
    if study.host in tables and study.target.column not in place_columns(tables[study.host])[0]:
        hint = "Add it, or make another party the host."
        problems.append(Problem(study.host, f"the host's table has no target column {study.target.column!r}.", hint))
    if problems:
        raise VitrailError(f"the tables cannot be matched ({len(problems)} to correct)", problems)
    return out


def too_few(study: Study, seen: Mapping[str, ParsedIds]) -> VitrailError:
    """Counts of the lists, and how their ids look: never how many are in common."""
    assert study.match is not None
    rules, problems = study.match, []
    for party, one in seen.items():
        what, hint = (
            f"{len(one.spelled)} ids of {shape(one.spelled)}.",
            "Check whether the other parties have about the same number.",
        )
        if any(lacks_check_digit(one.spelled, other.spelled) for other in seen.values()):
            hint = "Another party writes one more digit, a check digit. Check whether it is missing here."
        problems.append(Problem(party, what, hint))
    forms = other_forms({party: one.written for party, one in seen.items()}, rules.form)
    what = f"ids were normalised by form = {rules.form!r}" + (
        f"; these forms would change some: {', '.join(forms)}." if forms else "."
    )
    hint = f"Try form = {' or '.join(map(repr, forms))}." if forms else "No other form changes any of them."
    problems.append(Problem("[match] form", what, hint))
    return TooFewInCommon(rules.at_least, problems)


def consent(study: Study, party: str) -> list[str]:
    """What a party agrees to in a match, in sentences for a page; its form is in deploy/consent/templates/party.txt."""
    assert study.match is not None
    others, rules = [name for name in study.parties if name != party], study.match
    most = rules.ratio
    out = [
        f"{' and '.join(others)} learn{'s' * (len(others) == 1)} how many ids your list has.",
        (
            f"All parties learn how many ids are in all lists if there are at least {rules.at_least}; "
            "otherwise they learn only that there are fewer."
        ),
        (
            "If all parties then consent, each learns which of its own rows these are, and thus that the "
            "others hold them too."
        ),
        "Nobody learns your other ids, and the columns of your table are not used.",
        (
            "Before your list leaves, you see how many ids each other list has. A list is refused if it is "
            f"more than {most:g} times as long as yours, or longer than its party announced."
        ),
        (
            "But a party that can guess ids (short or consecutive numbers) can put guesses into its own "
            f"list, at most {most:g} times as many as you have ids. If enough guesses are right, it learns which "
            "of them are yours. Every id in another party's list counts as such a question, and your file of "
            "the match records how many there were."
        ),
    ]
    if len(study.guests) > 1:
        alone = "Only you learn how many ids you have in common with each guest, and with all guests but one."
        could = f"{study.host} could also count how many ids you share with the other guests, but not which ids."
        out.insert(2, alone if party == study.host else could)
    return out

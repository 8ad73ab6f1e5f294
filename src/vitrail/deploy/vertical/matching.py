"""The match between machines: each party's part of what `vertical/matching/match.py` does with all ends in one place.

Every end draws its own secret. The number comes first; places are asked for when the officer of every party agreed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from vitrail.core.errors import MessageRefused, VitrailError
from vitrail.deploy.vertical.mailbox import Mailbox
from vitrail.deploy.vertical.messages import Agreed
from vitrail.study.model import Study
from vitrail.vertical.matching.curve import SIZE
from vitrail.vertical.matching.ids import look, tell
from vitrail.vertical.matching.match import Match, domain, fingerprint, too_few
from vitrail.vertical.matching.protocol import Count, End, Length, List, Places, check_sizes, path

L = TypeVar("L", List, Places)
Consent = Callable[[int, str, dict[tuple[str, ...], int]], None]  # told number and mark; raises where the answer is no
Lengths = Callable[[dict[str, int]], None]  # told how many ids each list has; raises where one is too long


def kept_match(folder: Path, party: str, frame: pd.DataFrame) -> Match | None:
    """The match that this party kept, if its table is still the one that was matched."""
    if not (folder / f"{party}.json").exists():
        return None
    found = Match.load(folder)
    found.take({party: frame})
    return found


def meet(line: Mailbox, study: Study, frame: pd.DataFrame, consent: Consent, folder: Path, begin: Lengths) -> Match:
    """This party's rows in the common order, kept in its folder. `begin` is asked before its list leaves."""
    me, host, guests, rules = line.name, study.host, study.guests, study.match
    assert rules is not None
    seen, findings = look(frame, study, me)
    if (problems := tell(me, frame, findings)) or seen is None:
        raise VitrailError("the table cannot be matched", problems)
    end = End(me, seen.spelled, secrets.token_bytes(SIZE), domain(study), rules)
    lengths = _lengths(line, len(seen.spelled), study)
    for other in lengths.keys() - {me}:
        check_sizes({me: lengths[me], other: lengths[other]}, rules)
    begin(lengths)
    lists = _lists(line, end, study, lengths)
    if me == host:
        count, some = end.count(lists)
        for guest in guests:
            line.post(guest, count)
    else:
        count, some = line.get(host, Count), {}
    if not count.rows:
        raise too_few(study, {me: seen})
    if count.rows < rules.at_least:
        what = f"the host counted {count.rows} rows in common, fewer than the {rules.at_least} that were agreed."
        raise MessageRefused(f"letter from {host}", what, "Nothing was opened.")
    consent(count.rows, count.mark, some)
    for guest in guests if me == host else ():
        if (theirs := line.get(guest, Agreed).mark) != count.mark:
            what = f"expected consent to the match {count.mark}, got {theirs[:40]!r}."
            raise MessageRefused(f"letter from {guest}", what, "Match again.")
    if me != host:
        line.post(host, Agreed(count.mark))
    places = np.frombuffer(_places(line, end, study).places, "<u4").astype(np.int64)
    if len(places) != count.rows:
        what = f"expected {count.rows} places, got {len(places)}."
        raise MessageRefused(f"places from {host}", what, "Match again.")
    mine, rows = secrets.token_bytes(SIZE), {me: len(seen.spelled)}
    found = Match(
        host, count.rows, count.mark, rows, some, {me: places}, {me: fingerprint(frame, mine)}, {me: end.answered},
        secrets={me: mine},
    )  # fmt: skip
    for old in folder.glob("*.json"):
        old.unlink()
    found.save(folder)
    (folder / f"{me}.json").chmod(0o600)
    return found


def _lengths(line: Mailbox, own: int, study: Study) -> dict[str, int]:
    """Of every party's list, as it says."""
    others = [party for party in study.parties if party != line.name]
    for other in others:
        line.post(other, Length(own))
    return {line.name: own} | {other: line.get(other, Length).ids for other in others}


def _lists(line: Mailbox, end: End, study: Study, lengths: dict[str, int]) -> list[List]:
    """Every list goes its way, one after the other at every party; at the host, all of them with all locks."""
    me, host, guests = line.name, study.host, study.guests
    done = []
    for owner in study.parties:
        way = [*path(owner, host, guests), *[host] * (owner == host)]  # the host's own comes back to it
        at = way.index(me)
        one = end.own() if me == owner else end.lock(_as_long(_owned(line.get(way[at - 1], List), owner), lengths))
        if at + 1 < len(way):
            line.post(way[at + 1], one)
        else:
            done.append(one)
        if me == owner == host:
            done.append(_owned(line.get(way[-2], List), owner))
    return done


def _places(line: Mailbox, end: End, study: Study) -> Places:
    """The same ways back; this party's own rows."""
    me, host, guests = line.name, study.host, study.guests
    mine: Places | None = None
    for owner in study.parties:
        way = [*reversed(path(owner, host, guests))]
        at = way.index(me)
        if me == way[0] == host:
            came = end.found(owner)
        else:
            if me == host:
                line.post(way[0], end.found(owner))
            came = _owned(line.get(way[at - 1] if at else host, Places), owner)
        opened = end.open(came)
        if at + 1 < len(way):
            line.post(way[at + 1], opened)
        else:
            mine = opened
    assert mine is not None
    return mine


def _as_long(one: List, lengths: dict[str, int]) -> List:
    """A list with as many ids as its owner said."""
    if len(one.tokens) != SIZE * lengths[one.owner]:
        what = f"{one.owner} said {lengths[one.owner]} ids, and its list has {len(one.tokens) // SIZE}."
        raise MessageRefused(f"list of {one.owner}", what, "Nothing of it was used.")
    return one


def _owned(letter: L, owner: str) -> L:
    if letter.owner != owner:
        what = f"expected what belongs to {owner}, got {letter.owner[:40]!r}."
        raise MessageRefused("letter of the match", what, "Match again.")
    return letter

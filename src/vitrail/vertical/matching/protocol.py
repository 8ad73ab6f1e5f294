"""Private set intersection: what host and guests say to each other, and what each end does.

Every end has a key. Every list of ids goes to all ends, and each locks it once more; locks commute, so that an id that
is in several lists ends as the same token in all of them, and nobody can tell what it was:

    length    each party tells each other how many ids it has; whoever finds another's list too long stops here
    path      a list's owner, then the other guests, then the host; each locks it and passes it on in the order of the
              locked tokens, which is as good as random
    count     the host, who gets all lists in the end, counts the tokens that are in all of them, and tells
    agreed    each guest, whose officer consented to that number
    places    after consent: where the common tokens are in each list, in the order of the tokens, goes back along its
              path; each puts it into the order before its own, and the owner has its rows

With one guest: two lengths, the host's list there, back with the guest's, and the number; two more to the places.
Of what is not in all lists nobody learns a place, also with several guests. Ends are taken to follow these rules
(an end that does not can learn no more than by putting ids of its own making into its list).

`find_common` is each party's program, over a mailbox (vertical/mailbox.py): on one machine and between machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from vitrail.core.errors import MatchRefused, MessageRefused, Problem, VitrailError
from vitrail.data.schema import Matching
from vitrail.study.model import Study
from vitrail.vertical.mailbox import Mailbox, Program, Wait
from vitrail.vertical.matching.curve import SIZE, lock, points

MOST = 20_000_000  # ids of a list
Order = np.ndarray  # [place in what was passed on]: place in what came; of the own list, row


class Length(NamedTuple):
    """From each party to each other, before any list."""

    ids: Annotated[int, "how many ids your list has"]


class List(NamedTuple):
    """A list of ids on its way."""

    owner: str
    tokens: Annotated[
        bytes, "each id as 32 bytes that only all parties together could decrypt, in an order that reveals nothing"
    ]


class Count(NamedTuple):
    """What the host says when all lists are with it."""

    rows: Annotated[int, "how many ids are in all lists; 0 if they are fewer than agreed"]
    mark: Annotated[str, "a name for this match, computed from the common tokens"]


class Agreed(NamedTuple):
    """From a guest, after the number in common."""

    mark: Annotated[str, "that your officer agreed to reveal the places for the match of this name"]


class Places(NamedTuple):
    """After consent, about one list."""

    owner: str
    places: Annotated[bytes, "the positions of the common ids in a list, by tokens, in an order that reveals nothing"]


def size(message: Length | List | Count | Places) -> int:
    """Bytes of what it says."""
    return sum(len(v) if isinstance(v, str | bytes) else 4 for v in message)


L = TypeVar("L", List, Places)
Shared = dict[tuple[str, ...], int]  # at the host: guests -> how many it has in common with all of these
Begin = Callable[[dict[str, int]], None]  # is shown how many ids each list has; raises where one is too long
Consent = Callable[[int, str, Shared], None]  # is shown number and mark; raises where the answer is no


def path(owner: str, host: str, guests: Sequence[str]) -> list[str]:
    """Who locks a list, in this order. The last of a host's own list gives it back to the host."""
    others = [guest for guest in guests if guest != owner]
    return [owner, *others, *[host] * (owner != host)]


class End:
    """One party's end of a match: its ids, each once and spelled as agreed, and its secret."""

    def __init__(self, name: str, ids: Sequence[str], secret: bytes, domain: str, rules: Matching) -> None:
        self.name, self.ids, self.rules = name, ids, rules
        self._secret, self._domain = secret, domain
        self._orders: dict[str, Order] = {}
        self._opened: set[str] = set()
        self._common: dict[str, Order] = {}  # at the host: where the common tokens are in each list
        self.answered = 0  # tokens of others that were locked here: each of them may have been a guess

    def own(self) -> List:
        return self._passed(self.name, points(self.ids, self._domain))

    def lock(self, came: List) -> List:
        """Another's list, locked once more."""
        where = f"{self.name}, list of {came.owner}"
        if came.owner == self.name or came.owner in self._orders:
            raise MatchRefused(where, "this list was received before.", "Begin a new match.")
        tokens = read_tokens(came, where)
        check_sizes({self.name: len(self.ids), came.owner: len(tokens)}, self.rules)
        self.answered += len(tokens)
        return self._passed(came.owner, tokens)

    def _passed(self, owner: str, given: Sequence[bytes]) -> List:
        try:
            locked = lock(given, self._secret)
        except ValueError:
            raise MatchRefused(
                f"{self.name}, list of {owner}", "a token does not stand for an id: it is a point of small order."
            ) from None
        order = sorted(range(len(locked)), key=locked.__getitem__)
        self._orders[owner] = np.array(order, np.int64)
        return List(owner, b"".join(locked[i] for i in order))

    def open(self, came: Places) -> Places:
        """Places in the list as it was passed on from here -> places in the list as it came; of the own one, rows."""
        where = f"{self.name}, places in the list of {came.owner}"
        if (order := self._orders.get(came.owner)) is None:
            raise MatchRefused(where, "this list was never received here.")
        places = read_places(came, len(order), where)
        if came.owner in self._opened or len(places) < self.rules.at_least:
            what = (
                "these places were sent before."
                if came.owner in self._opened
                else "there are fewer places than agreed."
            )
            raise MatchRefused(where, what)
        self._opened.add(came.owner)
        return Places(came.owner, order[places].astype("<u4").tobytes())

    def count(self, lists: Sequence[List]) -> tuple[Count, Shared]:
        """At the host, of all lists with all locks: the number in common. The second part is for the host alone: how
        many it has in common with each guest, and with all guests but one; nothing where the number is too small."""
        read = {one.owner: read_tokens(one, f"{self.name}, list of {one.owner}") for one in lists}
        if len(read.get(self.name, ())) != len(self.ids) or len(read) < 2 or len(read) < len(lists):
            raise MatchRefused(
                self.name, "expected every list once, and this party's own list with the length that it sent."
            )
        sets = {owner: set(tokens) for owner, tokens in read.items()}
        common = sorted(set.intersection(*sets.values()))
        if len(common) < self.rules.at_least:
            return Count(0, ""), {}
        for owner, tokens in read.items():
            at = {token: i for i, token in enumerate(tokens)}
            self._common[owner] = np.array([at[token] for token in common], np.int64)
        guests = [owner for owner in read if owner != self.name]
        some = {tuple(g for g in guests if (g == guest) == alone) for guest in guests for alone in (True, False)}
        shared = {who: len(set.intersection(sets[self.name], *(sets[g] for g in who))) for who in sorted(some) if who}
        return Count(len(common), hashlib.sha256(b"".join(common)).hexdigest()[:16]), shared

    def found(self, owner: str) -> Places:
        """At the host, after consent: where the common tokens are in a list with all its locks."""
        if owner not in self._common:
            raise MatchRefused(
                f"{self.name}, list of {owner}", "the common ids were not counted, or there are too few of them."
            )
        return Places(owner, self._common[owner].astype("<u4").tobytes())


def read_tokens(came: List, where: str) -> list[bytes]:
    """32 bytes each, none twice: anybody may have written them."""
    raw: Any = came.tokens
    if not isinstance(raw, bytes) or not raw or len(raw) % SIZE or len(raw) > MOST * SIZE:
        raise MatchRefused(where, f"expected tokens of {SIZE} bytes, 1 to {MOST} of them.")
    if (np.frombuffer(raw, np.uint8)[SIZE - 1 :: SIZE] >= 128).any():
        raise MatchRefused(where, "a token has more than 255 bits.")
    tokens = [raw[i : i + SIZE] for i in range(0, len(raw), SIZE)]
    if len(set(tokens)) < len(tokens):
        raise MatchRefused(where, "a token occurs twice.")
    return tokens


def read_places(came: Places, rows: int, where: str) -> Order:
    raw: Any = came.places
    if not isinstance(raw, bytes) or len(raw) % 4:
        raise MatchRefused(where, "expected numbers of 4 bytes.")
    places = np.frombuffer(raw, "<u4").astype(np.int64)
    if len(places) and places.max() >= rows:
        raise MatchRefused(where, f"expected places below {rows}, got {places.max()}.")
    if len(np.unique(places)) < len(places):
        raise MatchRefused(where, "a place occurs twice.")
    return places


def check_sizes(sizes: Mapping[str, int], rules: Matching) -> None:
    """A list much longer than another is how ids are guessed, and the longer it is the more match that should not."""
    (short, few), (long, many) = sorted(sizes.items(), key=lambda item: item[1])[:: len(sizes) - 1]
    if many > rules.ratio * few:
        what = (
            f"{long} has {many} ids and {short} has {few}, so one list is more than {rules.ratio:g} times as "
            "long as the other."
        )
        hint = (
            "A long list may consist of guesses. Remove people whom the other party cannot have, or agree on "
            "a larger ratio."
        )
        raise VitrailError("one list is much longer than the other", [Problem("[match] ratio", what, hint)])


class Intersection(NamedTuple):
    """What one party's program comes to."""

    number: Count  # 0 rows: too few, and nothing more was told
    shared: Shared
    places: Order | None = None  # its rows in common, in the common order; not before consent


def find_common(
    mailbox: Mailbox, end: End, study: Study, begin: Begin, consent: Consent | None
) -> Program[Intersection]:
    """One party's program. `begin` is asked before its list leaves, `consent` when the number is known; without it the
    program stops there, at the number."""
    me, host, guests = end.name, study.host, study.guests
    lengths = yield from _lengths(mailbox, len(end.ids), study)
    for other in lengths.keys() - {me}:
        check_sizes({me: lengths[me], other: lengths[other]}, end.rules)
    begin(lengths)
    lists = yield from _lists(mailbox, end, study, lengths)
    count, shared = end.count(lists) if me == host else ((yield Wait(host, (Count,))), Shared())
    for guest in guests if me == host else ():
        mailbox.post(guest, count)
    if not count.rows or consent is None:
        return Intersection(count, shared)
    if count.rows < end.rules.at_least:
        what = f"the host counted {count.rows} rows in common, fewer than the agreed minimum of {end.rules.at_least}."
        raise MessageRefused(f"letter from {host}", what, "Nothing was decrypted.")
    consent(count.rows, count.mark, shared)
    for guest in guests if me == host else ():
        agreed = yield Wait(guest, (Agreed,))
        if agreed.mark != count.mark:
            what = f"expected consent to the match {count.mark}, got {agreed.mark[:40]!r}."
            raise MessageRefused(f"letter from {guest}", what, "Match again.")
    if me != host:
        mailbox.post(host, Agreed(count.mark))
    opened = yield from _places(mailbox, end, study)
    places = np.frombuffer(opened.places, "<u4").astype(np.int64)
    if len(places) != count.rows:
        what = f"expected {count.rows} places, got {len(places)}."
        raise MessageRefused(f"places from {host}", what, "Match again.")
    return Intersection(count, shared, places)


def _lengths(mailbox: Mailbox, own: int, study: Study) -> Program[dict[str, int]]:
    """Of every party's list, as it says."""
    others, lengths = [party for party in study.parties if party != mailbox.name], {mailbox.name: own}
    for other in others:
        mailbox.post(other, Length(own))
    for other in others:
        lengths[other] = (yield Wait(other, (Length,))).ids
    return lengths


def _lists(mailbox: Mailbox, end: End, study: Study, lengths: Mapping[str, int]) -> Program[list[List]]:
    """Every list goes its way, one after the other at every party; at the host, all of them with all locks."""
    me, host = end.name, study.host
    complete = []
    for owner in study.parties:
        way = [*path(owner, host, study.guests), *[host] * (owner == host)]  # the host's own comes back to it
        at = way.index(me)
        if me == owner:
            one = end.own()
        else:
            one = end.lock(_as_long(_owned((yield Wait(way[at - 1], (List,))), owner), lengths))
        if at + 1 < len(way):
            mailbox.post(way[at + 1], one)
        else:
            complete.append(one)
        if me == owner == host:
            complete.append(_owned((yield Wait(way[-2], (List,))), owner))
    return complete


def _places(mailbox: Mailbox, end: End, study: Study) -> Program[Places]:
    """The same ways back; this party's own rows."""
    me, host = end.name, study.host
    mine: Places | None = None
    for owner in study.parties:
        way = [*reversed(path(owner, host, study.guests))]
        at = way.index(me)
        if me == way[0] == host:
            came = end.found(owner)
        else:
            if me == host:
                mailbox.post(way[0], end.found(owner))
            came = _owned((yield Wait(way[at - 1] if at else host, (Places,))), owner)
        opened = end.open(came)
        if at + 1 < len(way):
            mailbox.post(way[at + 1], opened)
        else:
            mine = opened
    assert mine is not None
    return mine


def _as_long(one: List, lengths: Mapping[str, int]) -> List:
    """A list with as many ids as its owner said."""
    if len(one.tokens) != SIZE * lengths[one.owner]:
        what = f"{one.owner} announced {lengths[one.owner]} ids, but its list has {len(one.tokens) // SIZE}."
        raise MessageRefused(f"list of {one.owner}", what, "The list was not used.")
    return one


def _owned(letter: L, owner: str) -> L:
    if letter.owner != owner:
        what = f"expected data of {owner}, got data of {letter.owner[:40]!r}."
        raise MessageRefused("letter of the match", what, "Match again.")
    return letter

"""Looking a new person up blindly: the guest counts the question and does not learn of whom it was.

    guest     key k, new for every table; F(id) = lock(point(id), k); for each row a tag and its answer, padded by F
    host      lock(point(id), r)                                    -> guest
    guest     the same, locked by k; one question less is left      -> host
    host      takes r off: F(id), which opens that row of the table, and no other

Cost: 50 us for a row of the guest's table, once, and 16 bytes beside its answer; 0.4 ms for a question. Who is not in
the table has no tag in it, which the host learns too. The table is made anew, under a new key, whenever an answer
changes: two under one key would tell how they differ.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from vitrail.core.errors import MatchRefused, Problem, VitrailError
from vitrail.vertical.matching.curve import SIZE, lock, new_lock, points

TAG = 16  # bytes


class Table(NamedTuple):
    rows: Annotated[bytes, "your answer for each of your rows, encrypted so that one answered question opens one row"]
    width: Annotated[int, "bytes of an answer"]

    @property
    def people(self) -> int:
        """How many it is about, if it is as it should be."""
        return len(self.rows) // max(1, TAG + self.width)


class Asked(NamedTuple):
    token: Annotated[bytes, "the id of the person asked about, encrypted so that nobody can find out whose it is"]


class Told(NamedTuple):
    token: Annotated[bytes, "the same id, encrypted with the key of your table too: it opens one row of the table"]


def _pad(key: bytes, width: int) -> tuple[bytes, bytes]:
    made = hashlib.shake_256(key).digest(TAG + width)
    return made[:TAG], made[TAG:]


def _mixed(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")


class LookupGuest:
    """At the guest: its answers. `spend` is told of every question before it is answered, and refuses one too many by
    raising (a ration's `answer` is one)."""

    def __init__(
        self, name: str, ids: Sequence[str], answers: Sequence[bytes], domain: str, spend: Callable[[int], None]
    ) -> None:
        self.name, self._spend = name, spend
        self._secret = secrets.token_bytes(SIZE)
        width = len(answers[0]) if answers else 0
        if len({*ids}) != len(answers) or not answers or {len(one) for one in answers} != {width}:
            what = f"expected an answer of equal length for each of {len({*ids})} ids, got {len(answers)}."
            raise VitrailError("the table of answers cannot be made", [Problem(name, what)])
        rows = []
        for key, answer in zip(lock(points(ids, domain), self._secret), answers, strict=True):
            tag, pad = _pad(key, width)
            rows.append(tag + _mixed(answer, pad))
        self.table = Table(b"".join(sorted(rows)), width)  # in an order that tells nothing

    def tell(self, asked: Asked) -> Told:
        answer = Told(_locked(asked.token, self._secret, self.name))
        self._spend(1)
        return answer


def opened(table: Table) -> dict[bytes, bytes]:
    """At the host, once: rows by their tags."""
    raw, width = table.rows, table.width
    if not isinstance(raw, bytes) or not isinstance(width, int) or width < 1 or len(raw) % (TAG + width):
        raise MatchRefused("table of answers", "the length of its rows is not the length that it declares.")
    return {raw[i : i + TAG]: raw[i + TAG : i + TAG + width] for i in range(0, len(raw), TAG + width)}


class LookupHost:
    """At the host: one person."""

    def __init__(self, spelled: str, domain: str) -> None:
        self._on, self._off = new_lock()
        self.asked = Asked(lock(points([spelled], domain), self._on)[0])

    def read(self, reply: Told, rows: Mapping[bytes, bytes]) -> bytes | None:
        """The answer, from the guest's table as `opened` gave it; None where the guest does not have the person."""
        key = _locked(reply.token, self._off, "answer")
        row = rows.get(_pad(key, 0)[0])
        return None if row is None else _mixed(row, _pad(key, len(row))[1])


def _locked(token: Any, secret: bytes, where: str) -> bytes:
    if not isinstance(token, bytes) or len(token) != SIZE:
        raise MatchRefused(where, f"expected a token of {SIZE} bytes.")
    try:
        return lock([token], secret)[0]
    except ValueError:
        raise MatchRefused(where, "the token does not stand for an id: it is a point of small order.") from None

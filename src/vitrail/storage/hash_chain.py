"""Logs whose lines hold on to each other: each carries the hash of the line before it.

No line can be changed, taken out or put in between without changing every hash after it. Lines that are cut off at the
end leave a whole chain: that shows by a signature, by what the lines name, or by a hash that somebody noted.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

BEFORE = "before"  # in a line: the hash of the line before it; nothing in the first


class Link(NamedTuple):
    """One line of such a log."""

    number: int  # from 1
    entry: dict[str, Any]
    digest: str  # sha256 of the line, its end included


def digest_of(data: bytes) -> str:
    """What a file or a line is known by."""
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def line_of(entry: dict[str, Any], before: str) -> bytes:
    """A line to be written after the one with that hash."""
    return json.dumps({**entry, BEFORE: before}).encode() + b"\n"


def whole(text: bytes) -> bytes:
    """Without a last line that was cut off while it was written."""
    return text[: text.rfind(b"\n") + 1]


def last_digest(text: bytes) -> str:
    """The hash of the last whole line; nothing where there is none."""
    lines = whole(text).splitlines(keepends=True)
    return digest_of(lines[-1]) if lines else ""


def read_chain(text: bytes) -> tuple[list[Link], dict[int, str]]:
    """All whole lines, and in words what is wrong where: line -> what. Lines from before logs were chained are told
    as one."""
    links, wrong, before, loose = list[Link](), dict[int, str](), "", 0
    for number, line in enumerate(whole(text).splitlines(keepends=True), 1):
        mark = digest_of(line)
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError
            links.append(Link(number, entry, mark))
            if BEFORE not in entry:
                loose = loose or number
            elif entry[BEFORE] != before:
                wrong[number] = "it does not follow the line before it: that one was changed, or lines are missing"
        except (ValueError, RecursionError):
            wrong[number] = "it is not a line that Vitrail wrote"
        before = mark
    if loose:
        wrong[loose] = (
            "lines from here on are not linked to those before: an earlier release wrote them, or they were inserted"
        )
    return links, dict(sorted(wrong.items()))

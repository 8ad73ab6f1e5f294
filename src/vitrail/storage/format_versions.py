"""Versions of what is kept, apart from the program's own: the study file and the run folder.

The second number rises when something was added: what is older is read as before, what is newer may say what this
program does not know. The first rises when a file of before would be misread: neither reads the other's.
"""

from __future__ import annotations

from typing import Any

STUDY, FIRST = "1.4", "1.0"
RUN = "1.1"


def numbers(version: Any) -> tuple[int, int] | None:
    """None where it is no version.

    >>> numbers("1.2"), numbers(1), numbers("new")
    ((1, 2), (1, 0), None)
    """
    first, _, second = str(version).partition(".")
    if isinstance(version, bool) or not (first.isdecimal() and (second or "0").isdecimal()) or len(str(version)) > 9:
        return None
    return int(first), int(second or 0)


def misread(version: Any, reads: str, what: str) -> str:
    """Why a file that says this version cannot be read by who reads that one; "" where it can be.

    >>> misread("1.7", "1.0", "study file"), misread("2.0", "1.0", "study file")
    ('', 'it is a study file of format 2.0, but this Vitrail reads 1.0.')
    """
    of, own = numbers(version), numbers(reads)
    if of is None:
        return f"expected the format of a {what}, two numbers such as {reads!r}, got {str(version)[:40]!r}."
    return "" if own and of[0] == own[0] else f"it is a {what} of format {version}, but this Vitrail reads {reads}."


def is_newer(version: Any, reads: str) -> bool:
    """Whether it may say what its reader does not know."""
    of, own = numbers(version), numbers(reads)
    return of is not None and own is not None and of > own

"""The one error a person sees: every problem at once, each with where, what was expected, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong, in words a person can act on."""

    where: str  # "study.toml:12 features.age.range", "cleveland.csv, row 7, column age"
    what: str  # what was expected and what came
    hint: str = ""  # what to do

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" {self.hint}" if self.hint else "")


class VitrailError(Exception):
    """A mistake in what was given to us. Anything else that is raised is a mistake of ours.

    >>> print(VitrailError("bad study", [Problem("line 3", "expected a number, got 'x'.", "Write rounds = 10.")]))
    bad study
      - line 3: expected a number, got 'x'. Write rounds = 10.
    """

    def __init__(self, title: str, problems: Iterable[Problem] = ()) -> None:
        self.title, self.problems = title, list(problems)
        super().__init__("\n".join([title, *(f"  - {p}" for p in self.problems)]))


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest valid spelling, or all of them when none is close.

    >>> nearest("kid", ["kind", "unit"])
    "Did you mean 'kind'?"
    """
    names = sorted(str(k) for k in known)
    folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"Did you mean {folded[close[0]]!r}?"
    return f"Valid: {', '.join(names)}." if names else ""


def printable(text: str) -> str:
    """What others wrote, harmless on a terminal.

    >>> printable("a\\x1b[2J")
    'a?[2J'
    """
    return "".join(c if c.isprintable() else "?" for c in text)

"""The one error a person sees: every problem at once, each with where, what was expected, what came, what to do.

A subclass says what kind of error it is. Code asks for the class, never for the words of a title or a problem. The
class also declares how much of the error may leave a hospital: this file is the whole list.
"""

# ruff: noqa: N818  (the names say what happened)

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum
from typing import Any, ClassVar, NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong, in words a person can act on."""

    where: str  # "study.toml:12 features.age.range", "cleveland.csv, row 7, column age"
    what: str  # what was expected and what came
    hint: str = ""  # what to do

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" {self.hint}" if self.hint else "")


class Leaves(Enum):
    """How much of an error others may read."""

    NOTHING = "nothing"
    TITLE = "title"
    PROBLEMS = "title and problems"  # which then never speak of rows, nor of places on the site's disk


class VitrailError(Exception):
    """An error in what the user gave. Any other exception is a bug in Vitrail.

    >>> print(VitrailError("bad study", [Problem("line 3", "expected a number, got 'x'.", "Write rounds = 10.")]))
    bad study
      - line 3: expected a number, got 'x'. Write rounds = 10.
    """

    leaves_site: ClassVar[Leaves] = Leaves.NOTHING
    ends_run: ClassVar[bool] = False  # whether the site refuses everything else of this run

    def __init__(self, title: str, problems: Iterable[Problem] = ()) -> None:
        self.title, self.problems = title, list(problems)
        super().__init__("\n".join([title, *(f"  - {p}" for p in self.problems)]))

    def __reduce__(self) -> tuple[Any, ...]:
        """For worker processes: made again without __init__, whose arguments differ by class."""
        return VitrailError.__new__, (type(self), *self.args), vars(self)

    def in_one_line(self) -> str:
        return "; ".join([self.title, *(f"{p.where}: {p.what}" for p in self.problems)])

    def to_outside(self) -> str:
        """What others may read of this error; "" where that is nothing."""
        if self.leaves_site is Leaves.NOTHING:
            return ""
        return self.title if self.leaves_site is Leaves.TITLE else self.in_one_line()


class TypedError(VitrailError):
    """An error whose title and advice are the same each time, so that the title may leave.

    >>> print(MessageRefused("round", "expected a number."))
    a message was refused
      - round: expected a number. It was dropped.
    """

    leaves_site = Leaves.TITLE
    heading: ClassVar[str]
    advice: ClassVar[str] = ""

    def __init__(
        self, where: str = "", what: str = "", hint: str | None = None, *, problems: Iterable[Problem] = ()
    ) -> None:
        """One problem, or several `problems`."""
        one = Problem(where, what, self.advice if hint is None else hint)
        super().__init__(self.heading, list(problems) or [one])


class MessageRefused(TypedError):
    """A message is not as agreed."""

    leaves_site = Leaves.PROBLEMS
    heading, advice = "a message was refused", "It was dropped."


class LetterRefused(TypedError):
    """A sealed letter cannot be opened, or comes from a stranger."""

    leaves_site = Leaves.PROBLEMS
    heading, advice = "a sealed letter was refused", "Nothing of it was used."


class KeyRefused(TypedError):
    """Another site's key is not proved to be that site's."""

    leaves_site = Leaves.PROBLEMS
    heading, advice = "another site's key was refused", "Nothing was sent."


class AgreementMismatch(TypedError):
    """The coordinator works with another agreement or format than the site accepted."""

    leaves_site = Leaves.PROBLEMS
    heading = "this is not what the site agreed to"


class RoundForgotten(TypedError):
    """A question about a round whose state the site no longer holds."""

    leaves_site = Leaves.PROBLEMS
    heading, advice = "the coordinator went back too far", "Start the study anew."


class QuestionChanged(TypedError):
    """A question that was answered before comes again with another content."""

    leaves_site = Leaves.PROBLEMS
    heading, advice = "a changed question was refused", "Nothing was sent."


class JournalDamaged(TypedError):
    """What was answered or decided before cannot be read, so that it is not known. Which file it is stays here."""

    heading, advice = "the journal of a run is damaged", "Restore the file from a copy."


class WriteFailed(TypedError):
    """A full disk, or a file that may not be written. Which one it is stays here."""

    leaves_site = Leaves.NOTHING
    heading = "a file cannot be written"


class SumRefused(TypedError):
    """A secure sum that would show a single site, or whose parts do not fit."""

    leaves_site = Leaves.PROBLEMS
    heading, advice = "a masked sum was refused", "Nothing was opened."


class SharedSumRefused(TypedError):
    """The same for a sum that two servers share."""

    leaves_site = Leaves.PROBLEMS
    heading, advice = "a shared sum was refused", "Nothing was opened."


class SumSkipped(TypedError):
    """The coordinator does without this sum; the model stays as it was."""

    heading = "a sum was skipped"


class BudgetSpent(TypedError):
    """One more run would exceed the privacy budget of these rows. What was spent elsewhere stays at the site."""

    heading = "the privacy budget of these rows is spent"


class RunStopped(TypedError):
    """A site stopped the run for good: what it received could have been made to read its rows. Why stays there."""

    ends_run = True
    heading = "this site stopped the run: the weights that it received could have been crafted to read its rows"


class StudyStopped(TypedError):
    """The coordinator cannot go on."""

    heading = "the study cannot go on"


class PlacesRefused(TypedError):
    """A guest shows no places of rows without consent."""

    leaves_site = Leaves.PROBLEMS
    heading = "the places of common rows need consent"


class MatchesSpent(TypedError):
    """A party has matched as often as it agreed to."""

    leaves_site = Leaves.PROBLEMS
    heading = "no matches are left"


class MatchRefused(TypedError):
    """A message of a match is not as agreed. Its problems may count rows, and stay."""

    heading, advice = "a message of the match was refused", "Nothing of it was used."


class ListTooLong(TypedError):
    """Another party's list of ids can be one of guesses. How long this party's own list is stays here."""

    heading = "another list is much longer than this one"


class TooFewInCommon(VitrailError):
    """Fewer ids are in common than was agreed; how many is told to nobody."""

    leaves_site = Leaves.TITLE

    def __init__(self, agreed: int, problems: Iterable[Problem]) -> None:
        super().__init__(f"fewer than {agreed} ids are in common; their number is not disclosed", problems)


class RationSpent(VitrailError):
    """A guest has answered as much as it agreed to."""

    leaves_site = Leaves.PROBLEMS

    def __init__(self, guest: str, problem: Problem) -> None:
        super().__init__(f"the ration of {guest} is spent", [problem])


class GuestRefused(VitrailError):
    """At the host: `guest` does not answer, and says why."""

    def __init__(self, guest: str, why: str) -> None:
        self.guest = guest
        super().__init__(f"{guest} refuses", [Problem(guest, why, "Ask for less.")])


def nearest(name: str, options: Iterable[str]) -> str:
    """A sentence that names the closest valid spelling, or all of them when none is close.

    >>> nearest("kid", ["kind", "unit"])
    "Did you mean 'kind'?"
    """
    names = sorted(str(k) for k in options)
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

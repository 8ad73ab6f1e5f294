"""Matches that a party has begun, over all its runs, and how many its officer allows.

HOME/matches.json    how many are allowed, and of each that was begun: run, time and how many ids every list had

Each match tells the others which ids of their lists are in this party's, so that somebody who can guess ids could ask
about other guesses in every match. So many matches stand on one yes; after that somebody must say yes again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from vitrail.core.errors import ListTooLong, MatchesSpent, Problem, VitrailError
from vitrail.core.text import several
from vitrail.storage.atomic_files import private_folder, write_atomically

MOST_MATCHES = 3  # on one yes: one that was interrupted is begun anew
RATIO = 2.0  # another's list may be so many times as long as this party's, unless its officer says otherwise
FILE = "matches.json"


def list_ratio(study_ratio: float, given: float | None) -> float:
    """How many times as long as ours another's list may be: what the officer said, else the study's or RATIO."""
    if given is not None and given > study_ratio:
        what = f"{given:g} is more than {study_ratio:g}, the limit in the study."
        hint = "Give a smaller number, or ask the coordinator for a larger ratio under [match]."
        raise VitrailError("the party cannot join", [Problem("--list-ratio", what, hint)])
    return min(study_ratio, RATIO) if given is None else given


def check_lengths(party: str, lengths: Mapping[str, int], ratio: float) -> None:
    """Before this party's list leaves: a list much longer than it can be one of guesses."""
    own, problems = lengths[party], []
    for other, length in lengths.items():
        if length > ratio * own:
            what = (
                f"its list has {several(length, 'id')} and yours has {own}; you allow it at most {ratio:g} times as "
                "many as you have."
            )
            hint = f"Nothing of your list has left. Ask {other} for the reason; --list-ratio allows more."
            problems.append(Problem(f"list of {other}", what, hint))
    if problems:
        raise ListTooLong(problems=problems)


class MatchQuota:
    """Of one party."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self.allowed, self.begun = MOST_MATCHES, list[dict[str, object]]()
        if not self.path.exists():
            return
        try:
            count = json.loads(self.path.read_text(encoding="utf-8"))
            self.allowed, self.begun = int(count["allowed"]), list(count["begun"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            what = "the file cannot be read, so nobody knows how many matches were started."
            hint = "Restore it from a copy."
            raise VitrailError("the count of matches cannot be read", [Problem(str(self.path), what, hint)]) from None

    @property
    def spent(self) -> bool:
        return len(self.begun) >= self.allowed

    @property
    def ending(self) -> str:
        """Of the hash to accept: of a first yes nothing, then -2, -3 and so on."""
        yes = self.allowed // MOST_MATCHES + self.spent
        return f"-{yes}" if yes > 1 else ""

    def allow_more(self) -> None:
        self.allowed += MOST_MATCHES
        self._keep()

    def begin(self, run: str, lengths: Mapping[str, int]) -> None:
        """Written down before this party's list leaves."""
        if self.spent:
            what = f"{len(self.begun)} were started, and each reveals to the others which ids of their lists are here."
            raise MatchesSpent("match", what, "Join again, and allow more matches.")
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        self.begun.append({"run": run, "time": time, "lengths": dict(lengths)})
        self._keep()

    def words(self) -> str:
        return f"Matches started, over all runs: {len(self.begun)} of the {self.allowed} that somebody here allowed."

    def _keep(self) -> None:
        private_folder(self.path.parent)
        write_atomically(self.path, json.dumps({"allowed": self.allowed, "begun": self.begun}), private=True)

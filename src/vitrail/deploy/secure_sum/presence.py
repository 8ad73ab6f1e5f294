"""Whose reports are in the sums that this site helps to open: how often that may change in a run, and what is said.

Two totals that differ by one site tell what that site reported, as far as the rounds are alike. A coordinator could
leave out one site after the other on purpose. So a site counts how often the list changes, and opens no more than was
agreed. What the bound is worth: benchmarks/attacks/attack_presence.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.core.errors import SumRefused, VitrailError
from vitrail.deploy.identity.participants import are_missing, several_names
from vitrail.storage.journal import DecisionRecord

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

FEW_CHANGES, ROUNDS_EACH = 12, 4  # a run may see so many changes, or one in so many rounds
REPEATS = 2  # of them, where the word is the one of another list: after a round whose total could not be used
FILE = "presence.json"


def most_changes(agreed: Agreement) -> int:
    """Of the list of who is in a sum, in one run."""
    return max(FEW_CHANGES, sum(t.stage.rounds for t in agreed.stages) // ROUNDS_EACH)


class Presence:
    """`place`: the site's folder of the sums of this run; `members`: all who may be in this sum, by the agreement."""

    def __init__(self, place: Path, agreed: Agreement, group: str, members: Sequence[str]) -> None:
        self.record = DecisionRecord(place / FILE, private=True)
        self.group, self.members, self.most = group, sorted(members), most_changes(agreed)

    def note(self, title: str, reporters: Sequence[str], transcript: str) -> str:
        """Before this site tells shares that open the sum of `reporters`, who were all sent `transcript` ("" where they
        were not sent the same): refuses what was not agreed. Where the list has changed, a sentence that says so."""
        fresh = {"last": self.members, "changes": 0, "repeats": 0, "words": {}}
        before = fresh | self.record.read().get(self.group, {})
        names, mark = sorted(reporters), hashlib.sha256("\0".join(sorted(reporters)).encode()).hexdigest()[:16]
        changed = names != before["last"]
        repeated = bool(transcript) and before["words"].get(transcript[:32], mark) != mark
        if changed and before["changes"] >= self.most:
            what = f"the list of who is in the sums has changed {self.most} times in this run, as often as agreed."
            raise _refusal(what, f"It opens sums of {several_names(before['last'])} only.")
        if repeated and before["repeats"] >= REPEATS:
            what = "the same word was opened before with another list of sites: the difference would tell of one site."
            raise _refusal(what, "It opens this word with that list only.")
        changes = before["changes"] + changed
        after = {"last": names, "changes": changes, "repeats": before["repeats"] + repeated}
        words = before["words"] | ({transcript[:32]: mark} if transcript else {})
        self.record.update({self.group: {**after, "words": words}})
        return self._sentence(title, names, changes) if changed else ""

    def _sentence(self, title: str, names: list[str], changes: int) -> str:
        missing = [n for n in self.members if n not in names]
        where = f"{title}{f', {self.group}' if self.group else ''}"
        count = f"(change {changes} of at most {self.most} in a run)"
        if not missing:
            return f"{where}: adds to the sum of all {len(names)} sites again {count}."
        sum_ = f"the sum of {len(names)} of {len(self.members)} sites"
        return f"{where}: adds to {sum_}; {are_missing(missing)} {count}."


def _refusal(what: str, more: str) -> VitrailError:
    hint = f"{more} Call the coordinator: who is left out, and why? A new run begins when somebody here joins again."
    return SumRefused("sites", what, hint)

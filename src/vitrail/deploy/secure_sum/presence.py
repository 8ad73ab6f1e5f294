"""Whose reports are in the sums that this site helps to open: how often that may change in a run, and what is said.

Two totals that differ by one site tell what that site reported, as far as the rounds are alike. A coordinator could
leave out one site after the other on purpose. So a site counts how often the list changes, and opens no more than was
agreed. What the bound is worth: benchmarks/attacks/attack_presence.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.core.errors import SumRefused, VitrailError
from vitrail.deploy.identity.participants import are_missing, several_names
from vitrail.storage.atomic_files import write_atomically

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
        self.file, self.group, self.members, self.most = place / FILE, group, sorted(members), most_changes(agreed)

    def note(self, round_: int, said: Sequence[str], word: str) -> str:
        """Before this site tells shares that open the sum of `said`, who were all told `word` ("" where they were not
        told the same): refuses what was not agreed. Where the list has changed, a sentence that says so."""
        known = self._known()
        names, mark = sorted(said), hashlib.sha256("\0".join(sorted(said)).encode()).hexdigest()[:16]
        changed = names != known["last"]
        repeated = bool(word) and known["words"].get(word[:32], mark) != mark
        if changed and known["changes"] >= self.most:
            what = f"the list of who is in the sums has changed {self.most} times in this run, as often as agreed."
            raise _refusal(what, f"It opens sums of {several_names(known['last'])} only.")
        if repeated and known["repeats"] >= REPEATS:
            what = "the same word was opened before with another list of sites: the difference would tell of one site."
            raise _refusal(what, "It opens this word with that list only.")
        known |= {"last": names, "changes": known["changes"] + changed, "repeats": known["repeats"] + repeated}
        known["words"] |= {word[:32]: mark} if word else {}
        self._keep(known)
        return self._words(round_, names, known["changes"]) if changed else ""

    def _words(self, round_: int, names: list[str], changes: int) -> str:
        missing = [n for n in self.members if n not in names]
        where = f"Round {round_ + 1}{f', {self.group}' if self.group else ''}"
        count = f"(change {changes} of at most {self.most} in a run)"
        if not missing:
            return f"{where}: adds to the sum of all {len(names)} sites again {count}."
        sum_ = f"the sum of {len(names)} of {len(self.members)} sites"
        return f"{where}: adds to {sum_}; {are_missing(missing)} {count}."

    def _known(self) -> dict[str, Any]:
        told = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        fresh = {"last": self.members, "changes": 0, "repeats": 0, "words": {}}
        return dict(told.get(self.group, fresh))

    def _keep(self, known: dict[str, Any]) -> None:
        told = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        write_atomically(self.file, json.dumps(told | {self.group: known}), private=True)


def _refusal(what: str, more: str) -> VitrailError:
    hint = f"{more} Call the coordinator: who is left out, and why? A new run begins when somebody here joins again."
    return SumRefused("sites", what, hint)

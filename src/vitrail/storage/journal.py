"""What is said once: the same after a crash, on the disk before anybody hears it.

A site's half. Two different answers about the same rows tell more than one, so a question has a name and a content:

    AnswerJournal     the first content under a name is answered, and its answer kept; another content is refused
    QuestionLog       the same for answers that are worked out again: only the questions are kept, and some may change
    RecentJournals    a folder for each of the last rounds; whatever is older is forgotten, and refused ever after

The coordinator's half. Sites answer one list of participants, one key, one lot: what was decided must not change.

    write_once        one decision, or one key, in a file of its own
    DecisionRecord    several decisions, which may grow, in one JSON file

A crash before a write loses what nobody was told; after it, the same is said again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.core.errors import JournalDamaged, QuestionChanged, RoundForgotten
from vitrail.storage.atomic_files import append, private_folder, whole_lines, write_atomically

DIGEST = 32  # bytes in front of a kept answer: of its question
LOW_WATER = "floor.json"  # the last number that was forgotten


def write_once(path: Path, make: Callable[[], bytes], *, private: bool = True) -> bytes:
    """What the file holds; where there is none, what `make` gives, which then stands there for good."""
    if not path.exists():
        write_atomically(path, make(), private=private, durable=True)
    return path.read_bytes()


class AnswerJournal:
    """The answers of one conversation: each in FOLDER/NAME.SUFFIX, behind the digest of its question."""

    def __init__(self, folder: Path, about: str, suffix: str = "said") -> None:
        """`about`: the conversation, as a refusal names it."""
        self.folder, self.about, self.suffix = folder, about, suffix

    def answer(self, name: str, question: bytes, make: Callable[[], bytes]) -> bytes:
        """What was answered before to this question, else what `make` gives; another question is refused."""
        digest, record = hashlib.sha256(question).digest(), self._read(name)
        if record is None:
            record = digest + make()
            write_atomically(private_folder(self.folder) / self._file(name), record, private=True, durable=True)
        if record[:DIGEST] != digest:
            what = "it was asked before in this run with other contents, and two answers would disclose more."
            raise QuestionChanged(f"{self.about}, {name}", what)
        return record[DIGEST:]

    def answered(self, name: str) -> bytes | None:
        """The answer that was given; None where that was never asked."""
        record = self._read(name)
        return None if record is None else record[DIGEST:]

    def _read(self, name: str) -> bytes | None:
        path = self.folder / self._file(name)
        return path.read_bytes() if path.exists() else None

    def _file(self, name: str) -> str:
        return f"{name}.{self.suffix}"


class QuestionLog:
    """Questions that were answered, a line for each: a line is on the disk before its question is answered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digests: dict[str, set[str]] = {}  # of what was asked under a name
        self.changed = 0  # questions that differ from the first under their name
        for number, line in enumerate(whole_lines(path).splitlines(), 1):
            try:
                name, digest = json.loads(line)
            except ValueError:
                what = "expected a record of an answered question."
                raise JournalDamaged(f"{path}:{number}", what) from None
            self._add(name, digest)

    def note(self, name: str, question: bytes, most_changed: int) -> None:
        """A question about to be answered; refused where it would be one more than `most_changed` that differ."""
        digest, before = hashlib.sha256(question).hexdigest()[:32], self.digests.get(name, set())
        if digest in before:
            return
        if before and self.changed >= most_changed:
            what = "the coordinator has sent"
            what += f" {most_changed} changed versions of questions this site had already answered; it refuses more."
            raise QuestionChanged(name, what, "Start the study anew.")
        append(self.path, json.dumps([name, digest]).encode() + b"\n", sync=True, private=True)
        self._add(name, digest)

    def _add(self, name: str, digest: str) -> None:
        before = self.digests.setdefault(name, set())
        self.changed += bool(before)
        before.add(digest)


class RecentJournals:
    """A folder for each number (STAGE-ROUND-TURN, in the order of time). The oldest beyond `keep` are deleted, and none
    at or below one that was deleted is ever begun again."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def at(self, number: tuple[int, ...]) -> Path:
        """The folder of that number, not made yet where nothing lies in it."""
        present = sorted(f for f in self.folder.iterdir() if f.is_dir()) if self.folder.exists() else []
        for old in present[: -self.keep]:
            mark = [int(part) for part in old.name.split("-")]
            write_atomically(self.folder / LOW_WATER, json.dumps(mark), private=True, durable=True)
            shutil.rmtree(old)
        mark_file = self.folder / LOW_WATER
        if mark_file.exists() and list(number) <= json.loads(mark_file.read_text()):
            raise RoundForgotten("round", f"{number} is further back than this process remembers.")
        return self.folder / "-".join(f"{part:06d}" for part in number)


class DecisionRecord:
    """Decisions by name in one JSON file. It is read whenever it is asked for: other objects may write it too."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path, self.private = path, private

    def read(self) -> dict[str, Any]:
        """All of them; {} before the first."""
        try:
            decisions = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        except ValueError:
            decisions = None
        if not isinstance(decisions, dict):
            raise JournalDamaged(str(self.path), "expected the earlier decisions, as JSON.")
        return decisions

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What was decided under that name, else what `make` gives, which then stands."""
        if name not in self.read():
            self.update({name: make()})
        return self.read()[name]

    def update(self, changes: dict[str, Any]) -> dict[str, Any]:
        """All decisions, with these; on the disk when this returns."""
        return self.replace(self.read() | changes)

    def replace(self, decisions: dict[str, Any]) -> dict[str, Any]:
        """These and no others, whatever the file held."""
        write_atomically(self.path, json.dumps(decisions), private=self.private, durable=True)
        return decisions

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)

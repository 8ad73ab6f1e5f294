"""Questions that a site answers once in a run, as messages (storage/journal.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail.deploy.protocol.message import Message, unpack
from vitrail.storage.journal import AnswerJournal


def answer_once(place: Path, question: Message, about: str, make: Callable[[], Message]) -> Message:
    """`place`: the file of the answer. The same name with another content is refused."""
    journal = AnswerJournal(place.parent, about, place.suffix.removeprefix("."))
    return unpack(journal.answer(place.stem, question.pack(), lambda: make().pack()))

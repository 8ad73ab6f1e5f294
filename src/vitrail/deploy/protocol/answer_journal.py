"""Questions that a site answers once in a run, and the same ever after: also when it is started again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from vitrail.core.errors import MessageRefused
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.storage.atomic_files import write_atomically


def answer_once(kept: Path, asked: Message, about: str, make: Callable[[], Message]) -> Message:
    """`kept`: where the mark of the question and the answer lie. The same question otherwise is refused."""
    mark = hashlib.sha256(asked.pack()).digest()
    if kept.exists():
        data = kept.read_bytes()
        if data[: len(mark)] != mark:
            what = "it was asked before in this run, and otherwise: two answers would tell more."
            raise MessageRefused(about, what, "Nothing was sent.")
        return unpack(data[len(mark) :])
    said = make()
    write_atomically(kept, mark + said.pack(), private=True)
    return said

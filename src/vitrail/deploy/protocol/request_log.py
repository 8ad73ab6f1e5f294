"""What a site remembers of what it was asked, on its disk: for ever, whoever starts its process how often.

HOME/RUN/asked.jsonl    one line for each question about rows that was ever answered in this run
HOME/RUN/ended.txt      the coordinator said its last word
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from vitrail.core.errors import MessageRefused, Problem, VitrailError
from vitrail.storage.atomic_files import write_atomically

ASKED, ENDED = "asked.jsonl", "ended.txt"


class RequestLog:
    """The questions of one run, by where they belong: a line is on the disk before its question is answered."""

    def __init__(self, home: Path) -> None:
        self.path = home / ASKED
        self.marks: dict[str, set[str]] = {}
        self.anew = 0  # questions that differ from the first that was asked there
        text = self.path.read_bytes() if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):  # cut off by a crash: it was not answered
            os.truncate(self.path, len(whole))
        for at, line in enumerate(whole.splitlines(), 1):
            try:
                where, mark = json.loads(line)
            except ValueError:
                what = "it is no line of ours: what was answered before is not known."
                raise VitrailError("the memory of a run is damaged", [Problem(f"{self.path}:{at}", what)]) from None
            self._add(where, mark)

    def note(self, where: str, mark: str, most: int) -> None:
        """A question about to be answered; refused where it would be one more than `most` that differ."""
        known = self.marks.get(where, set())
        if mark in known:
            return
        if known and self.anew >= most:
            what = f"it was answered before, and something was asked otherwise {most} times in this run."
            raise MessageRefused(where, what, "Start the study anew.")
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps([where, mark]).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        self._add(where, mark)

    def _add(self, where: str, mark: str) -> None:
        known = self.marks.setdefault(where, set())
        self.anew += bool(known)
        known.add(mark)


class RunLog:
    """The runs of one home. A new one may begin where all before it have ended when this process started, or where
    somebody said so; a process that was only started again is no somebody."""

    def __init__(self, base: Path, another: bool = False) -> None:
        """`another`: somebody here says that one more may begin."""
        self.base = base
        self.open = (
            [f.name for f in base.iterdir() if is_run(f.name) and not (f / ENDED).exists()] if base.exists() else []
        )
        self.free = another or not self.open

    def enter(self, run: str) -> Path:
        """The folder of a run, made where it may begin."""
        home = self.base / run
        if not is_run(run):
            raise MessageRefused("run", f"{run[:20]!r} is no run.", "Dropped.")
        if not home.exists():
            if not self.free:
                what = f"it takes part in {', '.join(self.open) or 'another'}, and in one run at a time."
                hint = "Somebody at the site has to join again; where that run will not be ended, with --another-run."
                raise MessageRefused(f"run {run}", what, hint)
            self.free, self.open = False, [run]
            home.mkdir(parents=True, mode=0o700)
        return home

    @staticmethod
    def end(home: Path) -> None:
        write_atomically(home / ENDED, "The coordinator has said its last word in this run.\n")


def is_run(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16}", name) is not None

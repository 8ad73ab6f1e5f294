"""The runs that a site took part in: on its disk, so that starting its process again begins none.

HOME/RUN/ended.txt      the coordinator said its last word
"""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.core.errors import MessageRefused
from vitrail.storage.atomic_files import private_folder, write_atomically

ENDED = "ended.txt"


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
            raise MessageRefused("run", f"{run[:20]!r} is not the name of a run.", "Dropped.")
        if not home.exists():
            if not self.free:
                what = (
                    f"this site takes part in {', '.join(self.open) or 'another'}, and a site takes part in one "
                    "run at a time."
                )
                hint = "Somebody at the site must join again; with --another-run, if that run will not be finished."
                raise MessageRefused(f"run {run}", what, hint)
            self.free, self.open = False, [run]
            private_folder(home)
        return home

    @staticmethod
    def end(home: Path) -> None:
        write_atomically(home / ENDED, "The coordinator has sent its last message of this run.\n")


def is_run(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16}", name) is not None

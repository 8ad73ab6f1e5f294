"""A job of FLARE's that is under way."""

from __future__ import annotations

import time
from collections.abc import Set

from vitrail.deploy.transport.ipc import Pipe

UNANSWERED = {  # FLARE's codes in words
    "EXECUTION_EXCEPTION": "its machine answers, but `vitrail join` is not running or could not record what leaves",
    "TASK_ABORTED": "the request was cancelled before it had answered",
    "BAD_TASK_DATA": "it could not read the request",
    "OK": "its answer was empty",
    "REFUSED": "its answer cannot be read",
}


def spelled(code: str) -> str:
    """
    >>> spelled("RUN_MISMATCH")
    'run mismatch'
    """
    return str(code)[:40].replace("_", " ").lower()


class OpenJob:
    """Its number, the sites that are still part of it, and the pipe to its process on this machine."""

    def __init__(self, number: str, members: Set[str]) -> None:
        self.number, self.members, self.begun = number, set(members), time.time()
        self.pipe: Pipe | None = None  # until its process has come up
        self.heard: set[str] = set()  # sites that have answered in it

"""A job of FLARE's that is under way."""

from __future__ import annotations

import time
from collections.abc import Set

from vitrail.deploy.pipe import Pipe


class OpenJob:
    """Its number, the sites that are still part of it, and the pipe to its process on this machine."""

    def __init__(self, number: str, members: Set[str]) -> None:
        self.number, self.members, self.begun = number, set(members), time.time()
        self.pipe: Pipe | None = None  # until its process has come up
        self.heard: set[str] = set()  # sites that have answered in it

"""Private folders in the system's temporary directory, which are gone in the end also when their process was killed.

A folder holds a file that its process keeps locked; the system lets go of the lock when the process ends, however it
ends. Whoever makes the next folder removes those of the same user whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Self

from vitrail.storage.atomic_files import hold

PREFIX, LOCK = "vitrail-", "owner"
CAN_SWEEP = hasattr(os, "getuid") and os.open in os.supports_dir_fd  # not on Windows


class TemporaryFolder:
    """A new one, for this process alone; `place`: elsewhere than in the system's temporary directory."""

    def __init__(self, place: str | None = None) -> None:
        sweep(place)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self._lock = (self.path / f"{LOCK}.new").open("w")
        hold(self._lock)
        if CAN_SWEEP:  # only under its name it counts, and then it is locked
            (self.path / f"{LOCK}.new").rename(self.path / LOCK)

    def close(self) -> None:
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep(place: str | None = None) -> None:
    """Remove this user's folders whose process is gone; what is a link, another user's or without a lock stays."""
    if not CAN_SWEEP:
        return
    with contextlib.suppress(OSError), os.scandir(place or tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and _is_abandoned(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)  # it follows no link


def _is_abandoned(path: str) -> bool:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        about = os.fstat(folder)
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
            return False
        file = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with os.fdopen(file, "r+b", buffering=0) as lock:
            return stat.S_ISREG(os.fstat(file).st_mode) and hold(lock)
    except OSError:
        return False
    finally:
        os.close(folder)

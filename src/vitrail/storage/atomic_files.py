"""Files that survive being killed while they are written."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, Any

from vitrail.core.errors import Problem, VitrailError

PART = ".new"  # at the end of the name of a file that is being written
AS_IT_IS = getattr(os, "O_BINARY", 0)  # Windows would write other line ends


def write_atomically(path: Path, content: str | bytes, *, private: bool = False, durable: bool = False) -> None:
    """The old content or the new, never half of it. `private`: no other user of the machine can read it. `durable`:
    the new content survives a power cut as soon as this returns; otherwise the old may come back, whole."""
    temporary = path.with_name(path.name + PART)
    try:
        temporary.unlink(missing_ok=True)  # the mode of one that a crash left would stay
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | AS_IT_IS, 0o600 if private else 0o666)
        try:
            put(opened, content.encode() if isinstance(content, str) else content)
            os.fsync(opened)
        finally:
            os.close(opened)
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # what there is of it takes room
            temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from None


def put(file: int, data: bytes) -> None:
    """All of it: the system may take less at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def sync_folder(folder: Path) -> None:
    """The names of its files are on the disk when this returns. Windows has no such call."""
    if sys.platform == "win32":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def append(path: Path, line: bytes, *, sync: bool = False, private: bool = False) -> None:
    """One more line at the end of a log, all of it or nothing. `sync`: on the disk before this returns; `private`: no
    other user of the machine can read a log that is begun here."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | AS_IT_IS, 0o600 if private else 0o666)
        try:
            before = os.fstat(file).st_size
            try:
                put(file, line)
                if sync:
                    os.fsync(file)
                    if before == 0:
                        sync_folder(path.parent)
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> VitrailError:
    """A full disk, or one that may not be written to, in words."""
    hint = "Make room or see to its permissions, then go on (--resume): what was written before is whole."
    return VitrailError("it cannot be written", [Problem(str(path), f"{error.strerror or error}.", hint)])


def private_folder(path: Path) -> Path:
    """A folder that no other user of the machine can look into, also where it was there before."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def hold(lock: IO[Any]) -> bool:
    """Whether this process has the file now, until it closes it; False: another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

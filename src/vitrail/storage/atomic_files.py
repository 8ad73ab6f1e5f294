"""Files that survive being killed while they are written."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, Any

from vitrail.core.errors import WriteFailed
from vitrail.storage.hash_chain import whole

PART = ".new"  # at the end of the name of a file that is being written
AS_IT_IS = getattr(os, "O_BINARY", 0)  # Windows would write other line ends


def write_atomically(
    path: Path, content: str | bytes, *, private: bool = False, durable: bool = False, shared: bool = False
) -> None:
    """The old content or the new, never half of it. `private`: no other user of the machine can read it. `durable`:
    the new content survives a power cut as soon as this returns; otherwise the old may come back, whole. `shared`:
    other processes may write the same file at the same time."""
    temporary = path.with_name(f"{path.name}-{os.getpid()}{PART}" if shared else path.name + PART)
    kind, mode = (os.O_EXCL, 0o600) if private else (os.O_TRUNC, 0o666)
    try:
        if private:
            temporary.unlink(missing_ok=True)  # its mode would stay
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | kind | AS_IT_IS, mode)
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


def whole_lines(path: Path) -> bytes:
    """What a log holds. A last line that a crash cut off is taken away: nobody heard of it."""
    text = path.read_bytes() if path.exists() else b""
    lines = whole(text)
    if len(lines) < len(text):
        os.truncate(path, len(lines))
    return lines


def unwritable(path: Path, error: OSError) -> WriteFailed:
    """A full disk, or one that may not be written to, in words."""
    hint = "Free some space or correct the permissions, then continue with --resume: what was written before is intact."
    return WriteFailed(str(path), f"{error.strerror or error}.", hint)


def private_folder(path: Path) -> Path:
    """A folder that no other user of the machine can look into, also where it was there before. One that belongs to
    another user, as a container's volume may, stays as that user made it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_mode & 0o077:
        with contextlib.suppress(PermissionError):
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

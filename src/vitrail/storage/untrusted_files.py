"""Files that somebody else may have sent: read only if they are regular files, and no longer than such a file can be.

A pipe would be waited for, and a device has no end. What is wrong is an OSError whose `strerror` people understand.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LONGEST_TEXT = 16 * 2**20  # bytes of a study or of a paper that comes by mail
LONGEST_JSON = 256 * 2**20  # bytes of what a run folder says of itself
LONGEST_MODEL = 4 * 2**30


def read_regular(path: Path, most: int) -> bytes:
    """All of it; never more than `most` bytes."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        about = os.fstat(file)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"it is longer than {most / 2**20:g} MiB", str(path))
        with os.fdopen(file, "rb", closefd=False) as opened:
            raw = opened.read(about.st_size + 1)
    finally:
        os.close(file)
    if len(raw) > about.st_size:
        raise OSError(errno.EBUSY, "it grew while it was read", str(path))
    return raw


def read_text(path: Path, most: int = LONGEST_JSON, encoding: str = "utf-8") -> str:
    return read_regular(path, most).decode(encoding)

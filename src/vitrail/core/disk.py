"""Files that survive being killed while they are written."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """The old content or the new, never half of it. `private`: no other user of the machine can read it."""
    temporary = path.with_name(path.name + ".new")
    if private:
        temporary.unlink(missing_ok=True)  # its mode would stay
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    with os.fdopen(opened, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def private_folder(path: Path) -> Path:
    """A folder that no other user of the machine can look into."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path

"""Processes that end with whoever started them, however that one ends, `kill -9` too; and so does all that they began.

FLARE's process starts others, each in a session of its own, so that ending a process or its group leaves them. Between
ours and FLARE's stands a keeper: this file, run as a script. Its standard input is a pipe that nobody writes to and
whose other end is ours alone: when it closes, the keeper kills whatever FLARE began. Orphans become the keeper's
children, so that once it has none, none is left. Should the keeper itself be killed, FLARE's process goes with it, and
its jobs a second later (deploy/transport/flare/process.py).

Elsewhere than on Linux a process group has to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LINUX = sys.platform.startswith("linux")
DEATH_SIGNAL, SUBREAPER = 1, 36  # of prctl: PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
PAUSE = 0.02  # seconds between two looks at whether the killed are gone


def start(words: Sequence[str], folder: Path, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process that works in this folder, as long as this process lives and holds what is returned here."""
    with log.open("ab") as out:
        return subprocess.Popen(
            _script("keep", words),
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,
            umask=0o077,
        )


def stop(process: subprocess.Popen[bytes] | None, patience: float = 5.0) -> None:
    """End a process that was started here, and all that it began: asked first, then by force."""
    if process is None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tied(words: Sequence[str]) -> list[str]:
    """A command that ends with this process, on Linux; for one that needs no keeper, since it sees to its own children.

    To be started in a thread that lives as long as the command should: Linux ties it to that."""
    return _script("tie", words)


def children_of(folder: Path) -> list[int]:
    """Processes of FLARE's that work in this folder, and their keepers."""
    pids, place = [], str(folder.resolve()).encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if b"-m" in words and place in words and any(b"nvflare.private" in w for w in words):
                pids.append(int(entry.parent.name))
    return pids


def end_left(folder: Path) -> None:
    """What an earlier run of ours left behind in this folder, if anything could."""
    for pid in children_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _script(how: str, words: Sequence[str]) -> list[str]:
    # isolated, since this folder has names that Python's own modules have; nothing but Python itself is imported
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), how, str(os.getpid()), *words]


# what runs in the keeper


def keep(parent: int, words: Sequence[str]) -> int:
    """Run a command until it ends or nobody wants it any more; then see that nothing of it is left."""
    wakeups, bell = os.pipe()
    for end in (wakeups, bell):
        os.set_blocking(end, False)
    for sign in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(sign, lambda *_: None)  # not to die of them: they ring the bell
    signal.set_wakeup_fd(bell)
    _ask_linux(SUBREAPER, 1)
    _ask_linux(DEATH_SIGNAL, signal.SIGUSR1)  # also when a thread of the parent's ends: a reason to look, no more
    child, code = _begin(words), None
    while code is None and os.getppid() == parent:
        ready, _, _ = select.select([0, wakeups], [], [])
        if 0 in ready and not os.read(0, 1):
            break
        if wakeups in ready and signal.SIGTERM in os.read(wakeups, 512):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGTERM)
        code = _reap(child)
    _clear(child)
    return 1 if code is None else code


def tie(parent: int) -> None:
    """Let this process end when the parent does, or now if it is gone."""
    _ask_linux(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _begin(words: Sequence[str]) -> int:
    keeper = os.getpid()
    if child := os.fork():
        return child
    try:
        tie(keeper)
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(words[0], list(words))
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _reap(child: int) -> int | None:
    """Take leave of all who have ended; the exit code of this one, if it has."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _clear(child: int) -> None:
    while True:
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not LINUX:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(PAUSE)


def _descendants() -> set[int]:
    """Of this process. Whoever is born meanwhile is found the next time."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_bytes().rpartition(b")")[2].split()[1])
    descendants, new = set[int](), {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new} - descendants:
        descendants |= new
    return descendants


def _ask_linux(what: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(what, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


if __name__ == "__main__":
    how_, parent_, *words_ = sys.argv[1:]
    if how_ == "keep":
        sys.exit(keep(int(parent_), words_) & 255)
    tie(int(parent_))
    os.execvp(words_[0], words_)

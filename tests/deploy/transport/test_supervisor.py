"""Nothing that was started stays behind, whoever is killed: children, and theirs in sessions of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vitrail.deploy.transport import supervisor

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks for processes in /proc")
SOON = 20.0  # seconds; a loaded machine is slow, not wrong
# a process that begins another in a session of its own, as FLARE does, and that one an orphan; all heed no SIGTERM
TREE = """
import os, signal, subprocess, sys, time
depth, sure = int(sys.argv[1]), signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth == 1 and os.fork():
    time.sleep(.2); os._exit(0)
if depth < 2:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], str(depth + 1), *sys.argv[2:]], start_new_session=True)
if sys.argv[3] == "ends" and depth == 0:
    time.sleep(1); sys.exit(7)
time.sleep(600)
"""
# a process of ours that starts it in a thread, which then ends
OURS = """
import os, runpy, sys, threading, time
from pathlib import Path
start = runpy.run_path(sys.argv[1])["start"]
held = []
words = [sys.executable, "-c", *sys.argv[3:]]
place = Path(sys.argv[2])
thread = threading.Thread(target=lambda: held.append(start(words, place, os.environ, place / "log")))
thread.start(); thread.join()
time.sleep(600)
"""


class Tree:
    """Three processes that are known by a word on their command lines, and their keeper."""

    def __init__(self, folder: Path, how: str = "stays") -> None:
        self.folder, self.mark = folder, secrets.token_hex(8)
        self.words = [TREE, "0", TREE, how, self.mark]

    def start(self) -> subprocess.Popen[bytes]:
        return supervisor.start([sys.executable, "-c", *self.words], self.folder, os.environ, self.folder / "log")

    def alive(self, also: str = "") -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                said = entry.read_bytes()
                if self.mark.encode() in said and also.encode() in said:
                    found.append(int(entry.parent.name))
        return found

    def keepers(self) -> list[int]:
        return self.alive("supervisor.py\0keep\0")

    def wait(self, found: Callable[[], bool]) -> None:
        until = time.monotonic() + SOON
        while not found():
            assert time.monotonic() < until, f"{len(self.alive())} processes, {len(self.keepers())} keepers"
            time.sleep(0.02)

    def wait_all(self) -> None:
        """The positive control: all are there, and were found."""
        self.wait(lambda: len(set(self.alive()) - set(self.keepers())) >= 3 and len(self.keepers()) == 1)

    def wait_none(self) -> None:
        self.wait(lambda: not self.alive())


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Callable[..., Tree]]:
    """Makes trees, of which nothing stays after a test that failed."""
    made: list[Tree] = []

    def plant_one(how: str = "stays") -> Tree:
        made.append(Tree(tmp_path, how))
        return made[-1]

    yield plant_one
    for tree in made:
        for pid in tree.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def tree(plant: Callable[..., Tree]) -> Tree:
    return plant()


@contextlib.contextmanager
def running(words: list[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(words, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def test_whoever_started_it_is_killed(tree: Tree) -> None:
    words = [sys.executable, "-c", OURS, supervisor.__file__, str(tree.folder), *tree.words]
    with running(words) as ours:
        tree.wait(lambda: len(tree.alive()) >= 5)  # ours, the keeper, and three
        time.sleep(1)
        assert len(tree.keepers()) == 1, "it ended with the thread that started it"
        ours.kill()
    tree.wait_none()


def test_it_is_stopped(tree: Tree) -> None:
    held = tree.start()
    tree.wait_all()
    supervisor.stop(held, 0.5)
    assert held.returncode is not None
    assert not tree.alive()


def test_whoever_holds_it_lets_go(tree: Tree) -> None:
    held = tree.start()
    tree.wait_all()
    assert held.stdin is not None
    held.stdin.close()
    held.wait(SOON)
    assert not tree.alive()


def test_it_ends_by_itself(plant: Callable[..., Tree]) -> None:
    tree = plant("ends")
    held = tree.start()
    tree.wait_all()
    assert held.wait(SOON) == 7
    assert not tree.alive()


def test_it_is_asked_before_it_is_forced(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print(1, flush=True); "
    held = supervisor.start([sys.executable, "-c", code + "time.sleep(600)"], tmp_path, os.environ, tmp_path / "log")
    while not (tmp_path / "log").read_text():
        time.sleep(0.02)
    supervisor.stop(held)
    assert held.returncode == 5


def test_the_keeper_is_killed(tree: Tree) -> None:
    """What it kept goes with it, though not what that one began: FLARE's own see to that."""
    held = tree.start()
    tree.wait_all()
    first = next(pid for pid in tree.alive() if _parent(pid) == held.pid and pid not in tree.keepers())
    held.kill()
    held.wait()
    tree.wait(lambda: first not in tree.alive())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_cannot_be_started(tmp_path: Path) -> None:
    held = supervisor.start([str(tmp_path / "nothing")], tmp_path, os.environ, tmp_path / "log")
    assert held.wait(SOON) == 127
    assert "No such file" in (tmp_path / "log").read_text()


def test_tied(tree: Tree) -> None:
    """Without a keeper: it has its own number, and ends with whoever started it."""
    code = "import runpy, subprocess, sys, time; tied = runpy.run_path(sys.argv[1])['tied']; "
    code += "print(subprocess.Popen(tied([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[2]])).pid, "
    code += "flush=True); time.sleep(600)"
    with running([sys.executable, "-c", code, supervisor.__file__, tree.mark], stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        child = int(ours.stdout.readline())
        tree.wait(lambda: child in tree.alive() and child not in tree.alive("supervisor.py"))
        ours.kill()
    tree.wait_none()


def test_tied_to_somebody_who_is_gone(tmp_path: Path) -> None:
    words = supervisor.tied(["touch", str(tmp_path / "it ran")])
    words[words.index(str(os.getpid()))] = str(2**22 + 1)  # no process has this number
    assert subprocess.run(words).returncode == 1
    assert not (tmp_path / "it ran").exists()


def test_elsewhere_than_on_linux(tree: Tree) -> None:
    """No /proc, no prctl: the process and its group go, when they are let go."""
    code = "import importlib.util, sys; spec = importlib.util.spec_from_file_location('keeper', sys.argv[1]); "
    code += "k = importlib.util.module_from_spec(spec); spec.loader.exec_module(k); k.LINUX = False; "
    code += "k._descendants = set; sys.exit(k.keep(int(sys.argv[2]), sys.argv[3:]) & 255)"
    inside = [sys.executable, "-c", "import os, time; os.fork(); time.sleep(600)", tree.mark]
    words = [sys.executable, "-c", code, supervisor.__file__, str(os.getpid()), *inside]
    with running(words, stdin=subprocess.PIPE, start_new_session=True) as held:
        tree.wait(lambda: len(tree.alive()) == 3)
        assert held.stdin is not None
        held.stdin.close()
        tree.wait_none()


def test_many_threads_may_start_one(plant: Callable[..., Tree]) -> None:
    """The other ends of the pipes stay with us: one that is let go ends, though others were begun after it."""
    trees = [plant() for _ in range(3)]
    held: dict[int, subprocess.Popen[bytes]] = {}
    threads = [threading.Thread(target=lambda i=i: held.update({i: trees[i].start()})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, tree in enumerate(trees):
        tree.wait_all()
        stdin = held[i].stdin
        assert stdin is not None
        stdin.close()
        tree.wait_none()
        held[i].wait(SOON)
        for later in trees[i + 1 :]:
            later.wait_all()

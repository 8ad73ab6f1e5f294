"""Heads and bodies between two processes, short and long; and what an end sees when the other is gone."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from vitrail.deploy.transport.ipc import SHORT, Listener, Pipe, connect

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="studies between machines run on Linux")


@pytest.fixture
def both() -> tuple[Pipe, Pipe]:
    listener = Listener()
    one = connect(listener.place)
    other = listener.accept()
    yield one, other
    for end in (one, other, listener):
        end.close()


@pytest.mark.parametrize("size", [0, 1, SHORT, SHORT + 1, 20_000_003])
def test_what_is_put_is_what_one_gets(both: tuple[Pipe, Pipe], size: int) -> None:
    one, other = both
    body = os.urandom(size)
    for _ in range(3):  # kept apart, in order
        one.put({"size": size, "name": "é"}, body)
        assert other.poll(1)
        assert other.get() == ({"size": size, "name": "é"}, body)
    assert not other.poll(0)


def test_many_at_once_are_kept_apart(both: tuple[Pipe, Pipe]) -> None:
    one, other = both
    bodies = [bytes([i % 256]) * (i * 997) for i in range(200)]  # short and long ones, more than the socket holds
    sender = threading.Thread(target=lambda: [one.put({"i": i}, body) for i, body in enumerate(bodies)])
    sender.start()
    assert [other.get() for _ in bodies] == [({"i": i}, body) for i, body in enumerate(bodies)]
    sender.join()


def test_an_end_that_is_gone(both: tuple[Pipe, Pipe]) -> None:
    one, other = both
    one.close()
    assert other.poll(1)
    with pytest.raises(EOFError):
        other.get()
    with pytest.raises(OSError, match="pipe"):
        other.put({})


def test_only_this_user_can_reach_it_and_nothing_stays() -> None:
    before = len(os.listdir("/proc/self/fd"))
    listener = Listener()
    folder = Path(listener.place).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with connect(listener.place) as one, listener.accept() as other:
        one.put({}, bytes(SHORT + 1))
        other.get()
    listener.close()
    assert not folder.exists()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(OSError, match="No such file"):
        connect(listener.place)

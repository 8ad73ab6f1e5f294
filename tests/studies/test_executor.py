"""The pool: the same results here and in processes, and nobody left working when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vitrail as vt
from tests.support import pool_jobs
from vitrail.studies.executor import done


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_results_are_in_order_and_progress_only_rises(workers: int) -> None:
    told: list[tuple[int, float]] = []
    jobs = [0, 3, 1, 2]
    got = done(jobs, pool_jobs.multiply, [10], workers, lambda job, so_far: told.append((job, so_far)))
    assert [value for value, _ in got] == [0, 30, 10, 20]
    where = {process for _, process in got}
    assert where == {os.getpid()} if workers < 2 else os.getpid() not in where
    if workers < 2:
        assert told == [(job, i + part / 4) for i, job in enumerate(jobs) for part in (1, 2, 3, 4)]
    else:
        assert [so_far for _, so_far in told] == [1, 2, 3, 4]
        assert {job for job, _ in told} == {0, 1, 2, 3}


def test_what_is_known_is_not_done_again() -> None:
    known = {3: (-1, 0), 2: (-2, 0)}
    told: list[float] = []
    got = done([0, 3, 1, 2], pool_jobs.multiply, [10], 1, lambda job, so_far: told.append(so_far), known.get)
    assert [value for value, _ in got] == [0, -1, 10, -2]
    assert told == [2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75, 4]
    assert done([3, 2], pool_jobs.multiply, [10], 8, lookup=known.get) == [(-1, 0), (-2, 0)]
    assert done([], pool_jobs.multiply, [10], 8) == []


def test_an_error_ends_what_is_under_way(tmp_path) -> None:
    """The other job would go on for a minute, and eight more are waiting."""
    began = time.monotonic()
    with pytest.raises(ValueError, match="cannot be done"):
        done(["long", "fail", *["long"] * 8], pool_jobs.wait, tmp_path, 2)
    assert time.monotonic() - began < 30
    assert len(list(tmp_path.iterdir())) < 5, "what is waiting is not begun"


def test_a_process_that_dies_is_told(tmp_path) -> None:
    with pytest.raises(vt.VitrailError, match="fewer --workers"):
        done(["die", "long"], pool_jobs.wait, tmp_path, 2)


def under_way(place: Path, *jobs: str) -> subprocess.Popen[str]:
    """A pool in a process group of its own, as a terminal would start it, with two jobs begun."""
    command = [sys.executable, pool_jobs.__file__, str(place), *jobs]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert soon(lambda: len(list(place.iterdir())) == 2)
    return process


def soon(what: Callable[[], bool], seconds: float = 40) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()


def alive(place: Path) -> list[int]:
    numbers = [int(p.name.split("-")[1]) for p in place.iterdir()]
    return [n for n in numbers if Path(f"/proc/{n}").exists()]


@pytest.mark.parametrize("jobs", [["long"] * 6, ["long", "short"]])
@pytest.mark.parametrize("everyone", [True, False])
def test_ctrl_c_ends_all_quickly_and_quietly(everyone: bool, jobs: list[str], tmp_path) -> None:
    """A terminal interrupts the whole group, also a process that has no job; `kill -INT` one process of it."""
    process = under_way(tmp_path, *jobs)
    time.sleep(0.2)  # after the short one its process is idle
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGINT)
    said, wrong = process.communicate(timeout=30)
    assert (said, wrong) == ("interrupted\n", "")
    assert len(list(tmp_path.iterdir())) == 2, "what is waiting is not begun"
    assert soon(lambda: not alive(tmp_path), 5)


@pytest.mark.skipif(not Path("/proc").exists(), reason="asks /proc who is alive")
def test_nobody_outlives_who_gave_the_jobs(tmp_path) -> None:
    process = under_way(tmp_path, "long", "long")
    assert len(alive(tmp_path)) == 2
    process.kill()
    process.wait()
    assert soon(lambda: not alive(tmp_path), 10)
    process.stdout.close()
    process.stderr.close()

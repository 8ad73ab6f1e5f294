"""Work for test_executor.py, in a module that a spawned process can import; run as a script, a pool to be
interrupted."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from vitrail.core.errors import Problem, VitrailError
from vitrail.studies.executor import Step, Stopped, done


def multiply(job: int, held: list[int], step: Step) -> tuple[int, int]:
    """The first job is the last to end."""
    for part in range(1, 5):
        time.sleep(0.05 if job == 0 else 0)
        step(part, 4)
    return job * held[0], os.getpid()


def wait(job: str, held: Path, step: Step) -> None:
    """Until told to stop, if the job does not say otherwise; each leaves a file that bears its process's number."""
    (held / f"{job}-{os.getpid()}").touch()
    if job in ("fail", "short"):  # not before the other process has its own
        while not list(held.glob("long*")):
            time.sleep(0.01)
        if job == "short":
            return
        raise ValueError("this job cannot be done")
    if job == "die":
        os._exit(9)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)
        step(0, 1)


def wait_far(job: str, held: Path, step: Step) -> None:
    """One begins, then the other fails, then the first is to stop."""
    if job == "fails":
        while not (held / "begun").exists():
            time.sleep(0.01)
        raise VitrailError("one fails", [])
    (held / "begun").touch()
    try:
        for _ in range(2000):
            time.sleep(0.01)
            step(0, 1)
        (held / "to the end").touch()
    except Stopped:
        (held / "stopped").touch()
        raise


def fail(job: int, held: str, step: Step) -> None:
    raise VitrailError(held, [Problem("here", "it fails.")])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background, deaf to it
    try:
        done(sys.argv[2:], wait, Path(sys.argv[1]), 2)
    except KeyboardInterrupt:
        print("interrupted")

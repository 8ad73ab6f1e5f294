"""A process that is killed at its writes, one after the other: before a step, in the middle of it, after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

STEPS = ("write", "fsync", "replace", "unlink")  # of os; `Path.unlink` is os.unlink
LONGEST = 500  # steps of what is killed


class Killed(BaseException):
    """No except clause of the source catches it; what is open is closed, as the system would."""


@contextmanager
def killed_at(number: int, when: str) -> Iterator[list[str]]:
    """The step of this number is the last. Yields the steps that were taken."""
    steps = list[str]()

    def watched(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def step(*given: object, **options: object) -> object:
            if len(steps) >= number:
                raise Killed  # a dead process takes no step either in its finally clauses
            steps.append(name)
            if len(steps) < number:
                return real(*given, **options)
            if when == "middle" and name == "write":
                real(given[0], memoryview(given[1])[: len(given[1]) // 2])  # type: ignore[arg-type]
            elif when == "after":
                real(*given, **options)
            raise Killed

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        yield steps


def every_crash(act: Callable[[], object]) -> Iterator[tuple[int, str]]:
    """Runs `act` once for each step that it takes and each moment of that step; killed there each time. Whoever
    iterates looks at what is left on the disk, and puts it back to where it was."""
    for number in range(1, LONGEST):
        for when in ("before", "middle", "after"):
            try:
                with killed_at(number, when):
                    act()
            except Killed:
                yield number, when
            else:
                return
    raise AssertionError("it takes more steps than are looked at")

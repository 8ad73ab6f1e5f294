"""A process that is killed while it writes: after any byte, and between any two calls that change the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


class Blade:
    """While it is held, the process dies after `at` bytes and calls; with None it counts them (`done`)."""

    CALLS = ("fsync", "replace", "truncate", "ftruncate", "unlink", "rmdir")

    def __init__(self, at: int | None) -> None:
        self.at, self.done, self.places = at, 0, dict[int, str]()

    def __enter__(self) -> Blade:
        self.real = {name: getattr(os, name) for name in ("write", *self.CALLS)}
        os.write = self._write  # type: ignore[assignment]
        for name in self.CALLS:
            setattr(os, name, self._call(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, act in self.real.items():
            setattr(os, name, act)

    def _write(self, file: int, data: Any) -> int:
        whole = memoryview(data)
        fits = len(whole) if self.at is None else min(len(whole), self.at - self.done)
        if fits:
            self.real["write"](file, whole[:fits])
        self.done += fits
        if fits < len(whole):
            raise Killed
        return fits

    def _call(self, name: str) -> Callable[..., Any]:
        def act(*given: Any, **options: Any) -> Any:
            if self.at is not None and self.done >= self.at:
                raise Killed
            self.done += 1
            if name == "replace":
                self.places[self.done] = Path(given[1]).name
            return self.real[name](*given, **options)

        return act


def every_crash(act: Callable[[], object]) -> Iterator[int]:
    """Kills `act` after no byte and call, after one, and so on, until it lives. Whoever iterates looks at what is left
    on the disk, and puts it back to where it was."""
    for at in count():
        try:
            with Blade(at):
                act()
        except Killed:
            yield at
        else:
            return

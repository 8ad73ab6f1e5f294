"""What `vitrail serve` shows: each event as a sentence, once; and how far the rounds are, in a terminal as one line
that changes, elsewhere as a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from vitrail.cli.output import EVERY
from vitrail.core.errors import printable

TENTHS = 10  # lines about rounds in a log, beside one every minute


class ServeScreen:
    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`out`: past what makes text harmless, since the line that changes moves the cursor."""
        self.out: TextIO = out or sys.__stdout__ or sys.stdout
        self.live, self.clock = self.out.isatty(), clock
        self.status = ""  # the line that changes
        self.repeated = ""  # the last sentence, if it is one that comes again and again
        self.absent: list[str] = []
        self.shown = (0, clock())  # the last round with a line in a log, and when that was
        self.pace: tuple[int, float, float] | None = None  # rounds and seconds at the last event, seconds a round

    def __call__(self, event: str, details: dict[str, Any]) -> None:
        from vitrail.report.live.events import REPEATED, words

        if event == "round":
            self._round(details)
        elif event == "absent":
            self._absent([str(name) for name in details["sites"]], int(details.get("done", details["round"])))
        else:
            sentence = words(event, details)
            if event in REPEATED and sentence == self.repeated:
                return
            self.repeated = sentence if event in REPEATED else ""
            self.line(sentence)

    def line(self, sentence: str) -> None:
        """A sentence that stays."""
        self._write(f"  {printable(sentence)}\n")
        self._write(self.status, stays=False)

    def close(self) -> None:
        """The line that changes stays as it is."""
        if self.live and self.status:
            self._write(f"{self.status}\n")
        self.status = ""

    def _round(self, details: dict[str, Any]) -> None:
        done, total, seconds = int(details["done"]), int(details["total"]), float(details["seconds"])
        if not details["absent"]:
            self._absent([], done)
        before, at, each = self.pace or (0, 0.0, seconds)
        if done > before:
            each = (seconds - at) / (done - before)
        self.pace = done, seconds, each
        text = f"Round {done} of {total}: {_answered(details['absent'])}, {_span(each)} a round"
        text += f", about {_span(each * (total - done))} left." if done < total else "."
        if self.live:
            self.status = f"  {printable(text)}"
            self._write(self.status, stays=False)
            return
        round_, when = self.shown
        if done in (1, total) or done - round_ >= total / TENTHS or self.clock() - when >= EVERY:
            self.shown = done, self.clock()
            self.line(text)

    def _absent(self, sites: list[str], round_: int) -> None:
        """Told when it changes, not in every round."""
        if new := [name for name in sites if name not in self.absent]:
            self.line(f"Round {round_} is without {' and '.join(new)}.")
        if back := [name for name in self.absent if name not in sites]:
            self.line(f"{' and '.join(back)} takes part again, from round {round_} on.")
        self.absent = sites

    def _write(self, text: str, stays: bool = True) -> None:
        if self.live:
            self.out.write(f"\r\x1b[K{text}")
        elif stays:
            self.out.write(text)
        self.out.flush()


def _answered(absent: list[str]) -> str:
    """
    >>> _answered([]), _answered(["va"])
    ('all sites answered', 'all sites but va answered')
    """
    return f"all sites but {' and '.join(absent)} answered" if absent else "all sites answered"


def _span(seconds: float) -> str:
    """
    >>> _span(0.31), _span(41.0), _span(700.0)
    ('0.3 s', '41 s', '12 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"

"""What came over FLARE's own channels and was refused, in words, for a log that no flood can fill.

The guard in FLARE's process reports it (deploy/transport/flare/guard.py). That process may be in an attacker's hands:
what it says is cut short and printed as text, and after a few lines there is one a minute, with the number of those
left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from vitrail.core.errors import printable

AT_ONCE = 20  # lines before they become rare
RARE = 60.0  # seconds between two lines from then on


class Refusals:
    """`write` is given one line of text."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.clock = write, clock
        self.lines, self.left_out, self.last = 0, 0, 0.0
        self.lock = threading.Lock()

    def add(self, report: Mapping[str, Any]) -> None:
        more = report.get("more")
        with self.lock:
            self.left_out += more if isinstance(more, int) and 0 < more < 1 << 40 else 0
            if self.lines >= AT_ONCE and self.clock() - self.last < RARE:
                self.left_out += 1
                return
            self.lines, self.last = self.lines + 1, self.clock()
            left_out, self.left_out = self.left_out, 0
        self.write(words_of(report) + (f" {left_out} more since the previous line." if left_out else ""))


def words_of(report: Mapping[str, Any]) -> str:
    """
    >>> words_of({"channel": "admin", "topic": "sys.shell", "origin": "basel-1", "why": "it is too long"})
    'Refused a message that belongs to no study: channel admin, topic sys.shell, from basel-1: it is too long.'
    """
    fields = [printable(str(report.get(key) or "?"))[:100] for key in ("channel", "topic", "origin", "why")]
    channel, topic, origin, why = fields
    return f"Refused a message that belongs to no study: channel {channel}, topic {topic}, from {origin}: {why}."

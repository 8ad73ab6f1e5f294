"""At a site: whether the coordinator can be reached, told when that changes. A site that waits in silence looks broken.

FLARE's process writes AWAY with every beat, a few seconds apart, as long as it has no connection; nothing says that
there is one again. A line that is cut without a word is noticed when the network gives it up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

AWAY = "no connection to server"  # in what FLARE's process writes
BACK = 10.0  # seconds without that: several beats


class Connectivity:
    def __init__(self, address: str, say: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        self.address, self.say, self.clock = address, say, clock
        self.since: float | None = None  # when it went away
        self.last = 0.0  # when that was last seen

    def missed(self) -> None:
        """A beat found no connection, or FLARE's process ended."""
        self.last = self.clock()
        if self.since is None:
            self.since = self.last
            self.say(
                f"{_time(self.last)}  The coordinator at {self.address} cannot be reached. This site "
                "waits and then continues by itself; nothing is lost."
            )

    def note_start(self) -> None:
        """FLARE's process was started, and has to find out first."""
        self.last = self.clock()

    def note_question(self) -> None:
        """A question came: it is there."""
        self.last = 0.0

    def look(self) -> None:
        """Called now and then."""
        now = self.clock()
        if self.since is None or now - self.last < BACK:
            return
        away, self.since = now - self.since, None
        self.say(f"{_time(now)}  The coordinator can be reached again, after {_span(away)}.")


def _time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _span(seconds: float) -> str:
    """
    >>> _span(12.4), _span(340.0), _span(8000.0)
    ('12 seconds', '6 minutes', '2.2 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"

"""How often a site's part of a transport job ended by itself, and when the site is tried again.

The first loss is repaired at once, in a job of the site's own. From the second on the site waits, each time twice as
long, and the others go on without it. It may be a machine that is short of memory: nothing here is a reproach.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FREE = 1  # losses after which a site is tried again at once
FIRST_REST, MOST_REST = 30.0, 600.0  # seconds until it is tried again: doubled with every loss
FORGOTTEN = 600.0  # seconds without a loss, after which the count begins anew


class PartLosses:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.count: dict[str, int] = {}
        self.due: dict[str, float] = {}  # when a site may be tried again
        self.trial: set[str] = set()  # sites that have rested and have not answered since: they are not waited for

    def add(self, site: str) -> float:
        """One more loss; seconds until the site is tried again."""
        now = self.clock()
        if now > self.due.get(site, now) + FORGOTTEN:
            self.count.pop(site, None)
        self.count[site] = times = self.count.get(site, 0) + 1
        rest = 0.0 if times <= FREE else min(FIRST_REST * 2.0 ** (times - FREE - 1), MOST_REST)
        self.due[site] = now + rest
        if rest:
            self.trial.add(site)
        return rest

    def rests(self, site: str) -> bool:
        return self.clock() < self.due.get(site, 0.0)

    def answered(self, site: str) -> None:
        """The site is waited for again. Its count stays for a while: it may fail again."""
        self.trial.discard(site)

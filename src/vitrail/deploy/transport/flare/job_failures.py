"""How often a site's part of a transport job ended by itself, and when the site is tried again.

The first loss is repaired at once, in a job of the site's own, and waited for. After a second one nobody waits for the
site until it answers; if it has not been at work in between, it is tried again after a pause, each time twice as long.
It may be a machine that is short of memory: nothing here is a reproach.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_REST, MOST_REST = 30.0, 120.0  # seconds until a site is tried again: doubled with every loss in a row
AT_WORK = 60.0  # seconds since its first answer, after which the next loss is no longer one in a row
FORGOTTEN = 600.0  # seconds without a loss, after which the next one is waited for like a first one


class PartLosses:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.count: dict[str, int] = {}  # losses in a row
        self.last: dict[str, float] = {}  # when the last one was
        self.due: dict[str, float] = {}  # when a site may be tried again
        self.answers: dict[str, float] = {}  # when a site answered for the first time since its last loss
        self.trial: set[str] = set()  # sites that nobody waits for until they answer

    def add(self, site: str) -> float:
        """One more loss; seconds until the site is tried again."""
        now = self.clock()
        in_a_row = now - self.answers.pop(site, now) < AT_WORK
        self.count[site] = times = 1 + (self.count.get(site, 0) if in_a_row else 0)
        if times > 1 or now - self.last.get(site, now - FORGOTTEN) < FORGOTTEN:
            self.trial.add(site)
        rest = 0.0 if times == 1 else min(FIRST_REST * 2.0 ** (times - 2), MOST_REST)
        self.last[site], self.due[site] = now, now + rest
        return rest

    def rests(self, site: str) -> bool:
        return self.clock() < self.due.get(site, 0.0)

    def is_calm(self, site: str) -> bool:
        """No loss, or the site has been at work since."""
        return site not in self.last or self.clock() - self.answers.get(site, self.clock()) > AT_WORK

    def note_answer(self, site: str) -> None:
        """The site is waited for again."""
        self.trial.discard(site)
        self.answers.setdefault(site, self.clock())

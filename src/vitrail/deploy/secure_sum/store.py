"""Where sums are remembered: a folder for each (STAGE-ROUND-TURN). The oldest are deleted, and none that is older than
one that was deleted is ever begun again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.storage.atomic_files import write_atomically

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

FLOOR = "floor.json"
KEPT = 6  # sums that are kept


class SumStore:
    def __init__(self, place: Path, agreed: Agreement) -> None:
        self.place, self.agreed = place, agreed

    def of(self, where: tuple[int, int, int]) -> Path:
        return self.place / "-".join(f"{n:06d}" for n in self._order(where))

    def is_past(self, where: tuple[int, int, int]) -> bool:
        """Whether it may have been there, and is forgotten; with it, what is too old is."""
        self._forget()
        floor = self.place / FLOOR
        return floor.exists() and list(self._order(where)) <= json.loads(floor.read_text())

    def _order(self, where: tuple[int, int, int]) -> tuple[int, int, int]:
        """Stage, round and turn: in the order of time."""
        s, r, place = where
        return s, r, self.agreed.stages[s].stage.turns(r).index(place)

    def _forget(self) -> None:
        """The oldest; that they were, is remembered."""
        found = sorted(f for f in self.place.iterdir() if f.is_dir()) if self.place.exists() else []
        for old in found[: -KEPT or None]:
            floor = [int(n) for n in old.name.split("-")]
            write_atomically(self.place / FLOOR, json.dumps(floor), private=True)
            shutil.rmtree(old)

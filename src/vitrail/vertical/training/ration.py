"""How often a guest lets itself be asked: each row so many times in training, so many rows in all afterwards.

What was spent is written to the guest's file before an answer is given, so that neither a restart nor a kill refills
it. A ration that would be overspent is refused before anything crosses. A step that is repeated after training resumes
is spent again: leave room for that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitrail.core.errors import Problem, RationSpent, VitrailError
from vitrail.storage.atomic_files import write_atomically


@dataclass
class RationAccount:
    guest: str
    rows: int  # in common
    training: int  # times that a row may be asked in training
    after: int  # rows in all, after training
    path: Path | None = None  # None: remembered only as long as this object
    asked: Tensor = field(init=False)  # [row]: times in training
    answered: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.asked = torch.zeros(self.rows, dtype=torch.int64)
        if self.path is None or not self.path.exists():
            return
        try:
            spent = json.loads(self.path.read_text(encoding="utf-8"))
            asked, answered = torch.tensor(spent["asked"], dtype=torch.int64), int(spent["answered"])
        except (ValueError, KeyError, TypeError, RuntimeError):
            what = "it cannot be read, so nobody knows how much of the ration is left."
            problem = Problem(str(self.path), what, "Restore it from a copy.")
            raise VitrailError("a ration cannot be read", [problem]) from None
        if asked.shape != self.asked.shape:
            what = f"it was counted for {len(asked)} common rows, but now there are {self.rows}."
            hint = "Agree on a new ration for the new match."
            raise VitrailError("a ration belongs to another match", [Problem(str(self.path), what, hint)])
        self.asked, self.answered = asked, answered

    @property
    def left(self) -> dict[str, int]:
        """What `outbox` shows."""
        most = int(self.asked.max()) if self.rows else 0
        return {"training": max(0, self.training - most), "after": max(0, self.after - self.answered)}

    def keep_at(self, path: Path) -> None:
        """From now on in this file."""
        self.path = path
        self._keep()

    def train(self, rows: Tensor) -> None:
        """Spend one question about each of these rows."""
        if int(self.asked[rows].max()) >= self.training:
            what = f"each row may be asked about {self.training} times in training, and that number is reached."
            hint = "Train for fewer epochs, or ask the guest for a larger ration."
            raise RationSpent(self.guest, Problem("training", what, hint))
        self.asked[rows] += 1
        self._keep()

    def answer(self, rows: int) -> None:
        """Spend so many rows after training."""
        if self.answered + rows > self.after:
            left = self.after - self.answered
            what = f"the request is for {rows} rows, but only {left} of {self.after} are left for after training."
            hint = "Ask for fewer rows, or the guest for a larger ration."
            raise RationSpent(self.guest, Problem("prediction", what, hint))
        self.answered += rows
        self._keep()

    def _keep(self) -> None:
        if self.path is not None:
            spent = {"guest": self.guest, "answered": self.answered, "asked": self.asked.tolist()}
            write_atomically(self.path, json.dumps(spent), private=True)

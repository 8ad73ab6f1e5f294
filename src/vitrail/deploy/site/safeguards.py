"""A wary site: it looks at what it is told before it trains on it, and at what would leave.

A coordinator that keeps to every agreed shape can still send weights made for reading rows: units so steep that each
lets one row through, or many copies of one unit with other offsets. Checked of a word: the very first one is the start
that everyone works out from the study, and every one keeps to the bounds of deploy/protocol/weight_bounds.py; and of a
report, whether it holds rows of this site almost as they are. What is not checked stands in the consent form
(deploy/consent/templates/site.txt). A site that finds something stops: for the rest of the run, also when it is started
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from vitrail.core.errors import Problem, RunStopped
from vitrail.core.tensors import flatten
from vitrail.core.text import several
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.weight_bounds import ALIKE, HINT, LONG, WeightBounds, same
from vitrail.runs.folder import save_tensors
from vitrail.storage.atomic_files import write_atomically

TOLD_ROWS, FREE_ROWS, ROWS_EACH = 2, 5, 100  # rows that one report may tell, and a run: FREE_ROWS + one in ROWS_EACH
STOPPED, TOLD, ROWS = "stopped.json", "told.safetensors", "rows-told.json"


class ModelInspector:
    """One site's, in one run."""

    def __init__(self, agreed: Agreement, home: Path) -> None:
        self.agreed, self.home, self.bounds = agreed, home, WeightBounds(agreed)
        self._last: dict[str, Tensor] | None = None

    def check_received(self, s: int, r: int, place: int, word: Mapping[str, Tensor]) -> None:
        """What this site is told in that exchange of that round, without the axis of sites; raises and stops the run
        where it is no honest word. `r` may be the stage's number of rounds: the word that ends it."""
        if (place_ := self.home / STOPPED).exists():
            raise RunStopped(problems=[Problem(*words) for words in json.loads(place_.read_text())])
        rehearsed = self.agreed.stages[s].turns[place].down
        begins = (s, r) == (0, 0) and place == self.agreed.stages[0].stage.turns(0)[0]
        problems = self._not_first(rehearsed, word) if begins else []
        problems += self.bounds.problems(self._known(), s, r, place, word)
        if problems:
            self._stop(problems)

    def accept_received(self, s: int, r: int, word: Mapping[str, Tensor]) -> None:
        """That word was trained on: the next one is held against it."""
        self._last = self._known() | self.bounds.remembered(s, r, word)
        if self._last:
            save_tensors(self.home / TOLD, self._last)

    def continues(self, s: int, r: int, place: int, word: Mapping[str, Tensor]) -> bool:
        """Whether this word may be scored: it is the agreed start, with which `check_received` has compared it, or it
        moved no further than a round can from the one that this site last trained on."""
        return self.bounds.continues(self._known(), s, r, place, word)

    def check_report(self, report: Mapping[str, Tensor], rows: Tensor) -> None:
        """What would leave, [...] by name, and this site's training rows, [row, cell]; raises and stops the run where
        it would tell too many of them."""
        if rows.dim() != 2 or rows.shape[1] < LONG:
            return
        place = self.home / ROWS
        disclosed = set[int](json.loads(place.read_text()) if place.exists() else [])
        now = rows_disclosed(report, rows)
        most = FREE_ROWS + len(rows) // ROWS_EACH
        if len(now) > TOLD_ROWS or len(disclosed | now) > most:
            what = (
                f"{several(len(now), 'row')} of this site could be read almost exactly from its "
                f"report, after {len(disclosed - now)} others; expected at most {TOLD_ROWS} in a report "
                f"and {most} in a run. Possible causes are weights crafted for "
                "this purpose, and columns without a common scale."
            )
            self._stop([Problem("report", what, HINT)])
        if now - disclosed:
            write_atomically(place, json.dumps(sorted(disclosed | now)), private=True, durable=True)

    def _not_first(self, rehearsed: Any, word: Mapping[str, Tensor]) -> list[Problem]:
        first = {name: tensor for name, tensor in flatten(rehearsed) if tensor.is_floating_point()}
        for i in range(max((len(t) for t in first.values()), default=0)):  # in whose place it is, where words tell that
            if all(same(word[name], tensor[i]) for name, tensor in first.items()):
                return []
        if not first:
            return []
        what = "expected the initial weights that every site computes from the study, got other weights."
        return [Problem("the first message", what, HINT)]

    def _known(self) -> dict[str, Tensor]:
        if self._last is None:
            place = self.home / TOLD
            self._last = load_file(place) if place.exists() else {}
        return self._last

    def _stop(self, problems: list[Problem]) -> None:
        write_atomically(self.home / STOPPED, json.dumps(problems), durable=True)
        raise RunStopped(problems=problems)


def rows_disclosed(report: Mapping[str, Tensor], rows: Tensor) -> set[int]:
    """Which of these rows, [row, cell], stand in a report almost as they are: in a direction of a layer that sees
    cells. Cells that a direction leaves out (dropout) are left out of the row too."""
    disclosed, x = set[int](), rows.float()
    for tensor in report.values():
        for axis in [i for i, n in enumerate(tensor.shape) if n == x.shape[1] and tensor.is_floating_point()]:
            v = tensor.movedim(axis, -1).reshape(-1, x.shape[1]).float()
            seen = v.abs() > 1e-7 * v.abs().amax(1, keepdim=True)
            v, seen = v[seen.sum(1) >= LONG], seen[seen.sum(1) >= LONG].float()
            size = v.norm(dim=1, keepdim=True) * (seen @ (x**2).T).sqrt()  # [direction, row]
            alike = (v @ x.T).abs() / size.clamp(min=1e-30)
            shown = alike > ALIKE
            shown &= shown.sum(1, keepdim=True) <= TOLD_ROWS  # a direction that many rows have tells of none
            disclosed |= set(shown.any(0).nonzero()[:, 0].tolist())
    return disclosed

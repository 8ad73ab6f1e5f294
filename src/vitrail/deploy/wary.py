"""A wary site: it looks at what it is told before it trains on it, and at what would leave.

A coordinator that keeps to every agreed shape can still send weights made for reading rows: units so steep that each
lets one row through, or many copies of one unit with other offsets. Checked, of every tensor of a word that is named
like a parameter of the network and has its shape:

    first word    the very first one is the start that everyone works out from the study
    frozen        what no report ever changes is as it was at the start
    size          no unit is CAP times as long as the start's longest; no offset CAP times its largest number
    step          no unit moves further in a round than STEP times that length
    copies        no more units point the same way than did at the start

and of a report, whether it holds rows of this site almost as they are. What is not checked is told by the consent form
(NOT_CHECKED). The bounds were set on honest training; benchmarks/crafted.py counts false alarms and what still gets
through. A site that finds something stops: for the rest of the run, also when it is started again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from vitrail.core.disk import write_atomically
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.tensors import tensors
from vitrail.deploy.agreement import LAST, Agreement
from vitrail.report.words import several
from vitrail.runs.folder import save_tensors

CAP = 10.0  # honest on heart: 2.6
STEP = 2.0  # a round; honest on heart: 1.2, by RIPFL
ALIKE, COPIES = 0.99, 4  # the cosine from which two units point the same way, and how many such pairs are no sign
LONG = 8  # numbers of a unit, or cells of a row, below which two point the same way by chance
MOST_UNITS = 1024  # of a layer that are compared with each other
SAME = 1e-5  # of the largest number: what another processor may make of the same start
TOLD_ROWS, FREE_ROWS, ROWS_EACH = 2, 5, 100  # rows that one report may tell, and a run: FREE_ROWS + one in ROWS_EACH
STOPPED, TOLD, ROWS = "stopped.json", "told.safetensors", "rows-told.json"
TITLE = "this site stopped the run: what it was told could have been made to read its rows"
NOT_CHECKED = (
    "Before it trains this site looks at the weights it is told (the agreed start, their size, how far they moved, "
    "copied units, layers that nobody trains) and at its own report (whether rows stand in it almost as they are), and "
    "stops if something is wrong. It does not notice a coordinator that stays within these bounds, that tells false "
    "scores, findings or a false common scale, or that puts several reports together; nor rows mixed with others in a "
    "report. A row that is far from all others can stand in an honest report almost as it is."
)
NOT_IN_PICTURES = "Nor does it look for its pictures in what convolutions report."


class Part(NamedTuple):
    """A tensor of a word, as copies of one parameter: [copy, ...]."""

    name: str
    start: Tensor
    told: Tensor


class Wary:
    """One site's, in one run."""

    def __init__(self, agreed: Agreement, home: Path) -> None:
        self.agreed, self.home = agreed, home
        self._last: dict[str, Tensor] | None = None
        self._reported = {name.split("/")[-1] for t in agreed.stages for u in t.turns for name, _ in tensors(u.up)}

    def told(self, s: int, r: int, place: int, word: Mapping[str, Tensor]) -> None:
        """What this site is told in that exchange of that round, without the axis of sites; raises and stops the run
        where it is no honest word. `r` may be the stage's number of rounds: the word that ends it."""
        if (place_ := self.home / STOPPED).exists():
            raise _refusal(json.loads(place_.read_text()))
        rehearsed = self.agreed.stages[s].turns[place].down
        begins = (s, r) == (0, 0) and place == self.agreed.stages[0].stage.turns(0)[0]
        found = self._not_first(rehearsed, word) if begins else []
        still = self._still(rehearsed)
        clock = self._clock(s, r)
        for part in self._parts(word):
            found += self._off(part, clock, part.name not in still)
        if found:
            self._stop(found)

    def heeded(self, s: int, r: int, word: Mapping[str, Tensor]) -> None:
        """That word was trained on: the next one is held against it."""
        clock = torch.tensor(self._clock(s, r))
        kept = self._known() | {p.name: word[p.name].clone() for p in self._parts(word)}
        self._last = kept | {f"clock/{p.name}": clock for p in self._parts(word)}
        if self._last:
            save_tensors(self.home / TOLD, self._last)

    def continues(self, s: int, r: int, place: int, word: Mapping[str, Tensor]) -> bool:
        """Whether this word may be scored: it is the agreed start, with which `told` has compared it, or it moved no
        further than a round can from the one that this site last trained on."""
        if not self._clock(s, r):
            return True
        known, still = self._known(), self._still(self.agreed.stages[s].turns[place].down)
        for name, start, told in self._parts(word):
            if name in still:
                continue
            last = known.get(name, known.get(name.removeprefix(f"{LAST}/")))
            if last is None or last.numel() != told.numel():
                return False
            for base, moved in zip(_units(start[None]), _units(told - last.reshape_as(told)), strict=True):
                usual = float(base.norm(dim=-1).max()) if base.shape[-1] > 1 else self._largest
                if not float(moved.norm(dim=-1).max()) <= STEP * max(usual, 1e-6):
                    return False
        return True

    def leaves(self, report: Mapping[str, Tensor], rows: Tensor) -> None:
        """What would leave, [...] by name, and this site's training rows, [row, cell]; raises and stops the run where
        it would tell too many of them."""
        if rows.dim() != 2 or rows.shape[1] < LONG:
            return
        place = self.home / ROWS
        known = set[int](json.loads(place.read_text()) if place.exists() else [])
        now = rows_told(report, rows)
        most = FREE_ROWS + len(rows) // ROWS_EACH
        if len(now) > TOLD_ROWS or len(known | now) > most:
            what = (
                f"{several(len(now), 'row')} of this site would leave almost as they are, after {len(known - now)} "
                f"others; expected at most {TOLD_ROWS} in a report and {most} in a run. Weights made for it do "
                "that, and columns without a common scale."
            )
            self._stop([Problem("report", what, HINT)])
        if now - known:
            write_atomically(place, json.dumps(sorted(known | now)), private=True)

    @staticmethod
    def _still(rehearsed: Any) -> set[str]:
        """What is no model: it starts at zero."""
        return {name for name, tensor in tensors(rehearsed) if not bool(tensor.any())}

    def _parts(self, word: Mapping[str, Tensor]) -> Iterator[Part]:
        for name, tensor in word.items():
            start = self.agreed.task.start.get(name.split("/")[-1])
            if (
                start is None
                or not tensor.is_floating_point()
                or tensor.shape[tensor.dim() - start.dim() :] != start.shape
            ):
                continue
            yield Part(name, start, tensor.reshape(-1, *start.shape))

    def _not_first(self, rehearsed: Any, word: Mapping[str, Tensor]) -> list[Problem]:
        first = {name: tensor for name, tensor in tensors(rehearsed) if tensor.is_floating_point()}
        for i in range(max((len(t) for t in first.values()), default=0)):  # in whose place it is, where words tell that
            if all(_same(word[name], tensor[i]) for name, tensor in first.items()):
                return []
        if not first:
            return []
        what = "expected the start that every site works out from the study; other weights came."
        return [Problem("the first word", what, HINT)]

    def _off(self, part: Part, clock: int, model: bool) -> list[Problem]:
        out, (name, start, told) = [], part
        if name.split("/")[-1] not in self._reported and not _same(told, start.expand_as(told)):
            what = "no report ever changes it, and it is not as it was at the start."
            out.append(Problem(name, what, HINT))
        last = self._known().get(name)
        since = clock - int(self._known()[f"clock/{name}"]) if last is not None else clock + 1
        before = last.reshape_as(told) if last is not None and last.shape.numel() == told.numel() else start
        for one, base, other in zip(_units(told), _units(start[None]), _units(told - before), strict=True):
            usual = float(base.norm(dim=-1).max()) if base.shape[-1] > 1 else self._largest
            usual = max(usual, 1e-6)
            long, far = (float(v.norm(dim=-1).max()) / usual for v in (one, other))
            if not long <= CAP:
                what = f"expected no unit longer than {CAP:.0f} times the start's longest; one came {long:.3g} times."
                out.append(Problem(name, what, HINT))
            if model and not far <= STEP * max(1, abs(since)):
                what = (
                    f"expected no unit to move further than {STEP * max(1, abs(since)):.0f} times its length in "
                    f"{several(max(1, abs(since)), 'round')}; one moved {far:.3g} times."
                )
                out.append(Problem(name, what, HINT))
            if model and base.shape[-1] >= LONG:
                pairs, usual_pairs = max(map(_copies, one)), _copies(base[0])
                if pairs > usual_pairs + max(COPIES, base.shape[-2] // 20):
                    what = f"{pairs} pairs of units point the same way; at the start there were {usual_pairs}."
                    out.append(Problem(name, what, HINT))
        return out

    @cached_property
    def _largest(self) -> float:
        """Of all numbers of the start."""
        return max(float(v.abs().max()) for v in self.agreed.task.start.values())

    def _known(self) -> dict[str, Tensor]:
        if self._last is None:
            place = self.home / TOLD
            self._last = load_file(place) if place.exists() else {}
        return self._last

    def _clock(self, s: int, r: int) -> int:
        """Rounds before this one in the whole run."""
        return sum(t.stage.rounds for t in self.agreed.stages[:s]) + r

    def _stop(self, found: list[Problem]) -> None:
        said = [[p.where, p.what, p.hint] for p in found]
        write_atomically(self.home / STOPPED, json.dumps(said))
        raise _refusal(said)


HINT = (
    "Nothing was sent. Call the coordinator; the site answers no more in this run. A new run begins when somebody here "
    "joins with --another-run."
)


def rows_told(report: Mapping[str, Tensor], rows: Tensor) -> set[int]:
    """Which of these rows, [row, cell], stand in a report almost as they are: in a direction of a layer that sees
    cells. Cells that a direction leaves out (dropout) are left out of the row too."""
    found, x = set[int](), rows.float()
    for tensor in report.values():
        for axis in [i for i, n in enumerate(tensor.shape) if n == x.shape[1] and tensor.is_floating_point()]:
            v = tensor.movedim(axis, -1).reshape(-1, x.shape[1]).float()
            seen = v.abs() > 1e-7 * v.abs().amax(1, keepdim=True)
            v, seen = v[seen.sum(1) >= LONG], seen[seen.sum(1) >= LONG].float()
            size = v.norm(dim=1, keepdim=True) * (seen @ (x**2).T).sqrt()  # [direction, row]
            alike = (v @ x.T).abs() / size.clamp(min=1e-30)
            told = alike > ALIKE
            told &= told.sum(1, keepdim=True) <= TOLD_ROWS  # a direction that many rows have tells of none
            found |= set(told.any(0).nonzero()[:, 0].tolist())
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one - other).abs() <= SAME * (other.abs().max() + 1e-12)).all())


def _units(tensor: Tensor) -> list[Tensor]:
    """[copy, unit, number]: of a layer along its first axis and along its last, since networks differ in which of them
    are units; of offsets each number."""
    if tensor.dim() <= 2:
        return [tensor.reshape(len(tensor), -1, 1)]
    n = len(tensor)
    return [tensor.reshape(n, tensor.shape[1], -1), tensor.reshape(n, -1, tensor.shape[-1]).transpose(1, 2)]


def _copies(units: Tensor) -> int:
    """Pairs of these that point the same way, or opposite ways."""
    some = units[:: -(-len(units) // MOST_UNITS)]
    some = torch.nn.functional.normalize(some.double(), dim=1)
    return int(((some @ some.T).abs().triu(1) > ALIKE).sum())


def _refusal(said: list[list[str]]) -> VitrailError:
    return VitrailError(TITLE, [Problem(*words) for words in said])

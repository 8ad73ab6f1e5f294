"""The bounds within which a site accepts weights. Both ends check them with this code: a site the word that came, and
the coordinator the word that it would send next, so that one wrong report does not make every site stop.

Checked, of every tensor of a word that is named like a parameter of the network and has its shape:

    frozen        what no report ever changes is as it was at the start
    size          no unit is CAP times as long as the start's longest; no offset CAP times its largest number
    step          no unit moves further in a round than STEP times that length; of the output layer, HEAD_STEP
    copies        no more units point the same way than did at the start

The bounds were set on honest training; benchmarks/attacks/crafted.py counts false alarms and what still gets through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import Problem
from vitrail.core.tensors import Params, flatten
from vitrail.core.text import several
from vitrail.deploy.protocol.agreement import LAST, Agreement

CAP = 10.0  # honest on heart: 2.6
STEP = 2.0  # a round; honest on heart: 1.2, by RIPFL
HEAD_STEP = 8.0  # the first round brings offsets to the event rate; honest with 13,700 rows a site: 5.2, linear 6.7
ALIKE, COPIES = 0.99, 4  # the cosine from which two units point the same way, and how many such pairs are no sign
LONG = 8  # numbers of a unit, or cells of a row, below which two point the same way by chance
MOST_UNITS = 1024  # of a layer that are compared with each other
SAME = 1e-5  # of the largest number: what another processor may make of the same start
CLOCK = "clock"  # CLOCK/NAME: the round in which the tensor NAME was remembered
HINT = (
    "Nothing was sent. Call the coordinator: this site no longer answers in this run. To take part "
    "in a new run, join with --another-run."
)


def step_of(name: str) -> float:
    """How far a tensor of this name may move in a round, in lengths of the start's units."""
    return HEAD_STEP if name.split("/")[-1].startswith("head.") else STEP


class ParameterCopies(NamedTuple):
    """A tensor of a word, as copies of one parameter: [copy, ...]."""

    name: str
    start: Tensor
    value: Tensor


class WeightBounds:
    """Those of one study."""

    def __init__(self, agreed: Agreement, start: Params | None = None) -> None:
        """`start`: of models that sites train alone, where that is not the run's."""
        self.agreed, self.start = agreed, agreed.task.start if start is None else start
        self.reported = {name.split("/")[-1] for t in agreed.stages for u in t.turns for name, _ in flatten(u.up)}

    def problems(
        self,
        memory: Mapping[str, Tensor],
        s: int,
        r: int,
        place: int,
        word: Mapping[str, Tensor],
        share: float = 1.0,
    ) -> list[Problem]:
        """What is wrong with the word of that exchange of that round, [...] by name, after the words in `memory`; `r`
        may be the stage's number of rounds: the word that ends it. `share`: of the bounds, for a safety margin."""
        no_model, out, clock = self._no_models(s, place), [], self.clock(s, r)
        for part in self.parts(word):
            if part.name.split("/")[-1] not in self.reported and not same(part.value, part.start.expand_as(part.value)):
                what = "no report can change this tensor, but it differs from its start."
                out.append(Problem(part.name, what, HINT))
            out += self._moved(part, memory, clock, part.name not in no_model, share)
        return out

    def travelling_problems(self, model: Mapping[str, Tensor], share: float = 1.0) -> list[Problem]:
        """What is wrong with a model that a site trained alone, all rounds of the run from the start."""
        last, out = self.agreed.study.training.rounds - 1, list[Problem]()
        for part in self.parts(model):
            out += self._moved(part, {}, last, True, share)
        return [p._replace(hint="It was not used.") for p in out]

    def _no_models(self, s: int, place: int) -> set[str]:
        """Tensors of that word that have a parameter's shape and are no model: they start at zero, or are steps."""
        turn = self.agreed.stages[s].turns[place]
        steps = turn.exchange.wire.step_fields
        return {name for name, v in flatten(turn.down) if not bool(v.any()) or name.split("/")[0] in steps}

    def continues(self, memory: Mapping[str, Tensor], s: int, r: int, place: int, word: Mapping[str, Tensor]) -> bool:
        """Whether a word is that of the first round, or moved no further than a round can, however many passed, from
        the one in `memory`; there is none of a site that never trained."""
        if not self.clock(s, r):
            return True
        no_model = self._no_models(s, place)
        for name, start, value in (part for part in self.parts(word) if part.name not in no_model):
            last = memory.get(name, memory.get(name.removeprefix(f"{LAST}/")))
            if last is None or last.numel() != value.numel():
                return False
            for base, change in zip(_units(start[None]), _units(value - last.reshape_as(value)), strict=True):
                usual = float(base.norm(dim=-1).max()) if base.shape[-1] > 1 else self._largest
                if not float(change.norm(dim=-1).max()) <= step_of(name) * max(usual, 1e-6):
                    return False
        return True

    def remembered(self, s: int, r: int, word: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What of a word the next one is held against."""
        clock, out = self.clock(s, r), dict[str, Tensor]()
        for part in self.parts(word):
            out |= entry(part.name, word[part.name].clone(), clock)
        return out

    def clock(self, s: int, r: int) -> int:
        """Rounds before this one in the whole run."""
        return sum(t.stage.rounds for t in self.agreed.stages[:s]) + r

    @cached_property
    def _largest(self) -> float:
        """Of all numbers of the start."""
        return max(float(v.abs().max()) for v in self.start.values())

    def parts(self, word: Mapping[str, Tensor]) -> Iterator[ParameterCopies]:
        for name, tensor in word.items():
            start = self.start.get(name.split("/")[-1])
            if (
                start is None
                or not tensor.is_floating_point()
                or tensor.shape[tensor.dim() - start.dim() :] != start.shape
            ):
                continue
            yield ParameterCopies(name, start, tensor.reshape(-1, *start.shape))

    def _moved(
        self, part: ParameterCopies, memory: Mapping[str, Tensor], clock: int, model: bool, share: float
    ) -> list[Problem]:
        out, (name, start, value) = [], part
        last = memory.get(name)
        since = clock - int(memory[f"{CLOCK}/{name}"]) if last is not None else clock + 1
        rounds = max(1, abs(since))
        before = last.reshape_as(value) if last is not None and last.shape.numel() == value.numel() else start
        cap, step = share * CAP, share * step_of(name) * rounds
        for unit, base, change in zip(_units(value), _units(start[None]), _units(value - before), strict=True):
            usual = float(base.norm(dim=-1).max()) if base.shape[-1] > 1 else self._largest
            usual = max(usual, 1e-6)
            size, far = (float(v.norm(dim=-1).max()) / usual for v in (unit, change))
            if not size <= cap:
                what = (
                    f"expected no unit longer than {cap:g} times the longest unit of the start, got one of "
                    f"{size:.3g} times."
                )
                out.append(Problem(name, what, HINT))
            if model and not far <= step:
                what = (
                    f"expected no unit to move by more than {step:g} times its length "
                    f"in {several(rounds, 'round')}; one moved by {far:.3g} times."
                )
                out.append(Problem(name, what, HINT))
            if model and base.shape[-1] >= LONG:
                pairs, usual_pairs = max(map(_copies, unit)), _copies(base[0])
                if pairs > usual_pairs + int(share * max(COPIES, base.shape[-2] // 20)):
                    what = f"{pairs} pairs of units point the same way; at the start there were {usual_pairs}."
                    out.append(Problem(name, what, HINT))
        return out


def entry(name: str, value: Tensor, clock: int) -> dict[str, Tensor]:
    """One tensor in the memory of words, sent in that round of the run."""
    return {name: value, f"{CLOCK}/{name}": torch.tensor(clock)}


def same(one: Tensor, other: Tensor) -> bool:
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

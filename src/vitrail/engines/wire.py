"""What may cross the wire, checked at every message; and the ledger of what did.

The contract is traced before the first round by running one site (all, where messages grow with them) on rows of
zeros: names, shapes and types of every message. A message that differs is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Method, Pace, Roster, Rows, Stage
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import each, tensors

Direction = Literal["to site", "from site"]


class Line(NamedTuple):
    """One tensor of one message."""

    stage: str
    direction: Direction
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    rounds: int
    seen: str  # who sees a report: "each" the coordinator sees each, "sum" it needs only the total
    per_row: bool = False  # shape and bytes are of one row, and every training row is sent


Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]


class Contract(NamedTuple):
    """The messages of one stage, by tensor name."""

    stage: str
    down: Spec
    up: Spec
    sees: str
    rounds: int

    def lines(self) -> list[Line]:
        out = []
        sides: tuple[tuple[Direction, Spec], ...] = (("to site", self.down), ("from site", self.up))
        for direction, spec in sides:
            for name, (shape, dtype) in spec.items():
                size = torch.empty(0, dtype=dtype).element_size()
                count = int(torch.Size(shape).numel()) * size
                # after the last round every site is told the final model once more
                times = self.rounds + (direction == "to site")
                kind = str(dtype).removeprefix("torch.")
                out.append(Line(self.stage, direction, name, shape, kind, count, times, self.sees))
        return out

    def size(self, direction: Direction) -> int:
        return sum(line.bytes for line in self.lines() if line.direction == direction)


def spec_of(message: Any) -> Spec:
    """Names, shapes without the site axis, and types of a stacked message."""
    return {name: (tuple(t.shape[1:]), t.dtype) for name, t in tensors(message)}


class Rehearsal(NamedTuple):
    """One stage as it would go, for names, shapes and types; stacked over sites."""

    stage: Stage
    state: Any  # before it
    down: Any
    up: Any
    settled: Any  # the state after it


def rehearse(task: Task, method: Method[Any, Any, Any, Any, Any], rounds: int, sites: int = 1) -> Iterator[Rehearsal]:
    """One round of every stage on rows of zeros; how many `sites` matters only where messages grow with them."""
    some, n = next(iter(task.start.values())), sites if method.grows else 1
    roster = Roster(("site",) * n, torch.ones(n, dtype=torch.bool, device=some.device))
    state, coord = method.state(task, n), method.coord(task, n)
    x, y, w = (some.new_zeros(n, 1, width) for width in (task.net.widths[0], task.net.outputs, 1))
    batch, rows = Batch(x, y, w), Rows(some.new_ones(n), Batch(x, y, w) if method.aside() else None)
    for stage in method.plan(rounds):
        ex, before = stage.exchange, state
        down = ex.send(task, coord, roster)
        work = ex.ready(task, state, down, rows)
        if ex.trains:
            ex.step(task, work, batch, Pace(0.1, 0.0))
        state, up = ex.report(task, state, work, down, rows, Pace(0.1, 0.0))
        coord, _ = ex.merge(task, coord, total(up) if ex.sees == "sum" else up, roster)
        state = ex.settle(task, state, ex.send(task, coord, roster))
        yield Rehearsal(stage, before, down, up, state)


def settled_shape(task: Task, method: Method[Any, Any, Any, Any, Any]) -> Any:
    """The state with which a site ends, as far as names and shapes go."""
    return list(rehearse(task, method, 1))[-1].settled


def contract_of(t: Rehearsal) -> Contract:
    return Contract(t.stage.name, spec_of(t.down), spec_of(t.up), t.stage.exchange.sees, t.stage.rounds)


def trace(task: Task, method: Method[Any, Any, Any, Any, Any], rounds: int, sites: int = 1) -> list[Contract]:
    """The contract of every stage."""
    return [contract_of(t) for t in rehearse(task, method, rounds, sites)]


def total(up: Any) -> Any:
    return each(lambda t: t.sum(0), up)


def check(message: Any, declared: Spec, stage: str, direction: Direction) -> None:
    """Refuse whatever the contract does not declare."""
    if (got := spec_of(message)) == declared:
        return
    problems = []
    for name in sorted(got.keys() | declared.keys()):
        here = f"stage {stage}, message {direction}, tensor {name}"
        if name not in declared:
            problems.append(Problem(here, "not declared in the contract.", "It was not sent."))
        elif name not in got:
            problems.append(Problem(here, "declared in the contract but absent.", "Nothing was sent."))
        elif got[name] != declared[name]:
            problems.append(Problem(here, f"declared as {declared[name]}, came as {got[name]}.", "It was not sent."))
    raise VitrailError("a message breaks the wire contract", problems)


class Ledger:
    """Messages and bytes by site, stage and direction."""

    def __init__(self, names: Sequence[str], entries: dict[str, list[int]] | None = None) -> None:
        self.names = tuple(names)
        # "stage|direction" -> message count per site, and the size of one message
        self.counts: dict[str, list[int]] = entries or {}
        self.sizes: dict[str, int] = {}

    def declare(self, contract: Contract) -> None:
        sides: tuple[Direction, ...] = ("to site", "from site")
        for direction in sides:
            if contract.size(direction):
                place = f"{contract.stage}|{direction}"
                self.sizes[place] = contract.size(direction)
                self.counts.setdefault(place, [0] * len(self.names))

    def enter(self, stage: str, direction: Direction, present: Tensor | None) -> None:
        counts = self.counts.get(f"{stage}|{direction}")
        if counts is not None:
            for i in range(len(counts)) if present is None else present.nonzero()[:, 0].tolist():
                counts[i] += 1

    def rows(self) -> list[dict[str, Any]]:
        """Tidy: site, stage, direction, messages, bytes."""
        out = []
        for place, counts in self.counts.items():
            stage, direction = place.split("|")
            for site, n in zip(self.names, counts, strict=True):
                out.append(
                    {
                        "site": site,
                        "stage": stage,
                        "direction": direction,
                        "messages": n,
                        "bytes": n * self.sizes[place],
                    }
                )
        return out

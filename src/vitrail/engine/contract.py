"""What may cross the wire, checked at every message; and the ledger of what did.

The contract is traced before the first round by running one site (all, where messages grow with them) on rows of
zeros: names, shapes and types of every message. A message that differs is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.exchange import AnyExchange, Method, Roster, Rows, SiteContext, Stage
from vitrail.core.facts import Facts
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import flatten
from vitrail.engine.aggregation import collect_all, merge
from vitrail.privacy.guards import Guards
from vitrail.privacy.report_vectors import is_change
from vitrail.privacy.secure_sum.fixed_point import ZERO, ZEROS

Direction = Literal["to site", "from site"]
MASKED = ("masked", "groups")  # of what only totals can be read, whose reports leave under masks


class WireEntry(NamedTuple):
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
    words: str = ""  # what it is, in a sentence
    asks: bool = False  # whether a site may refuse it


Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]


class Contract(NamedTuple):
    """The messages of one exchange of a stage, by tensor name."""

    stage: str  # where a stage holds several exchanges, with this one's name
    down: Spec
    up: Spec
    aggregation: str  # of reports: "sum" where a total will do, or "each"
    rounds: int  # in which it is held
    ends: bool = True  # whether the stage ends with its word: every site is told once more
    consent: str = ""  # what a site agrees to show; it may refuse
    words: dict[str, str] = {}  # noqa: RUF012  sentence for each tensor, "to site/NAME" or "from site/NAME"
    crosses: Spec | None = None  # what leaves under guards in place of `up`
    read: str = ""  # what can be read of it under guards: "masked", "groups", "two servers"; else as `aggregation`

    def lines(self) -> list[WireEntry]:
        out = []
        leaves = self.up if self.crosses is None else self.crosses
        sides: tuple[tuple[Direction, Spec], ...] = (("to site", self.down), ("from site", leaves))
        for direction, spec in sides:
            seen = (self.read if direction == "from site" else "") or self.aggregation
            for name, (shape, dtype) in spec.items():
                size = torch.empty(0, dtype=dtype).element_size()
                count = int(torch.Size(shape).numel()) * size
                times = self.rounds + (direction == "to site" and self.ends)
                kind = str(dtype).removeprefix("torch.")
                words = self.words.get(f"{direction}/{name}", "")
                asks = bool(self.consent)
                out.append(
                    WireEntry(self.stage, direction, name, shape, kind, count, times, seen, words=words, asks=asks)
                )
        return out

    def size(self, direction: Direction) -> int:
        return sum(line.bytes for line in self.lines() if line.direction == direction)


def masked(contract: Contract, ex: AnyExchange) -> Contract:
    """The same with what leaves under masks: numbers mod 2^64; beside what may be no number, whether it is; zeros."""
    crosses: Spec = {k: (shape, torch.int64) for k, (shape, _) in contract.up.items()}
    words = {}
    for name in [k for k in crosses if k.split("/")[0] in ex.wire.may_be_nan]:
        crosses[f"{name}?"] = crosses[name]
        words[f"from site/{name}?"] = "a 1 for each of these numbers that is not a number (NaN)"
    if not crosses:  # nothing is reported
        return contract
    crosses[ZERO] = (ZEROS,), torch.int64
    words[f"from site/{ZERO}"] = "zeros, which show whether the masks cancel"
    return contract._replace(crosses=crosses, words=contract.words | words, read="masked")


def guarded(contract: Contract, ex: AnyExchange, guards: Guards) -> Contract:
    """The same with what crosses, and who can read it, where guards stand between a report and the wire."""
    if guards.masks(ex):
        return masked(contract, ex)
    read = guards.sum if guards.needs_each(ex) and guards.sum != "one" else ""
    if read == "groups":  # each group's reports leave under masks of their own
        return masked(contract, ex)._replace(read=read)
    if read == "two servers":  # one half of each change, mod 2^64; the other leaves sealed, in words
        kinds = {k: torch.int64 if is_change(ex, k) else dtype for k, (_, dtype) in contract.up.items()}
        return contract._replace(crosses={k: (contract.up[k][0], kinds[k]) for k in kinds}, read=read)
    up = guards.compressed_spec(ex, contract.up)
    if up == contract.up:
        return contract._replace(read=read)
    first, words = "from site/", dict(contract.words)
    for name in (k for k in up if k not in contract.up):
        sentence = contract.words.get(first + name.rpartition("/")[0], "")
        words[first + name] = f"{sentence}; compressed" if sentence else ""
    return contract._replace(crosses=up, words=words, read=read)


def spec_of(message: Any) -> Spec:
    """Names, shapes without the site axis, and types of a stacked message."""
    return {name: (tuple(t.shape[1:]), t.dtype) for name, t in flatten(message)}


def sentences(message: Any) -> dict[str, str]:
    """What each tensor of a message or state is, as the types of its fields say (Annotated); "" where they do not."""
    hints = get_type_hints(type(message), include_extras=True) if hasattr(message, "_fields") else {}
    out = {}
    for field, value in message._asdict().items() if hints else ():
        sentence = next((m for m in getattr(hints[field], "__metadata__", ()) if isinstance(m, str)), "")
        inner = sentences(value) if hasattr(value, "_fields") else {}
        for name, _ in flatten(value, field):
            out[name] = inner.get(name.removeprefix(f"{field}/"), "") or sentence
    return out


class Turn(NamedTuple):
    """One exchange as it would go, for names, shapes and types; stacked over sites."""

    exchange: AnyExchange
    down: Any
    up: Any
    facts: Facts
    gradients: tuple[int, int] = (0, 0)  # that a site works out: of models for one batch, and beside its batches


class Rehearsal(NamedTuple):
    """One stage as it would go."""

    stage: Stage
    state: Any  # before it
    turns: list[Turn]
    settled: Any  # the state after it
    last: Any  # the word that ends it


def rehearse(
    task: Task, method: Method[Any, Any, Any, Any, Any], rounds: int, sites: int = 1, whole: bool = False
) -> Iterator[Rehearsal]:
    """One round of every stage on rows of zeros; how many `sites` matters only where messages grow with them, and one
    is taken elsewhere, unless `whole`."""
    task, gradients = _counted(task)
    some, n = task.like, sites if method.wire.per_site_messages or whole else 1
    present = torch.ones(n, dtype=torch.bool, device=some.device)
    roster = Roster(("site",) * n, present, torch.arange(n, device=some.device), torch.tensor(1))
    state, coord = method.state(task, n), method.coord(task, n)
    x = some.new_zeros(n, 1, *task.net.shape)
    place = torch.zeros(n, 1, dtype=torch.int64, device=some.device)
    batch = Batch(x, some.new_zeros(n, 1, task.net.outputs), some.new_zeros(n, 1, 1), at=place)
    rows = Rows(some.new_ones(n), batch if method.needs.validation_share else None, lambda: iter((batch,)), batch)
    site = SiteContext(task, rows, task.rule)
    for stage in method.plan(rounds):
        before, turns = state, []
        for ex in stage.exchanges:
            down, begun = ex.send(task, coord, roster), len(gradients)
            work = ex.begin(site, state, down)
            first = len(gradients)
            if ex.trains:
                ex.step(site, work, batch)
            stepped = len(gradients) - first
            state, up = ex.report(site, state, work, down)
            beside = len(gradients) - begun - stepped
            coord, facts = merge(ex, task, coord, collect_all(ex, up, present), roster)
            turns.append(Turn(ex, down, up, facts, (stepped, beside)))
        last = stage.last.send(task, coord, roster)
        state = stage.last.settle(task, state, last)
        yield Rehearsal(stage, before, turns, state, last)


def _counted(task: Task) -> tuple[Task, list[int]]:
    """The same task, and a list that grows with each gradient that goes back through its network."""
    net, gradients = copy.copy(task.net), list[int]()

    def backward(*given: Any, **named: Any) -> None:
        gradients.append(1)
        task.net.backward(*given, **named)

    object.__setattr__(net, "backward", backward)  # networks are frozen
    return replace(task, net=net), gradients


def contracts_of(t: Rehearsal) -> list[Contract]:
    """Of every exchange of a stage."""
    out, stage = [], t.stage
    for i, (ex, down, up, *_) in enumerate(t.turns):
        name = stage.name if len(t.turns) == 1 else f"{stage.name}, {ex.name or i + 1}"
        words = {f"to site/{k}": v for k, v in sentences(down).items()}
        words |= {f"from site/{k}": ex.consent or v for k, v in sentences(up).items()}
        ends = ex is stage.last
        fields = (name, spec_of(down), spec_of(up), ex.wire.aggregation, stage.times(i), ends, ex.consent, words)
        out.append(Contract(*fields))
    return out


def trace(task: Task, method: Method[Any, Any, Any, Any, Any], rounds: int, sites: int = 1) -> list[list[Contract]]:
    """The contracts of every stage."""
    return [contracts_of(t) for t in rehearse(task, method, rounds, sites)]


def check(message: Any, declared: Spec, stage: str, direction: Direction) -> None:
    """Refuse whatever the contract does not declare."""
    if (got := spec_of(message)) == declared:
        return
    raise refusal(got, declared, f"stage {stage}, message {direction}")


def refusal(got: Spec, declared: Spec, where: str) -> VitrailError:
    """Every tensor in which a message differs from what was declared."""
    problems = []
    for name in sorted(got.keys() | declared.keys()):
        here = f"{where}, tensor {name}"
        if name not in declared:
            problems.append(Problem(here, "not declared in the contract.", "It was not sent."))
        elif name not in got:
            problems.append(Problem(here, "declared in the contract but absent.", "Nothing was sent."))
        elif got[name] != declared[name]:
            problems.append(Problem(here, f"declared as {declared[name]}, came as {got[name]}.", "It was not sent."))
    return VitrailError("a message breaks the wire contract", problems)


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

    def enter(self, contract: Contract, direction: Direction, present: Tensor | None) -> None:
        counts = self.counts.get(f"{contract.stage}|{direction}")
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

"""What a law is tried on: a method on a small federation with one network and one optimiser, and all that is heard."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange, Roster
from vitrail.core.facts import SITES, Fact, Facts, in_order
from vitrail.core.task import Task
from vitrail.core.tensors import flatten, map_tensors
from vitrail.engine.batches import Sites
from vitrail.engine.contract import Direction
from vitrail.engine.local import Engine
from vitrail.engine.rounds import AnyMethod, Snapshot, Training
from vitrail.nets import MLP, prototypes
from vitrail.privacy.guards import AT_REST, Guards
from vitrail.testing.federation import LOSSES, PICTURE, Row, in_this_order, make_rows, pooled, small_cnn, task_of

Absent = Callable[[int, int, int], Sequence[bool]]  # (stage, round, place of the exchange) -> who does not answer
NETS = ("linear", "MLP", "CNN")
OTHERS = ("prototypes",)  # for methods that are about one of them
OPTIMISERS: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")


class TrialMessage(NamedTuple):
    stage: int
    place: int  # of the exchange within the stage
    way: Direction
    message: Any  # [site, ...]


class Merge(NamedTuple):
    """What the coordinator was given, and what it made of it."""

    stage: int
    place: int
    coord: Any
    up: Any
    roster: Roster
    after: Any
    facts: Facts


@dataclass(frozen=True)
class TrialRun:
    """A run to its end, and everything that was said in it in order."""

    engine: Engine
    events: tuple[TrialMessage | Merge | Snapshot, ...]

    @property
    def moments(self) -> list[Snapshot]:
        return [event for event in self.events if isinstance(event, Snapshot)]

    @property
    def messages(self) -> list[TrialMessage]:
        return [event for event in self.events if isinstance(event, TrialMessage)]

    @property
    def merges(self) -> list[Merge]:
        return [event for event in self.events if isinstance(event, Merge)]

    @cached_property
    def results(self) -> dict[str, Tensor]:
        """Everything that settled sites hold and every fact of every round, whatever the order of the sites."""
        names, out = self.engine.names, dict[str, Tensor]()
        for k, v in flatten(self.engine.settled(self.moments[-1])):
            out |= {f"{site}: {k}": v[i].clone() for i, site in enumerate(names)}
        order = torch.tensor(sorted(range(len(names)), key=names.__getitem__))
        for m in self.moments:
            for name, fact in m.facts.items():
                there = in_order(fact, order) if axes_fit(fact, len(names)) else fact
                out[f"fact {name} of {when(m.stage, m.round - 1)}"] = there.value
        return out


def when(stage: int, round_: int) -> str:
    return f"stage {stage + 1}, round {round_ + 1}"


def axes_fit(fact: Fact, sites: int) -> bool:
    sizes = zip(fact.axes, fact.value.shape, strict=False)
    return len(fact.axes) == fact.value.dim() and all(n == sites for axis, n in sizes if axis in SITES)


@dataclass(frozen=True)
class Trial:
    method: AnyMethod
    net: str = "MLP"
    optimiser: Literal["sgd", "adam"] = "sgd"
    seed: int = field(default=5, compare=False)
    device: str = "cpu"

    def __str__(self) -> str:
        kind = type(self.method)
        given = {f.name: getattr(self.method, f.name) for f in fields(kind)}
        usual = {f.name: f.default for f in fields(kind)}
        settings = ", ".join(f"{k}={v!r}" for k, v in given.items() if v != usual[k])
        return f"{kind.__name__}({settings}) with the {self.net} and {self.optimiser}"

    @cached_property
    def task(self) -> Task:
        task = self._task()
        return replace(task, start={k: v.to(self.device) for k, v in task.start.items()})

    def _task(self) -> Task:
        ends = self.method.needs.adapters
        if self.net == "CNN":
            return task_of(small_cnn(ends), LOSSES["classes"])
        if self.net == "prototypes":
            return task_of(prototypes(PICTURE, 3, width=2, per_class=2, latent=4).framed(ends), LOSSES["classes"])
        if self.net == "linear":
            return task_of(MLP(6, 1, ()).framed(ends), LOSSES["number"])
        # with both ends, whether or not the method wants them: another may have asked for them
        return task_of(MLP(6, 3, (9, 7), 0.3, affine_in=True, affine_out="each"), LOSSES["classes"])

    @cached_property
    def training(self) -> Training:
        batch, lr = {"linear": (8, 0.004), "MLP": (8, 0.02)}.get(self.net, (4, 0.02))
        memory: Literal["fresh", "own"] = "own" if self.optimiser == "adam" else "fresh"
        return Training(3, 1, batch, lr, 0.5, optimiser=self.optimiser, memory=memory)

    @cached_property
    def rows(self) -> list[Row]:
        """Two sites of each size but the last, so that they may change places."""
        if self.pictures:
            return make_rows("classes", (9, 9, 3), PICTURE)
        return make_rows("number" if self.net == "linear" else "classes", (20, 20, 10, 10, 5))

    @property
    def pictures(self) -> bool:
        return self.net not in ("linear", "MLP")

    @property
    def clashes(self) -> tuple[str, ...]:
        return self.method.incompatibilities(replace(self.task, rule=self.training.rule(self.task.net, self.method)))

    @property
    def sites(self) -> int:
        return 1 if self.method.catalogue.pools_rows else len(self.rows)

    @cached_property
    def whole(self) -> TrialRun:
        """Nobody absent, all sites at once."""
        return self.run()

    @cached_property
    def ragged(self) -> TrialRun:
        """The same with sites that come and go."""
        return self.run(absent=come_and_go(self.sites))

    def engine(
        self,
        rows: Sequence[Row] | None = None,
        absent: Absent | None = None,
        task: Task | None = None,
        training: Training | None = None,
        method: AnyMethod | None = None,
        seed: int | None = None,
        chunk: int | None = None,
        guards: Guards = AT_REST,
    ) -> _Watched:
        method = method or self.method
        sites = pooled(method, in_this_order(rows or self.rows)).to(self.device)
        absent = None if method.catalogue.pools_rows else absent  # all rows are in one place: nobody can be absent
        given = task or self.task, method, sites, training or self.training, self.seed if seed is None else seed
        held = None if method.catalogue.pools_rows else self.held(rows or self.rows).to(self.device)
        return _Watched(*given, chunk=chunk or len(sites.names), who=absent, held=held, guards=guards)

    def held(self, rows: Sequence[Row]) -> Sites:
        """Hold-out rows: each site's own, from the other end."""
        return in_this_order([(name, -x, y.flip(0), w) for name, x, y, w in rows])

    def run(self, rows: Sequence[Row] | None = None, moment: Snapshot | None = None, **engine: Any) -> TrialRun:
        e = self.engine(rows, **engine)
        for m in e.run(moment):
            e.overheard.append(kept(m))
        return TrialRun(e, tuple(e.overheard))


def come_and_go(sites: int) -> Absent:
    """Somebody is nearly always away, and everybody is there at times."""
    return lambda s, r, place: [(i * 7 + r * 3 + s) % 4 == 0 for i in range(sites)]


def kept(moment: Snapshot) -> Snapshot:
    """What the next round does not overwrite."""
    return moment._replace(coord=map_tensors(torch.clone, moment.coord), state=map_tensors(torch.clone, moment.state))


class _Watched(Engine):
    """An engine that keeps what is said, and in which a site can be absent from one exchange only."""

    def __init__(self, *given: Any, chunk: int, who: Absent | None, held: Sites | None, guards: Guards) -> None:
        super().__init__(*given, chunk=chunk, held=held, guards=guards)
        self.overheard: list[TrialMessage | Merge | Snapshot] = []
        self.place = 0
        if who is not None:
            self.absent = lambda s, r: torch.tensor(who(s, r, self.place))
        self.stages = tuple(
            stage._replace(exchanges=tuple(self._listened_to(ex, s, place) for place, ex in enumerate(stage.exchanges)))
            for s, stage in enumerate(self.stages)
        )

    def ask(self, s: int, r: int, place: int, *given: Any) -> tuple[Any, Facts, Tensor]:
        self.place = place
        return super().ask(s, r, place, *given)

    def _listened_to(self, exchange: AnyExchange, s: int, place: int) -> AnyExchange:
        """The same exchange, of whose messages a copy is kept."""

        def send(*given: Any) -> Any:
            down = exchange.send(*given)
            self.overheard.append(TrialMessage(s, place, "to site", map_tensors(torch.clone, down)))
            return down

        def report(*given: Any) -> tuple[Any, Any]:
            state, up = exchange.report(*given)
            self.overheard.append(TrialMessage(s, place, "from site", map_tensors(torch.clone, up)))
            return state, up

        def merge(task: Task, coord: Any, up: Any, roster: Roster) -> tuple[Any, Facts]:
            before = map_tensors(torch.clone, coord)
            after, facts = exchange.merge(task, coord, up, roster)
            self.overheard.append(Merge(s, place, before, up, roster, map_tensors(torch.clone, after), facts))
            return after, facts

        twin = copy.copy(exchange)
        for name, listening in (("send", send), ("report", report), ("merge", merge)):
            object.__setattr__(twin, name, listening)  # methods are frozen
        return twin


def trials(method: AnyMethod, device: str = "cpu") -> Iterator[Trial]:
    """Every network with every optimiser, but for those with which the method says it cannot be used."""
    for net in OTHERS if method.catalogue.required_net else NETS:
        for optimiser in OPTIMISERS:
            trial = Trial(method, net, optimiser, device=device)
            if not trial.clashes:
                yield trial

"""Many federations in one stack. A *lane* is one site in one federation; to the engine a lane is a site.

A lane draws by its site's own name, so that it computes what it would compute in its federation alone. Each federation
has a coordinator of its own, which is given the reports of its lanes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Roster
from vitrail.core.tensors import flatten, map_tensors
from vitrail.engine.aggregation import collect_all, merge, owned, spread
from vitrail.engine.batches import Sites, disjoint_persons
from vitrail.engine.contract import Ledger, trace
from vitrail.engine.local import Engine
from vitrail.engine.rounds import clock_of
from vitrail.engine.threads import quiet_torch


class ReplicaSnapshot(NamedTuple):
    """All federations after a round."""

    stage: int
    round: int  # rounds done in this stage
    coords: list[Any]
    state: Any  # [lane, ...]; overwritten by the next round


def stack_replicas(parts: Sequence[Sites]) -> tuple[Sites, list[Tensor]]:
    """The sites of several federations as the lanes of one engine; and which lanes each of them has, in its order."""
    first, places = 0, []
    for f, part in enumerate(parts):
        places += [(-n, name, f, first + a) for n, name, a in zip(part.sizes, part.names, part.starts, strict=True)]
        first += len(part.x)
    places.sort()  # most rows first, as the engine needs it; those of one federation keep their order
    x, y, w = (torch.cat([getattr(part, k) for part in parts]) for k in ("x", "y", "w"))
    sizes, names, whose, starts = zip(*places, strict=True)
    of = [part.persons for part in parts if part.persons is not None]
    persons = disjoint_persons(of) if of else None
    sites = Sites(tuple(names), x, y, w, tuple(-n for n in sizes), tuple(starts), persons)
    return sites, [torch.tensor([i for i, g in enumerate(whose) if g == f]) for f in range(len(parts))]


class Replicas:
    """`engine` is of all lanes; `replicas`: those of each federation, rising."""

    def __init__(
        self, engine: Engine, replicas: Sequence[Tensor], absent: Callable[[int, int], Tensor] | None = None
    ) -> None:
        """`absent(stage, round)` gives [lane] bool: who does not answer."""
        self.engine, self.replicas, self.absent = engine, list(replicas), absent
        engine.aggregator.keep_reports = True  # no total over lanes: they belong to different federations
        self.back = torch.cat(self.replicas).argsort()  # from one federation after the other to the lanes' own order
        self.names = [tuple(engine.names[i] for i in mine.tolist()) for mine in self.replicas]
        if (
            engine.method.wire.per_site_messages
        ):  # messages hold something for every site of a federation, not for every lane
            engine.contracts = trace(engine.task, engine.method, engine.training.rounds, len(self.replicas[0]))
        self.ledger = Ledger(self.names[0])  # of the first federation
        for contract in (c for stage in engine.contracts for c in stage):
            self.ledger.declare(contract)

    def start(self) -> ReplicaSnapshot:
        e = self.engine
        coords = [e.method.coord(e.task, len(mine)) for mine in self.replicas]
        return ReplicaSnapshot(
            0, 0, coords, self._joined([e.method.state(e.task, len(mine)) for mine in self.replicas])
        )

    def run(self) -> Iterator[ReplicaSnapshot]:
        """Every round of every stage."""
        e = self.engine
        now = self.start()
        try:
            with quiet_torch(e.device) as e.pool:
                for s, stage in enumerate(e.stages):
                    for r in range(stage.rounds):
                        now = ReplicaSnapshot(s, r + 1, self.turn(s, r, now.coords, now.state), now.state)
                        yield now
                    self.ledger.enter(e.contracts[s][-1], "to site", None)
                    now = ReplicaSnapshot(s + 1, 0, now.coords, map_tensors(owned, self.settled(now)))
        finally:
            e.pool = None

    def turn(self, s: int, r: int, coords: list[Any], state: Any) -> list[Any]:
        for place in self.engine.stages[s].turns(r):
            coords = self._exchange(s, r, place, coords, state)
        return coords

    def settled(self, now: ReplicaSnapshot) -> Any:
        """Every lane's state as if this were the end: what `predict` takes."""
        e = self.engine
        ex, clock = e.stages[now.stage].last, torch.tensor(clock_of(now.stage, now.round, 0))
        rosters = [self._roster(names, mine, clock) for names, mine in zip(self.names, self.replicas, strict=True)]
        downs = [ex.send(e.task, coord, roster) for coord, roster in zip(now.coords, rosters, strict=True)]
        return ex.settle(e.task, now.state, self._joined(downs))

    def _roster(self, names: tuple[str, ...], mine: Tensor, clock: Tensor) -> Roster:
        everyone = torch.ones(len(names), dtype=torch.bool, device=self.engine.device)
        return Roster(names, everyone, self.engine.keys[mine.to(self.engine.device)], clock)

    def _exchange(self, s: int, r: int, place: int, coords: list[Any], state: Any) -> list[Any]:
        """As Engine.exchange, with a coordinator for each federation. `state` is overwritten."""
        e = self.engine
        ex, contract, task = e.stages[s].exchanges[place], e.contracts[s][place], e.task_at(s, r)
        gone = torch.zeros(len(e.names), dtype=torch.bool) if self.absent is None else self.absent(s, r)
        gone, clock = gone.to(e.device), torch.tensor(clock_of(s, r, place))
        e.sampler.set(s, r, place)
        downs, rosters = [], []
        for coord, names, mine in zip(coords, self.names, self.replicas, strict=True):
            roster = self._roster(names, mine, clock)
            roster = roster._replace(present=ex.invite(e.task, coord, roster))
            downs.append(ex.send(task, coord, roster))
            rosters.append(roster._replace(present=roster.present & ~gone[mine.to(e.device)]))
        here = torch.cat([roster.present for roster in rosters])[self.back]
        for way in ("to site", "from site"):
            self.ledger.enter(contract, way, rosters[0].present)
        if not bool(here.any()):
            return coords
        who = None if bool(here.all()) else here.nonzero()[:, 0].tolist()
        parts = e.answers(ex, contract, state, self._joined(downs), who, task, e.rule(s, r))
        reports = spread(parts, len(e.names))
        out = []
        for coord, mine, roster in zip(coords, self.replicas, rosters, strict=True):
            if bool(roster.present.any()):
                own = map_tensors(lambda t: t[mine], reports)  # noqa: B023
                coord, _ = merge(ex, e.task, coord, collect_all(ex, own, roster.present), roster)
            out.append(coord)
        return out

    def _joined(self, parts: Sequence[Any]) -> Any:
        """What is said to, or held by, the sites of each federation -> the same of all lanes."""
        flat = [[t for _, t in flatten(part)] for part in parts]
        joined = iter([torch.cat(same)[self.back] for same in zip(*flat, strict=True)])
        return map_tensors(lambda t: next(joined), parts[0])

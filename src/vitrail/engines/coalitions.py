"""Many federations of the same sites at once: every coalition trains a model of its own, all of them in one stack.

A *lane* is one site in one coalition. To the engine a lane is a site: its rows are held once for all its lanes, and it
draws by the site's own name, so that what it computes is what it would compute in a federation of that coalition alone.
Each coalition has a coordinator of its own, which hears its lanes only. Of the plan the first stage is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitrail.core.exchange import Roster
from vitrail.core.task import Task
from vitrail.core.tensors import each, tensors
from vitrail.engines.local import Engine, quiet_torch
from vitrail.engines.rounds import AnyMethod, Training, clock_of, spread
from vitrail.engines.sites import Sites

Tell = Callable[[int, int], None]  # rounds done, of how many
After = Callable[[int, list[Any], list[Any]], list[Any]]  # round, coordinators before and after it


class Coalitions:
    """`members` [coalition, site] bool, sites in the order of sites.names; none of them without a member."""

    def __init__(
        self,
        task: Task,
        method: AnyMethod,
        sites: Sites,
        training: Training,
        seed: int,
        members: Tensor,
        absent: Callable[[int, int], Tensor] | None = None,
    ) -> None:
        site, coalition = members.T.nonzero().T  # by site, so that lanes with most rows come first
        self.site, self.absent = site, absent
        self.lanes = [(coalition == c).nonzero()[:, 0] for c in range(len(members))]
        self.back = torch.cat(self.lanes).argsort()  # from one coalition after the other to the lanes' own order
        self.engine = Engine(task, method, sites.again(site.tolist()), training, seed)
        self.engine.keep_reports = True  # no total over lanes: they belong to different federations
        self.names = [tuple(sites.names[i] for i in site[mine].tolist()) for mine in self.lanes]

    def run(self, tell: Tell = lambda done, total: None, after: After = lambda round_, before, now: now) -> list[Any]:
        """The coordinator of each coalition after training. `after` each round it may be put elsewhere than where the
        round has led from `before`."""
        e, stage = self.engine, self.engine.stages[0]
        state = e.method.state(e.task, len(self.site))
        coords = [e.method.coord(e.task, len(mine)) for mine in self.lanes]
        with quiet_torch(e.device) as e.pool:
            for r in range(stage.rounds):
                before = coords
                for place in stage.turns(r):
                    coords = self._exchange(r, place, coords, state)
                coords = after(r, before, coords)
                tell(r + 1, stage.rounds)
        return coords

    def _exchange(self, r: int, place: int, coords: list[Any], state: Any) -> list[Any]:
        """As Engine.exchange, with a coordinator for each coalition. `state` is overwritten."""
        e = self.engine
        ex, contract, task = e.stages[0].exchanges[place], e.contracts[0][place], e.task_at(0, r)
        gone = torch.zeros_like(self.site, dtype=torch.bool)
        if self.absent is not None:
            gone = self.absent(0, r)[self.site]
        e.drawer.set(0, r, place)
        downs, rosters = [], []
        for coord, names, mine in zip(coords, self.names, self.lanes, strict=True):
            everyone = torch.ones(len(names), dtype=torch.bool)
            roster = Roster(names, everyone, e.keys[mine], torch.tensor(clock_of(0, r, place)))
            roster = roster._replace(present=ex.invite(e.task, coord, roster))
            downs.append(ex.send(task, coord, roster))
            rosters.append(roster._replace(present=roster.present & ~gone[mine]))
        here = torch.cat([roster.present for roster in rosters])[self.back]
        if not bool(here.any()):
            return coords
        flat = [[t for _, t in tensors(down)] for down in downs]
        joined = iter([torch.cat(parts)[self.back] for parts in zip(*flat, strict=True)])
        down = each(lambda t: next(joined), downs[0])
        who = None if bool(here.all()) else here.nonzero()[:, 0].tolist()
        reports = spread(e.answers(ex, contract, state, down, who, task, e.rule(0, r)), len(self.site))
        out = []
        for coord, mine, roster in zip(coords, self.lanes, rosters, strict=True):
            if bool(roster.present.any()):
                heard = each(lambda t: t[mine], reports)  # noqa: B023
                heard = each(lambda t: t.sum(0), heard) if ex.sees == "sum" else heard
                coord = ex.merge(e.task, coord, heard, roster)[0]
            out.append(coord)
        return out

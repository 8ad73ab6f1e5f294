"""Toy methods that talk as no method in the table does: several exchanges a round, and exchanges in turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.methods.fedavg import FedAvg, Own, Shared, Up, Work
from vitrail.plugin import (
    OWN,
    Batch,
    Catalogue,
    Exchange,
    Fact,
    Facts,
    Method,
    Nothing,
    Params,
    Roster,
    SiteContext,
    Stage,
    Task,
    WireRules,
    apply_update,
    clone,
    scaled,
    subtract,
    to_all,
)


class Held(NamedTuple):
    """At the coordinator, and as sent."""

    params: Params
    usual: Tensor  # the sites' mean loss, which the first exchange of a round finds and the second passes on


class Mine(NamedTuple):
    """At a site."""

    params: Params
    loss: Tensor  # [site]: found in the first exchange of a round, needed in the second


class Said(NamedTuple):
    loss: Tensor


class Measure(Exchange[Mine, Held, Nothing, Shared, Said]):
    """Each site looks at all its rows and says its mean loss."""

    name: ClassVar[str] = "measure"

    def send(self, task: Task, coord: Held, roster: Roster) -> Shared:
        return Shared(to_all(coord.params, len(roster.names)))

    def report(self, site: SiteContext, state: Mine, work: Nothing, down: Shared) -> tuple[Mine, Said]:
        loss = (
            torch.stack([site.task.value(down.params, block) for block in site.rows.blocks()]).sum(0) / site.rows.total
        )
        return Mine(state.params, loss), Said(loss)

    def merge(self, task: Task, coord: Held, up: Said, roster: Roster) -> tuple[Held, Facts]:
        usual = up.loss[roster.present].mean()
        return Held(coord.params, usual), {"losses": Fact(up.loss, ("site",), "loss", every=True)}

    def settle(self, task: Task, state: Mine, down: Shared) -> Mine:
        raise AssertionError("its word does not end the stage")


@dataclass(frozen=True)
class Relay(Method[Mine, Held, Work, Held, Up]):
    """Two exchanges a round: a site's change counts as its loss does against the usual one."""

    catalogue = Catalogue("Relay")
    name: ClassVar[str] = "learn"
    wire = WireRules(aggregation="sum")

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (Stage("train", (Measure(), self), rounds),)

    def state(self, task: Task, sites: int) -> Mine:
        return Mine({}, task.like.new_zeros(sites))

    def coord(self, task: Task, sites: int) -> Held:
        return Held(clone(task.start), task.like.new_zeros(()))

    def shared(self, coord: Held) -> Params:
        return coord.params

    def send(self, task: Task, coord: Held, roster: Roster) -> Held:
        n = len(roster.names)
        return Held(to_all(coord.params, n), coord.usual.expand(n))

    def begin(self, site: SiteContext, state: Mine, down: Held) -> Work:
        params = clone(down.params)
        return Work(params, site.optimizer.state(params), down.params)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: Mine, work: Work, down: Held) -> tuple[Mine, Up]:
        change = scaled(state.loss / down.usual, subtract(work.params, down.params))
        return state, Up(change, torch.ones_like(site.rows.total))

    def merge(self, task: Task, coord: Held, up: Up, roster: Roster) -> tuple[Held, Facts]:
        return coord._replace(params=apply_update(coord.params, up.change, up.weight)), {}

    def settle(self, task: Task, state: Mine, down: Held) -> Mine:
        return state._replace(params=down.params)

    def models(self, task: Task, state: Mine) -> dict[str, Params]:
        return {OWN: state.params}


class Front(Exchange[Own, Shared, Work, Shared, Up]):
    """All of the network is sent, and trained; only the change of the body comes back."""

    name: ClassVar[str] = "front"
    wire = WireRules(aggregation="sum")

    def send(self, task: Task, coord: Shared, roster: Roster) -> Shared:
        return Shared(to_all(coord.params, len(roster.names)))

    def begin(self, site: SiteContext, state: Own, down: Shared) -> Work:
        params = clone(down.params)
        return Work(params, site.optimizer.state(params), down.params)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: Own, work: Work, down: Shared) -> tuple[Own, Up]:
        change = subtract(work.params, site.task.select(down.params, ("body",)))
        return state, Up(change, torch.ones_like(site.rows.total))

    def merge(self, task: Task, coord: Shared, up: Up, roster: Roster) -> tuple[Shared, Facts]:
        body = {k: coord.params[k] for k in up.change}
        return Shared({**coord.params, **apply_update(body, up.change, up.weight)}), {}

    def settle(self, task: Task, state: Own, down: Shared) -> Own:
        raise AssertionError("its word does not end the stage")


@dataclass(frozen=True)
class Turns(FedAvg):
    """Twice the front of the network, then all of it; and again."""

    catalogue = Catalogue("Turns")
    name: ClassVar[str] = "all"

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (Stage("train", (Front(), self), rounds, cycle=((0,), (0,), (1,))),)


class Bow(Exchange[Own, Shared, Nothing, Nothing, Nothing]):
    """Nothing is said."""

    name: ClassVar[str] = "bow"

    def report(self, site: SiteContext, state: Own, work: Nothing, down: Nothing) -> tuple[Own, Nothing]:
        return state, Nothing()

    def settle(self, task: Task, state: Own, down: Nothing) -> Own:
        raise AssertionError("its word does not end the stage")


@dataclass(frozen=True)
class Shy(FedAvg):
    """Every round begins with a word that tells nothing."""

    catalogue = Catalogue("Shy")
    name: ClassVar[str] = "all"

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (Stage("train", (Bow(), self), rounds),)

"""APPLE (Luo and Wu 2022): every site trains a core model; its own model is a mixture of all cores, whose weights it
learns.

    w_i   = sum_j p_ij c_j                                                  with which site i trains and predicts
    at i    minimise  loss_i(w_i) + lambda(r) mu/2 |p_i - p_0|^2            in c_i and p_i; the other cores are fixed
            c_i  <- c_i  - lr p_ii grad loss_i(w_i)                         both from the values before the step
            p_ij <- p_ij - rate lr (<grad loss_i(w_i), c_j> + lambda(r) mu (p_ij - p_0j))
    sent    c_i, to the coordinator and from there to every site
    p_0j  = n_j / n: the site's share of all rows, counted once before the first round; or 1/N (`weights = "uniform"`).
            p_i begins there
    lambda  falls from 1 in round r = 0 to 0 in round L (`fades`): 0.001^(r/L), or (1 + cos(pi r/L)) / 2
            (`schedule`)

Nothing keeps p_i above 0 or its sum at 1. Both c_i and p_i follow the study's optimizer; weight decay pulls p_i towards
p_0. Rounds in which no site answered do not count in r.

The defaults are those of the authors' program (mu 0.1, rate 0.001/0.01, L a tenth of its 160 rounds). That program
omits the 1/2, so its mu is twice ours, and starts every core from a different draw; here all start alike. A core moves
by p_ii lr, about lr/N, and the mixture by the mean of that. With N sites, learning is N times as slow as FedAvg's at
the same lr, so tune it. Left out: a limit on the number of cores sent to a site, which would require the coordinator to
know p_i.

Revealed: every site's core, to every site; with `weights = "rows"` also every site's share of all rows. p_i stays at
the site, as it gives the site's own model to whoever has the cores. After training a site may show it once, or refuse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, WireRules
from vitrail.core.exchange import Exchange, Method, Nothing, Roster, SiteContext, Stage, training
from vitrail.core.facts import MIXED, OWN, Facts
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, dot, per_site, scaled, select_own, subtract, to_all, tree_map
from vitrail.methods.blocks.basics import Reveal, Revealed

LEAST = 0.001  # of the exponential schedule, in round L
TURN = "turn"  # what p_i - p_0 is called among parameters
BEGINNING = 'the initial share of each core in every mixture: equal, or with weights = "rows" in proportion to rows'
OWN_MIXTURE = "how much of each core is mixed into your own model, and hence that model"


class State(NamedTuple):
    turn: Annotated[Params, OWN_MIXTURE]  # p_i - p_0
    memory: Annotated[Params, "what the optimiser remembers of your last batches"]
    turn_memory: Annotated[Params, "what the optimiser remembers for the mixture"]
    params: Annotated[Params, OWN_MIXTURE] = {}  # noqa: RUF012  once settled, as what follows
    mixture: Annotated[Params, OWN_MIXTURE] = {}  # noqa: RUF012


class Coord(NamedTuple):
    cores: Params  # [site, ...]
    rows: Tensor  # [site]: as counted; 0 where a site was away
    rounds: Tensor  # [1]: r


class Down(NamedTuple):
    cores: Annotated[Params, "the core models of all sites"]  # [site, core, ...]
    own: Annotated[Tensor, "which of the cores is yours"]  # [site, core]
    begin: Annotated[Tensor, BEGINNING]  # [site, core]: p_0
    pull: Annotated[Tensor, "how strongly your mixture is held there in this round"]  # [site]: lambda(r)


class Up(NamedTuple):
    change: Annotated[Params, "what training on your rows changed in your core model"]


class RowCount(NamedTuple):
    rows: Annotated[Tensor, "how many rows you train on; every site receives your share of all rows"]  # [site]


class Work(NamedTuple):
    core: Params  # c_i
    memory: Params
    turn: Params
    turn_memory: Params
    received: Params  # c_i before
    down: Down


@dataclass(frozen=True)
class APPLE(Method[State, Coord, Work, Down, Up]):
    catalogue = Catalogue("APPLE", tuning_grid={"mu": (0.01, 0.1, 1.0), "rate": (0.01, 0.1, 1.0)}, tune_first=True)
    wire = WireRules(per_site_messages=True)
    weights: Literal["uniform", "rows"] = "rows"
    mu: Annotated[float, Ge(0)] = 0.1
    rate: Annotated[float, Ge(0)] = 0.1
    fades: Annotated[int, Ge(1)] = 16
    schedule: Literal["exponential", "cosine"] = "exponential"

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        train = training(self, rounds)
        if self.weights == "rows":
            turns = ((0, 1), *[(1,)] * (rounds - 1))
            train = train._replace(exchanges=(CountRows(), self), cycle=turns)
        what = "how much of each core is mixed into your own model, which reveals it to anyone who has the cores"
        shown = Mixtures(lambda task, state: state.mixture, lambda name: (("user", "site"), MIXED), what)
        return train, Stage("show", (shown,), 1, "mixture", "After training, once")

    def state(self, task: Task, sites: int) -> State:
        start, turn = to_all(task.start, sites), {TURN: task.like.new_zeros(sites, sites)}
        return State(turn, task.initial_state(start, start), task.initial_state(turn))

    def coord(self, task: Task, sites: int) -> Coord:
        return Coord(clone(to_all(task.start, sites)), task.like.new_zeros(sites), task.like.new_zeros(1))

    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        n, order = len(roster.names), random_order(roster)
        cores, begin = {k: v[order] for k, v in coord.cores.items()}, self.begins(coord)[order]
        own = torch.eye(n, dtype=coord.rows.dtype, device=coord.rows.device)[:, order]
        return Down(to_all(cores, n), own, begin.expand(n, n), self.pulls(coord.rounds).expand(n))

    def begins(self, coord: Coord) -> Tensor:
        """p_0: [core]. Who was not counted is taken for a site of middling size."""
        counted = coord.rows > 0
        mean = coord.rows.sum() / counted.sum().clamp(min=1)
        rows = torch.where(counted, coord.rows, torch.where(mean > 0, mean, 1.0))
        return rows / rows.sum()

    def pulls(self, rounds: Tensor) -> Tensor:
        """lambda(r)"""
        part = rounds / self.fades
        falls = LEAST**part if self.schedule == "exponential" else (1 + torch.cos(math.pi * part)) / 2
        return torch.where(part < 1, falls, 0.0)

    def begin(self, site: SiteContext, state: State, down: Down) -> Work:
        received, turn = select_own(down.cores, down.own), clone(state.turn)
        core = clone(received)
        memory, turn_memory = site.optimizer.state(core, state.memory), site.optimizer.state(turn, state.turn_memory)
        return Work(core, memory, turn, turn_memory, received, down)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        turn, down, moved = work.turn[TURN], work.down, subtract(work.core, work.received)
        p = down.begin + turn
        mine = (p * down.own).sum(1)
        mixed = tree_map(lambda w, m: w + per_site(mine, m) * m, mixture(p, down.cores), moved)
        slope = site.task.grad(mixed, batch)
        toward = project(slope, down.cores) + down.own * dot(moved, slope)[:, None]  # <grad, c_j>
        site.optimizer.apply(work.core, work.memory, scaled(mine, slope))
        pull = self.mu * down.pull[:, None] * turn
        site.optimizer.at(site.optimizer.lr * self.rate).apply(work.turn, work.turn_memory, {TURN: toward + pull})

    def report(self, site: SiteContext, state: State, work: Work, down: Down) -> tuple[State, Up]:
        memory, turn_memory = carry_state(work.memory, state.memory), carry_state(work.turn_memory, state.turn_memory)
        return State(work.turn, memory, turn_memory), Up(subtract(work.core, work.received))

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        cores = tree_map(torch.add, coord.cores, up.change)  # of who is away it is zero
        return coord._replace(cores=cores, rounds=coord.rounds + 1), {}

    def settle(self, task: Task, state: State, down: Down) -> State:
        p = down.begin + state.turn[TURN]
        return State({}, {}, {}, mixture(p, down.cores), {"p": p})

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params}


@dataclass(frozen=True)
class CountRows(Exchange[State, Coord, Nothing, Nothing, RowCount]):
    """How many rows each site has."""

    name: ClassVar[str] = "count"

    def report(self, site: SiteContext, state: State, work: Nothing, down: Nothing) -> tuple[State, RowCount]:
        return state, RowCount(site.rows.total)

    def merge(self, task: Task, coord: Coord, up: RowCount, roster: Roster) -> tuple[Coord, Facts]:
        return coord._replace(rows=up.rows), {}


class Mixtures(Reveal):
    """Each site shows p_i."""

    def merge(self, task: Task, coord: Coord, up: Revealed, roster: Roster) -> tuple[Coord, Facts]:
        place = random_order(roster).argsort()
        return super().merge(task, coord, Revealed({k: v[:, place] for k, v in up.shown.items()}), roster)


def random_order(roster: Roster) -> Tensor:
    """In which order a site is sent the cores, so that what it keeps of them does not depend on where sites stand."""
    return roster.seeds.argsort()


def mixture(p: Tensor, cores: Params) -> Params:
    """sum_j p_j c_j for each site; p [site, core], cores [site, core, ...]."""
    return {k: torch.einsum("sc,sc...->s...", p, v) for k, v in cores.items()}


def project(slope: Params, cores: Params) -> Tensor:
    """<slope, c_j>: [site, core]."""
    flat = {k: v.reshape(len(v), -1) for k, v in slope.items()}
    parts = [torch.einsum("scd,sd->sc", v.reshape(*v.shape[:2], -1), flat[k]) for k, v in cores.items()]
    return torch.stack(parts).sum(0)

"""SCAFFOLD (Karimireddy et al. 2020), option II: control variates remove the drift of the sites.

    at the site      y <- y - lr (grad f_i(y) - c_i + c)             K steps from y = x
                     c_i <- c_i - c + (x - y) / (K lr)
    coordinator      x <- x + server_lr / |S| * sum_S (y_i - x)      S: the sites that answered
                     c <- c + 1/N * sum_S (c_i_new - c_i)            N: all sites

The formula for c_i is that of plain SGD, so momentum is off and cannot be turned on. A site sends changes of c_i;
anyone who adds up all of them knows c_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, WireRules
from vitrail.core.exchange import Method, Roster, SiteContext
from vitrail.core.facts import OWN, Facts
from vitrail.core.optimizers import SGD
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, add_, clone, per_site, to_all, tree_map, zeros


class State(NamedTuple):
    control: Params  # c_i; whoever adds up its changes has it
    params: Params  # x, once settled


class Coord(NamedTuple):
    params: Annotated[Params, "the shared layers of the network"]  # x
    control: Annotated[Params, "the direction in which all sites pull the model"]  # c


class Up(NamedTuple):
    moved: Annotated[Params, "how training on your rows moved the model"]  # y - x
    control: Annotated[Params, "how the direction in which your rows pull the model changed"]  # c_i_new - c_i
    answers: Annotated[Tensor, "the number 1, which counts that you answered"]


class Work(NamedTuple):
    params: Params  # y
    memory: Params
    drift: Params  # c_i - c
    steps: Tensor  # [site]: K


@dataclass(frozen=True)
class Scaffold(Method[State, Coord, Work, Coord, Up]):
    catalogue = Catalogue("SCAFFOLD", tuning_grid={"server_lr": (0.5, 1.0)})
    # the changes of c_i are reported from zero on, so that they add up to it
    wire = WireRules("sum", weight_fields={"answers"}, disclosed_state={"control"})
    momentum: Annotated[float, Ge(0)] | None = 0.0
    server_lr: Annotated[float, Ge(0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum != 0:
            raise ValueError("momentum must be 0, because SCAFFOLD's control variates only hold for plain SGD")

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        if isinstance(task.rule, SGD) and not task.rule.factors:
            return ()
        return (
            "its control variates c_i are computed as (x - y) / (K lr), which only holds for plain SGD with one rate",
        )

    def state(self, task: Task, sites: int) -> State:
        return State(zeros(to_all(task.start, sites)), {})

    def coord(self, task: Task, sites: int) -> Coord:
        return Coord(clone(task.start), zeros(task.start))

    def shared(self, coord: Coord) -> Params:
        return coord.params

    def send(self, task: Task, coord: Coord, roster: Roster) -> Coord:
        return Coord(to_all(coord.params, len(roster.names)), to_all(coord.control, len(roster.names)))

    def begin(self, site: SiteContext, state: State, down: Coord) -> Work:
        params = clone(down.params)
        drift = tree_map(torch.sub, state.control, down.control)
        return Work(params, site.optimizer.state(params), drift, torch.zeros_like(site.rows.total))

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch, lambda into, by: add_(into, work.drift, -by))
        work.steps.add_(1)

    def report(self, site: SiteContext, state: State, work: Work, down: Coord) -> tuple[State, Up]:
        moved = tree_map(torch.sub, work.params, down.params)
        length = (work.steps * site.optimizer.lr).clamp(min=torch.finfo(work.steps.dtype).tiny)
        control = tree_map(lambda d, m: d - m / per_site(length, m), work.drift, moved)
        change = tree_map(torch.sub, control, state.control)
        return State(control, {}), Up(moved, change, torch.ones_like(site.rows.total))

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        params = tree_map(lambda x, m: x + self.server_lr * m / up.answers, coord.params, up.moved)
        control = tree_map(lambda c, d: c + d / len(roster.names), coord.control, up.control)
        return Coord(params, control), {}

    def settle(self, task: Task, state: State, down: Coord) -> State:
        return state._replace(params=down.params)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params}

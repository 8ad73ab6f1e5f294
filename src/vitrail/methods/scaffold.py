"""SCAFFOLD (Karimireddy et al. 2020), option II: control variates take out the sites' drift.

    at the site      y <- y - lr (grad f_i(y) - c_i + c)             K steps from y = x
                     c_i <- c_i - c + (x - y) / (K lr)
    coordinator      x <- x + server_lr / |S| * sum_S (y_i - x)      S: the sites that answered
                     c <- c + 1/N * sum_S (c_i_new - c_i)            N: all sites

The formula for c_i is that of plain SGD, so momentum is off and cannot be turned on. c_i never leaves the site; its
change does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Facts, Method, Pace, Roster, Rows
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, add_, copied, per_site, tmap, to_all, zeros


class State(NamedTuple):
    control: Params  # c_i
    params: Params  # x, once settled


class Coord(NamedTuple):
    params: Params  # x
    control: Params  # c


class Up(NamedTuple):
    moved: Params  # y - x
    control: Params  # c_i_new - c_i
    answers: Tensor  # 1


class Work(NamedTuple):
    params: Params  # y
    velocity: Params
    drift: Params  # c_i - c
    steps: Tensor  # [site]: K


@dataclass(frozen=True)
class Scaffold(Method[State, Coord, Work, Coord, Up]):
    title: ClassVar[str] = "SCAFFOLD"
    sees = "sum"
    momentum: float | None = 0.0
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        if self.momentum != 0:
            raise ValueError("momentum must be 0: SCAFFOLD's control variates are those of plain SGD")

    def state(self, task: Task, sites: int) -> State:
        return State(zeros(to_all(task.start, sites)), {})

    def coord(self, task: Task, sites: int) -> Coord:
        return Coord(copied(task.start), zeros(task.start))

    def send(self, task: Task, coord: Coord, roster: Roster) -> Coord:
        return Coord(to_all(coord.params, len(roster.names)), to_all(coord.control, len(roster.names)))

    def begin(self, task: Task, state: State, down: Coord) -> Work:
        params = copied(down.params)
        some = next(iter(params.values()))
        steps = torch.zeros(some.shape[0], dtype=some.dtype, device=some.device)
        return Work(params, zeros(params), tmap(torch.sub, state.control, down.control), steps)

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        task.push(work.params, work.velocity, batch, pace.lr, 0.0)
        add_(work.velocity, work.drift, pace.lr)
        add_(work.params, work.velocity)
        work.steps.add_(1)

    def report(self, task: Task, state: State, work: Work, down: Coord, rows: Rows, pace: Pace) -> tuple[State, Up]:
        moved = tmap(torch.sub, work.params, down.params)
        length = (work.steps * pace.lr).clamp(min=torch.finfo(work.steps.dtype).tiny)
        control = tmap(lambda d, m: d - m / per_site(length, m), work.drift, moved)
        change = tmap(torch.sub, control, state.control)
        return State(control, {}), Up(moved, change, torch.ones_like(rows.total))

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        params = tmap(lambda x, m: x + self.server_lr * m / up.answers, coord.params, up.moved)
        control = tmap(lambda c, d: c + d / len(roster.names), coord.control, up.control)
        return Coord(params, control), {}

    def settle(self, task: Task, state: State, down: Coord) -> State:
        return state._replace(params=down.params)

    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        return task.output(state.params, x)

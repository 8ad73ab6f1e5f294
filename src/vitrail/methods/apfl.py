"""APFL (Deng et al. 2020): each site mixes a model of its own into the shared one, and learns how much.

    prediction with  a v + (1 - a) w        w is averaged; v and a never leave the site
    w <- w - lr grad f(w)
    v <- v - lr grad_v f(a v + (1 - a) w)   = v - lr a grad f(mixed)
    a <- a - lr <v - w, grad f(mixed)>,     kept within [0, 1]

All three use the values before the step. alpha = 0 is FedAvg. Momentum is off by default, as in the iFedAvg paper's
comparison, which also found alpha = 0.5 best; `adaptive = false` keeps it there. Departure: we adapt a at every step;
Deng et al. write the rule per step and leave its frequency open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Method, Pace, Rows
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, add_, blended, copied, dot, scaled, tmap, to_all, zeros
from vitrail.methods.fedavg import Averages, Shared, Up


class State(NamedTuple):
    own: Params  # v
    alpha: Tensor  # [site]
    params: Params  # w, once settled


class Work(NamedTuple):
    own: Params
    alpha: Tensor
    params: Params
    velocity: Params


@dataclass(frozen=True)
class APFL(Averages, Method[State, Shared, Work, Shared, Up]):
    title: ClassVar[str] = "APFL"
    momentum: float | None = 0.0
    alpha: float = 0.5
    adaptive: bool = True

    def state(self, task: Task, sites: int) -> State:
        own = copied(to_all(task.start, sites))
        some = next(iter(own.values()))
        return State(own, torch.full((sites,), self.alpha, dtype=some.dtype, device=some.device), {})

    def begin(self, task: Task, state: State, down: Shared) -> Work:
        params = copied(down.params)
        return Work(copied(state.own), state.alpha.clone(), params, zeros(params))

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        slope = task.grad(blended(work.alpha, work.own, work.params), batch)
        turn = dot(tmap(torch.sub, work.own, work.params), slope) if self.adaptive else None
        task.descend(work.params, work.velocity, batch, pace.lr, pace.momentum)
        add_(work.own, scaled(work.alpha, slope), -pace.lr)
        if turn is not None:
            work.alpha.sub_(turn, alpha=pace.lr).clamp_(0, 1)

    def report(self, task: Task, state: State, work: Work, down: Shared, rows: Rows, pace: Pace) -> tuple[State, Up]:
        return State(work.own, work.alpha, {}), self.say(work.params, down, rows)

    def settle(self, task: Task, state: State, down: Shared) -> State:
        return state._replace(params=down.params)

    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        return task.output(blended(state.alpha, state.own, state.params), x)

"""MOON (Li et al. 2021): FedAvg whose sites keep their features close to those of the shared model, and away from those
of their own previous model.

    minimise  sum_r w_r (loss_r + mu c_r)                       over the rows r of a batch, with their weights
    c = -log( e^(cos(z, z_s) / T) / (e^(cos(z, z_s) / T) + e^(cos(z, z_b) / T)) )  =  log(1 + e^(d / T))
    d = cos(z, z_b) - cos(z, z_s)
    dc/dz = sigmoid(d / T) / (T |z|) (b - s - d z/|z|)          s, b: z_s and z_b at length 1

z is the input of the last layer in the model in training, z_s in the shared model as received, z_b in the model at the
end of the site's own previous round; only z is trained. T is the temperature. Dropout removes the same units in all
three.

mu = 0 is FedAvg, and so is a linear model, since no parameter makes its features. In a site's first round z_b belongs
to the common start; where z_b = z_s the gradient is 0. Any loss will do. c falls with d: a site may also move away from
both models, as long as it leaves its own previous one faster. mu and T are those of the authors' program; the paper
tunes mu over {0.1, 1, 5, 10}. Departure: the paper projects features by two additional layers; here they are the
network's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Gt
from vitrail.core.exchange import Method, SiteContext
from vitrail.core.facts import OWN
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, to_all
from vitrail.methods.fedavg import Averages, Shared, Up

SHORT = 1e-8  # features shorter than this point nowhere


class State(NamedTuple):
    before: Params  # what the site's last round left; a report says by how much it moved from what all were sent
    params: Params  # the shared model, once settled
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Work(NamedTuple):
    params: Params
    memory: Params
    received: Params
    before: Params


@dataclass(frozen=True)
class Moon(Averages, Method[State, Shared, Work, Shared, Up]):
    catalogue = Catalogue("MOON", tuning_grid={"mu": (0.1, 1.0, 5.0, 10.0)})
    wire = replace(Averages.wire, disclosed_state={"before"})  # what was sent and what changed add up to it
    mu: Annotated[float, Ge(0)] = 1.0
    temperature: Annotated[float, Gt(0)] = 0.5

    def state(self, task: Task, sites: int) -> State:
        start = to_all(task.start, sites)
        return State(clone(start), {}, task.initial_state(start, start))

    def begin(self, site: SiteContext, state: State, down: Shared) -> Work:
        params = clone(down.params)
        return Work(params, site.optimizer.state(params, state.memory), down.params, state.before)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        if not self.mu or site.task.net.linear:
            site.optimizer.step(site.task, work.params, work.memory, batch)
            return
        # these first: a tape may lie in memory that the next pass uses again
        shared, before = (
            site.task.net.forward(params, batch.x, batch.keep, tape=False).features
            for params in (work.received, work.before)
        )
        out = site.task.net.forward(work.params, batch.x, batch.keep)
        turn = contrast(out.features, shared, before, self.temperature) * (self.mu * batch.w)
        slope = site.task.through(work.params, out, site.task.loss.grad(out, batch), turn)
        site.optimizer.apply(work.params, work.memory, slope)

    def report(self, site: SiteContext, state: State, work: Work, down: Shared) -> tuple[State, Up]:
        return State(work.params, {}, carry_state(work.memory, state.memory)), self.say(work.params, down, site.rows)

    def settle(self, task: Task, state: State, down: Shared) -> State:
        return State({}, down.params)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params}


def contrast(z: Tensor, shared: Tensor, before: Tensor, temperature: float) -> Tensor:
    """dc/dz: [site, row, unit]."""
    unit, shorter = _unit(z)
    way = _unit(before)[0] - _unit(shared)[0]
    d = (unit * way).sum(-1, keepdim=True)
    return (way - d * unit) * shorter * (d / temperature).sigmoid() / temperature


def _unit(z: Tensor) -> tuple[Tensor, Tensor]:
    """At length 1, and by how much that is shorter; 0 where it points nowhere."""
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    shorter = torch.where(length > SHORT, 1 / length, 0)
    return z * shorter, shorter

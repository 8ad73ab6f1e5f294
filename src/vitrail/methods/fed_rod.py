"""Fed-RoD (Chen and Chao 2022): a shared model that treats all classes alike, and at each site an additional head of
its own.

    shared    g: scores of the network, f: its features (the input of its last layer)
              minimise  -sum_r w_r log( N_y^gamma e^(g_y) / sum_c N_c^gamma e^(g_c) )      balanced softmax
              over the whole network, which is averaged as in FedAvg
    own       h = f P + b, from zero
              minimise  -sum_r w_r log( e^(g_y + h_y) / sum_c e^(g_c + h_c) )
              over P and b alone, which never leave the site; g and f as they were before the step
    prediction by g + h; the shared model g is scored as well

N_c is the total weight of the site's training rows of class c: their number, if every row has weight 1. The site counts
it in every round and sends it in no message. A class without rows at the site is left out of the sum there. A site with
only one class teaches the shared model nothing.

gamma = 0 is the plain loss, so that g is FedAvg's. The same holds where all classes of a site have the same total
weight, as with `class_weights = "inverse"`, the default of a study: such weights already balance the classes (the paper
has both ways), and weighting by counts as well would balance twice. `class_weights = "none"` is the method of the
paper, with its linear own head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge
from vitrail.core.exchange import Method, SiteContext
from vitrail.core.facts import OWN, SHARED
from vitrail.core.losses import CrossEntropy
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, to_all
from vitrail.methods.fedavg import Averages, Shared, Up


class State(NamedTuple):
    head: Annotated[Params, "the head of your own, which adds to the scores of the shared model"]  # P, b
    params: Params  # the shared model, once settled
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012
    own_memory: Annotated[Params, "what the optimiser remembers for the head of your own"] = {}  # noqa: RUF012


class Work(NamedTuple):
    head: Params
    own_memory: Params
    params: Params
    memory: Params
    lift: Tensor  # [site, 1, output]: log N^gamma


@dataclass(frozen=True)
class FedRoD(Averages, Method[State, Shared, Work, Shared, Up]):
    catalogue = Catalogue("Fed-RoD", tuning_grid={"gamma": (0.0, 0.5, 1.0)})
    gamma: Annotated[float, Ge(0)] = 1.0

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        if isinstance(task.loss, CrossEntropy):
            return ()
        return (
            (
                "its balanced softmax weighs classes by their rows, so it needs a target of classes and the "
                "cross-entropy loss"
            ),
        )

    def state(self, task: Task, sites: int) -> State:
        params, row = to_all(task.start, 1), task.like.new_zeros(1, 1, *task.net.shape)
        units, outputs = task.net.forward(params, row, tape=False).features.shape[-1], task.net.outputs
        head = {"weight": task.like.new_zeros(sites, units, outputs), "bias": task.like.new_zeros(sites, outputs)}
        every = to_all(task.start, sites)
        return State(head, {}, task.initial_state(every, every), task.initial_state(head))

    def begin(self, site: SiteContext, state: State, down: Shared) -> Work:
        head, params = clone(state.head), clone(down.params)
        memory, own_memory = site.optimizer.state(params, state.memory), site.optimizer.state(head, state.own_memory)
        weight = torch.stack([(block.y * block.w).sum(1) for block in site.rows.blocks()]).sum(0)  # [site, output]: N
        lift = weight.pow(self.gamma).clamp(min=torch.finfo(weight.dtype).tiny).log()  # finite where there is no row
        return Work(head, own_memory, params, memory, lift[:, None])

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        out = site.task.net.forward(work.params, batch.x, batch.keep)
        # as the network's own head has it
        f = out.features / (1 - site.task.net.dropout) if batch.keep else out.features
        own = site.task.loss.grad(out._replace(z=out.z + added(work.head, f)), batch)
        site.optimizer.apply(work.head, work.own_memory, {"weight": f.transpose(1, 2) @ own, "bias": own.sum(1)})
        balanced = site.task.loss.grad(out._replace(z=out.z + work.lift), batch)
        site.optimizer.apply(work.params, work.memory, site.task.through(work.params, out, balanced))

    def report(self, site: SiteContext, state: State, work: Work, down: Shared) -> tuple[State, Up]:
        memory, own_memory = carry_state(work.memory, state.memory), carry_state(work.own_memory, state.own_memory)
        return State(work.head, {}, memory, own_memory), self.say(work.params, down, site.rows)

    def settle(self, task: Task, state: State, down: Shared) -> State:
        return State(state.head, down.params)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        """Its own has a second head, of which the network by itself knows nothing: `predict` adds it."""
        second = {f"own head.{k}": v for k, v in state.head.items()}
        return {OWN: {**state.params, **second}, SHARED: state.params}

    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        out = task.net.forward(state.params, x, tape=False)
        return out.z + added(state.head, out.features)


def added(head: Params, features: Tensor) -> Tensor:
    """h: [site, row, output]."""
    return torch.baddbmm(head["bias"].unsqueeze(1), features, head["weight"])

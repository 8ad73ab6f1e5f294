"""FedAvg (McMahan et al. 2017): every site trains from the same model, and the coordinator averages the results.

    w_i <- w - lr * sum of gradients over one or more local epochs
    w   <- w + sum_i p_i (w_i - w) / sum_i p_i          over the sites that answered

p_i = 1 (`weights = "uniform"`, the default, as in the iFedAvg paper) or the site's number of training rows (`"rows"`,
as in McMahan et al.). A site reports p_i (w_i - w), the change, and p_i. `invited` is the number of sites asked in each
round, drawn anew each time from the study's seed (McMahan's C, as a number); by default all sites are asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, WireRules
from vitrail.core.exchange import Method, Roster, Rows, SiteContext
from vitrail.core.facts import OWN, Facts
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, apply_update, clone, scaled, subtract, to_all


class Own(NamedTuple):
    params: Annotated[Params, "the part of your model that is not shared"]  # all layers once settled
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Shared(NamedTuple):
    params: Annotated[Params, "the shared layers of the network"]


class Up(NamedTuple):
    change: Annotated[Params, "what training on your rows changed in the shared layers, times how much it counts"]
    weight: Annotated[Tensor, 'how much it counts: 1, or with weights = "rows" how many rows you train on']


class Work(NamedTuple):
    params: Params
    memory: Params
    received: Params


@dataclass(frozen=True)
class Averages:
    """The coordinator's half, for every method whose coordinator averages models."""

    wire = WireRules(aggregation="sum", weight_fields={"weight"})
    personal: ClassVar[tuple[str, ...]] = ()  # parameter groups that stay at the site
    weights: Literal["uniform", "rows"] = "uniform"
    invited: Annotated[int, Ge(1)] | None = None

    def invite(self, task: Task, coord: Shared, roster: Roster) -> Tensor:
        if self.invited is None or self.invited >= len(roster.names):
            return roster.present
        chosen = torch.zeros_like(roster.present)
        chosen[roster.key.topk(self.invited, largest=False).indices] = True
        return chosen

    def coord(self, task: Task, sites: int) -> Shared:
        return Shared(clone(task.select(task.start, task.others(self.personal))))

    def shared(self, coord: Shared) -> Params:
        return coord.params

    def send(self, task: Task, coord: Shared, roster: Roster) -> Shared:
        return Shared(to_all(coord.params, len(roster.names)))

    def say(self, params: Params, down: Shared, rows: Rows) -> Up:
        """The change of the parameters that travel, weighted, at the site."""
        change = subtract(params, down.params)
        if self.weights == "rows":
            return Up(scaled(rows.total, change), rows.total)
        return Up(change, torch.ones_like(rows.total))

    def merge(self, task: Task, coord: Shared, up: Up, roster: Roster) -> tuple[Shared, Facts]:
        return Shared(apply_update(coord.params, up.change, up.weight)), {}


@dataclass(frozen=True)
class FedAvg(Averages, Method[Own, Shared, Work, Shared, Up]):
    catalogue = Catalogue("FedAvg")

    def state(self, task: Task, sites: int) -> Own:
        every = to_all(task.start, sites)
        shared = task.select(task.start, task.others(self.personal))
        return Own(clone(task.select(every, self.personal)), task.initial_state(every, shared))

    def begin(self, site: SiteContext, state: Own, down: Shared) -> Work:
        params = clone({**state.params, **down.params})
        return Work(params, site.optimizer.state(params, state.memory), down.params)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: Own, work: Work, down: Shared) -> tuple[Own, Up]:
        mine = Own({k: work.params[k] for k in state.params}, carry_state(work.memory, state.memory))
        return mine, self.say(work.params, down, site.rows)

    def settle(self, task: Task, state: Own, down: Shared) -> Own:
        return Own({**state.params, **down.params})

    def models(self, task: Task, state: Any) -> dict[str, Params]:
        return {OWN: state.params}

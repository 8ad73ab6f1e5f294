"""A model for every site, all of them trained by all sites: for methods in which each site is the user once.

The coordinator holds every user's model and, with `beside`, one more: Global. A site is sent all of them, trains those
that it is asked for, on the same batches, and says what changed in each; with `beside` it trains Local too, on its rows
alone, and may show it afterwards. With `validation` a user whose loss on rows set aside no longer falls stops early.
A method says whose model each site is asked for (`asked`), and what it makes of the updates (`merge`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from vitrail.core import facts as means
from vitrail.core.declarations import Ge, Lt, Needs, WireRules
from vitrail.core.exchange import Method, Nothing, Roster, SiteContext, Stage, training
from vitrail.core.facts import ALONE, OWN, SHARED, Fact, Facts
from vitrail.core.optimizers import Optimizer
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, select_own, subtract, to_all
from vitrail.methods.blocks.basics import EarlyStopping, Reveal, distance, per_user


class State(NamedTuple):
    params: Params  # the user's own model, once settled
    local: Annotated[Params, "the model that is trained on your rows alone, in parallel"]
    shared: Params  # Global, once settled
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Coord(Protocol):
    """What the coordinator keeps at least."""

    @property
    def models(self) -> Params: ...  # [user, ...]; Global is the last where there is one
    @property
    def watch(self) -> EarlyStopping: ...


class Down(NamedTuple):
    models: Annotated[Params, "the models of all sites"]  # [site, user, ...]
    wanted: Annotated[Tensor, "for which of them you are asked to train"]  # [site, user] bool
    own: Annotated[Tensor, "which of them is yours"]  # [site, user]: 1 where the site is the user


class Up(NamedTuple):
    update: Annotated[Params, "what your rows would change in the model of each site"]  # [site, user, ...]
    rows: Annotated[Tensor, "how many rows you train on"]  # these [site]
    drawn: Annotated[Tensor, "how many of your rows were drawn in this round"]
    batches: Annotated[Tensor, "in how many batches your rows were drawn"]
    loss: Annotated[Tensor | Nothing, "the loss of your model on rows that you set aside"] = Nothing()
    to_alone: Annotated[Tensor | Nothing, "how far your model is from one trained on your rows alone"] = Nothing()
    between: Annotated[
        Tensor | Nothing, "how far the model trained on your rows alone is from the model of all sites"
    ] = Nothing()


class Work(NamedTuple):
    models: dict[str, Params]  # by user
    memory: dict[str, Params]
    wanted: Tensor
    drawn: Tensor  # [site]
    batches: Tensor  # [site]
    local: Params
    local_memory: Params


Held = TypeVar("Held", bound=Coord)


@dataclass(frozen=True)
class EveryUser(Method[State, Held, Work, Down, Up], Generic[Held]):
    """All but what the coordinator makes of the updates."""

    wire = WireRules(score_fields={"loss"}, may_be_nan={"loss"}, per_site_messages=True)
    validation: Annotated[float, Ge(0), Lt(1)] = 0.0
    patience: Annotated[int, Ge(1)] = 20
    beside: bool = True

    @property
    def needs(self) -> Needs:
        return Needs(validation_share=self.validation)

    @abstractmethod
    def asked(self, coord: Held) -> Tensor:
        """[user, site] bool: whose model which site is asked to train."""

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        what = "the model trained on your rows alone, if it is linear; until then it stays here"
        shown = Reveal(lambda task, state: state.local if task.net.linear else {}, _of_linear, what)
        show = (Stage("show", (shown,), 1, "own model", "After training, once"),)
        return (training(self, rounds), *(show if self.beside else ()))

    def state(self, task: Task, sites: int) -> State:
        local = clone(to_all(task.start, sites)) if self.beside else {}
        return State({}, local, {}, task.initial_state(local))

    def first(self, task: Task, sites: int) -> tuple[Params, EarlyStopping]:
        """The models with which the coordinator starts."""
        models = clone(to_all(task.start, sites + self.beside))
        return models, EarlyStopping.of(models, sites, self.validation > 0)

    def send(self, task: Task, coord: Held, roster: Roster) -> Down:
        wanted, n = self.asked(coord).T, len(roster.names)
        wanted = torch.cat([wanted, wanted.new_ones(n, int(self.beside))], 1)
        return Down(to_all(coord.models, n), wanted, torch.eye(n, dtype=task.like.dtype, device=wanted.device))

    def begin(self, site: SiteContext, state: State, down: Down) -> Work:
        users = range(down.wanted.shape[1])
        models = {str(u): clone({k: v[:, u] for k, v in down.models.items()}) for u in users}
        memory = {u: site.optimizer.state(model) for u, model in models.items()}
        none, local = torch.zeros_like(site.rows.total), clone(state.local)
        return Work(models, memory, down.wanted, none, none.clone(), local, site.optimizer.state(local, state.memory))

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        work.drawn.add_((batch.w > 0).sum((1, 2)))
        work.batches.add_(1)
        for (user, model), wanted in zip(work.models.items(), work.wanted.unbind(1), strict=True):
            _descend(site.task, model, work.memory[user], wanted, batch, site.optimizer)
        if self.beside:
            site.optimizer.alone.step(site.task, work.local, work.local_memory, batch)

    def update_of(self, work: Work, down: Down) -> Params:
        """[site, user, ...]: what a site says of each model."""
        return subtract(stacked(work.models), down.models)

    def report(self, site: SiteContext, state: State, work: Work, down: Down) -> tuple[State, Up]:
        update = self.update_of(work, down)
        if down.wanted.device.type != "cpu":  # where all were trained; elsewhere the others have not moved
            update = {k: _where(down.wanted, v) for k, v in update.items()}
        up, own = Up(update, site.rows.total, work.drawn, work.batches), select_own(down.models, down.own)
        if site.rows.validation is not None:  # not a number at a site that is too small to set rows aside
            up = up._replace(loss=site.task.value(own, site.rows.validation) / site.rows.validation.w.sum((1, 2)))
        if self.beside:
            shared = {k: v[:, -1] for k, v in down.models.items()}
            up = up._replace(to_alone=distance(own, state.local), between=distance(shared, state.local))
        return State({}, work.local, {}, carry_state(work.local_memory, state.memory)), up

    def watched(self, coord: Held, up: Up, here: Tensor) -> tuple[Params, EarlyStopping]:
        """The models as they were sent, after what was said of their loss: who has stopped is back at its best."""
        if not isinstance(up.loss, Tensor):
            return coord.models, coord.watch
        watch, models = coord.watch.observe(coord.models, up.loss, here, self.patience)
        return models, watch

    def moved(self, models: Params, update: Params, trust: Tensor, counts: Tensor) -> Params:
        """Every model by the mean of the updates, weighted by the user's trust [user, site] and by how much a site
        counts for everybody [site]; Global by the latter alone."""
        weight = torch.cat([trust, torch.ones_like(counts).expand(int(self.beside), -1)]) * counts  # [model, site]
        share = weight / weight.sum(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        return {k: v + torch.einsum("ms,sm...->m...", share, update[k]) for k, v in models.items()}

    def facts(self, sent: Held, up: Up, here: Tensor, watch: EarlyStopping) -> Facts:
        """What can be told of the models as they were sent."""
        computed = (self.asked(sent) * here * up.batches).sum()
        counted = torch.stack([computed, 2 * self.beside * up.batches.sum()])
        facts = {
            "stopped": per_user(watch.stopped, means.STOPPED),
            "gradients": Fact(counted, ("for",), means.GRADIENTS, every=True),
        }
        meaning_of = {"loss": means.VALIDATION, "to_alone": means.TO_ALONE, "between": means.BETWEEN}
        for name, what in meaning_of.items():
            if isinstance(value := getattr(up, name), Tensor):
                facts[name] = per_user(value, what, here)
        if self.beside:
            theirs, shared = ({k: v[at] for k, v in sent.models.items()} for at in (slice(len(here)), -1))
            facts["to_shared"] = per_user(distance(theirs, to_all(shared, len(here))), means.TO_SHARED)
        return facts

    def settle(self, task: Task, state: State, down: Down) -> State:
        shared = {k: v[:, -1] for k, v in down.models.items()} if self.beside else {}
        return State(select_own(down.models, down.own), state.local, shared)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params, **({SHARED: state.shared, ALONE: state.local} if self.beside else {})}


def stacked(users: dict[str, Params]) -> Params:
    """[site, ...] of each user -> [site, user, ...]."""
    return {k: torch.stack([user[k] for user in users.values()], 1) for k in next(iter(users.values()))}


def _descend(task: Task, model: Params, memory: Params, wanted: Tensor, batch: Batch, rule: Optimizer) -> None:
    """One step of one user's model, at the sites that are asked for it."""
    # a captured GPU graph cannot choose: it computes all, and report leaves out what was not asked for
    if wanted.device.type != "cpu" or bool(wanted.all()):
        rule.step(task, model, memory, batch)
    elif bool(wanted.any()):
        some, theirs = ({k: v[wanted] for k, v in tree.items()} for tree in (model, memory))
        rows = Batch(batch.x[wanted], batch.y[wanted], batch.w[wanted], tuple(t[wanted] for t in batch.keep))
        rule.step(task, some, theirs, rows)
        for whole, part in ((model, some), (memory, theirs)):
            for k, v in part.items():
                whole[k][wanted] = v


def _where(wanted: Tensor, update: Tensor) -> Tensor:
    return torch.where(wanted.view(*wanted.shape, *[1] * (update.dim() - 2)), update, 0)


def _of_linear(name: str) -> tuple[tuple[str, ...], str]:
    """Axes and meaning of a parameter of the linear model."""
    if name.endswith("weight"):
        return ("site", "input", "output"), means.ALONE_WEIGHT
    return ("site", "output"), means.ALONE_BIAS

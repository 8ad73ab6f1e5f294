"""Centres: whom to learn from, and how much. Vitrail's own; both questions are answered by sums over sites.

    1. for K = 1 .. `groups`: K shared models c_1 .. c_K; site i belongs to that with the lowest loss on its rows,
           z_i = argmin_k L_i(c_k)         c_k <- c_k + sum_{i: z_i = k} p_i (w_i - c_k) / sum_{i: z_i = k} p_i
       where w_i is c_{z_i} after the local epochs. K = 1 is FedAvg. Those of K > 1 part from it after `warm` of the
       rounds, each with a small random step, in `starts` draws; that with the lowest sum_i min_k L_i(c_k) is taken.
    2. with `constant`, what is added to each score at the site, b_i = argmin L_i(c + b) + hold/2 |b|^2; else b_i = 0
    3. the site predicts by the scores      alpha f_i(x) + (1 - alpha) (c_{z_i}(x) + b_i)      f_i: trained alone
    4. (K, with or without b, alpha) is one choice for all sites: the lowest sum over sites of out-of-fold losses, where
       more groups count only if they lower it by the share `margin`. Rows fall into `folds` by lot; everything of 1 to
       3 is there once for all rows and once without each fold.

Why one choice: a site has too few rows to choose for itself (docs/decisions/017-centres.md, with what was measured).

What crosses: K blocks (a site's own change in block z_i, zeros elsewhere), a one beside it to be counted, the losses by
which starts are compared, and at the end one table of out-of-fold losses. The coordinator needs their totals only: who
is in which group it learns from the sites that agree to show it. But a single report tells it, by the block that is not
zero, to whoever gets hold of it: only masked sums hide that. A group of one site is that site's model, without its
name. All trust the losses that are reported.

Cost, in FedAvg's trainings: (folds + 1) (2 + (1 - warm) starts (groups - 1)); and in each round of groups a site scores
all their models, and their optimiser begins afresh. `split = "head"`: between groups only the last layer differs, so
that messages stay small for a large network. `alpha` fixes the share of one's own model. A centre whose group is empty
begins again: its first step away from the model of all sites, as that is by now. A site that was absent when the choice
was made has no constant, and the group of its last round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Le, Needs, WireRules
from vitrail.core.exchange import Exchange, Method, Roster, Rows, SiteContext, Stage, training
from vitrail.core.facts import ALONE, ALONE_LEFT_OUT, GROUP, LEFT_OUT, OWN, SHARED, Facts
from vitrail.core.losses import Hazard
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, apply_update, clone, interpolate, scaled, subtract, to_all
from vitrail.methods.blocks.basics import Reveal
from vitrail.methods.blocks.centre_choice import ChooseCentres, Coord, State, centres_of
from vitrail.methods.blocks.model_copies import apart, copies, flat, fold_of, joined, last, lot_of, picked, repeated
from vitrail.methods.fedavg import Averages, Shared


class Down(NamedTuple):
    params: Annotated[Params, "the model of all sites, without each fold and on all rows"]  # [site, version, ...]
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]  # [site], the same for all


class Up(NamedTuple):
    change: Annotated[Params, "what training on your rows changed in them, times how much it counts"]
    weight: Annotated[Tensor, 'how much it counts: 1, or with weights = "rows" how many rows you train on']


class Work(NamedTuple):
    models: Params  # [site, version, ...]: those of all sites, then the site's own
    memory: Params
    lot: Tensor


@dataclass(frozen=True)
class Centres(Method[State, Coord, Work, Down, Up]):
    catalogue = Catalogue("Centres", tuning_grid={"groups": (2, 3, 5)})
    name: ClassVar[str] = "all sites"
    wire = WireRules("sum", weight_fields={"weight"}, disclosed_state={"groups", "group", "losses", "alone", "loss"})
    needs = Needs(row_indices=True)
    groups: Annotated[int, Ge(1)] = 3
    folds: Annotated[int, Ge(2)] = 3  # what is left out is judged by a model of the rest
    starts: Annotated[int, Ge(1)] = 2
    warm: Annotated[float, Ge(0), Le(1)] = 0.1
    constant: bool = True
    hold: Annotated[float, Ge(0)] = 0.3
    margin: Annotated[float, Ge(0)] = 0.01
    alpha: Annotated[float, Ge(0), Le(1)] | None = None
    split: Literal["all", "head"] = "all"
    weights: Literal["uniform", "rows"] = "uniform"
    invited: Annotated[int, Ge(1)] | None = None

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        what = "which group you are in, and your loss per row on rows left out, by the choice and alone"
        shown = Reveal(lambda task, state: {k: getattr(state, k) for k in MEANS}, MEANS.__getitem__, what)
        train, apart_from = training(self, rounds), int(self.warm * rounds)
        if self.groups > 1:
            cycle = tuple((0,) if r < apart_from else (0, 1) for r in range(rounds))
            train = train._replace(exchanges=(self, SplitCentres(self)), cycle=cycle)
        choose = Stage("choose", (ChooseCentres(self),), 1, "choice", "After training, once")
        return train, choose, Stage("show", (shown,), 1, "group", "Last, once")

    @property
    def alphas(self) -> tuple[float, ...]:
        return tuple(i / 10 for i in range(11)) if self.alpha is None else (self.alpha,)

    @property
    def table(self) -> tuple[int, int, int]:
        """K, without or with constants, alpha: the first alternative is the simplest."""
        return self.groups, 1 + self.constant, len(self.alphas)

    @property
    def spans(self) -> list[slice]:
        """Of each K > 1, its centres among all of K > 1."""
        return [slice(a := k * (k - 1) // 2 - 1, a + k) for k in range(2, self.groups + 1)]

    @property
    def wide(self) -> tuple[int, int, int]:
        """Versions, starts, centres of K > 1."""
        return self.folds + 1, self.starts, sum(range(2, self.groups + 1))

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        if self.split == "all" or "head" in task.net.groups:
            return ()
        return ('split = "head", and the network has no group "head"',)

    def invite(self, task: Task, coord: Coord, roster: Roster) -> Tensor:
        return Averages(self.weights, self.invited).invite(task, Shared({}), roster)

    def state(self, task: Task, sites: int) -> State:
        own, none = clone(to_all(to_all(task.start, self.wide[0]), sites)), task.like.new_zeros(sites)
        groups = none.new_zeros(sites, self.starts, self.groups, dtype=torch.int64)
        constants = none.new_zeros(sites, self.groups, task.net.outputs)
        memory = [apart(task.initial_state(flat(own), shared), sites) for shared in (own, ())]
        table, alone, alpha, left_out = none.new_zeros(sites, *self.table), none, none.clone(), none.clone()
        constant, group = constants[:, 0].clone(), none.to(torch.int64)
        return State(own, groups, constants, table, alone, alpha, constant, group, left_out, {}, {}, *memory)

    def coord(self, task: Task, sites: int) -> Coord:
        differ = task.select(task.start, ("head",)) if self.split == "head" else task.start
        params, none = clone(to_all(task.start, self.wide[0])), task.like.new_zeros(())
        offset = {k: v.new_zeros(*self.wide, *v.shape) for k, v in differ.items()}
        base = clone({k: params[k] for k in differ})
        fit = none.new_zeros(*self.wide[:2], self.groups - 1)
        return Coord(params, base, none.to(torch.bool), offset, fit, none.to(torch.int64))

    def shared(self, coord: Coord) -> Params:
        return {k: v[-1] for k, v in coord.params.items()}

    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        return Down(to_all(coord.params, len(roster.names)), lot_of(roster))

    def begin(self, site: SiteContext, state: State, down: Down) -> Work:
        held = [site.optimizer.state(flat(state.own), flat(m)) for m in (state.memory, state.own_memory)]
        return Work(joined(down.params, state.own), joined(*(apart(m, len(down.lot)) for m in held)), down.lot)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        w = self.counted(batch, work.lot)
        site.optimizer.step(site.task, flat(work.models), flat(work.memory), copies(batch, torch.cat([w, w], 1)))

    def report(self, site: SiteContext, state: State, work: Work, down: Down) -> tuple[State, Up]:
        n = self.wide[0]
        shared, memory = ({k: v[:, :n] for k, v in tree.items()} for tree in (work.models, work.memory))
        own, own_memory = ({k: v[:, n:] for k, v in tree.items()} for tree in (work.models, work.memory))
        memory, own_memory = carry_state(memory, state.memory), carry_state(own_memory, state.own_memory)
        weight = self.weight(site.rows)
        kept = state._replace(own=own, memory=memory, own_memory=own_memory)
        return kept, Up(scaled(weight, subtract(shared, down.params)), weight)

    def weight(self, rows: Rows) -> Tensor:
        return rows.total if self.weights == "rows" else torch.ones_like(rows.total)

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        params = apply_update(coord.params, up.change, up.weight)
        base = {k: torch.where(coord.parted, v, params[k]) for k, v in coord.base.items()}
        return coord._replace(params=params, base=base), {}

    def settle(self, task: Task, state: State, down: Down | Centred) -> State:
        return state._replace(params=last(down.params), shared=last(down.params), memory={}, own_memory={})

    def models(self, task: Task, state: State) -> dict[str, Params]:
        """A mix of scores is one model only where scores are a weighted sum; else the own is that of the group, and
        `predict` mixes in what was trained alone."""
        own, alone = state.params, last(state.own)
        plain = task.net.linear and not isinstance(task.loss, Hazard)  # of times, head.bias has a unit of its own
        if plain and not {"input", "output"} & set(task.net.groups):
            own = interpolate(state.alpha, alone, own)
            own["head.bias"] = own["head.bias"] + (1 - state.alpha)[:, None] * state.constant
        return {OWN: own, SHARED: state.shared, ALONE: alone}

    def self_report(self, state: State) -> dict[str, Tensor]:
        return {LEFT_OUT: state.loss, ALONE_LEFT_OUT: state.alone}

    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        mine, theirs = task.output(last(state.own), x), task.output(state.params, x) + state.constant[:, None]
        a = state.alpha[:, None, None]  # at the ends the other is not looked at, whatever became of it
        return torch.where(a == 0, theirs, torch.where(a == 1, mine, torch.lerp(theirs, mine, a)))

    def fold(self, batch: Batch, lot: Tensor) -> Tensor:
        return fold_of(batch, lot, self.folds)

    def counted(self, batch: Batch, lot: Tensor) -> Tensor:
        """[site, version, row, 1]: a row counts in every version but that without its fold."""
        fold = self.fold(batch, lot)
        seen = fold[:, None] != torch.arange(self.wide[0], device=fold.device)[:, None]
        return batch.w[:, None] * seen[..., None]

    def nearest(self, losses: Tensor, rows: Rows) -> Tensor:
        """Losses [site, ..., centre] of one K -> [site, ...]: which to belong to."""
        return torch.where(losses.isfinite(), losses, torch.inf).argmin(-1)


MEANS = {"group": (("site",), GROUP), "loss": (("site",), LEFT_OUT), "alone": (("site",), ALONE_LEFT_OUT)}


class Centred(NamedTuple):
    params: Annotated[Params, "the model of all sites, without each fold and on all rows"]  # [site, version, ...]
    centres: Annotated[Params, "the models of all groups, as far as they differ"]  # [site, version, start, centre, ...]
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]


class Blocks(NamedTuple):
    change: Annotated[Params, "what training on your rows changed in the model of your group; zeros for all others"]
    weight: Annotated[Tensor, "how much that counts, in the place of your group"]  # [site, version, start, centre]
    fit: Annotated[Tensor, "the loss of your group's model on your rows"]  # [site, version, start, K > 1]


class Hand(NamedTuple):
    models: Params  # [site, version * start * K > 1, ...]: those of the site's groups
    rest: Params  # likewise: what they share with that of all sites
    memory: Params
    place: Tensor  # [site, version, start, K > 1]: which of all centres they are
    fit: Tensor
    lot: Tensor


@dataclass(frozen=True)
class SplitCentres(Exchange[State, Coord, Hand, Centred, Blocks]):
    """A site trains the models of the groups that its rows fit best: one for every version, start and K > 1."""

    name: ClassVar[str] = "groups"
    wire = WireRules("sum", weight_fields={"weight"}, score_fields={"fit"}, may_be_nan={"fit"}, final_fields={"params"})
    needs = Needs(row_indices=True)
    of: Centres

    def invite(self, task: Task, coord: Coord, roster: Roster) -> Tensor:
        return self.of.invite(task, coord, roster)

    def send(self, task: Task, coord: Coord, roster: Roster) -> Centred:
        n = len(roster.names)
        return Centred(to_all(coord.params, n), to_all(centres_of(coord, roster), n), lot_of(roster))

    def begin(self, site: SiteContext, state: State, down: Centred) -> Hand:
        losses = self.losses(site.task, down, site.rows)
        place = torch.stack([self.of.nearest(losses[..., at], site.rows) + at.start for at in self.of.spans], -1)
        n, each = len(place), place[0, 0].numel()  # so many of every version
        models = {k: picked(v, place).flatten(1, 3) for k, v in down.centres.items()}
        memory = apart(site.optimizer.state(flat(models)), n)
        return Hand(clone(models), rest_of(down, each), memory, place, losses.gather(-1, place), down.lot)

    def losses(self, task: Task, down: Centred, rows: Rows) -> Tensor:
        """[site, version, start, centre]: of every centre on the rows of its version."""
        shape = (len(down.lot), *self.of.wide)
        out, rest = task.like.new_zeros(shape), rest_of(down, self.of.starts)
        for batch in rows.blocks():
            wide = copies(batch, self.of.counted(batch, down.lot).repeat_interleave(self.of.starts, 1))
            for c in range(shape[-1]):
                model = {k: v[:, :, :, c].flatten(1, 2) for k, v in down.centres.items()}
                out[..., c] += task.value(flat(model | rest), wide).view(shape[:-1])
        return out

    def step(self, site: SiteContext, work: Hand, batch: Batch) -> None:
        w = self.of.counted(batch, work.lot).repeat_interleave(work.place[0, 0].numel(), 1)
        models, memory, wide = flat(work.models), flat(work.memory), copies(batch, w)
        if not work.rest:
            return site.optimizer.step(site.task, models, memory, wide)
        slope = site.task.grad(models | flat(work.rest), wide)
        return site.optimizer.apply(models, memory, {k: slope[k] for k in models})

    def report(self, site: SiteContext, state: State, work: Hand, down: Centred) -> tuple[State, Blocks]:
        change, weight, place = {}, self.of.weight(site.rows), work.place
        for k, v in down.centres.items():
            one = work.models[k].view(*place.shape, *v.shape[4:]) - picked(v, place)
            there = place.view(*place.shape, *[1] * (v.dim() - 4)).expand_as(one)
            change[k] = torch.zeros_like(v).scatter(3, there, one)
        count = work.fit.new_zeros(len(place), *self.of.wide).scatter(-1, place, 1.0)
        groups = state.groups.clone()
        for i, at in enumerate(self.of.spans):
            groups[..., 1 + i] = place[:, -1, :, i] - at.start
        told = Blocks(scaled(weight, change), scaled(weight, {"": count})[""], work.fit)
        return state._replace(groups=groups), told

    def merge(self, task: Task, coord: Coord, up: Blocks, roster: Roster) -> tuple[Coord, Facts]:
        by, offset = torch.where(up.weight > 0, up.weight, 1), {}
        for k, v in coord.offset.items():
            one = by.view(*by.shape, *[1] * (v.dim() - 3))
            again = (coord.params[k] - coord.base[k])[:, None, None]  # nobody's begins again
            empty = (up.weight == 0).view(one.shape)
            offset[k] = torch.where(empty, again, v + up.change[k] / one)
        return coord._replace(parted=torch.ones_like(coord.parted), offset=offset, fit=up.fit), {}

    def settle(self, task: Task, state: State, down: Centred) -> State:
        return self.of.settle(task, state, down)


def rest_of(down: Centred, times: int) -> Params:
    return repeated({k: v for k, v in down.params.items() if k not in down.centres}, times)

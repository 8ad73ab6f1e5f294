"""Centres: several shared models. All sites agree on how many, and on how much each site uses of its own model, both
chosen by sums over sites. Vitrail's own method.

    1. for K = 1 .. `groups`: K shared models c_1 .. c_K; site i belongs to the one with the lowest loss on its rows,
           z_i = argmin_k L_i(c_k)         c_k <- c_k + sum_{i: z_i = k} p_i (w_i - c_k) / sum_{i: z_i = k} p_i
       where w_i is c_{z_i} after the local epochs. K = 1 is FedAvg. For K > 1 the models leave it after the share
       `warm` of the rounds, each by a small random step, in `starts` draws; the lowest sum_i min_k L_i(c_k) wins.
    2. with `constant`, a number added to each score at the site, b_i = argmin L_i(c + b) + hold/2 |b|^2; else b_i = 0
    3. the site predicts by the scores      alpha f_i(x) + (1 - alpha) (c_{z_i}(x) + b_i)      f_i: trained alone
    4. (K, with or without b, alpha) is one choice for all sites: the lowest sum over sites of out-of-fold losses. More
       groups are taken only if they lower it by the share `margin`. Rows are assigned to `folds` folds at random; all
       of 1 to 3 runs once with all rows and once without each fold.

Why one choice: a site has too few rows to choose for itself (docs/decisions/017-centres.md, with measurements).

What crosses: K blocks (a site's own change in block z_i, zeros elsewhere), a one that counts the site, the losses that
compare the starts, and at the end one table of out-of-fold losses. The coordinator needs only the totals; it learns a
site's group only if the site agrees to show it. But the block that is not zero gives the group away to anyone who reads
a single report: only masked sums hide it. The model of a group of one site is that site's model, without its name.
Nobody verifies the losses that sites report.

Cost, in trainings of FedAvg: (folds + 1) (2 + (1 - warm) starts (groups - 1)). In each round of groups a site scores
all models, and the optimizer of the groups starts anew. `split = "head"`: groups differ only in the last layer, which
keeps messages small. `alpha` fixes the share of a site's own model. A centre without sites starts again one step away
from the model of all sites as it is then. A site that was absent when the choice was made has no constant and keeps the
group of its last round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Le, Needs, WireRules
from vitrail.core.exchange import Method, Roster, Rows, SiteContext, Stage, training
from vitrail.core.facts import ALONE, ALONE_LEFT_OUT, GROUP, LEFT_OUT, OWN, SHARED, Facts
from vitrail.core.losses import Hazard
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, apply_update, clone, interpolate, scaled, subtract, to_all, tree_map
from vitrail.methods.blocks.basics import Reveal
from vitrail.methods.blocks.centre_stages import Centred, ChooseCentres, Coord, SplitCentres, State
from vitrail.methods.blocks.model_copies import ALPHAS, copies, counted_rows, last, lot_of, merged, mix_scores, parted
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
        what = "which group you are in, and your loss per row on rows left out, with the choice and trained alone"
        shown = Reveal(lambda task, state: {k: getattr(state, k) for k in MEANS}, MEANS.__getitem__, what)
        train, apart_from = training(self, rounds), int(self.warm * rounds)
        if self.groups > 1:
            cycle = tuple((0,) if r < apart_from else (0, 1) for r in range(rounds))
            train = train._replace(exchanges=(self, SplitCentres(self)), cycle=cycle)
        choose = Stage("choose", (ChooseCentres(self),), 1, "choice", "After training, once")
        return train, choose, Stage("show", (shown,), 1, "group", "Last, once")

    @property
    def alphas(self) -> tuple[float, ...]:
        return ALPHAS if self.alpha is None else (self.alpha,)

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
        return ('split = "head" needs a network with a group "head"',)

    def invite(self, task: Task, coord: Coord, roster: Roster) -> Tensor:
        return Averages(self.weights, self.invited).invite(task, Shared({}), roster)

    def state(self, task: Task, sites: int) -> State:
        own, none = clone(to_all(to_all(task.start, self.wide[0]), sites)), task.like.new_zeros(sites)
        groups = none.new_zeros(sites, self.starts, self.groups, dtype=torch.int64)
        constants = none.new_zeros(sites, self.groups, task.net.outputs)
        memory = [parted(task.initial_state(merged(own), shared), sites) for shared in (own, ())]
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
        held = [site.optimizer.state(merged(state.own), merged(m)) for m in (state.memory, state.own_memory)]
        return Work(_joined(down.params, state.own), _joined(*(parted(m, len(down.lot)) for m in held)), down.lot)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        w = self.counted(batch, work.lot)
        site.optimizer.step(site.task, merged(work.models), merged(work.memory), copies(batch, torch.cat([w, w], 1)))

    def report(self, site: SiteContext, state: State, work: Work, down: Down) -> tuple[State, Up]:
        n = self.wide[0]
        shared, memory = ({k: v[:, :n] for k, v in tree.items()} for tree in (work.models, work.memory))
        own, own_memory = ({k: v[:, n:] for k, v in tree.items()} for tree in (work.models, work.memory))
        memory, own_memory = carry_state(memory, state.memory), carry_state(own_memory, state.own_memory)
        weight = self.weight(site.rows)
        state = state._replace(own=own, memory=memory, own_memory=own_memory)
        return state, Up(scaled(weight, subtract(shared, down.params)), weight)

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
        theirs = task.output(state.params, x) + state.constant[:, None]
        return mix_scores(state.alpha, task.output(last(state.own), x), theirs)

    def counted(self, batch: Batch, lot: Tensor) -> Tensor:
        return counted_rows(batch, lot, self.folds)

    def nearest(self, losses: Tensor, rows: Rows) -> Tensor:
        """Losses [site, ..., centre] of one K -> [site, ...]: which to belong to."""
        return torch.where(losses.isfinite(), losses, torch.inf).argmin(-1)


MEANS = {"group": (("site",), GROUP), "loss": (("site",), LEFT_OUT), "alone": (("site",), ALONE_LEFT_OUT)}


def _joined(one: Params, other: Params) -> Params:
    return tree_map(lambda a, b: torch.cat([a, b], 1), one, other)

"""What comes after FedAvg in Centres (methods/centres.py): what a site and the coordinator keep, the exchange
that trains the models of groups, and the one in which every site says what each alternative costs it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Needs, WireRules
from vitrail.core.exchange import Exchange, Nothing, Roster, Rows, SiteContext
from vitrail.core.facts import CHOICE, COSTS, TRIED, Fact, Facts
from vitrail.core.random import mixed
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, clone, scaled, to_all
from vitrail.methods.blocks.model_copies import (
    copies,
    counted,
    fitted,
    fold_of,
    last,
    loss,
    lot_of,
    merged,
    mix,
    parted,
    picked,
)

if TYPE_CHECKING:
    from vitrail.methods.centres import Centres

JITTER = 0.1  # of a first step away from the model of all sites, for weights of unit length


class State(NamedTuple):
    own: Annotated[Params, "the models trained on your rows alone, on all of them and without each fold"]
    groups: Tensor  # [site, start, K]: those that its rows fit best; the place of the change in a report tells them
    constants: Annotated[Tensor, "what your site would add to the scores of its group's models"]  # [site, K, output]
    losses: Tensor  # [site, K, constant, alpha]: per row, on rows left out; a report tells them, times the rows
    alone: Tensor  # [site]: that of the model trained alone
    # what follows is settled
    alpha: Tensor  # [site]
    constant: Annotated[Tensor, "what your site adds to its scores"]  # [site, output]
    group: Tensor  # [site]: from 1 on; 0: not yet
    loss: Tensor  # [site]: by the choice
    params: Params  # the model of the site's group
    shared: Params  # that of all sites
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012
    own_memory: Annotated[Params, "what the optimiser remembers for your own models"] = {}  # noqa: RUF012


class Coord(NamedTuple):
    params: Params  # [version, ...]: the model of all sites, without each fold; the last version has all rows
    base: Params  # [version, ...]: where the centres of K > 1 parted from it
    parted: Tensor  # whether they have
    offset: Params  # [version, start, centre, ...]: how far each has come since then
    fit: Tensor  # [version, start, K > 1]: sum over sites of the loss of the best centre
    choice: Tensor  # the place of the choice among all alternatives


class Centred(NamedTuple):
    params: Annotated[Params, "the model of all sites, without each fold and on all rows"]  # [site, version, ...]
    centres: Annotated[Params, "the models of all groups, as far as they differ"]  # [site, version, start, centre, ...]
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]


class Blocks(NamedTuple):
    change: Annotated[Params, "what training on your rows changed in the model of your group; zeros for all others"]
    weight: Annotated[Tensor, "how much that counts, at the position of your group"]  # [site, version, start, centre]
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
        memory = parted(site.optimizer.state(merged(models)), n)
        return Hand(clone(models), rest_of(down, each), memory, place, losses.gather(-1, place), down.lot)

    def losses(self, task: Task, down: Centred, rows: Rows) -> Tensor:
        """[site, version, start, centre]: of every centre on the rows of its version."""
        shape = (len(down.lot), *self.of.wide)
        out, rest = task.like.new_zeros(shape), rest_of(down, self.of.starts)
        for batch in rows.blocks():
            wide = copies(batch, self.of.counted(batch, down.lot).repeat_interleave(self.of.starts, 1))
            for c in range(shape[-1]):
                model = {k: v[:, :, :, c].flatten(1, 2) for k, v in down.centres.items()}
                out[..., c] += task.value(merged(model | rest), wide).view(shape[:-1])
        return out

    def step(self, site: SiteContext, work: Hand, batch: Batch) -> None:
        w = self.of.counted(batch, work.lot).repeat_interleave(work.place[0, 0].numel(), 1)
        models, memory, wide = merged(work.models), merged(work.memory), copies(batch, w)
        if not work.rest:
            return site.optimizer.step(site.task, models, memory, wide)
        slope = site.task.grad(models | merged(work.rest), wide)
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
        report = Blocks(scaled(weight, change), scaled(weight, {"": count})[""], work.fit)
        return state._replace(groups=groups), report

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
    """What groups share, once for each of their models."""
    return {k: v.repeat_interleave(times, 1) for k, v in down.params.items() if k not in down.centres}


class CentreOffer(NamedTuple):
    params: Annotated[Params, "the model of all sites, without each fold and on all rows"]  # [site, version, ...]
    centres: Annotated[Params, "the models of all groups"]  # [site, version, centre, ...]: of the best start
    start: Annotated[Tensor, "from which random start they come"]  # [site, K]
    choice: Annotated[Tensor, "the choice: how many groups, whether sites have constants, how much of your own model"]
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]


class CentreCosts(NamedTuple):
    costs: Annotated[Tensor, "what each alternative would have cost you: loss on rows that were left out"]
    rows: Annotated[Tensor, "the number of these rows, by their weights"]


@dataclass(frozen=True)
class ChooseCentres(Exchange[State, Coord, Nothing, CentreOffer, CentreCosts]):
    """Each site says what every alternative costs it out of fold; the lowest total is the choice of all."""

    wire = WireRules("sum", weight_fields={"rows"}, score_fields={"costs"}, may_be_nan={"costs"})
    of: Centres

    def send(self, task: Task, coord: Coord, roster: Roster) -> CentreOffer:
        n, fit = len(roster.names), torch.where(coord.fit.isfinite(), coord.fit, torch.inf)
        start = fit.argmin(1)  # [version, K > 1]
        of_each = start.repeat_interleave(torch.arange(2, 2 + start.shape[1], device=start.device), 1)[..., None]
        every = centres_of(coord, roster).items()
        centres = {k: picked(v.transpose(1, 2), of_each, 2)[:, :, 0] for k, v in every}
        of_best = to_all({"start": torch.nn.functional.pad(start[-1], (1, 0)), "choice": coord.choice}, n)
        return CentreOffer(
            to_all(coord.params, n), to_all(centres, n), of_best["start"], of_best["choice"], lot_of(roster)
        )

    def report(self, site: SiteContext, state: State, work: Nothing, down: CentreOffer) -> tuple[State, CentreCosts]:
        of, blocks = self.of, [self.scores(site.task, state, down, batch) for batch in site.rows.blocks()]
        mine, theirs = (torch.cat([b[i] for b in blocks], -2) for i in (0, 1))  # [site, version, (centre,) row, output]
        y, w, fold = (torch.cat([b[i] for b in blocks], 1) for i in (2, 3, 4))
        seen = counted(w, fold, of.folds)
        losses = loss(site.task, theirs, y[:, None, None], seen[:, :, None])  # [site, version, centre]
        best = [torch.zeros_like(losses[..., 0], dtype=torch.int64)]
        best += [of.nearest(losses[..., 1 + at.start : 1 + at.stop], site.rows) for at in of.spans]
        first = torch.tensor([0, *(1 + at.start for at in of.spans)], device=fold.device)
        place = torch.stack(best, -1) + first  # [site, version, K]
        of_group = picked(theirs, place, 2)
        constants = torch.zeros_like(of_group[..., 0, :])
        if of.constant:
            constants = fitted(site.task, of_group, y[:, None, None], seen[:, :, None], of.hold)
        left_out = fold[:, None, None, :, None]  # the version of each row that has not seen it
        alone = mine.gather(1, left_out[:, 0].expand(-1, -1, -1, mine.shape[-1]))
        group = of_group.gather(1, left_out.expand(-1, -1, *of_group.shape[2:3], -1, mine.shape[-1]))
        added = (of_group + constants[..., None, :]).gather(1, left_out.expand_as(group))
        both = torch.stack([group[:, 0], added[:, 0]][: 1 + of.constant], 2)  # [site, K, constant, row, output]
        costs = [
            loss(site.task, mix(a, alone[:, :, None], both), y[:, None, None], w[:, None, None]) for a in of.alphas
        ]
        table, total = torch.stack(costs, -1), w.sum((1, 2))
        per_row = 1 / total.clamp(min=torch.finfo(total.dtype).tiny)
        losses, by_itself = per_row[:, None, None, None] * table, per_row * loss(site.task, alone[:, 0], y, w)
        groups = torch.stack(best, -1)[:, -1:].expand_as(state.groups)
        state = state._replace(groups=groups, constants=constants[:, -1], losses=losses, alone=by_itself)
        return state, CentreCosts(table, total)

    def scores(self, task: Task, state: State, down: CentreOffer, batch: Batch) -> tuple[Tensor, ...]:
        """Of one block of rows: by the models of one's own, by all centres; and what is known of the rows."""
        n, versions = len(batch.y), self.of.wide[0]
        wide = copies(batch, batch.w[:, None].expand(-1, versions, -1, -1))
        count = self.of.wide[2]
        models = [state.own, down.params]
        models += [down.params | {k: v[:, :, c] for k, v in down.centres.items()} for c in range(count)]
        mine, *theirs = (task.output(merged(m), wide.x).view(n, versions, *batch.y.shape[1:]) for m in models)
        return mine, torch.stack(theirs, 2), batch.y, batch.w, fold_of(batch, down.lot, self.of.folds)

    def merge(self, task: Task, coord: Coord, up: CentreCosts, roster: Roster) -> tuple[Coord, Facts]:
        costs = torch.where(up.costs.isfinite(), up.costs, torch.inf)
        k, b, a = torch.unravel_index(choice := self.lowest(costs), costs.shape)
        tried = costs.new_tensor(self.of.alphas)
        facts = {  # of every round: what only the last one tells would give way to what is shown after it
            "choice": Fact(torch.stack([k + 1, b, tried[a]]), ("what",), CHOICE, every=True),
            "costs": Fact(costs / up.rows, ("groups", "constants", "own share"), COSTS, every=True),
            "tried": Fact(tried, ("own share",), TRIED, every=True),
        }
        return coord._replace(choice=choice), facts

    def lowest(self, costs: Tensor) -> Tensor:
        """The place of the lowest; more groups must earn it."""
        best = costs.flatten(1).min(1)  # for each K
        many = 0
        for k in range(1, len(costs)):
            bar = best.values[many] - self.of.margin * best.values[many].abs()
            if best.values[k] < bar.nan_to_num(torch.inf):  # where all of the simpler ones diverged, any will do
                many = k
        return best.indices[many] + many * costs[0].numel()

    def settle(self, task: Task, state: State, down: CentreOffer) -> State:
        site = torch.arange(len(down.choice), device=down.choice.device)
        k, b, a = torch.unravel_index(down.choice, self.of.table)
        group = state.groups[site, down.start[site, k], k]
        first = torch.tensor([0, *(1 + at.start for at in self.of.spans)], device=k.device)
        whole = last(down.params)
        params = {}
        for name, v in whole.items():
            every = torch.cat([v[:, None], down.centres[name][:, -1]], 1) if name in down.centres else v[:, None]
            params[name] = every[site, (first[k] + group).clamp(max=every.shape[1] - 1)]
        return state._replace(
            own={name: v[:, -1:] for name, v in state.own.items()},
            alpha=state.alpha.new_tensor(self.of.alphas)[a],
            constant=b[:, None] * state.constants[site, k],
            group=group + 1,
            loss=state.losses.flatten(1)[site, down.choice],
            params=params,
            shared=whole,
        )


def centres_of(coord: Coord, roster: Roster) -> Params:
    """[version, start, centre, ...]: all centres of K > 1, from where they parted, each first a small step into a
    direction of its own; what is added to scores by itself is no direction."""
    out = {}
    for i, (k, v) in enumerate(coord.offset.items()):
        out[k] = coord.base[k][:, None, None] + v
        if v.dim() > 4:
            numbers = mixed(roster.seeds.sum() + i, torch.arange(1, 1 + v[0].numel(), device=v.device))
            length = math.prod(v.shape[3:-1]) ** 0.5
            out[k] += (JITTER / length * (numbers.to(v.dtype) / 2**63)).view(v.shape[1:])
    return out

"""The tuning and the choice of Agreed mix (methods/agreed_mix.py): what a site keeps, which methods can be
inside, and the exchanges that come after the method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Needs, WireRules
from vitrail.core.exchange import Exchange, Method, Nothing, Roster, SiteContext
from vitrail.core.facts import (
    AGAINST_ALONE,
    ALONE_LEFT_OUT,
    ERROR_LEFT_OUT,
    LEFT_OUT,
    MIX,
    MIX_COSTS,
    MIX_EPOCHS,
    TRIED,
    Fact,
    Facts,
)
from vitrail.core.task import Batch, Out, Task, carry_state
from vitrail.core.tensors import Params, clone
from vitrail.methods.blocks.model_copies import copies, fold_of, lot_of, merged, mix, parted, version
from vitrail.methods.blocks.out_of_fold import VersionedCoord
from vitrail.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from vitrail.methods.agreed_mix import AgreedMix

AnyMethod = Method[Any, Any, Any, Any, Any]

MEANS = {
    "loss": (("site",), LEFT_OUT),
    "alone": (("site",), ALONE_LEFT_OUT),
    "error": (("site",), ERROR_LEFT_OUT),
}


class State(NamedTuple):
    of: Any  # that of the method, [site, version, ...]
    own: Annotated[Params, "the models trained on your rows alone, on all of them and without each fold"]
    tuned: Annotated[
        Params, "the models that were tuned on your rows"
    ]  # [site, step, version, ...]; settled: [site, ...]
    epochs: Tensor  # [site]: of tuning, so far
    losses: Tensor  # [site, start, alpha]: per row, on rows left out; a report tells them, times the rows
    errors: Tensor  # [site, start, alpha]: of their difference to the next; a report tells their squares
    alone: Tensor  # [site]: that of the model trained alone
    # what follows is settled
    choice: Tensor  # [site]: the place among all alternatives
    loss: Tensor  # [site]: by the choice
    error: Tensor  # [site]
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Lot(NamedTuple):
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]


class TuningWork(NamedTuple):
    params: Params  # [site, version, ...]
    memory: Params
    lot: Tensor


def why_unfit(name: str | None) -> str:
    """Why that method cannot be mixed like this; nothing where it can."""
    from vitrail.methods import problems  # the table lists this method too

    if name is not None and (wrong := problems(name, {}, "inner")):
        return " ".join(f"{p.what} {p.hint}".strip() for p in wrong).rstrip(".")
    stages = (made := build_inner(name)).plan(2)
    one, *more = stages[0].exchanges
    if not made.catalogue.federated or more or one.wire.aggregation != "sum" or type(made).shared is Method.shared:
        return "its rounds are not one sum that gives a shared model, which each site could mix with its own"
    if any(ex.needs.row_indices for stage in stages for ex in stage.exchanges):
        return "like this method, it depends on which rows are in a batch, because it makes such a choice itself"
    return ""


@cache
def build_inner(name: str | None) -> AnyMethod:
    from vitrail.methods import build, split_name

    return FedAvg() if name is None else build(*split_name(name))


@dataclass(frozen=True)
class Tune(Exchange[State, VersionedCoord, TuningWork, Lot, Nothing]):
    """Each site goes on alone from what the method gave it, in every version; how it was after so many epochs is
    kept."""

    of: AgreedMix
    needs = Needs(row_indices=True)

    def send(self, task: Task, coord: VersionedCoord, roster: Roster) -> Lot:
        return Lot(lot_of(roster))

    def begin(self, site: SiteContext, state: State, down: Lot) -> TuningWork:
        params = clone({k: v[:, -1] for k, v in state.tuned.items()})
        return TuningWork(
            params, parted(site.optimizer.state(merged(params), merged(state.memory)), len(down.lot)), down.lot
        )

    def step(self, site: SiteContext, work: TuningWork, batch: Batch) -> None:
        wide = copies(batch, self.of.counted(batch, work.lot))
        site.optimizer.at(site.optimizer.lr * self.of.own_rate).step(
            site.task, merged(work.params), merged(work.memory), wide
        )

    def report(self, site: SiteContext, state: State, work: TuningWork, down: Lot) -> tuple[State, Nothing]:
        """What was kept earlier stays; a site that was absent has less of each."""
        epochs = state.epochs + 1
        goes_on = torch.stack([epochs <= last for last in self.of.tuned], -1)  # [site, step]
        tuned = {}
        for k, v in state.tuned.items():
            tuned[k] = torch.where(goes_on.view(*goes_on.shape, *[1] * (v.dim() - 2)), work.params[k][:, None], v)
        return state._replace(tuned=tuned, epochs=epochs, memory=carry_state(work.memory, state.memory)), Nothing()

    def settle(self, task: Task, state: State, down: Lot) -> State:
        return state._replace(memory={})


class MixOffer(NamedTuple):
    choice: Annotated[Tensor, "the choice: how many epochs of tuning, how much of your own model"]  # [site]
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]


class MixCosts(NamedTuple):
    costs: Annotated[Tensor, "what each mix would have cost you: loss on rows that were left out"]
    rows: Annotated[Tensor, "the number of these rows, by their weights"]
    against: Annotated[
        Tensor,
        "per row, the additional loss of each mix compared with training alone, its square, and its squared error",
    ]


@dataclass(frozen=True)
class ChooseMix(Exchange[State, VersionedCoord, Nothing, MixOffer, MixCosts]):
    """Each site says what every mix costs it out of fold; one is chosen by the totals, for all."""

    wire = WireRules("sum", score_fields={"costs", "against"}, may_be_nan={"costs", "against"})
    of: AgreedMix

    def send(self, task: Task, coord: VersionedCoord, roster: Roster) -> MixOffer:
        return MixOffer(coord.choice.expand(len(roster.names)), lot_of(roster))

    def report(self, site: SiteContext, state: State, work: Nothing, down: MixOffer) -> tuple[State, MixCosts]:
        blocks = [self.losses(site.task, state, down, batch) for batch in site.rows.blocks()]
        mixed, alone, w = (torch.cat([h[i] for h in blocks], -1) for i in range(3))  # of each row, weighted
        total, more = w.sum(-1), mixed - alone[:, None, None]  # [site], [site, start, alpha, row]
        per_row = 1 / total.clamp(min=torch.finfo(total.dtype).tiny)[:, None, None]
        by = per_row * more.sum(-1)
        off = more - by[..., None] * w[:, None, None]
        many = (w > 0).sum(-1).to(w.dtype)[:, None, None]
        square = per_row**2 * (off**2).sum(-1) * many / (many - 1).clamp(min=1)
        costs = mixed.sum(-1)
        state = state._replace(losses=per_row * costs, errors=square.sqrt(), alone=per_row[:, 0, 0] * alone.sum(-1))
        return state, MixCosts(costs, total, torch.stack([torch.ones_like(by), by, by**2, square], 1))

    def losses(self, task: Task, state: State, down: MixOffer, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Of one block of rows: of every mix [site, start, alpha, row], alone [site, row]; and the weights [site, row].

        A row is judged by the version that has not seen it, l_f. That has fewer rows than what is kept, of which a
        model trained alone suffers most: as Burman (1989) corrects it, l_f + l_all - mean over folds v of l_v."""
        of, (n, many) = self.of, batch.y.shape[:2]
        fold = fold_of(batch, down.lot, of.folds)
        wide = copies(batch, batch.w[:, None].expand(-1, of.folds + 1, -1, -1))

        def cost(z: Tensor) -> Tensor:
            """Scores [site * version, row, output] -> [site, row]."""
            each = task.loss.rows(Out(z, z), wide).view(n, of.folds + 1, many)
            return each.gather(1, fold[:, None])[:, 0] + each[:, -1] - each[:, :-1].mean(1)

        mine = task.output(merged(state.own), wide.x)
        steps = [{k: v[:, i] for k, v in state.tuned.items()} for i in range(len(of.tuned))]
        theirs = [of.method.predict(task, merged(state.of), wide.x), *(task.output(merged(p), wide.x) for p in steps)]
        rows = [torch.stack([cost(mix(a, mine, z)) for a in of.alphas], 1) for z in theirs]
        return torch.stack(rows, 1), cost(mine), batch.w[..., 0]

    def merge(self, task: Task, coord: VersionedCoord, up: MixCosts, roster: Roster) -> tuple[VersionedCoord, Facts]:
        costs = torch.where(up.costs.isfinite(), up.costs, torch.inf)
        choice = self.lowest(costs, up.against)
        start, a = torch.unravel_index(choice, costs.shape)
        epochs, tried = costs.new_tensor((0, *self.of.tuned)), costs.new_tensor(self.of.alphas)
        axes = ("epochs", "own share")
        facts = {  # of every round: what only the last one tells would give way to what is shown after it
            "choice": Fact(torch.stack([epochs[start], tried[a]]), ("what",), MIX, every=True),
            "costs": Fact(costs / up.rows, axes, MIX_COSTS, every=True),
            "epochs": Fact(epochs, ("epochs",), MIX_EPOCHS, every=True),
            "tried": Fact(tried, ("own share",), TRIED, every=True),
            "against": Fact(up.against, ("sums", *axes), AGAINST_ALONE, every=True),
        }
        return coord._replace(choice=choice), facts

    def lowest(self, costs: Tensor, against: Tensor) -> Tensor:
        """The place of the lowest; of those that cost hardly more, of that which serves fewest worse than alone."""
        best = costs.flatten().argmin()
        if not self.of.slack:
            return best
        bar = costs.flatten()[best] + self.of.slack * costs.flatten()[best].abs()
        worse = torch.where(costs <= bar, expected_worse(against), torch.inf)
        return worse.nan_to_num(torch.inf).flatten().argmin() if bool(worse.isfinite().any()) else best

    def settle(self, task: Task, state: State, down: MixOffer) -> State:
        site, state = torch.arange(len(down.choice), device=down.choice.device), state._replace(choice=down.choice)
        return state._replace(
            of=parted(version(state.of, -1, 1), len(site)),
            own={k: v[:, -1:] for k, v in state.own.items()},
            tuned=self.of.as_tuned(state) if self.of.tuned else {},
            loss=state.losses.flatten(1)[site, down.choice],
            error=state.errors.flatten(1)[site, down.choice],
        )


def expected_worse(against: Tensor) -> Tensor:
    """Of sums over sites [4, ...] how many each alternative serves worse than alone, if what it costs them more is
    spread normally: the share is Phi(mean / spread), the spread less what is noise of the rows; here mean / spread,
    which grows with it, also where the share is as good as nothing. No spread is known to be less than a tenth of the
    noise, or rounding would decide."""
    sites, total, squares, errors = against
    mean, noise = total / sites, errors / sites
    spread = (squares / sites - mean**2) * sites / (sites - 1).clamp(min=1) - noise
    less: Tensor = mean / torch.maximum(spread, noise / 10).clamp(min=torch.finfo(mean.dtype).tiny).sqrt()
    return less

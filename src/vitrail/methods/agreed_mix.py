"""Agreed mix: any method with a shared model, and how much of it each site uses, agreed by all. Vitrail's own.

    1. the method `inner`, as it is; beside it f_i, trained on the site's rows alone
    2. with `tuned`: from what `inner` gave the site, so many epochs on its own rows
    3. the site predicts by the scores      alpha f_i(x) + (1 - alpha) g_i(x)      g_i: of `inner`, tuned or not
    4. (epochs of tuning, alpha) is one choice for all sites: the lowest sum over sites of losses on rows left out. Of
       those that cost at most `slack` of it more, the one that serves fewest sites worse than alone, as far as the same
       rows tell. Rows fall into `folds` by lot; all of 1 and 2 is there once for all rows and once without each fold.

Nothing tuned and alpha = 0 is `inner`, alpha = 1 is Local. A site has too few rows to choose for itself; one choice,
made of sums, is lower in every world that was tried (docs/decisions/026-one-mix-for-all.md, also on what it is not
worth). `inner` is a method of the table (NAME, or NAME:KEY=VALUE) whose rounds are one sum.

What crosses: what `inner` sends, folds + 1 times, and at the end one table of losses on rows left out, with what each
mix costs per row more than alone, that squared, and its squared error. The coordinator needs their totals only. All
trust the losses that are reported.

Cost, in trainings of `inner`: folds + 1, as many of Local, and `tuned` epochs of each at home.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange, Ends, Exchange, Method, Nothing, Roster, Rows, Stage
from vitrail.core.facts import (
    AGAINST_ALONE,
    ALONE,
    ALONE_LEFT_OUT,
    ERROR_LEFT_OUT,
    LEFT_OUT,
    MIX,
    MIX_COSTS,
    MIX_EPOCHS,
    OWN,
    TRIED,
    Fact,
    Facts,
)
from vitrail.core.losses import Loss
from vitrail.core.rules import Rule
from vitrail.core.task import Batch, Net, Out, Task, carried
from vitrail.core.tensors import Params, blended, copied, per_site, to_all
from vitrail.methods.copies import apart, copies, flat, fold_of, last, lot_of, mix
from vitrail.methods.parts import Reveal
from vitrail.methods.versions import Kept, OfLast, Said, Versioned, Work, counted, merged, parted, stacked, version

AnyMethod = Method[Any, Any, Any, Any, Any]
ALPHAS = tuple(i / 10 for i in range(11))


class State(NamedTuple):
    of: Any  # that of the method, [site, version, ...]
    own: Annotated[Params, "the models trained on your rows alone, on all of them and without each fold"]
    tuned: Annotated[Params, "the models that your rows tuned"]  # [site, step, version, ...]; settled: [site, ...]
    epochs: Tensor  # [site]: of tuning, so far
    losses: Tensor  # [site, start, alpha]: per row, on rows left out; a report tells them, times the rows
    errors: Tensor  # [site, start, alpha]: of their difference to the next; a report tells their squares
    alone: Tensor  # [site]: that of the model trained alone
    # what follows is settled
    choice: Tensor  # [site]: the place among all alternatives
    loss: Tensor  # [site]: by the choice
    error: Tensor  # [site]
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


@dataclass(frozen=True)
class AgreedMix(Versioned, Method[State, Kept, Work, Said, Any]):  # type: ignore[misc]
    title: ClassVar[str] = "Agreed mix"
    sees = "sum"
    places: ClassVar[bool] = True
    beside: ClassVar[bool] = True  # type: ignore[misc]
    inner: str = "fedavg"
    folds: int = 3
    tuned: tuple[int, ...] = (1, 3, 10)
    own_rate: float = 1.0
    slack: float = 0.0
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError("folds must be at least 2: what is left out is judged by a model of the rest")
        if (self.alpha or 0) > 1:
            raise ValueError("alpha is a share, from 0 to 1")
        if list(self.tuned) != sorted(set(self.tuned)):
            raise ValueError("tuned is a list of epochs, each more than the one before")
        if why := unfit(self.inner):
            raise ValueError(f"inner = {self.inner!r}: {why}")

    @property
    def method(self) -> AnyMethod:
        return built(self.inner)

    @property
    def ex(self) -> AnyExchange:  # type: ignore[override]
        return self.method.plan(1)[0].last

    @property
    def told(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"losses", "errors", "alone", "loss", "error"}) | ({"of"} if self.method.told else set())

    @property
    def alphas(self) -> tuple[float, ...]:
        return ALPHAS if self.alpha is None else (self.alpha,)

    @property
    def table(self) -> tuple[int, int]:
        """Epochs of tuning, alpha: the first alternative is the shared model as it is."""
        return 1 + len(self.tuned), len(self.alphas)

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        what = "your loss per row on rows left out, by what was agreed and alone, and how sure their difference is"
        shown: list[AnyExchange] = [
            Reveal(lambda task, state: {k: getattr(state, k) for k in MEANS}, MEANS.__getitem__, what)
        ]
        stages = []
        for s, stage in enumerate(self.method.plan(rounds)):
            shows = [ex for ex in stage.exchanges if ex.consent]
            shown += [OfLast(self, ex, ex.consent) for ex in shows]
            if not shows:
                held = tuple(self if s == 0 else Versions(self, ex) for ex in stage.exchanges)
                stages.append(stage._replace(exchanges=held, when=f"{stage.when}, with all rows and without each fold"))
        if self.tuned:
            stages.append(Stage("tune", (Tune(self),), self.tuned[-1], "training alone", "Then, alone"))
        choose = Stage("choose", (Choose(self),), 1, "choice", "After training, once")
        return *stages, choose, Stage("show", tuple(shown), 1, "losses on rows left out", "Last, once")

    def ends(self) -> Ends:
        return self.method.ends()

    def judged_by(self, loss: Loss) -> Loss:
        return self.method.judged_by(loss)

    def ruled_by(self, rule: Rule, net: Net) -> Rule:
        """As the method has it, where nothing else is said here."""
        asked = {k: v for k in ("lr", "momentum") if (v := getattr(self.method, k)) is not None}
        asked = {k: v for k, v in asked.items() if getattr(self, k) is None and hasattr(rule, k)}
        return self.method.ruled_by(dataclasses.replace(rule, **asked) if asked else rule, net)  # type: ignore[type-var]

    def clashes(self, task: Task) -> tuple[str, ...]:
        return self.method.clashes(task)

    def state(self, task: Task, sites: int) -> State:
        own, none = copied(to_all(to_all(task.start, self.folds + 1), sites)), task.like.new_zeros(sites)
        of = parted(self.method.state(task, sites * (self.folds + 1)), sites)
        table, epochs, memory = none.new_zeros(sites, *self.table), none.to(torch.int64), task.remembered(flat(own))
        found = (table, table.clone(), none, epochs.clone(), none.clone(), none.clone())
        return State(of, own, {}, epochs, *found, apart(memory, sites))

    def coord(self, task: Task, sites: int) -> Kept:
        each_its_own = [self.method.coord(task, sites) for _ in range(self.folds + 1)]
        return Kept(stacked(each_its_own), task.like.new_zeros((), dtype=torch.int64))

    def shared(self, coord: Kept) -> Params:
        return self.method.shared(version(coord.of, -1))

    def settle(self, task: Task, state: State, down: Said) -> State:
        return self.ready(task, super().settle(task, state, down)._replace(memory={}))

    def ready(self, task: Task, state: State) -> State:
        """To be tuned: from the model that the method gave, in every version, none of which is shared any more."""
        if not self.tuned:
            return state
        n = len(state.choice)
        held = self.method.models(task, merged(state.of))[OWN]
        start = apart({k: held[k] for k in task.start}, n)
        tuned = {k: v[:, None].expand(-1, len(self.tuned), *v.shape[1:]) for k, v in start.items()}
        return state._replace(tuned=tuned, memory=apart(task.remembered(flat(start)), n))

    def models(self, task: Task, state: State) -> dict[str, Params]:
        """A mix of scores is one model only where scores are a weighted sum; else the own is what is mixed in, and
        `predict` mixes."""
        held, (start, a) = self.method.models(task, version(state.of, -1, 1)), self.chosen(state)
        own, alone = {k: held[OWN][k] for k in task.start}, last(state.own)
        if self.tuned:
            tuned = self.as_tuned(state)
            own = {k: torch.where(per_site(start > 0, v), tuned[k], v) for k, v in own.items()}
        plain = type(self.method).predict is Method.predict
        if plain and task.net.linear and not {"input", "output"} & set(task.net.groups):
            own = blended(a, alone, own)
        return {**held, OWN: own, ALONE: alone}

    def knows(self, state: State) -> dict[str, Tensor]:
        return {means: getattr(state, k) for k, (_, means) in MEANS.items()}

    def chosen(self, state: State) -> tuple[Tensor, Tensor]:
        """[site]: which start, and alpha."""
        start, a = torch.unravel_index(state.choice, self.table)
        return start, state.losses.new_tensor(self.alphas)[a]

    def as_tuned(self, state: State) -> Params:
        """As the choice has it; all of them are there until it is settled."""
        some = next(iter(state.tuned.values()))
        if some.dim() == next(iter(state.own.values())).dim() - 1:
            return state.tuned
        site, (start, _) = torch.arange(len(some), device=some.device), self.chosen(state)
        return {k: v[site, (start - 1).clamp(min=0), -1] for k, v in state.tuned.items()}

    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        start, a = (v[:, None, None] for v in self.chosen(state))
        theirs = self.method.predict(task, version(state.of, -1, 1), x)
        if self.tuned:
            theirs = torch.where(start > 0, task.output(self.as_tuned(state), x), theirs)
        mine = task.output(last(state.own), x)  # at the ends the other is not looked at, whatever became of it
        return torch.where(a == 0, theirs, torch.where(a == 1, mine, torch.lerp(theirs, mine, a)))


MEANS = {
    "loss": (("site",), LEFT_OUT),
    "alone": (("site",), ALONE_LEFT_OUT),
    "error": (("site",), ERROR_LEFT_OUT),
}


def unfit(name: str) -> str:
    """Why that method cannot be mixed like this; nothing where it can."""
    from vitrail.methods import problems  # the table lists this method too

    if found := problems(name, {}, "inner"):
        return " ".join(f"{p.what} {p.hint}".strip() for p in found).rstrip(".")
    stages = (made := built(name)).plan(2)
    one, *more = stages[0].exchanges
    if not made.federated or more or one.sees != "sum" or type(made).shared is Method.shared:
        return "its rounds are not one sum that makes a shared model, which every site could mix with its own"
    if any(ex.places for stage in stages for ex in stage.exchanges):
        return "it looks at which rows a batch holds, as this one does: it chooses by itself"
    return ""


@cache
def built(name: str) -> AnyMethod:
    from vitrail.methods import build, parsed

    return build(*parsed(name))


@dataclass(frozen=True)
class Versions(Versioned, Exchange[State, Kept, Work, Said, Any]):  # type: ignore[misc]
    """A later stage of the method (it may train alone in it), in the same versions."""

    of: AgreedMix
    ex: AnyExchange
    places: ClassVar[bool] = True
    beside: ClassVar[bool] = False  # type: ignore[misc]
    own_rate: ClassVar[float] = 1.0  # type: ignore[misc]

    @property
    def folds(self) -> int:  # type: ignore[override]
        return self.of.folds

    @property
    def sees(self) -> Literal["sum", "each"]:  # type: ignore[override]
        return self.ex.sees

    def settle(self, task: Task, state: State, down: Said) -> State:
        return self.of.ready(task, super().settle(task, state, down))


class Lot(NamedTuple):
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]


class Tuning(NamedTuple):
    params: Params  # [site, version, ...]
    memory: Params
    lot: Tensor


@dataclass(frozen=True)
class Tune(Exchange[State, Kept, Tuning, Lot, Nothing]):
    """Each site goes on alone from what the method gave it, in every version; how it was after so many epochs is
    kept."""

    of: AgreedMix
    places: ClassVar[bool] = True

    def send(self, task: Task, coord: Kept, roster: Roster) -> Lot:
        return Lot(lot_of(roster))

    def begin(self, task: Task, state: State, down: Lot, rows: Rows, rule: Rule) -> Tuning:
        params = copied({k: v[:, -1] for k, v in state.tuned.items()})
        return Tuning(params, apart(rule.memory(flat(params), flat(state.memory)), len(down.lot)), down.lot)

    def step(self, task: Task, work: Tuning, batch: Batch, rule: Rule) -> None:
        wide = copies(batch, counted(batch, work.lot, self.of.folds))
        rule.at(rule.lr * self.of.own_rate).descend(task, flat(work.params), flat(work.memory), wide)

    def report(
        self, task: Task, state: State, work: Tuning, down: Lot, rows: Rows, rule: Rule
    ) -> tuple[State, Nothing]:
        """What was kept earlier stays; a site that was absent has less of each."""
        epochs = state.epochs + 1
        goes_on = epochs[:, None] <= torch.tensor(self.of.tuned, device=epochs.device)  # [site, step]
        tuned = {}
        for k, v in state.tuned.items():
            tuned[k] = torch.where(goes_on.view(*goes_on.shape, *[1] * (v.dim() - 2)), work.params[k][:, None], v)
        return state._replace(tuned=tuned, epochs=epochs, memory=carried(work.memory, state.memory)), Nothing()

    def merge(self, task: Task, coord: Kept, up: Nothing, roster: Roster) -> tuple[Kept, Facts]:
        return coord, {}

    def settle(self, task: Task, state: State, down: Lot) -> State:
        return state._replace(memory={})


class Offer(NamedTuple):
    choice: Annotated[Tensor, "the choice: how many epochs of tuning, how much of your own model"]  # [site]
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]


class Costs(NamedTuple):
    costs: Annotated[Tensor, "what each mix would have cost you: loss on rows that were left out"]
    rows: Annotated[Tensor, "how many rows that is, as they count"]
    against: Annotated[Tensor, "per row, what each mix costs you more than alone, its square, and its squared error"]


@dataclass(frozen=True)
class Choose(Exchange[State, Kept, Offer, Offer, Costs]):
    """Each site says what every mix costs it out of fold; one is chosen by the totals, for all."""

    sees = "sum"
    trains: ClassVar[bool] = False
    unsure: ClassVar[frozenset[str]] = frozenset({"costs", "against"})
    of: AgreedMix

    def send(self, task: Task, coord: Kept, roster: Roster) -> Offer:
        return Offer(coord.choice.expand(len(roster.names)), lot_of(roster))

    def begin(self, task: Task, state: State, down: Offer, rows: Rows, rule: Rule) -> Offer:
        return down

    def step(self, task: Task, work: Offer, batch: Batch, rule: Rule) -> None:
        """Nothing is trained."""

    def report(self, task: Task, state: State, work: Offer, down: Offer, rows: Rows, rule: Rule) -> tuple[State, Costs]:
        heard = [self.losses(task, state, down, batch) for batch in rows.blocks()]
        mixed, alone, w = (torch.cat([h[i] for h in heard], -1) for i in range(3))  # of each row, weighted
        total, more = w.sum(-1), mixed - alone[:, None, None]  # [site], [site, start, alpha, row]
        per_row = 1 / total.clamp(min=torch.finfo(total.dtype).tiny)[:, None, None]
        by = per_row * more.sum(-1)
        off = more - by[..., None] * w[:, None, None]
        many = (w > 0).sum(-1).to(w.dtype)[:, None, None]
        square = per_row**2 * (off**2).sum(-1) * many / (many - 1).clamp(min=1)
        costs = mixed.sum(-1)
        kept = state._replace(losses=per_row * costs, errors=square.sqrt(), alone=per_row[:, 0, 0] * alone.sum(-1))
        return kept, Costs(costs, total, torch.stack([torch.ones_like(by), by, by**2, square], 1))

    def losses(self, task: Task, state: State, down: Offer, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Of one block of rows, each by the version that has not seen it: of every mix [site, start, alpha, row], alone
        [site, row]; and the weights [site, row]."""
        of, (n, many) = self.of, batch.y.shape[:2]
        fold = fold_of(batch, down.lot, of.folds)
        wide = copies(batch, batch.w[:, None].expand(-1, of.folds + 1, -1, -1)).x

        def unseen(z: Tensor) -> Tensor:
            """Scores [site * version, row, output] -> [site, row, output]."""
            z = z.view(n, of.folds + 1, many, -1)
            return z.gather(1, fold[:, None, :, None].expand(-1, -1, -1, z.shape[-1]))[:, 0]

        mine = unseen(task.output(flat(state.own), wide))
        steps = [{k: v[:, i] for k, v in state.tuned.items()} for i in range(len(of.tuned))]
        theirs = [of.method.predict(task, merged(state.of), wide), *(task.output(flat(p), wide) for p in steps)]

        def cost(z: Tensor) -> Tensor:
            return task.loss.rows(Out(z, z), batch)

        rows = [torch.stack([cost(mix(a, mine, unseen(z))) for a in of.alphas], 1) for z in theirs]
        return torch.stack(rows, 1), cost(mine), batch.w[..., 0]

    def merge(self, task: Task, coord: Kept, up: Costs, roster: Roster) -> tuple[Kept, Facts]:
        costs = torch.where(up.costs.isfinite(), up.costs, torch.inf)
        choice = self.lowest(costs, up.against)
        start, a = torch.unravel_index(choice, costs.shape)
        epochs, tried = costs.new_tensor((0, *self.of.tuned)), costs.new_tensor(self.of.alphas)
        axes = ("epochs", "own share")
        told = {  # of every round: what only the last one tells would give way to what is shown after it
            "choice": Fact(torch.stack([epochs[start], tried[a]]), ("what",), MIX, every=True),
            "costs": Fact(costs / up.rows, axes, MIX_COSTS, every=True),
            "epochs": Fact(epochs, ("epochs",), MIX_EPOCHS, every=True),
            "tried": Fact(tried, ("own share",), TRIED, every=True),
            "against": Fact(up.against, ("sums", *axes), AGAINST_ALONE, every=True),
        }
        return coord._replace(choice=choice), told

    def lowest(self, costs: Tensor, against: Tensor) -> Tensor:
        """The place of the lowest; of those that cost hardly more, of that which serves fewest worse than alone."""
        best = costs.flatten().argmin()
        if not self.of.slack:
            return best
        bar = costs.flatten()[best] * (1 + self.of.slack)
        worse = torch.where(costs <= bar, expected_worse(against), torch.inf)
        return worse.flatten().argmin()

    def settle(self, task: Task, state: State, down: Offer) -> State:
        site, state = torch.arange(len(down.choice), device=down.choice.device), state._replace(choice=down.choice)
        return state._replace(
            of=parted(version(state.of, -1, 1), len(site)),
            own={k: v[:, -1:] for k, v in state.own.items()},
            tuned=self.of.as_tuned(state) if self.of.tuned else {},
            loss=state.losses.flatten(1)[site, down.choice],
            error=state.errors.flatten(1)[site, down.choice],
        )


def expected_worse(against: Tensor) -> Tensor:
    """Of sums over sites [4, ...] the share of sites that each alternative serves worse than alone, if what it costs
    them more is spread normally: Phi(mean / spread), the spread less what is noise of the rows."""
    sites, total, squares, errors = against
    mean = total / sites
    spread = (squares / sites - mean**2) * sites / (sites - 1).clamp(min=1) - errors / sites
    z = mean / spread.clamp(min=torch.finfo(mean.dtype).tiny).sqrt()
    return torch.special.ndtr(z)

"""Agreed mix: each site mixes the model of another method with a model of its own, and all sites agree on one share for
everyone. Vitrail's own method.

    1. the method `inner`, unchanged; in parallel, f_i is trained on the site's rows alone
    2. with `tuned`: what `inner` gave the site is trained further on its own rows, for each of these numbers of epochs
    3. the site predicts by the scores      alpha f_i(x) + (1 - alpha) g_i(x)      g_i: of `inner`, tuned or not
    4. (epochs of tuning, alpha) is one choice for all sites. The lowest sum over sites of losses on rows left out is
       the reference. Among the choices whose sum is higher by at most the share `slack`, the one is taken that is
       expected to serve the fewest sites worse than training alone, judged on the same rows. Rows are assigned to
       `folds` folds at random; steps 1 and 2 run once with all rows and once without each fold.

Without tuning, alpha = 0 is `inner`; alpha = 1 is Local. A site has too few rows to choose for itself; one choice from
sums over sites had a lower loss in every world that was tried (docs/decisions/026-one-mix-for-all.md, which also says
what the method does not achieve). `inner` is FedAvg, or a method of the table (NAME, or NAME:KEY=VALUE) whose rounds
are one sum.

What crosses: the messages of `inner`, folds + 1 times, and at the end one table of losses on rows left out. With it
come, for each mix, the additional loss per row compared with training alone, its square, and its squared error. The
coordinator needs only the totals. Nobody verifies the losses that sites report.

Cost: folds + 1 trainings of `inner`, as many of Local, and `tuned` epochs of each at the site.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Le, Needs, WireRules
from vitrail.core.exchange import AnyExchange, Method, Stage
from vitrail.core.facts import ALONE, OWN
from vitrail.core.losses import Loss
from vitrail.core.optimizers import Optimizer
from vitrail.core.task import Net, Task
from vitrail.core.tensors import Params, clone, interpolate, per_site, to_all
from vitrail.methods.blocks.basics import Reveal
from vitrail.methods.blocks.mix_choice import MEANS, AnyMethod, ChooseMix, State, Tune, build_inner, why_unfit
from vitrail.methods.blocks.model_copies import ALPHAS, last, merged, mix_scores, parted, version
from vitrail.methods.blocks.out_of_fold import (
    LaterStage,
    OfLast,
    Versioned,
    VersionedCoord,
    VersionedMessage,
    Work,
    stacked,
)


class MixLosses(Reveal):
    wire = WireRules(score_fields={"shown"})


@dataclass(frozen=True)
class AgreedMix(Versioned, Method[State, VersionedCoord, Work, VersionedMessage, Any]):
    catalogue = Catalogue("Agreed mix", tuning_grid={"own_rate": (0.3, 1.0, 3.0)})
    beside: ClassVar[bool] = True  # type: ignore[misc]
    inner: str | None = None  # None: FedAvg
    folds: Annotated[int, Ge(2)] = 5  # what is left out is judged by a model of the rest
    tuned: tuple[Annotated[int, Ge(1)], ...] = (1, 3, 10, 30)
    own_rate: Annotated[float, Ge(0)] = 1.0
    slack: Annotated[float, Ge(0)] = 0.002
    alpha: Annotated[float, Ge(0), Le(1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tuned", tuple(self.tuned))  # files have lists
        if list(self.tuned) != sorted(set(self.tuned)):
            raise ValueError("tuned must be a list of increasing numbers of epochs")
        if why := why_unfit(self.inner):
            raise ValueError(f"inner = {self.inner!r}: {why}")

    @property
    def method(self) -> AnyMethod:
        return build_inner(self.inner)

    @property
    def ex(self) -> AnyExchange:  # type: ignore[override]
        return self.method.plan(1)[0].last

    @property
    def wire(self) -> WireRules:
        of = {"of"} if self.method.wire.disclosed_state else set()
        return WireRules("sum", disclosed_state={"losses", "errors", "alone", "loss", "error", *of})

    @property
    def needs(self) -> Needs:
        return Needs(row_indices=True, adapters=self.method.needs.adapters)

    @property
    def alphas(self) -> tuple[float, ...]:
        return ALPHAS if self.alpha is None else (self.alpha,)

    @property
    def table(self) -> tuple[int, int]:
        """Epochs of tuning, alpha: the first alternative is the shared model as it is."""
        return 1 + len(self.tuned), len(self.alphas)

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        what = (
            "your loss per row on rows left out, with the agreed mix and trained alone, and the error of "
            "their difference"
        )
        shown: list[AnyExchange] = [
            MixLosses(lambda task, state: {k: getattr(state, k) for k in MEANS}, MEANS.__getitem__, what)
        ]
        stages = []
        for s, stage in enumerate(self.method.plan(rounds)):
            shows = [ex for ex in stage.exchanges if ex.consent]
            shown += [OfLast(self, ex, ex.consent) for ex in shows]
            if not shows:
                held = tuple(self if s == 0 else LaterStage(self, ex, self.folds) for ex in stage.exchanges)
                stages.append(stage._replace(exchanges=held, when=f"{stage.when}, with all rows and without each fold"))
        if self.tuned:
            stages.append(Stage("tune", (Tune(self),), self.tuned[-1], "training alone", "Then, alone"))
        choose = Stage("choose", (ChooseMix(self),), 1, "choice", "After training, once")
        return *stages, choose, Stage("show", tuple(shown), 1, "losses on rows left out", "Last, once")

    def training_loss(self, loss: Loss) -> Loss:
        return self.method.training_loss(loss)

    def training_optimizer(self, optimizer: Optimizer, net: Net) -> Optimizer:
        """As the method has it, where nothing else is said here."""
        own = {k: v for k in ("lr", "momentum") if (v := getattr(self.method, k)) is not None}
        own = {k: v for k, v in own.items() if getattr(self, k) is None and hasattr(optimizer, k)}
        if own:
            optimizer = dataclasses.replace(optimizer, **own)  # type: ignore[type-var]
        return self.method.training_optimizer(optimizer, net)

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        return self.method.incompatibilities(task)

    def state(self, task: Task, sites: int) -> State:
        own, none = clone(to_all(to_all(task.start, self.folds + 1), sites)), task.like.new_zeros(sites)
        of = parted(self.method.state(task, sites * (self.folds + 1)), sites)
        table, epochs = none.new_zeros(sites, *self.table), none.to(torch.int64)
        memory = parted(task.initial_state(merged(own)), sites)
        results = (table, table.clone(), none, epochs.clone(), none.clone(), none.clone())
        return State(of, own, {}, epochs, *results, memory)

    def coord(self, task: Task, sites: int) -> VersionedCoord:
        each_its_own = [self.method.coord(task, sites) for _ in range(self.folds + 1)]
        return VersionedCoord(stacked(each_its_own), task.like.new_zeros((), dtype=torch.int64))

    def shared(self, coord: VersionedCoord) -> Params:
        return self.method.shared(version(coord.of, -1))

    def settle(self, task: Task, state: State, down: VersionedMessage) -> State:
        return self.ready(task, super().settle(task, state, down)._replace(memory={}))

    def ready(self, task: Task, state: State) -> State:
        """To be tuned: from the model that the method gave, in every version, none of which is shared any more."""
        if not self.tuned:
            return state
        n = len(state.choice)
        held = self.method.models(task, merged(state.of))[OWN]
        start = parted({k: held[k] for k in task.start}, n)
        tuned = {k: v[:, None].expand(-1, len(self.tuned), *v.shape[1:]) for k, v in start.items()}
        return state._replace(tuned=tuned, memory=parted(task.initial_state(merged(start)), n))

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
            own = interpolate(a, alone, own)
        return {**held, OWN: own, ALONE: alone}

    def self_report(self, state: State) -> dict[str, Tensor]:
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
        (start, a), theirs = self.chosen(state), self.method.predict(task, version(state.of, -1, 1), x)
        if self.tuned:
            theirs = torch.where(start[:, None, None] > 0, task.output(self.as_tuned(state), x), theirs)
        return mix_scores(a, task.output(last(state.own), x), theirs)

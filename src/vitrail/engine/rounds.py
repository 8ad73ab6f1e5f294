"""The rounds of a run, stage by stage: what the coordinator does, wherever the sites are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.exchange import AnyExchange, Method, Roster
from vitrail.core.facts import Facts
from vitrail.core.optimizers import SGD, Adam, Optimizer
from vitrail.core.random import key
from vitrail.core.task import Net, Task
from vitrail.core.tensors import Params
from vitrail.engine.aggregation import Aggregator, BufferedReports, merge
from vitrail.engine.contract import Contract, Ledger, Spec, guarded, trace
from vitrail.privacy.guards import AT_REST, Guards
from vitrail.privacy.round_share import RoundShares

AnyMethod = Method[Any, Any, Any, Any, Any]


@dataclass(frozen=True)
class Training:
    """How a site trains, the same for every method unless the method says otherwise."""

    rounds: int = 100
    epochs: int = 1
    batch: int = 16
    lr: float = 0.002
    momentum: float = 0.5
    decay: float = 0.9  # of the learning rate, `decays` times in the run
    decays: int = 50
    mean: bool = False  # the loss of a batch: the mean over its rows, not the sum
    optimiser: Literal["sgd", "adam"] = "sgd"
    weight_decay: float = 0.0
    rates: tuple[tuple[str, float], ...] = ()  # group of parameters -> factor of the learning rate
    memory: Literal["fresh", "own", "kept"] = "fresh"  # see Task
    augment: tuple[str, ...] = ()  # of pictures: see engine/augmentation.py
    weight_decay_alone: float | None = None  # of a model of one site's rows alone; None: the same

    def rule(self, net: Net, method: AnyMethod) -> Optimizer:
        lr = self.lr if method.lr is None else method.lr
        momentum = self.momentum if method.momentum is None else method.momentum
        factors = tuple((name, by) for group, by in self.rates for name in net.groups.get(group, ()))
        if self.optimiser == "adam":
            adam = Adam(lr, decay=self.weight_decay, factors=factors, decay_alone=self.weight_decay_alone)
            return method.training_optimizer(adam, net)
        return method.training_optimizer(SGD(lr, momentum, self.weight_decay, factors, self.weight_decay_alone), net)

    def apply_to(self, task: Task, method: AnyMethod) -> Task:
        """The task as this method trains it; refused where the two do not go together."""
        task = replace(task, rule=self.rule(task.net, method), memory=self.memory, loss=method.training_loss(task.loss))
        problems = [
            Problem(f"method {method.catalogue.title}", f"{why}.", "Change one of the two.")
            for why in method.incompatibilities(task)
        ]
        for group, _ in self.rates:
            if group not in task.net.groups:
                what = f"the network has no group {group!r}."
                problems.append(Problem(f"training.rates.{group}", what, nearest(group, task.net.groups)))
        if problems:
            raise VitrailError("the method cannot train like this", problems)
        return task

    def schedule_rate(self, rule: Optimizer, round_: int, rounds: int) -> Optimizer:
        """The rule of that round of a stage."""
        every = max(1, rounds // self.decays) if self.decays else rounds + 1
        return rule.at(rule.lr * self.decay ** (round_ // every))


class Snapshot(NamedTuple):
    """The whole federation after a round; enough to go on from."""

    stage: int
    round: int  # rounds done in this stage
    coord: Any
    state: Any  # stacked over sites, in the engine's order; overwritten by the next round
    facts: Facts
    present: Tensor
    guard_state: Params = {}  # noqa: RUF012  what guards remember at the sites, stacked; overwritten by the next round


class Rounds(ABC):
    """Runs one method; who plays the sites' part is the subclass's business."""

    def __init__(
        self,
        task: Task,
        method: AnyMethod,
        names: tuple[str, ...],
        training: Training,
        seed: int,
        guards: Guards = AT_REST,
        contracts: list[list[Contract]] | None = None,
    ) -> None:
        """`contracts`: those of a plan of this run, so that it is not rehearsed again."""
        if absent := [name for name in method.named_sites() if name not in names]:
            title = f"method {method.catalogue.title}"
            problems = [Problem(title, f"there is no site {name!r}.", nearest(name, names)) for name in absent]
            raise VitrailError("the method names a site that does not take part", problems)
        self.guards = guards
        self.task, self.method, self.names, self.training = training.apply_to(task, method), method, names, training
        self.stages = method.plan(training.rounds)
        self.contracts: list[list[Contract]] = contracts or [
            [guarded(c, ex, guards) for c, ex in zip(contracts, stage.exchanges, strict=True)]
            for contracts, stage in zip(trace(self.task, method, training.rounds, len(names)), self.stages, strict=True)
        ]
        self.ledger = Ledger(names)
        for contract in (c for stage in self.contracts for c in stage):
            self.ledger.declare(contract)
        device = self.task.like.device
        self.everyone = torch.ones(len(names), dtype=torch.bool, device=device)
        self.keys = coordinator_keys(seed, names).to(device)
        self.aggregator = Aggregator(names, guards, self.everyone)
        self.reports: Any = None  # each site's own report of the last round, where reports are kept
        self.unused: list[list[int]] = []  # stage and round of sums that changed nothing
        self.guard_state: Params = {}  # what guards remember at each site, [site, ...] by exchange and name
        self.shares: RoundShares | None = None  # where the study looks at each site's share of a round

    @abstractmethod
    def start(self) -> Snapshot:
        """Before the first round."""

    @abstractmethod
    def shape_at(self, stage: int) -> Snapshot:
        """A moment of that stage as far as names and shapes go."""

    @abstractmethod
    def ask(self, s: int, r: int, place: int, coord: Any, state: Any, roster: Roster) -> tuple[Any, Facts, Tensor]:
        """One exchange of one round: the coordinator after it, what it may show, and who answered of those in the
        roster. `state` is overwritten."""

    @abstractmethod
    def finalize_stage(self, moment: Snapshot) -> Any:
        """Sends the outcome of a stage to every site; the sites' states from then on."""

    def run(self, moment: Snapshot | None = None) -> Iterator[Snapshot]:
        """Every round after `moment` (or all), yielding the federation after each."""
        moment = moment or self.start()
        self.guard_state = dict(moment.guard_state)
        for s, stage in enumerate(self.stages):
            if s < moment.stage:
                continue
            state, coord = moment.state, moment.coord
            for r in range(moment.round, stage.rounds):
                coord, facts, present = self.turn(s, r, coord, state)
                moment = Snapshot(s, r + 1, coord, state, facts, present, self.guard_state)
                yield moment
            settled = self.finalize_stage(moment)
            self.ledger.enter(self.contracts[s][-1], "to site", None)
            moment = moment._replace(stage=s + 1, round=0, state=settled)

    def turn(self, s: int, r: int, coord: Any, state: Any) -> tuple[Any, Facts, Tensor]:
        """One round: its exchanges one after the other. Present is who answered all of them."""
        facts: Facts = {}
        present = self.everyone
        for place in self.stages[s].turns(r):
            ex = self.stages[s].exchanges[place]
            all_of_them = self.roster(self.everyone, s, r, place)
            invited = ex.invite(self.task, coord, all_of_them)
            invited = self.aggregator.without_excluded(invited)
            invited = self.everyone if invited is self.everyone or bool(invited.all()) else invited
            coord, new_facts, here = self.ask(s, r, place, coord, state, all_of_them._replace(present=invited))
            facts |= new_facts
            for way in ("to site", "from site"):
                self.ledger.enter(self.contracts[s][place], way, None if here is self.everyone else here)
            present = here if present is self.everyone else present & here
        return coord, facts, present

    def roster(self, present: Tensor, s: int, r: int, place: int) -> Roster:
        return Roster(self.names, present, self.keys, torch.tensor(clock_of(s, r, place)))

    def aggregate(
        self, ex: AnyExchange, coord: Any, parts: Sequence[BufferedReports], roster: Roster, shapes: Spec
    ) -> tuple[Any, Facts]:
        """Reports that came one by one -> the coordinator after them. `shapes` and types of a report."""
        collected = self.aggregator.collect(ex, parts, roster, shapes)
        self.reports = collected.reports if collected else None
        return merge(ex, self.task, coord, collected, roster)

    def rule(self, s: int, r: int) -> Optimizer:
        return self.training.schedule_rate(self.task.rule, r, self.stages[s].rounds)

    def task_at(self, s: int, r: int) -> Task:
        """The task as it is in that round."""
        return self.task.at(self.training.epochs * (sum(stage.rounds for stage in self.stages[:s]) + r))


def coordinator_keys(seed: int, names: Sequence[str]) -> Tensor:
    """[site] keys for what the coordinator draws, which everybody who knows the names can work out."""
    return torch.tensor([key(seed, name, "coordinator") for name in names])


def clock_of(stage: int, round_: int, place: int) -> int:
    """A number for that exchange of that round, for draws."""
    return (place << 48) + (stage << 32) + round_ + 1

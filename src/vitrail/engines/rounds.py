"""The rounds of a run, stage by stage: what the coordinator does, wherever the sites are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Facts, Method, Pace
from vitrail.core.task import Task
from vitrail.engines.wire import Contract, Ledger, trace


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

    def pace(self, method: Method[Any, Any, Any, Any, Any], round_: int, rounds: int) -> Pace:
        lr = self.lr if method.lr is None else method.lr
        momentum = self.momentum if method.momentum is None else method.momentum
        every = max(1, rounds // self.decays) if self.decays else rounds + 1
        return Pace(lr * self.decay ** (round_ // every), momentum)


class Moment(NamedTuple):
    """The whole federation after a round; enough to go on from."""

    stage: int
    round: int  # rounds done in this stage
    coord: Any
    state: Any  # stacked over sites, in the engine's order; overwritten by the next round
    facts: Facts
    present: Tensor


class Rounds(ABC):
    """Runs one method; who plays the sites' part is the subclass's business."""

    def __init__(
        self, task: Task, method: Method[Any, Any, Any, Any, Any], names: tuple[str, ...], training: Training
    ) -> None:
        self.task, self.method, self.names, self.training = task, method, names, training
        self.stages = method.plan(training.rounds)
        self.contracts: list[Contract] = trace(task, method, training.rounds, len(names))
        self.ledger = Ledger(names)
        for contract in self.contracts:
            self.ledger.declare(contract)
        self.everyone = torch.ones(len(names), dtype=torch.bool, device=next(iter(task.start.values())).device)
        self.keep_reports = False
        self.reports: Any = None  # with keep_reports: each site's own report of the last round

    @abstractmethod
    def start(self) -> Moment:
        """Before the first round."""

    @abstractmethod
    def shape_at(self, stage: int) -> Moment:
        """A moment of that stage as far as names and shapes go."""

    @abstractmethod
    def turn(self, s: int, r: int, coord: Any, state: Any) -> tuple[Any, Facts, Tensor]:
        """One round: the coordinator after it, what it may show, and who took part. `state` is overwritten."""

    @abstractmethod
    def last_word(self, moment: Moment) -> Any:
        """After a stage every site is told the outcome; the sites' states from then on."""

    def run(self, moment: Moment | None = None) -> Iterator[Moment]:
        """Every round after `moment` (or all), yielding the federation after each."""
        moment = moment or self.start()
        for s, stage in enumerate(self.stages):
            if s < moment.stage:
                continue
            state, coord = moment.state, moment.coord
            for r in range(moment.round, stage.rounds):
                coord, facts, present = self.turn(s, r, coord, state)
                who = None if present is self.everyone else present
                self.ledger.enter(stage.name, "to site", who)
                self.ledger.enter(stage.name, "from site", who)
                moment = Moment(s, r + 1, coord, state, facts, present)
                yield moment
            told = self.last_word(moment)
            self.ledger.enter(stage.name, "to site", None)
            moment = moment._replace(stage=s + 1, round=0, state=told)

    def pace(self, s: int, r: int) -> Pace:
        return self.training.pace(self.method, r, self.stages[s].rounds)

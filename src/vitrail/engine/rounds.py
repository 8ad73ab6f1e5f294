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
from vitrail.core.tensors import Params, each, per_site, tensors
from vitrail.engine.contract import Contract, Ledger, Spec, guarded, trace
from vitrail.privacy.guards import AT_REST, Guards, sound
from vitrail.privacy.secure_sum.fixed_point import as_told, rounded

AnyMethod = Method[Any, Any, Any, Any, Any]
UNUSUAL = 10  # times as long as the median change, or as the site's own last one: told


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
            return method.ruled_by(adam, net)
        return method.ruled_by(SGD(lr, momentum, self.weight_decay, factors, self.weight_decay_alone), net)

    def applied(self, task: Task, method: AnyMethod) -> Task:
        """The task as this method trains it; refused where the two do not go together."""
        task = replace(task, rule=self.rule(task.net, method), memory=self.memory, loss=method.judged_by(task.loss))
        found = [Problem(f"method {method.title}", f"{why}.", "Change one of the two.") for why in method.clashes(task)]
        for group, _ in self.rates:
            if group not in task.net.groups:
                what = f"the network has no group {group!r}."
                found.append(Problem(f"training.rates.{group}", what, nearest(group, task.net.groups)))
        if found:
            raise VitrailError("the method cannot train like this", found)
        return task

    def paced(self, rule: Optimizer, round_: int, rounds: int) -> Optimizer:
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
    beside: Params = {}  # noqa: RUF012  what guards remember at the sites, stacked; overwritten by the next round


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
        self.guards = guards
        self.task, self.method, self.names, self.training = training.applied(task, method), method, names, training
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
        self.keep_reports = False
        self.reports: Any = None  # with keep_reports: each site's own report of the last round
        self.outcasts: dict[str, str] = {}  # sites that are no longer asked, and why
        self.unusual: dict[str, int] = {}  # sites with a change far longer than the others', and in how many rounds
        self.unused: list[list[int]] = []  # stage and round of sums that changed nothing
        self.beside: Params = {}  # what guards remember at each site, [site, ...] by exchange and name
        self.news: list[dict[str, Any]] = []  # events that nobody has written down yet
        self._sizes = torch.full((len(names),), torch.nan, dtype=torch.double)  # of this exchange's changes
        self._before: dict[type[AnyExchange], Tensor] = {}  # of each kind of exchange, the last one's

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
    def last_word(self, moment: Snapshot) -> Any:
        """After a stage every site is told the outcome; the sites' states from then on."""

    def run(self, moment: Snapshot | None = None) -> Iterator[Snapshot]:
        """Every round after `moment` (or all), yielding the federation after each."""
        moment = moment or self.start()
        self.beside = dict(moment.beside)
        for s, stage in enumerate(self.stages):
            if s < moment.stage:
                continue
            state, coord = moment.state, moment.coord
            for r in range(moment.round, stage.rounds):
                coord, facts, present = self.turn(s, r, coord, state)
                moment = Snapshot(s, r + 1, coord, state, facts, present, self.beside)
                yield moment
            told = self.last_word(moment)
            self.ledger.enter(self.contracts[s][-1], "to site", None)
            moment = moment._replace(stage=s + 1, round=0, state=told)

    def turn(self, s: int, r: int, coord: Any, state: Any) -> tuple[Any, Facts, Tensor]:
        """One round: its exchanges one after the other. Present is who answered all of them."""
        facts: Facts = {}
        present = self.everyone
        for place in self.stages[s].turns(r):
            ex = self.stages[s].exchanges[place]
            all_of_them = self.roster(self.everyone, s, r, place)
            asked = ex.invite(self.task, coord, all_of_them)
            if self.outcasts:
                asked = asked & torch.tensor([n not in self.outcasts for n in self.names], device=asked.device)
            asked = self.everyone if asked is self.everyone or bool(asked.all()) else asked
            coord, told, here = self.ask(s, r, place, coord, state, all_of_them._replace(present=asked))
            facts |= told
            for way in ("to site", "from site"):
                self.ledger.enter(self.contracts[s][place], way, None if here is self.everyone else here)
            present = here if present is self.everyone else present & here
        return coord, facts, present

    def roster(self, present: Tensor, s: int, r: int, place: int) -> Roster:
        return Roster(self.names, present, self.keys, torch.tensor(clock_of(s, r, place)))

    def judged(self, ex: AnyExchange, up: Any, down: Any, places: Sequence[int]) -> Any:
        """The reports of the sites at these places, before anything is made of them. What cannot be a report becomes
        none: its site is named, and not asked again."""
        if not any(True for _ in tensors(up)):
            return up
        good, size = sound(ex, up, down)
        for place, fine, length in zip(places, good.tolist(), size.tolist(), strict=True):
            self._sizes[place] = length if fine and ex.trains else torch.nan
            if not fine:
                why = (
                    f"its report is no report: {'no finite number' if not length < torch.inf else f'{length:.3g} long'}"
                )
                self.outcasts[self.names[place]] = why
                self.news.append({"event": "set aside", "site": self.names[place], "why": why})
        return up if bool(good.all()) else each(lambda t: torch.where(per_site(good, t), t, torch.zeros_like(t)), up)

    def answered(self, ex: AnyExchange, here: Tensor) -> Tensor:
        """Of those who answered, those whose answer was a report. Who went far further than the others, or than it did
        itself the last time, is told."""
        sizes, self._sizes = self._sizes, torch.full_like(self._sizes, torch.nan)
        known = sizes[sizes.isfinite()]
        usual = torch.full_like(sizes, float(known.median()) if len(known) > 3 else torch.nan)
        before = self._before.get(type(ex), torch.full_like(sizes, torch.nan))
        for place in ((sizes > UNUSUAL * usual) | (sizes > UNUSUAL * before)).nonzero()[:, 0].tolist():
            name = self.names[place]
            self.unusual[name] = self.unusual.get(name, 0) + 1
            if self.unusual[name] == 1:
                by = torch.stack([usual[place], before[place]]).nan_to_num(torch.inf).min().clamp(min=1e-300)
                self.news.append({"event": "unusual", "site": name, "times": round(float(sizes[place] / by), 1)})
        self._before[type(ex)] = torch.where(sizes.isfinite(), sizes, before)
        if not self.outcasts:
            return here
        return here & torch.tensor([n not in self.outcasts for n in self.names], device=here.device)

    def taken(self, ex: AnyExchange, up: Any) -> Any:
        """What is held of some sites' reports, [site, ...], until all have answered: their total, where that is all
        that anybody will look at; else copies, since a report may lie in memory that is used again."""
        if ex.sees == "sum" and not self.keep_reports and not self.guards.needs_each(ex):
            up = rounded(ex, up, len(self.names)) if self.guards.masks(ex) else up
            return each(lambda t: t.sum(0), up)
        return each(owned, up)

    def aggregate(
        self, ex: AnyExchange, coord: Any, parts: Sequence[tuple[Any, Any]], roster: Roster
    ) -> tuple[Any, Facts]:
        """The one place where reports become what the coordinator sees. `parts`: (which sites, what `taken` holds)."""
        told = [part for _, part in parts]
        # a graph that is captured may not look at a number, and where all are here there is no need to
        here = len(self.names) if roster.present is self.everyone else int(roster.present.sum())
        if not here or not self.guards.opens(ex, here, len(self.names)):
            return coord, {}
        if self.guards.needs_each(ex):
            said = spread(parts, len(self.names))
            self.reports = said if self.keep_reports else None
            total, facts = self.guards.total(ex, said, roster.present, roster.seeds)
            coord, more = ex.merge(self.task, coord, total, roster)
            return coord, facts | more
        if self.keep_reports:
            self.reports = spread(parts, len(self.names))
            told = [each(lambda t: t.sum(0), part) for part in told] if ex.sees == "sum" else told
        if self.guards.masks(ex) and not self.keep_reports:
            return ex.merge(self.task, coord, as_told(_summed(told), self._reported(ex)), roster)
        return ex.merge(self.task, coord, _summed(told) if ex.sees == "sum" else self._stacked(parts), roster)

    def _reported(self, ex: AnyExchange) -> Spec:
        """Shapes and types of that exchange's reports."""
        places = ((s, i) for s, stage in enumerate(self.stages) for i, one in enumerate(stage.exchanges) if one is ex)
        s, i = next(places)
        return self.contracts[s][i].up

    def _stacked(self, parts: Sequence[tuple[Any, Any]]) -> Any:
        return self.reports if self.keep_reports else spread(parts, len(self.names))

    def rule(self, s: int, r: int) -> Optimizer:
        return self.training.paced(self.task.rule, r, self.stages[s].rounds)

    def task_at(self, s: int, r: int) -> Task:
        """The task as it is in that round."""
        return self.task.at(self.training.epochs * (sum(stage.rounds for stage in self.stages[:s]) + r))


def coordinator_keys(seed: int, names: Sequence[str]) -> Tensor:
    """[site] keys for what the coordinator draws, which everybody who knows the names can work out."""
    return torch.tensor([key(seed, name, "coordinator") for name in names])


def clock_of(stage: int, round_: int, place: int) -> int:
    """A number for that exchange of that round, for draws."""
    return (place << 48) + (stage << 32) + round_ + 1


def owned(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _summed(totals: list[Any]) -> Any:
    for more in totals[1:]:
        for (_, value), (_, part) in zip(tensors(totals[0]), tensors(more), strict=True):
            value.add_(part)
    return totals[0]


def spread(parts: Sequence[tuple[Any, Any]], sites: int) -> Any:
    """Reports of some sites each -> one stacked report in which absent sites are zero."""
    out = each(lambda t: t.new_zeros((sites, *t.shape[1:])), parts[0][1])
    for at, up in parts:
        for (_, whole), (_, part) in zip(tensors(out), tensors(up), strict=True):
            whole[at] = part
    return out

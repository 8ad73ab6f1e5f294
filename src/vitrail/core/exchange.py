"""How coordinator and sites talk. An exchange's Down and Up are the whole of what can cross the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from torch import Tensor

from vitrail.core.task import Batch, Task

State = TypeVar("State")  # what a site keeps between rounds; never leaves it
Coord = TypeVar("Coord")  # what the coordinator keeps between rounds
Work = TypeVar("Work")  # what a site has in hand during one round; steps overwrite it
Down = TypeVar("Down")  # the only thing that reaches a site
Up = TypeVar("Up")  # the only thing that leaves a site
Facts = dict[str, Tensor]  # what the coordinator may show


class Nothing(NamedTuple):
    """A message without content."""


class Roster(NamedTuple):
    """Who belongs to the study, and who answers this round."""

    names: tuple[str, ...]
    present: Tensor  # [site] bool


class Pace(NamedTuple):
    """How fast a site learns in this round."""

    lr: float
    momentum: float


class Rows(NamedTuple):
    """A site's own training rows, as far as an exchange may look at them besides its batches."""

    total: Tensor  # [site]: how many it trains on
    aside: Batch | None = None  # those it judges by and does not train on, where the method asks for them


class Ends(NamedTuple):
    """Element-wise layers that a method wants before and after the network."""

    input: bool = False
    output: Literal["no", "each", "scalar"] = "no"  # a factor for each output, or one for all


class Exchange(ABC, Generic[State, Coord, Work, Down, Up]):
    """One kind of conversation: send -> (begin, step for each batch, report) -> merge; settle at the end.

    All tensors have the site axis first, also for a single site: looping over sites is a stack of one.
    `step` works in place on what `begin` made; nothing else is ever overwritten.
    """

    sees: ClassVar[Literal["sum", "each"]] = "each"  # merge is given the total over sites, or each site's report
    trains: ClassVar[bool] = True  # whether step runs at all
    unsure: ClassVar[frozenset[str]] = frozenset()  # tensors of a report that may hold what is no number

    def batches(self) -> int | None:
        """How many batches a site draws in a round at most; None: as many as its epochs have."""
        return None

    @abstractmethod
    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        """At the coordinator: what each site is told."""

    @abstractmethod
    def begin(self, task: Task, state: State, down: Down) -> Work:
        """At the site: fresh tensors to work on."""

    def ready(self, task: Task, state: State, down: Down, rows: Rows) -> Work:
        """At the site: `begin`, for an exchange that first judges by rows set aside what it was told."""
        return self.begin(task, state, down)

    @abstractmethod
    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        """At the site: one batch, in place."""

    @abstractmethod
    def report(self, task: Task, state: State, work: Work, down: Down, rows: Rows, pace: Pace) -> tuple[State, Up]:
        """At the site: what it keeps, and what it says."""

    @abstractmethod
    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        """At the coordinator. Under `each`, absent sites' reports are zero and roster.present says so."""

    @abstractmethod
    def settle(self, task: Task, state: State, down: Down) -> State:
        """At the site, after the last round: take the final word, so that `predict` needs nothing else."""


class Stage(NamedTuple):
    name: str
    exchange: Exchange[Any, Any, Any, Any, Any]
    rounds: int


@dataclass(frozen=True)
class Method(Exchange[State, Coord, Work, Down, Up]):
    """A way of learning together. Fields are hyperparameters, hence keys of the study file and flags."""

    title: ClassVar[str] = ""  # as a page writes it
    federated: ClassVar[bool] = True  # False for the yardsticks: alone, or all rows in one place
    alone: ClassVar[bool] = False  # True for the yardstick of joining: each site by itself
    tune_first: ClassVar[bool] = False  # True where the defaults are no use before `vitrail tune`
    pools_rows: ClassVar[bool] = False  # True only for the yardstick that takes all rows to one place
    grows: ClassVar[bool] = False  # True when messages hold something for every site, so that they grow with them
    # facts kept for every round, and how many of their first axes are sites; a run has them in its own order of sites
    paths: ClassVar[dict[str, int]] = {}
    lr: float | None = None  # None: the study's
    momentum: float | None = None  # None: the study's

    @abstractmethod
    def state(self, task: Task, sites: int) -> State:
        """What each site starts with."""

    @abstractmethod
    def coord(self, task: Task, sites: int) -> Coord:
        """What the coordinator starts with."""

    @abstractmethod
    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        """A settled site's scores for rows x: [site, row, class]."""

    def compares(self) -> tuple[str, ...]:
        """Names of the models that a site carries beside its own, to compare with."""
        return ()

    def compared(self, task: Task, state: State, x: Tensor) -> dict[str, Tensor]:
        """Their scores for rows x, by name, at a settled site."""
        return {}

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (Stage("train", self, rounds),)

    def ends(self) -> Ends:
        return Ends()

    def aside(self) -> float:
        """The share of its training rows that each site keeps out of training, to judge by (Rows.aside)."""
        return 0.0

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
    """A site's own training rows, as far as a report may look at them."""

    total: Tensor  # [site]: how many there are


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

    @abstractmethod
    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        """At the coordinator: what each site is told."""

    @abstractmethod
    def begin(self, task: Task, state: State, down: Down) -> Work:
        """At the site: fresh tensors to work on."""

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
    pools_rows: ClassVar[bool] = False  # True only for the yardstick that takes all rows to one place
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

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (Stage("train", self, rounds),)

    def ends(self) -> Ends:
        return Ends()

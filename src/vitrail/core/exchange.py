"""How coordinator and sites talk. An exchange's Down and Up are the whole of what can cross the wire.

Fields of messages carry a sentence, Annotated[Params, "what it is"], for the consent form. So do those fields of what a
site keeps (State) of which the form shall promise that they never leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Needs, WireRules, check_bounds, check_declarations
from vitrail.core.facts import OWN, Facts
from vitrail.core.losses import Loss
from vitrail.core.optimizers import Optimizer
from vitrail.core.random import mixed
from vitrail.core.task import Batch, Net, Task
from vitrail.core.tensors import Params

State = TypeVar("State")  # what a site keeps between rounds; never leaves it
Coord = TypeVar("Coord")  # what the coordinator keeps between rounds
Work = TypeVar("Work")  # what a site has in hand during one round; steps overwrite it
Down = TypeVar("Down")  # the only thing that reaches a site
Up = TypeVar("Up")  # the only thing that leaves a site
Variant = TypeVar("Variant")


class Nothing(NamedTuple):
    """A message without content."""


class Roster(NamedTuple):
    """The sites of the study, and the sites that a round is about."""

    names: tuple[str, ...]
    present: Tensor  # [site] bool. To `invite`: who can be asked; to `send`: who is asked; to `merge`: who answered
    seeds: Tensor  # [site] int64, from the study's seed and the sites' names
    clock: Tensor  # of this exchange of this round

    @property
    def key(self) -> Tensor:
        """[site] int64, of this round: for draws at the coordinator, the same whatever the order of sites."""
        return mixed(self.seeds, self.clock)


class Rows(NamedTuple):
    """A site's own training rows, as far as an exchange may look at them besides its batches."""

    total: Tensor  # [site]: how many it trains on
    validation: Batch | None = None  # those kept out of training, where the method says so (Needs.validation_share)
    look: Callable[[], Iterator[Batch]] | None = None
    holdout: Batch | None = None  # its hold-out rows, for an exchange that says so (Needs.holdout)

    def blocks(self) -> Iterator[Batch]:
        """All rows it trains on, once and in order, in blocks; rows of weight 0 are padding."""
        return self.look() if self.look else iter(())


class SiteContext(NamedTuple):
    """What an exchange works with at a site during one round, besides what the site keeps and was sent."""

    task: Task
    rows: Rows
    optimizer: Optimizer


class Release(NamedTuple):
    """A report that is told with noise (privacy/release.py): each vector along its last axis is shortened to `clip`,
    and whatever rows a site has, its report stays within this budget."""

    clip: float
    epsilon: float
    delta: float


WIRE, NEEDS = WireRules(), Needs()


class Exchange(ABC, Generic[State, Coord, Work, Down, Up]):
    """One kind of conversation: send -> (begin, step for each batch, report) -> merge; settle at the end.

    All tensors have the site axis first, also for a single site: looping over sites is a stack of one.
    `step` works in place on what `begin` made; nothing else is ever overwritten. Only `report` must be written: an
    exchange without a `step` trains nothing, one without a `send` sends nothing, and so on.
    """

    name: ClassVar[str] = ""  # where a stage has several
    consent: str = ""  # what a site shows, once, in words that follow "you agree to show"; it may refuse

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        check_declarations(cls, method=hasattr(cls, "catalogue"))

    @property
    def wire(self) -> WireRules:
        """What its messages mean: `wire = WireRules(...)` in the class, or a property where hyperparameters decide."""
        return WIRE

    @property
    def needs(self) -> Needs:
        """What it needs at a site beyond batches, declared likewise."""
        return NEEDS

    @property
    def noise_budget(self) -> Release | None:
        """Under which budget its report is told, with noise; None: as it is."""
        return None

    def batches(self) -> int | None:
        """How many batches a site draws in a round at most; None: as many as its epochs have."""
        return None

    def invite(self, task: Task, coord: Coord, roster: Roster) -> Tensor:
        """At the coordinator: whom to ask this round, [site] bool."""
        return roster.present

    @property
    def trains(self) -> bool:
        """Whether sites draw batches for it: only where it says what to do with one."""
        return type(self).step is not Exchange.step

    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        """At the coordinator: what each site is sent."""
        return cast("Down", Nothing())

    def begin(self, site: SiteContext, state: State, down: Down) -> Work:
        """At the site: fresh tensors to work on."""
        return cast("Work", Nothing())

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        """At the site: one batch, in place."""

    @abstractmethod
    def report(self, site: SiteContext, state: State, work: Work, down: Down) -> tuple[State, Up]:
        """At the site: what it keeps, and what it says. A report says a change: zero is "learned nothing"."""

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        """At the coordinator. Under `each`, absent sites' reports are zero and roster.present says so."""
        return coord, {}

    def settle(self, task: Task, state: State, down: Down) -> State:
        """At the site, after the last round: take the final word, so that `predict` needs nothing else."""
        return state


AnyExchange = Exchange[Any, Any, Any, Any, Any]


class Stage(NamedTuple):
    """Rounds of one kind. Each holds all its exchanges, one after the other; with `cycle`, those whose turn it is."""

    name: str
    exchanges: tuple[AnyExchange, ...]
    rounds: int
    title: str = ""  # what it is about, for a list: "training"
    when: str = ""  # as a heading of the consent form: "In training"
    cycle: tuple[tuple[int, ...], ...] = ()  # places of the exchanges of rounds 0, 1, ...; then from the start again

    def turns(self, round_: int) -> tuple[int, ...]:
        """The places of the exchanges that this round holds."""
        return self.cycle[round_ % len(self.cycle)] if self.cycle else tuple(range(len(self.exchanges)))

    def times(self, place: int) -> int:
        """In how many rounds that exchange is held."""
        return sum(place in self.turns(r) for r in range(self.rounds)) if self.cycle else self.rounds

    @property
    def last(self) -> AnyExchange:
        """The one whose word ends the stage."""
        return self.exchanges[-1]


@dataclass(frozen=True)
class Method(Exchange[State, Coord, Work, Down, Up]):
    """A way of learning together. Fields are hyperparameters, hence keys of the study file and flags."""

    catalogue: ClassVar[Catalogue] = Catalogue()
    lr: Annotated[float, Ge(0)] | None = None  # None: the study's
    momentum: Annotated[float, Ge(0)] | None = None  # None: the study's

    def __post_init__(self) -> None:
        """Refuse hyperparameters beyond their bounds; a method with a check of its own calls this first."""
        check_bounds(self)

    @abstractmethod
    def state(self, task: Task, sites: int) -> State:
        """What each site starts with."""

    def coord(self, task: Task, sites: int) -> Coord:
        """What the coordinator starts with."""
        return cast("Coord", Nothing())

    @abstractmethod
    def models(self, task: Task, state: State) -> dict[str, Params]:
        """The models that a settled site holds: its OWN; beside it, to compare with, SHARED, ALONE or RECEIVED."""

    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        """A settled site's scores for rows x: [site, row, output]."""
        return task.output(self.models(task, state)[OWN], x)

    def self_report(self, state: State) -> dict[str, Tensor]:
        """What a settled site found out about itself, [site] by what it means (core/facts.py)."""
        return {}

    def shared(self, coord: Coord) -> Params:
        """The model that all sites share, where the coordinator holds one."""
        return {}

    @property
    def setting(self) -> str:
        """What pages say of these hyperparameters: which of them are the paper's, where that is not plain."""
        return ""

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (training(self, rounds),)

    def variant(self, kind: type[Variant]) -> Variant:
        """The same hyperparameters in a subclass, for a stage whose rounds differ in little."""
        return kind(**{f.name: getattr(self, f.name) for f in fields(self)})

    def training_loss(self, loss: Loss) -> Loss:
        """The loss it trains with: the study's, unless the method is about another."""
        return loss

    def training_optimizer(self, optimizer: Optimizer, net: Net) -> Optimizer:
        """How a step is made of a gradient: as the study says, unless the method is about another way."""
        return optimizer

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        """Why this method cannot be used with this network, loss or optimiser; nothing where it can."""
        return ()

    def named_sites(self) -> tuple[str, ...]:
        """The sites that its hyperparameters name; all of them must take part."""
        return ()

    def newcomer(self) -> Method[Any, Any, Any, Any, Any] | None:
        """How a site that comes after training fits what is private to it; None where nothing is."""
        return None


AnyMethod = Method[Any, Any, Any, Any, Any]


@runtime_checkable
class Pushes(Protocol):
    """A method whose sites, once settled, know what each prototype of their models was taken from."""

    def patches(self, state: Any) -> dict[str, Tensor]:
        """By what the model is to the site, [site, prototype, 2]: the place of a picture among the site's training
        rows, and the cell in its feature map, counted row by row; -1 where the site has no picture of the class."""


def training(method: AnyExchange, rounds: int) -> Stage:
    """The stage that nearly every method begins with."""
    return Stage("train", (method,), rounds, "training", "In training")

"""An exchange of any method, held once with all rows and once without each fold: the out-of-fold versions of a model.

A version is one more site to the method: its half at the site is given [site * version, ...] and the rows once for each
version, in which those of the version's fold count nothing. What crosses is what the method sends, once for each
version. At the coordinator each version is a federation of its own. The last version has all rows, and is what the
method would have been without the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Needs, WireRules
from vitrail.core.exchange import AnyExchange, Exchange, Roster, Rows, SiteContext
from vitrail.core.facts import Facts
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, flatten, unflatten
from vitrail.methods.blocks.model_copies import copies, counted_rows, lot_of, merged, parted, version

if TYPE_CHECKING:
    from vitrail.methods.agreed_mix import AgreedMix


class VersionedMessage(NamedTuple):
    of: Any  # what the method says, [site, version, ...]: its fields have their sentences
    lot: Annotated[Tensor, "a number from which the fold of each row follows"]  # [site], the same for all


class Work(NamedTuple):
    of: Any  # [site, version, ...]
    own: Params  # [site, version, ...]: trained beside, on the site's rows alone; nothing where that is not its place
    memory: Params
    lot: Tensor


class VersionedCoord(NamedTuple):
    """What the coordinator keeps."""

    of: Any  # what it keeps of the method, [version, ...]
    choice: Tensor  # the place of the choice among all alternatives, once it is made


class Versioned:
    """`ex`, held in `folds` + 1 versions; with `beside`, models of the site's own are trained on the same batches.

    A state has fields `of` (that of the method), `own` and `memory` (of `own`), all [site, version, ...].
    """

    ex: AnyExchange
    folds: int
    beside: bool
    own_rate: float

    def invite(self, task: Task, coord: VersionedCoord, roster: Roster) -> Tensor:
        return self.ex.invite(task, version(coord.of, self.folds), roster)

    def send(self, task: Task, coord: VersionedCoord, roster: Roster) -> VersionedMessage:
        messages = [self.ex.send(task, version(coord.of, v), roster) for v in range(self.folds + 1)]
        return VersionedMessage(stacked(messages, 1), lot_of(roster))

    def begin(self, site: SiteContext, state: Any, down: VersionedMessage) -> Work:
        n = len(down.lot)
        of = self.ex.begin(self.in_versions(site, down.lot), merged(state.of), merged(down.of))
        own = clone(state.own) if self.beside else {}
        memory = parted(site.optimizer.state(merged(own), merged(state.memory)), n) if own else {}
        return Work(parted(of, n), own, memory, down.lot)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        wide = copies(batch, self.counted(batch, work.lot))
        self.ex.step(self.in_versions(site, work.lot), merged(work.of), wide)
        if work.own:
            alone = site.optimizer.alone.at(site.optimizer.lr * self.own_rate)
            alone.step(site.task, merged(work.own), merged(work.memory), wide)

    def report(self, site: SiteContext, state: Any, work: Work, down: VersionedMessage) -> tuple[Any, Any]:
        n, site = len(down.lot), self.in_versions(site, down.lot)
        of, up = self.ex.report(site, merged(state.of), merged(work.of), merged(down.of))
        if work.own:
            state = state._replace(own=work.own, memory=carry_state(work.memory, state.memory))
        return state._replace(of=parted(of, n)), parted(up, n)

    def merge(self, task: Task, coord: VersionedCoord, up: Any, roster: Roster) -> tuple[VersionedCoord, Facts]:
        """Of facts those of the version with all rows are told."""
        axis, after, facts = 0 if self.ex.wire.aggregation == "sum" else 1, [], Facts()
        for v in range(self.folds + 1):
            one, facts = self.ex.merge(task, version(coord.of, v), version(up, v, axis), roster)
            after.append(one)
        return coord._replace(of=stacked(after)), facts

    def settle(self, task: Task, state: Any, down: VersionedMessage) -> Any:
        return state._replace(of=parted(self.ex.settle(task, merged(state.of), merged(down.of)), len(down.lot)))

    def in_versions(self, site: SiteContext, lot: Tensor) -> SiteContext:
        """The context of the wrapped exchange: the site's rows as each version sees them."""

        def look() -> Iterator[Batch]:
            return (copies(b, self.counted(b, lot)) for b in site.rows.blocks())

        return site._replace(rows=Rows(site.rows.total.repeat_interleave(self.folds + 1), look=look))

    def counted(self, batch: Batch, lot: Tensor) -> Tensor:
        """As much more without a fold as keeps the total what it is: versions shall differ by rows, not by how far they
        are trained."""
        return counted_rows(batch, lot, self.folds, self.folds / (self.folds - 1))


@dataclass(frozen=True)
class LaterStage(Versioned, Exchange[Any, VersionedCoord, Work, VersionedMessage, Any]):
    """A later stage of the method (it may train alone in it), in the same versions."""

    of: AgreedMix
    ex: AnyExchange
    folds: int
    needs = Needs(row_indices=True)
    beside: ClassVar[bool] = False  # type: ignore[misc]
    own_rate: ClassVar[float] = 1.0  # type: ignore[misc]

    @property
    def wire(self) -> WireRules:
        return WireRules(self.ex.wire.aggregation)

    def settle(self, task: Task, state: Any, down: VersionedMessage) -> Any:
        return self.of.ready(task, super().settle(task, state, down))


@dataclass(frozen=True)
class OfLast(Exchange[Any, Any, Any, Any, Any]):
    """An exchange that is not about versions (something is shown): of the one with all rows."""

    of: Versioned
    ex: AnyExchange
    consent: str = ""

    def send(self, task: Task, coord: VersionedCoord, roster: Roster) -> Any:
        return self.ex.send(task, version(coord.of, self.of.folds), roster)

    def begin(self, site: SiteContext, state: Any, down: Any) -> Any:
        return self.ex.begin(site, self.state(state), down)

    def report(self, site: SiteContext, state: Any, work: Any, down: Any) -> tuple[Any, Any]:
        return state, self.ex.report(site, self.state(state), work, down)[1]

    def merge(self, task: Task, coord: VersionedCoord, up: Any, roster: Roster) -> tuple[VersionedCoord, Facts]:
        return coord, self.ex.merge(task, version(coord.of, self.of.folds), up, roster)[1]

    def state(self, state: Any) -> Any:
        return version(state.of, -1, 1)


def stacked(trees: Sequence[Any], axis: int = 0) -> Any:
    """Of each version its own -> one with an axis of versions."""
    parts = [dict(flatten(tree)) for tree in trees]
    return unflatten(trees[0], {k: _stack([p[k] for p in parts], axis) for k in parts[0]})


def _stack(versions: Sequence[Tensor], axis: int) -> Tensor:
    """What all sites are told alike stays a view of one message."""
    if axis == 0 or any(t.stride(0) for t in versions):
        return torch.stack(list(versions), axis)
    return torch.stack([t[:1] for t in versions], axis).expand(len(versions[0]), *[-1] * versions[0].dim())

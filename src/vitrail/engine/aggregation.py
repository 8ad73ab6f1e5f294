"""What sites reported -> what the coordinator is given of it. The one place where the `merge` of an exchange is called.

    Aggregator.collect         reports as they came: their sum, each of them, or a robust centre; under masks a sum that
                               is rounded as it would be on the wire
    Aggregator.collect_sums    sums that were opened: of all sites (masked), or of groups of them
    Aggregator.collect_centre  the mean of the reports that two servers chose
    collect_all                reports that are all at hand, without guards: rehearsals, replicas
    collect_coalitions         the same reports for several coalitions: replay

Each returns `Collected`, and `merge` makes the coordinator's next state of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange, Roster
from vitrail.core.facts import Facts
from vitrail.core.task import Task
from vitrail.core.tensors import Params, flatten, map_tensors, per_site
from vitrail.privacy.compression import Shapes
from vitrail.privacy.guards import Guards, far_from_centre, is_valid_report, with_middle
from vitrail.privacy.report_vectors import by_unit
from vitrail.privacy.robust import against_median
from vitrail.privacy.secure_sum.fixed_point import as_reported, rounded

UNUSUAL = 10  # times as long as the median change, or as the site's own last one: this becomes an event


class Collected(NamedTuple):
    """What the coordinator is given of the reports of one exchange."""

    total: Any  # their total; each of them, [site, ...], where the exchange sees each
    present: Tensor  # [site] bool: whose reports are in it
    facts: Facts  # that come from putting the reports together
    reports: Any = None  # each site's own report, [site, ...], where reports are kept


class BufferedReports(NamedTuple):
    """What is held of the reports of some sites until all have answered."""

    at: Any  # which sites: an index into the axis of sites
    held: Any  # their total, or each of them
    crossed: Params = {}  # noqa: RUF012  what crosses the wire in place of a shortened report, where reports are kept


def merge(ex: AnyExchange, task: Task, coord: Any, collected: Collected | None, roster: Roster) -> tuple[Any, Facts]:
    """The coordinator after an exchange, and what it may show. Where nothing was collected, it stays as it was."""
    if collected is None:
        return coord, {}
    coord, facts = ex.merge(task, coord, collected.total, roster._replace(present=collected.present))
    return coord, collected.facts | facts


def collect_all(ex: AnyExchange, reports: Any, present: Tensor) -> Collected:
    """Of reports [site, ...] that are all at hand; those of absent sites are zero."""
    return Collected(total(reports) if ex.wire.aggregation == "sum" else reports, present, {})


def collect_coalitions(ex: AnyExchange, reports: Any, members: Tensor) -> Iterator[Collected | None]:
    """Of the same reports [site, ...] for each coalition of `members` [coalition, site]; None where it is empty."""
    sums = (
        map_tensors(lambda t: torch.tensordot(members.to(t), t, 1), reports) if ex.wire.aggregation == "sum" else None
    )
    for c, present in enumerate(members):
        if not bool(present.any()):
            yield None
        elif ex.wire.aggregation == "sum":
            yield Collected(map_tensors(lambda t: t[c], sums), present, {})  # noqa: B023
        else:
            yield Collected(map_tensors(lambda t: t * per_site(present.to(t), t), reports), present, {})  # noqa: B023


class Aggregator:
    """Of one run: what its guards make of reports, and which sites sent something that cannot be a report.

    `everyone` is the tensor with which the run says that all sites are present."""

    def __init__(self, names: tuple[str, ...], guards: Guards, everyone: Tensor) -> None:
        self.names, self.guards, self.everyone = names, guards, everyone
        self.keep_reports = False  # whether each site's own report is part of what is collected
        self.excluded: dict[str, str] = {}  # sites that are no longer asked, and why
        self.unusual: dict[str, int] = {}  # sites with a change far longer than the others', and in how many rounds
        self.pending_events: list[dict[str, Any]] = []  # not written down yet
        self._sizes = torch.full((len(names),), torch.nan, dtype=torch.double)  # of this exchange's changes
        self._before: dict[type[AnyExchange], Tensor] = {}  # of each kind of exchange, the last one's

    def take_events(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        events, self.pending_events = self.pending_events, []
        return events

    def without_excluded(self, present: Tensor) -> Tensor:
        if not self.excluded:
            return present
        return present & torch.tensor([n not in self.excluded for n in self.names], device=present.device)

    def validate_reports(self, ex: AnyExchange, up: Any, down: Any, places: Sequence[int]) -> Any:
        """The reports of the sites at these places, before anything is made of them. What cannot be a report is
        replaced by zeros: its site is named, and not asked again."""
        if not any(True for _ in flatten(up)):
            return up
        good, size = is_valid_report(ex, up, down)
        for place, fine, length in zip(places, good.tolist(), size.tolist(), strict=True):
            self._sizes[place] = length if fine and ex.trains else torch.nan
            if not fine:
                wrong = "not all of its numbers are finite" if not length < torch.inf else f"its length is {length:.3g}"
                why = f"its report is invalid: {wrong}"
                self.excluded[self.names[place]] = why
                self.pending_events.append({"event": "set aside", "site": self.names[place], "why": why})
        return (
            up
            if bool(good.all())
            else map_tensors(lambda t: torch.where(per_site(good, t), t, torch.zeros_like(t)), up)
        )

    def valid(self, ex: AnyExchange, present: Tensor) -> Tensor:
        """Of those who answered, those whose answer was a report. A change that is far longer than the others', or
        than the site's own last one, becomes an event."""
        sizes, self._sizes = self._sizes, torch.full_like(self._sizes, torch.nan)
        finite = sizes[sizes.isfinite()]
        usual = torch.full_like(sizes, float(finite.median()) if len(finite) > 3 else torch.nan)
        before = self._before.get(type(ex), torch.full_like(sizes, torch.nan))
        for place in ((sizes > UNUSUAL * usual) | (sizes > UNUSUAL * before)).nonzero()[:, 0].tolist():
            name = self.names[place]
            self.unusual[name] = self.unusual.get(name, 0) + 1
            if self.unusual[name] == 1:
                by = torch.stack([usual[place], before[place]]).nan_to_num(torch.inf).min().clamp(min=1e-300)
                times = round(float(sizes[place] / by), 1)
                self.pending_events.append({"event": "unusual", "site": name, "times": times})
        self._before[type(ex)] = torch.where(sizes.isfinite(), sizes, before)
        return self.without_excluded(present)

    def buffer_report(self, ex: AnyExchange, at: Any, up: Any, crossed: Params | None = None) -> BufferedReports:
        """What is held of some sites' reports, [site, ...], until all have answered: their total, where that is all
        that anybody will look at; else copies, since a report may lie in memory that is used again."""
        if ex.wire.aggregation == "sum" and not self.keep_reports and not self.guards.needs_each(ex):
            up = rounded(ex, up, len(self.names)) if self.guards.masks(ex) else up
            return BufferedReports(at, total(up))
        return BufferedReports(at, map_tensors(owned, up), crossed or {} if self.keep_reports else {})

    def collect(
        self, ex: AnyExchange, parts: Sequence[BufferedReports], roster: Roster, shapes: Shapes
    ) -> Collected | None:
        """Of reports that came one by one; `shapes` and types of a report. None where of so few nothing is opened."""
        present, sites = roster.present, len(self.names)
        # a graph that is captured may not look at a number, and where all are here there is no need to
        count = sites if present is self.everyone else int(present.sum())
        if not count or not self.guards.opens(ex, count, sites):
            return None
        held, needs_each = [part.held for part in parts], self.guards.needs_each(ex)
        reports = spread(parts, sites) if self.keep_reports or needs_each or ex.wire.aggregation == "each" else None
        whole, facts = reports, Facts()
        if needs_each:
            whole, facts = self.guards.total(ex, reports, present, roster.seeds)
        elif ex.wire.aggregation == "sum" and self.keep_reports:
            whole = _summed([total(part) for part in held])
        elif ex.wire.aggregation == "sum":
            whole = as_reported(_summed(held), shapes) if self.guards.masks(ex) else _summed(held)
        return Collected(whole, present, facts, reports if self.keep_reports else None)

    def collect_sums(self, ex: AnyExchange, sums: Any, members: Tensor) -> Collected:
        """Of sums [part, ...] that were opened without a look at any report: of groups, or one of all sites;
        `members` [part, site] bool."""
        if self.guards.needs_each(ex):
            whole, facts = self.guards.of_parts(ex, sums, members)
            return Collected(whole, members.any(0), facts)
        return Collected(map_tensors(lambda t: t[0], sums), members.any(0), {})

    def collect_centre(self, ex: AnyExchange, reports: Any, members: Tensor, middle: Tensor, far: Tensor) -> Collected:
        """Of the mean [number] of the reports that two servers chose. `reports` [part, ...] holds what is in the open
        of them; `far`: how far off each lay; `members` [part, site] bool."""
        whole = with_middle(ex, reports, middle, by_unit(ex, reports)[1])
        return Collected(whole, members.any(0), far_from_centre(members, against_median(far)))


def total(reports: Any) -> Any:
    return map_tensors(lambda t: t.sum(0), reports)


def owned(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _summed(totals: list[Any]) -> Any:
    for more in totals[1:]:
        for (_, value), (_, part) in zip(flatten(totals[0]), flatten(more), strict=True):
            value.add_(part)
    return totals[0]


def spread(parts: Sequence[BufferedReports], sites: int) -> Any:
    """Reports of some sites each -> one stacked report in which absent sites are zero."""
    out = map_tensors(lambda t: t.new_zeros((sites, *t.shape[1:])), parts[0].held)
    for part in parts:
        for (_, whole), (_, some) in zip(flatten(out), flatten(part.held), strict=True):
            whole[part.at] = some
    return out

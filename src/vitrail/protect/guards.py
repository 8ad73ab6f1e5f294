"""Guards between a report and its merge, the same for every method.

    at the site        leave    the change is clipped to a length, then given noise
    at the coordinator sound    what cannot be a report is no report: its site is named and set aside
                       total    the sum; or, where a few may lie, n times a centre that they cannot move far

They work on changes per unit of what a report counts (protect/reports.py), in the rounds that train. What a site shows
by consent, once, is shown as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange
from vitrail.core.facts import OUTLYING, Fact, Facts
from vitrail.core.tensors import filled, tensors
from vitrail.protect.reports import changes, counted, flat, lengths, with_changes
from vitrail.protect.robust import FEWEST, Kind, apart, centre

FAR = 1e4  # times as long as the model that was sent: no training moves so far
Normals = Callable[[int], Tensor]  # so many for each site, [site, number]


@dataclass(frozen=True)
class Guards:
    clip: float | None = None  # the length that no change exceeds
    noise: float = 0.0  # of the total: standard deviation, in clips
    robust: Kind | None = None
    masked: bool = False  # totals are of numbers as they are under masks (protect/fixed.py)
    least: int = 3  # sites in such a total

    @property
    def at_rest(self) -> bool:
        return self == AT_REST

    def guard(self, ex: AnyExchange) -> bool:
        """Whether this exchange is theirs."""
        return not self.at_rest and ex.trains and not ex.consent

    def masks(self, ex: AnyExchange) -> bool:
        """Whether the reports of this exchange leave under masks."""
        return self.masked and ex.sees == "sum" and not ex.consent

    def leave(self, ex: AnyExchange, up: Any, normals: Normals, sites: int) -> Any:
        """At the site, the last thing that is done to a report. The noise of a total is shared by `sites`."""
        if self.clip is None or not self.guard(ex) or not changes(ex, up):
            return up
        by = counted(ex, up)
        per_unit = flat(ex, up) if by is None else flat(ex, up) / by[:, None].clamp(min=1e-12)
        size = per_unit.double().norm(dim=1, keepdim=True)
        rows = per_unit * (self.clip / size.clamp(min=1e-30)).clamp(max=1).to(per_unit)
        if self.noise:
            rows = rows + normals(rows.shape[1]).to(rows) * (self.noise * self.clip / sites**0.5)
        return with_changes(ex, up, rows if by is None else rows * by[:, None])

    def needs_each(self, ex: AnyExchange) -> bool:
        """Whether reports must be held one by one until all have answered."""
        return self.robust is not None and self.guard(ex) and ex.sees == "sum"

    def total(self, ex: AnyExchange, up: Any, here: Tensor) -> tuple[Any, Facts]:
        """At the coordinator, of reports [site, ...] of which those `here` are reports: their total, of which a few
        liars decide little, and how far off each lay."""
        n, by = int(here.sum()), counted(ex, up)
        added = {k: v[here].sum(0) for k, v in tensors(up)}
        far = torch.full((len(here),), torch.nan, dtype=torch.double, device=here.device)
        if self.robust is None or n < FEWEST:
            return filled(_one(up), added), {"outlying": Fact(far, ("site",), OUTLYING, every=True)}
        rows = flat(ex, up)[here]
        weight = torch.ones_like(rows[:, 0]) if by is None else by[here]
        rows = rows / weight[:, None].clamp(min=1e-12)
        middle = centre(rows, self.robust)
        far[here] = apart(rows, middle)
        whole = with_changes(ex, up, middle * weight.sum())
        held = changes(ex, up)
        added |= {k: v for k, v in tensors(whole) if k in held}
        return filled(_one(up), added), {"outlying": Fact(far, ("site",), OUTLYING, every=True)}

    def clashes(self, title: str, reports: Sequence[tuple[AnyExchange, Any]], sites: int) -> list[tuple[str, str]]:
        """(key, why not) for a method of that title, whose exchanges report like this, and so many sites."""
        out, trained = [], [(ex, up) for ex, up in reports if ex.trains and not ex.consent and changes(ex, up)]
        if self.robust and any(ex.sees == "each" for ex, _ in trained):
            out.append(("robust", f"{title} looks at each report itself, and makes no total of them"))
        if self.robust and any(counted(ex, up) is None for ex, up in trained if ex.sees == "sum"):
            out.append(("robust", f"with {title} each site reports on another part of what is shared"))
        if self.robust and sites < FEWEST:
            out.append(("robust", f"of fewer than {FEWEST} sites nobody can say who lies, and there are {sites}"))
        if self.noise and self.clip is None:
            out.append(("sites", "noise is measured against a length that no change exceeds: it needs clip"))
        return out


def sound(ex: AnyExchange, up: Any, down: Any) -> tuple[Tensor, Tensor]:
    """[site]: whether this can be a report, and how long its change is. It holds numbers, what counts is not negative,
    and the change is not FAR longer than the model that was sent."""
    held = changes(ex, up) if ex.trains else {}
    others = {k: v for k, v in tensors(up) if k not in held and k not in ex.unsure and v.is_floating_point()}
    sites = len(next(v for _, v in tensors(up)))
    good, size = torch.ones(sites, dtype=torch.bool), torch.zeros(sites, dtype=torch.double)
    for name, v in others.items():
        least = 0.0 if name.split("/")[0] in ex.counts else -torch.inf
        good &= (v.isfinite() & (v >= least)).reshape(sites, -1).all(1)
    if held:
        sent = [
            torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1) for _, v in tensors(down) if v.is_floating_point()
        ]
        size = lengths(ex, up)
        good &= size <= FAR * (1 + (torch.stack(sent).norm(dim=0) if sent else 0))  # false for what is no number
    return good, size


def _one(up: Any) -> Any:
    """The report of one site, without the axis of sites."""
    return filled(up, {k: v[0] for k, v in tensors(up)})


AT_REST = Guards()

"""Guards between a report and its merge, the same for every method.

    at the site        leave    the change is clipped to a length, then given noise, then made shorter to write
    at the coordinator sound    what cannot be a report is no report: its site is named and set aside
                       total    the sum; or, where a few may lie, n times a centre that they cannot move far

They work on changes per unit of what a report counts (privacy/report_vectors.py), in the rounds that train. What a site
shows by consent, once, is shown as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange
from vitrail.core.facts import OUTLYING, Fact, Facts
from vitrail.core.tensors import Params, flatten, unflatten
from vitrail.privacy import compression
from vitrail.privacy.report_vectors import by_unit, changes, counted, flat, lengths, with_changes
from vitrail.privacy.robust import FEWEST, Kind, apart, centre, liars
from vitrail.privacy.secure_sum.fixed_point import LEAST, fewest_of
from vitrail.privacy.secure_sum.groups import GROUPS, groups_of, opened_groups
from vitrail.privacy.two_server.krum import PLACES, choose_reports

FAR = 1e4  # times as long as the model that was sent: no training moves so far
AddNoise = Callable[[Tensor, float, float], Tensor]  # to [site, number] of at most this length, so many times that
Sum = Literal["one", "groups", "two servers"]


@dataclass(frozen=True)
class Guards:
    clip: float | None = None  # the length that no change exceeds
    noise: float = 0.0  # that each site adds: standard deviation, in clips
    robust: Kind | None = None
    sum: Sum = "one"  # whose totals are read: of all, of groups, of those that two servers choose
    masked: bool = False  # totals are of numbers as they are under masks (privacy/secure_sum/fixed_point.py)
    least: int = 3  # sites in a total that is masked, of a group, or given noise: of fewer none is opened
    compress: compression.Short | None = None

    @property
    def is_inactive(self) -> bool:
        return self == AT_REST

    def guard(self, ex: AnyExchange) -> bool:
        """Whether this exchange is theirs."""
        return not self.is_inactive and ex.trains and not ex.consent

    def masks(self, ex: AnyExchange) -> bool:
        """Whether of this exchange's reports only the total of all sites can be read. Beside groups and two servers,
        whose centres are of what was trained, it is so for other totals."""
        return (
            (self.masked or (self.sum != "one" and not ex.trains)) and ex.wire.aggregation == "sum" and not ex.consent
        )

    def leave(self, ex: AnyExchange, up: Any, add_noise: AddNoise) -> Any:
        """At the site, the last thing that is done to the numbers of a report."""
        if self.clip is None or not self.guard(ex) or not changes(ex, up):
            return up
        by = counted(ex, up)
        per_unit = flat(ex, up) if by is None else flat(ex, up) / by[:, None].clamp(min=1e-12)
        size = per_unit.double().norm(dim=1, keepdim=True)
        rows = per_unit * (self.clip / size.clamp(min=1e-30)).clamp(max=1).to(per_unit)
        if self.noise:
            rows = add_noise(rows, self.clip, self.noise)
        return with_changes(ex, up, rows if by is None else rows * by[:, None])

    def compressed_spec(self, ex: AnyExchange, report: compression.Shapes) -> compression.Shapes:
        """Names, shapes and types of what crosses in place of a report."""
        return compression.compressed_spec(ex, report, self.compress) if self.compress and self.guard(ex) else report

    def error_feedback(self, ex: AnyExchange, report: compression.Shapes, sites: int, like: Tensor) -> Params:
        """What sites remember of their reports from one to the next, at first."""
        return (
            compression.error_feedback(ex, report, self.compress, sites, like)
            if self.compress and self.guard(ex)
            else {}
        )

    def written(self, ex: AnyExchange, up: Any, guard_state: Params) -> tuple[Any, Params, Params]:
        """At the site: the report as it will be read, as it crosses, and what is remembered."""
        if not self.compress or not self.guard(ex):
            return up, {}, {}
        crossed, after = compression.compress(up, guard_state, self.compress)
        return compression.decompress(up, crossed, self.compress), crossed, after

    def read(self, ex: AnyExchange, up: Any, crossed: Params) -> Any:
        """At the coordinator: what crossed, as a report in the shape of `up`."""
        if not self.compress or not self.guard(ex):
            return unflatten(up, crossed)
        return compression.decompress(up, crossed, self.compress)

    def needs_each(self, ex: AnyExchange) -> bool:
        """Whether reports must be held one by one until all have answered."""
        chooses = self.robust is not None or self.sum in ("groups", "two servers")
        return chooses and self.guard(ex) and ex.wire.aggregation == "sum"

    def opens(self, ex: AnyExchange, here: int, sites: int) -> bool:
        """Whether a total of so many of all sites may be read at all."""
        minds = self.sum != "one" or self.masked or self.noise > 0
        hidden = self.masked or self.sum == "two servers"
        return not (minds and self.guard(ex)) or here >= (self.fewest(sites) if hidden else self.least)

    def fewest(self, sites: int) -> int:
        """Of how many of all sites a total is that nobody may see through; with less than any study asks for, of so
        many."""
        return fewest_of(sites, self.least) if self.least >= LEAST else self.least

    def total(self, ex: AnyExchange, up: Any, here: Tensor, seeds: Tensor) -> tuple[Any, Facts]:
        """At the coordinator, of reports [site, ...] of which those `here` are reports: their total, of which a few
        liars decide little, and how far off each lay. `seeds` [site]: from the sites' names."""
        parts = torch.eye(len(here), dtype=torch.bool, device=here.device)[here]  # [part, site]: whose totals are read
        if self.sum == "groups":
            parts = opened_groups(groups_of(seeds, self.least), here, self.least)
        return self.of_parts(ex, stacked(up, parts), parts)

    def of_parts(self, ex: AnyExchange, up: Any, parts: Tensor) -> tuple[Any, Facts]:
        """The same from what each part adds up to, [part, ...]; `parts` [part, site] bool: who is in it."""
        off = torch.full((len(parts),), torch.nan, dtype=torch.double, device=parts.device)
        fewest = FEWEST if self.sum == "one" else GROUPS
        if len(parts) >= fewest:
            rows, weights = by_unit(ex, up)
            middle, off = self._middle(rows)
            return with_middle(ex, up, middle, weights), far_from_centre(parts, off)
        added = {k: v.sum(0) for k, v in flatten(up)}
        if self.sum != "one":  # nobody can be outvoted: nothing is made of what would be trusted blindly
            added |= {k: torch.zeros_like(added[k]) for k in changes(ex, up)}
        return unflatten(up, added), far_from_centre(parts, off)

    def _middle(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[part, number] -> their centre [number], and how far each is from it."""
        if self.sum != "two servers":
            middle = centre(rows, self.robust or "median")
            return middle, apart(rows, middle)
        assert self.clip is not None
        step = self.clip / 2.0**PLACES
        exact = (rows.double() / step).round() * step
        products = (exact @ exact.T).cpu().numpy()
        chosen = choose_reports(products, exact.isfinite().all(1).cpu().numpy(), self.clip)
        # of fewer than were agreed no total is opened
        middle = exact[chosen].mean(0) if len(chosen) >= self.least else torch.zeros_like(exact[0])
        return middle.to(rows), apart(exact, middle)

    def clashes(self, title: str, reports: Sequence[tuple[AnyExchange, Any]], sites: int) -> list[tuple[str, str]]:
        """(key, why not) for a method of that title, whose exchanges report like this, and so many sites."""
        out, trained = [], [(ex, up) for ex, up in reports if ex.trains and not ex.consent and changes(ex, up)]
        key = "robust" if self.robust and self.sum == "one" else "sum"
        chooses = self.robust is not None or self.sum in ("groups", "two servers")
        each = any(ex.wire.aggregation == "each" for ex, _ in trained)
        if chooses and each:
            out.append((key, f"{title} uses each report by itself and computes no total"))
        if chooses and any(counted(ex, up) is None for ex, up in trained if ex.wire.aggregation == "sum"):
            out.append((key, f"with {title}, each site reports on a different part of the shared model"))
        if self.robust and self.sum == "one" and not self.masked and sites < FEWEST:
            out.append(("robust", f"at least {FEWEST} sites are needed to tell which one lies, but there are {sites}"))
        if self.sum == "groups" and sites < GROUPS * self.least:
            why = f"outvoting one group takes at least {GROUPS} groups of {self.least}"
            out.append(("sum", f"{why}, but there are {sites} sites"))
        if self.sum == "groups" and self.robust == "multikrum" and sites < FEWEST * self.least:
            out.append(("robust", f"Multi-Krum needs at least {FEWEST} groups"))
        if self.sum == "two servers" and self.robust not in (None, "multikrum"):
            out.append(
                ("robust", "two servers see only the distances between reports, so they can only use Multi-Krum")
            )
        if self.sum == "two servers" and self.clip is None:
            out.append(("sum", "two servers compute with fixed-point numbers of a bounded length, so clip is needed"))
        if self.sum == "two servers" and sites - liars(sites) < self.least:
            why = f"of {sites} sites {sites - liars(sites)} are chosen"
            out.append(("least", f"{why}, but a total of fewer than {self.least} must not be opened"))
        if self.compress and (self.masked or self.sum != "one"):
            out.append(
                (
                    "compress",
                    "masked or shared numbers cannot be compressed, because each site would use a scale of its own",
                )
            )
        if self.noise and self.clip is None:
            out.append(("sites", "the noise is relative to the longest possible change, so clip is needed"))
        if self.noise and each:
            out.append(("sites", f"{title} uses each report by itself, but the noise for sites belongs to a total"))
        if self.noise and chooses:
            out.append(("sites", "the noise is calibrated for a sum, not for a robust centre"))
        if self.noise and sites < self.least:
            out.append(("least", f"a total of fewer than {self.least} sites must not be opened, but there are {sites}"))
        return out


def is_valid_report(ex: AnyExchange, up: Any, down: Any) -> tuple[Tensor, Tensor]:
    """[site]: whether this can be a report, and how long its change is. It holds numbers, what counts is not negative,
    and the change is not FAR longer than the model that was sent."""
    held = changes(ex, up) if ex.trains else {}
    others = {k: v for k, v in flatten(up) if k not in held and k not in ex.wire.may_be_nan and v.is_floating_point()}
    first = next(v for _, v in flatten(up))
    sites = len(first)
    good, size = first.new_ones(sites, dtype=torch.bool), first.new_zeros(sites, dtype=torch.double)
    for name, v in others.items():
        least = 0.0 if name.split("/")[0] in ex.wire.weight_fields else -torch.inf
        good &= (v.isfinite() & (v >= least)).reshape(sites, -1).all(1)
    if held:
        sent = [
            torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1) for _, v in flatten(down) if v.is_floating_point()
        ]
        size = lengths(ex, up)
        good &= size <= FAR * (1 + (torch.stack(sent).norm(dim=0) if sent else 0))  # false for what is no number
    return good, size


def stacked(up: Any, parts: Tensor) -> Any:
    """Reports [site, ...] -> what each part of the sites adds up to, [part, ...]. `parts`: [part, site] bool"""
    none = {k: v[:0] for k, v in flatten(up)}
    return unflatten(up, {k: torch.stack([v[p].sum(0) for p in parts]) for k, v in flatten(up)} if len(parts) else none)


def with_middle(ex: AnyExchange, up: Any, middle: Tensor, weights: Tensor) -> Any:
    """A total whose change is this centre [number], for each unit that the parts [part, ...] count."""
    added = {k: v.sum(0) for k, v in flatten(up)}
    changed = with_changes(ex, up, middle * weights.sum().to(middle))
    return unflatten(up, added | {k: v for k, v in flatten(changed) if k in changes(ex, up)})


def far_from_centre(parts: Tensor, off: Tensor) -> Facts:
    """How far off each site's part lay: [part, site] bool, [part]."""
    far = torch.full((parts.shape[1],), torch.nan, dtype=torch.double, device=parts.device)
    for part, how_far in zip(parts, off.tolist(), strict=True):
        far[part] = how_far
    return {"outlying": Fact(far, ("site",), OUTLYING, every=True)}


AT_REST = Guards()

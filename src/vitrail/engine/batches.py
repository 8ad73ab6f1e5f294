"""All sites' training rows as tensors, and the batches each site draws in a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.random import bits, key, mixed, odd32, orders
from vitrail.core.task import Batch
from vitrail.core.tensors import to_floats
from vitrail.engine.rounds import clock_of

BLOCK = 256  # rows of each site that an exchange looks at at once


@dataclass(frozen=True)
class Sites:
    """Rows of all sites one after the other; sites with most rows first, so that those still busy are a prefix.

    Pictures may be uint8: they become numbers from 0 to 1 when a batch is made.
    """

    names: tuple[str, ...]
    x: Tensor  # [all rows, ...]
    y: Tensor  # [all rows, output]: 1 for the class and 0 for the others; or the number itself
    w: Tensor  # [all rows, 1]: class weights
    sizes: tuple[int, ...]
    lent: tuple[int, ...] = ()  # where each site's rows start, where several share theirs
    persons: Tensor | None = None  # [all rows]: whose each row is, no number at two sites; None: each row is a person

    @cached_property
    def starts(self) -> list[int]:
        return list(self.lent) or [0, *accumulate(self.sizes)][:-1]

    @cached_property
    def spans(self) -> Tensor:
        """[site, 2]: where each site's rows start, and how many there are."""
        return torch.tensor([self.starts, self.sizes], device=self.x.device).T

    @cached_property
    def share(self) -> Tensor | None:
        """[all rows]: one part in the number of rows of its person."""
        if self.persons is None:
            return None
        return (1 / self.persons.bincount().to(self.y.dtype))[self.persons]

    def to(self, device: str) -> Sites:
        persons = None if self.persons is None else self.persons.to(device)
        return replace(self, x=self.x.to(device), y=self.y.to(device), w=self.w.to(device), persons=persons)

    def again(self, at: Sequence[int]) -> Sites:
        """The sites at these places, some of them more than once; their rows are held once."""
        sizes, starts = (tuple(of[i] for i in at) for of in (self.sizes, self.starts))
        return replace(self, names=tuple(self.names[i] for i in at), sizes=sizes, lent=starts)

    def pooled(self, w: Tensor) -> Sites:
        """One site that holds everyone's rows, in the order of the sites' names."""
        parts = dict(zip(self.names, zip(self.starts, self.sizes, strict=True), strict=True))
        take = torch.cat([torch.arange(parts[n][0], parts[n][0] + parts[n][1]) for n in sorted(self.names)])
        take = take.to(self.x.device)
        whose = None if self.persons is None else self.persons[take]
        return Sites(("all sites",), self.x[take], self.y[take], w[take], (len(take),), persons=whose)

    def numbers(self, x: Tensor) -> Tensor:
        """Rows as a network takes them."""
        return to_floats(x, self.y)

    def blocks(self, at: Sequence[int]) -> Iterator[Batch]:
        """All rows of these sites, in order, so many of each at once; padded with weight 0."""
        device, longest = self.y.device, max(self.sizes[i] for i in at)
        starts, sizes = self.spans[among(at, device)].unsqueeze(-1).unbind(1)
        for first in range(0, longest, BLOCK):
            place = torch.arange(first, min(first + BLOCK, longest), device=device).expand(len(at), -1)
            real = place < sizes
            rows = torch.where(real, place + starts, 0)
            w = self.w[rows] * real[..., None]
            yield Batch(self.numbers(self.x[rows]), self.y[rows], w, at=torch.where(real, place, 0))


def among(place: Sequence[int], device: torch.device) -> Any:
    """How these sites are taken out of all. A run of neighbours is a view: a captured graph may not copy from outside.
    Anything else is copied out."""
    if len(place) == place[-1] + 1 - place[0]:
        return slice(place[0], place[-1] + 1)
    return torch.tensor(place, device=device)


def gather_sites(
    named: Sequence[tuple[str, Tensor, Tensor, Tensor]], persons: Mapping[str, Tensor] | None = None
) -> Sites:
    """Stack the (name, x, y, w) of all sites, largest first (by name where equal). `persons`: for each site, the person
    of each row."""
    ranked = sorted(named, key=lambda site: (-len(site[1]), site[0]))
    return Sites(
        tuple(name for name, *_ in ranked),
        torch.cat([x for _, x, _, _ in ranked]),
        torch.cat([y for _, _, y, _ in ranked]),
        torch.cat([w for *_, w in ranked]),
        tuple(len(x) for _, x, _, _ in ranked),
        persons=disjoint_persons([persons[name] for name, *_ in ranked]) if persons else None,
    )


def undersampled(sites: Sites, seed: int) -> Sites:
    """The same with as many rows of each class at a site as its rarest class has there, drawn from the seed and the
    site's name; the order of the rows stays. A class that a site does not have is left out of account."""
    parts, persons = [], {}
    for name, start, size in zip(sites.names, sites.starts, sites.sizes, strict=True):
        rows = torch.arange(start, start + size, device=sites.x.device)
        lots = bits(torch.tensor([key(seed, name, "undersampled")], device=rows.device), size)[0]
        labels = sites.y[rows].argmax(1)
        counts = labels.bincount(minlength=sites.y.shape[1])
        fewest = int(counts[counts > 0].min()) if size else 0
        of_class = [(labels == c).nonzero()[:, 0] for c in range(len(counts))]
        left = torch.cat([of[lots[of].argsort(stable=True)[:fewest]] for of in of_class]).sort().values + start
        parts.append((name, sites.x[left], sites.y[left], sites.w[left]))
        if sites.persons is not None:
            persons[name] = sites.persons[left]
    return gather_sites(parts, persons or None)


def disjoint_persons(persons: Sequence[Tensor]) -> Tensor:
    """One after the other, numbered so that no number is at two places."""
    firsts = [0, *accumulate(int(p.max()) + 1 if len(p) else 0 for p in persons)]
    return torch.cat([p + first for p, first in zip(persons, firsts, strict=False)])


def set_aside(sites: Sites, share: float, seed: int) -> tuple[Sites, Batch]:
    """The rows to train on, and floor(share * rows) of each site to judge by: [site, row, ...], padded with weight 0.

    Which ones is drawn from the seed and the row's own numbers: a patient whom two sites hold is mostly set aside at
    both, so that no site is judged by rows on which it was trained elsewhere. The order of the sites stays. Where
    persons are named, all rows of one are set aside or none, which makes them a few less.
    """
    device = sites.x.device
    numbers = (sites.x.flatten(1).double() + 0.0).view(torch.int64)  # -0 is 0
    lots = mixed(numbers, torch.arange(1, numbers.shape[1] + 1, device=device)).sum(1)
    if sites.persons is not None:  # all rows of a person go by its first one's number
        first = torch.zeros(int(sites.persons.max()) + 1, dtype=torch.int64, device=device)
        first.scatter_reduce_(0, sites.persons, lots, "amin", include_self=False)
        lots = first[sites.persons]
    lots = mixed(lots, torch.tensor(key(seed, "aside"), device=device))
    counts = [int(share * n) for n in sites.sizes]
    spans = zip(sites.starts, sites.sizes, strict=True)
    ranked = [lots[a : a + n].argsort(stable=True) + a for a, n in spans]
    if sites.persons is not None:
        ranked = [_group_by_person(sites.persons[rows], lots[rows], rows) for rows in ranked]
        counts = [_whole(sites.persons[rows], k) for rows, k in zip(ranked, counts, strict=True)]
    left = torch.cat([rows[k:].sort().values for rows, k in zip(ranked, counts, strict=True)])
    sizes = tuple(n - k for n, k in zip(sites.sizes, counts, strict=True))
    wide = max(1, *counts)
    at = torch.stack([torch.nn.functional.pad(r[:k], (0, wide - k)) for r, k in zip(ranked, counts, strict=True)])
    real = torch.arange(wide, device=device) < torch.tensor(counts, device=device)[:, None]
    whose = None if sites.persons is None else sites.persons[left]
    training = Sites(sites.names, sites.x[left], sites.y[left], sites.w[left], sizes, persons=whose)
    return training, Batch(sites.numbers(sites.x[at]), sites.y[at], sites.w[at] * real[..., None])


def _group_by_person(persons: Tensor, lots: Tensor, rows: Tensor) -> Tensor:
    """Rows by lot, those of one person next to each other also where another has the same lot."""
    order = persons.argsort(stable=True)
    return rows[order[lots[order].argsort(stable=True)]]


def _whole(persons: Tensor, count: int) -> int:
    """So many of the first rows, or fewer, that no person is cut in two; `persons` lie together."""
    while 0 < count < len(persons) and persons[count - 1] == persons[count]:
        count -= 1
    return count


def stacked(sites: Sites, names: Sequence[str]) -> Batch:
    """All rows of these sites, in this order: [site, row, ...], padded with weight 0; pictures stay uint8."""
    device = sites.x.device
    order = range(len(names)) if sites.names == tuple(names) else [sites.names.index(name) for name in names]
    starts, sizes = sites.spans[list(order)].unsqueeze(-1).unbind(1)
    place = torch.arange(max(1, int(sizes.max())), device=device)
    real = place < sizes
    at = torch.where(real, place + starts, 0)
    return Batch(sites.x[at], sites.y[at], sites.w[at] * real.unsqueeze(-1))


class BatchDraw(NamedTuple):
    """One round's batches: which rows, in which order, and the random factors of dropout."""

    rows: Tensor  # [step, site, row]: place in Sites.x
    real: Tensor  # [step, site, row, 1]: 1, or 0 for padding
    row_key: Tensor  # [step, site, row] int32
    unit_key: Tensor  # [unit] int32
    augment_keys: Tensor | None = None  # [step, site, row] int64: a key for each picture, where they are augmented


class BatchSampler:
    """Draws from (seed, site, stage, round); knows nothing of engines or devices. A site with a secret of its own draws
    from that in place of the seed: whoever knows its batches can rebuild rows from what it reports."""

    def __init__(
        self,
        sites: Sites,
        batch: int,
        epochs: int,
        seed: int,
        units: int,
        augment: bool = False,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        own = secrets or {}
        device = sites.x.device
        self.batch, self.epochs, self.units, self.augment = batch, epochs, units, augment
        self.like = sites.y
        self.sizes = torch.tensor(sites.sizes, device=device)[:, None]
        self.starts = torch.tensor(sites.starts, device=device)[:, None]
        self.per_epoch = [
            -(-n // batch) for n in sites.sizes
        ]  # batches of each site, never more than of the one before
        self.steps = [n * epochs for n in self.per_epoch]
        self.site_keys = torch.tensor([key(own.get(name, seed), name) for name in sites.names], device=device)
        noise = [key(own.get(name, seed), name, "noise") for name in sites.names]
        self.noise_keys = torch.tensor(noise, device=device)
        self.unit_keys = torch.tensor([key(seed, "units")], device=device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)

    def set(self, stage: int, round_: int, place: int = 0) -> None:
        """Which exchange of which round is drawn; the only thing that changes between rounds."""
        self.clock.fill_(clock_of(stage, round_, place))

    def draw(self, here: Tensor | None = None) -> BatchDraw:
        """The batches of all sites, or of those at these places: the same as they would be among all."""
        site_keys = self.site_keys if here is None else self.site_keys[here]
        keys, longest = mixed(site_keys, self.clock), self.longest(here)
        parts = [self._epoch(keys + e, here, longest) for e in range(self.epochs)]
        rows, real = (torch.cat(p, 1) if self.epochs > 1 else p[0] for p in zip(*parts, strict=True))
        if self.epochs > 1:  # bring each site's real batches to the front
            idle = (~real.any(2)).to(torch.int8)
            front = idle.argsort(dim=1, stable=True)[..., None].expand_as(rows)
            rows, real = rows.gather(1, front), real.gather(1, front)
        rows = rows.transpose(0, 1).contiguous()
        real = real.transpose(0, 1)[..., None].to(self.like.dtype)
        none = torch.empty(0, dtype=torch.int32, device=rows.device)
        steps, sites, _ = rows.shape
        lots = None
        if self.augment:
            lots = bits(keys + self.epochs + 1, steps * self.batch).view(sites, steps, self.batch).transpose(0, 1)
        if not self.units:
            return BatchDraw(rows, real, none, none, lots)
        row_key = odd32(keys + self.epochs, steps * self.batch).view(sites, steps, self.batch).transpose(0, 1)
        return BatchDraw(
            rows, real, row_key.contiguous(), odd32(mixed(self.unit_keys, self.clock), self.units)[0], lots
        )

    def longest(self, here: Tensor | None) -> int:
        """Rows of the largest of them, up to whole batches. Places come in order, and sites by size."""
        return self.per_epoch[0 if here is None else int(here[0])] * self.batch

    def _epoch(self, keys: Tensor, here: Tensor | None, longest: int) -> tuple[Tensor, Tensor]:
        """[site, step, row]: where the rows are, and which are rows at all."""
        sizes, starts = (t if here is None else t[here] for t in (self.sizes, self.starts))
        order = orders(keys, sizes[:, 0], longest)
        real = order < sizes
        rows = torch.where(real, order + starts, 0)
        shape = (len(rows), longest // self.batch, self.batch)
        return rows.view(shape), real.view(shape)

"""All sites' training rows as tensors, and the batches each site draws in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.core.random import bits, key, odd32, orders


@dataclass(frozen=True)
class Sites:
    """Rows of all sites one after the other; sites with most rows first, so that those still busy are a prefix."""

    names: tuple[str, ...]
    x: Tensor  # [all rows, feature]
    y: Tensor  # [all rows]
    w: Tensor  # [all rows]: class weights
    sizes: tuple[int, ...]

    @property
    def starts(self) -> list[int]:
        out = [0]
        for n in self.sizes[:-1]:
            out.append(out[-1] + n)
        return out

    def to(self, device: str) -> Sites:
        return replace(self, x=self.x.to(device), y=self.y.to(device), w=self.w.to(device))

    def pooled(self, w: Tensor) -> Sites:
        """One site that holds everyone's rows, in the order of the sites' names."""
        parts = dict(zip(self.names, zip(self.starts, self.sizes, strict=True), strict=True))
        take = torch.cat([torch.arange(parts[n][0], parts[n][0] + parts[n][1]) for n in sorted(self.names)])
        take = take.to(self.x.device)
        return Sites(("all sites",), self.x[take], self.y[take], w[take], (len(take),))


def gather_sites(named: Sequence[tuple[str, Tensor, Tensor, Tensor]]) -> Sites:
    """(name, x, y, w) of each site -> all of them, largest first (by name where equal)."""
    ranked = sorted(named, key=lambda site: (-len(site[1]), site[0]))
    return Sites(
        tuple(name for name, *_ in ranked),
        torch.cat([x for _, x, _, _ in ranked]),
        torch.cat([y for _, _, y, _ in ranked]),
        torch.cat([w for *_, w in ranked]),
        tuple(len(x) for _, x, _, _ in ranked),
    )


class Draw(NamedTuple):
    """One round's batches: which rows, in which order, and the random factors of dropout."""

    rows: Tensor  # [site, step, row]: place in Sites.x
    real: Tensor  # [site, step, row]: 1, or 0 for padding
    row_key: Tensor  # [site, step, row] int32
    unit_key: Tensor  # [unit] int32


class Drawer:
    """Draws from (seed, site, stage, round); knows nothing of engines or devices."""

    def __init__(self, sites: Sites, batch: int, epochs: int, seed: int, units: int) -> None:
        device = sites.x.device
        self.batch, self.epochs, self.seed, self.units, self.device = batch, epochs, seed, units, device
        self.names = sites.names
        self.sizes = torch.tensor(sites.sizes, device=device)
        self.starts = torch.tensor(sites.starts, device=device)
        per_epoch = [-(-n // batch) for n in sites.sizes]
        self.steps = [n * epochs for n in per_epoch]  # of each site
        self.per_epoch = torch.tensor(per_epoch, device=device)

    def draw(self, stage: int, round_: int) -> Draw:
        keys = torch.tensor([key(self.seed, name, stage, round_) for name in self.names]).to(self.device)
        longest = int(max(self.steps)) // self.epochs * self.batch
        parts = [self._epoch(keys + e * 7919, longest) for e in range(self.epochs)]
        rows, real = (torch.cat(p, 1) for p in zip(*parts, strict=True))
        if self.epochs > 1:  # bring each site's real batches to the front
            idle = (real.sum(2) == 0).to(torch.int8)
            front = idle.argsort(dim=1, stable=True)[..., None].expand_as(rows)
            rows, real = rows.gather(1, front), real.gather(1, front)
        if not self.units:
            none = torch.empty(0, dtype=torch.int32, device=self.device)
            return Draw(rows, real, none, none)
        count = rows.shape[1] * rows.shape[2]
        row_key = odd32(bits(keys, 1)[:, 0], count).view(rows.shape)
        unit_key = odd32(torch.tensor([key(self.seed, "units", stage, round_)]).to(self.device), self.units)[0]
        return Draw(rows, real, row_key, unit_key)

    def _epoch(self, keys: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        order = orders(keys, self.sizes, longest)
        real = order < self.sizes[:, None]
        rows = torch.where(real, order + self.starts[:, None], 0)
        shape = (len(self.names), longest // self.batch, self.batch)
        return rows.view(shape), real.view(shape)

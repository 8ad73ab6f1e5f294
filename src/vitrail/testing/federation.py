"""A small federation in double precision: ragged sites, one smaller than a batch, one of a single class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.declarations import Adapters
from vitrail.core.losses import CrossEntropy, Hazard, Loss, SquaredError
from vitrail.core.task import Net, Task
from vitrail.core.tensors import flatten
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import AnyMethod, Snapshot, Training
from vitrail.nets import MLP, Module

Row = tuple[str, Tensor, Tensor, Tensor]  # of one site: its name, x, y and w

SIZES = (37, 20, 5, 53, 8)
LOSSES: dict[str, Loss] = {"classes": CrossEntropy(), "number": SquaredError(), "time": Hazard()}
PICTURE = (1, 8, 8)


def make_task(kind: str = "classes", hidden: tuple[int, ...] = (9, 7), dropout: float = 0.3, **ends: Any) -> Task:
    return task_of(MLP(6, 1 if kind == "number" else 3, hidden, dropout, **ends), LOSSES[kind])


def task_of(net: Net, loss: Loss) -> Task:
    start = net.init(torch.Generator().manual_seed(3))
    for name in start:  # not the identity, so that a mistake in its gradient shows
        if name.startswith(("input.", "output.")):
            start[name] = start[name] + 0.1 * torch.randn(start[name].shape, generator=torch.Generator().manual_seed(1))
    return Task(net, {k: v.double() for k, v in start.items()}, loss)


def small_cnn(ends: Adapters) -> Module:
    return Module(_make_cnn, PICTURE).framed(ends)


def _make_cnn() -> nn.Module:
    first, second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)  # 8 -> 6 -> 3 -> 1
    return nn.Sequential(first, nn.Tanh(), nn.MaxPool2d(2), second, nn.Tanh(), nn.Flatten(), nn.Linear(4, 3))


def make_rows(
    kind: str = "classes", sizes: Sequence[int] = SIZES, shape: tuple[int, ...] = (6,), first: int = 0
) -> list[Row]:
    """Rows of sites number `first` and on."""
    out = []
    for i, n in enumerate(sizes, first):
        g = torch.Generator().manual_seed(100 + i)
        x = torch.randn(n, *shape, generator=g, dtype=torch.double) + 0.3 * i
        label = torch.randint(0, 3, (n,), generator=g) if i != 1 else torch.zeros(n, dtype=torch.int64)
        y = torch.nn.functional.one_hot(label, 3).double()
        if kind == "number":
            y = x[:, :1] * 2 + torch.randn(n, 1, generator=g, dtype=torch.double)
        if kind == "time":  # an event in one of three intervals, or in none of those that were seen; site 1 sees none
            last = torch.randint(0, 4, (n, 1), generator=g)
            y = torch.where(torch.arange(3) < last, 0.0, torch.where(torch.arange(3) > last, -1.0, 1.0)).double()
            y = y.clamp(max=0.0) if i == 1 else y
        out.append((f"site {i}", x, y, torch.rand(n, 1, generator=g, dtype=torch.double) + 0.5))
    return out


def make_sites(kind: str = "classes", sizes: Sequence[int] = SIZES) -> Sites:
    return gather_sites(make_rows(kind, sizes))


def in_this_order(rows: Sequence[Row]) -> Sites:
    """As they stand: no site may have more rows than the one before."""
    names, xs, ys, ws = zip(*rows, strict=True)
    return Sites(names, torch.cat(xs), torch.cat(ys), torch.cat(ws), tuple(len(x) for x in xs))


def pooled(method: AnyMethod, sites: Sites) -> Sites:
    return sites.pooled(sites.w) if method.catalogue.pools_rows else sites


def train(
    method: AnyMethod,
    task: Task | None = None,
    sites: Sites | None = None,
    training: Training | None = None,
    seed: int = 5,
    absent: Callable[[int, int], Tensor] | None = None,
    **engine: Any,
) -> tuple[Engine, Snapshot]:
    sites = pooled(method, sites or make_sites())
    training = training or Training(rounds=4, batch=8, lr=0.02, momentum=0.5)
    e = Engine(task or make_task(), method, sites, training, seed, absent=absent, **engine)
    *_, last = e.run()
    return e, last


def models(engine: Engine, moment: Snapshot) -> dict[str, dict[str, Tensor]]:
    """Site -> everything a settled site holds, by name."""
    flat = dict(flatten(engine.settled(moment)))
    return {site: {k: v[i] for k, v in flat.items()} for i, site in enumerate(engine.sites.names)}


def gap(one: Mapping[str, Mapping[str, Tensor]], other: Mapping[str, Mapping[str, Tensor]]) -> float:
    """The largest difference between two federations; sites and names must agree."""
    sides = ({f"{s}: {k}": v for s, tensors in side.items() for k, v in tensors.items()} for side in (one, other))
    size, where = worst(*sides)
    if size == torch.inf:
        raise AssertionError(f"the two cannot be compared: {where}")
    return size


def worst(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference between two sets of tensors, and where it is. What is no number must be so in both."""
    if missing := one.keys() ^ other.keys():
        return torch.inf, f"{min(missing)}, which only one of them has"
    largest = (0.0, "")
    for name, v in one.items():
        w = other[name]
        if v.shape != w.shape:
            return torch.inf, f"{name}, of shape {list(v.shape)} against {list(w.shape)}"
        v, w = v.double(), w.double()
        if not torch.equal(v.isnan(), w.isnan()):
            return torch.inf, f"{name}, which is not a number in one of them"
        size = float((v - w).nan_to_num(0.0).abs().max()) if v.numel() else 0.0
        largest = max(largest, (size, name), key=lambda f: f[0])
    return largest

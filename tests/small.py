"""A small federation in double precision: ragged sites, one smaller than a batch, one of a single class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.core.losses import CrossEntropy, SquaredError
from vitrail.core.task import Task
from vitrail.core.tensors import tensors
from vitrail.engines.local import Engine, Moment, Training
from vitrail.engines.sites import Sites, gather_sites
from vitrail.methods import AnyMethod
from vitrail.nets import MLP

if TYPE_CHECKING:
    import pandas as pd

    from vitrail.study import Study

SIZES = (37, 20, 5, 53, 8)
LOSSES = {"classes": CrossEntropy(), "number": SquaredError()}


def make_task(kind: str = "classes", hidden: tuple[int, ...] = (9, 7), dropout: float = 0.3, **ends: Any) -> Task:
    net = MLP(6, 3 if kind == "classes" else 1, hidden, dropout, **ends)
    start = net.init(torch.Generator().manual_seed(3))
    for name in start:  # not the identity, so that a mistake in its gradient shows
        if name.startswith(("input", "output")):
            start[name] = start[name] + 0.1 * torch.randn(start[name].shape, generator=torch.Generator().manual_seed(1))
    return Task(net, {k: v.double() for k, v in start.items()}, LOSSES[kind])


def make_rows(kind: str = "classes", sizes: tuple[int, ...] = SIZES) -> list[tuple[str, Tensor, Tensor, Tensor]]:
    out = []
    for i, n in enumerate(sizes):
        g = torch.Generator().manual_seed(100 + i)
        x = torch.randn(n, 6, generator=g, dtype=torch.double) + 0.3 * i
        label = torch.randint(0, 3, (n,), generator=g) if i != 1 else torch.zeros(n, dtype=torch.int64)
        y = torch.nn.functional.one_hot(label, 3).double()
        if kind == "number":
            y = x[:, :1] * 2 + torch.randn(n, 1, generator=g, dtype=torch.double)
        out.append((f"site {i}", x, y, torch.rand(n, 1, generator=g, dtype=torch.double) + 0.5))
    return out


def make_sites(kind: str = "classes", sizes: tuple[int, ...] = SIZES) -> Sites:
    return gather_sites(make_rows(kind, sizes))


def pooled(method: AnyMethod, sites: Sites) -> Sites:
    return sites.pooled(sites.w) if method.pools_rows else sites


def train(
    method: AnyMethod,
    task: Task | None = None,
    sites: Sites | None = None,
    training: Training | None = None,
    seed: int = 5,
    absent: Callable[[int, int], Tensor] | None = None,
    **engine: Any,
) -> tuple[Engine, Moment]:
    sites = pooled(method, sites or make_sites())
    training = training or Training(rounds=4, batch=8, lr=0.02, momentum=0.5)
    e = Engine(task or make_task(), method, sites, training, seed, absent=absent, **engine)
    last = None
    for last in e.run():  # noqa: B007
        pass
    assert last is not None
    return e, last


def models(engine: Engine, moment: Moment) -> dict[str, dict[str, Tensor]]:
    """Site -> everything a settled site holds, by name."""
    flat = dict(tensors(engine.settled(moment)))
    return {site: {k: v[i] for k, v in flat.items()} for i, site in enumerate(engine.sites.names)}


def gap(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> float:
    """The largest difference between two federations; sites and names must agree."""
    assert one.keys() == other.keys()
    worst = 0.0
    for site in one:
        assert one[site].keys() == other[site].keys()
        for k, v in one[site].items():
            assert v.shape == other[site][k].shape
            worst = max(worst, float((v - other[site][k]).abs().max()) if v.numel() else 0.0)
    return worst


def spoil_hold_out(study: Study, sites: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The same tables with nonsense in every hold-out row."""
    from vitrail.data.encode import split_rows  # the rest runs where there is only torch

    out = {}
    for name, frame in sites.items():
        _, test = split_rows(frame[study.target.column].to_numpy(), study, study.seeds[0], name)
        out[name] = frame.copy()
        out[name].iloc[test] = 1e6
    return out


def opposed_tables(rows: dict[str, int]) -> dict[str, pd.DataFrame]:
    """Sites with so many rows; in the one called middle the relation is the other way round."""
    import numpy as np
    import pandas as pd

    out = {}
    for i, (site, count) in enumerate(rows.items()):
        rng = np.random.default_rng(i)
        x, z = rng.standard_normal((2, count))
        sick = np.where((x - z if site != "middle" else z - x) + 0.4 * rng.standard_normal(count) > 0, "yes", "no")
        out[site] = pd.DataFrame({"age": x * 10 + 50, "dose": z, "sick": sick})
    return out

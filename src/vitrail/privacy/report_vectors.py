"""A report as one row of numbers for each site: what guards work on.

Fields that say how much a report counts (Exchange.counts) are no change, and pass by. Where they are one number for
each site, as in p_i (w_i - w) beside p_i, a change is measured per unit of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange
from vitrail.core.tensors import flatten, unflatten


def is_change(ex: AnyExchange, name: str) -> bool:
    """Whether the tensor of that name says a change."""
    return name.split("/")[0] not in ex.wire.weight_fields and name not in ex.wire.may_be_nan


def changes(ex: AnyExchange, up: Any) -> dict[str, Tensor]:
    """The tensors of a report that say a change, by name."""
    return {k: v for k, v in flatten(up) if is_change(ex, k)}


def counted(ex: AnyExchange, up: Any) -> Tensor | None:
    """[site]: how much each report counts, where that is one number."""
    weights = [v for k, v in flatten(up) if k.split("/")[0] in ex.wire.weight_fields]
    return weights[0] if len(weights) == 1 and weights[0].dim() == 1 else None


def flat(ex: AnyExchange, up: Any) -> Tensor:
    """[site, number]"""
    return torch.cat([v.reshape(len(v), -1) for v in changes(ex, up).values()], 1)


def by_unit(ex: AnyExchange, up: Any) -> tuple[Tensor, Tensor]:
    """[site, number]: changes for each unit of what a report counts; and [site]: how much that is."""
    by, rows = counted(ex, up), flat(ex, up)
    weights = torch.ones(len(rows), dtype=torch.double, device=rows.device) if by is None else by.double()
    return rows / weights[:, None].to(rows).clamp(min=1e-12), weights


def with_changes(ex: AnyExchange, up: Any, rows: Tensor) -> Any:
    """The report with its changes taken from [site, number]; or a total of all sites, from [number]."""
    parts, at, lead = dict(flatten(up)), 0, rows.shape[:-1]
    for name, v in changes(ex, up).items():
        size = v[0].numel()
        parts[name] = rows[..., at : at + size].reshape(*lead, *v.shape[1:])
        at += size
    return unflatten(up, parts)


def lengths(ex: AnyExchange, up: Any) -> Tensor:
    """[site]: how long each report's change is, per unit of what it counts; no finite number where it holds one that is
    none, or is too long to be written."""
    parts = [torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1).double() for v in changes(ex, up).values()]
    size: Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    by = counted(ex, up)
    return size if by is None else size / by.double().clamp(min=1e-12)

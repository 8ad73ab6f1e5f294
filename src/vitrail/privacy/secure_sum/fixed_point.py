"""Numbers as a masked sum has them: multiples of 2^-p, none beyond a limit.

p is such that all sites at the limit fit into 62 bits. In a simulation masks would cancel to the last bit, so that
none are drawn: reports are rounded as they would be on the wire, and added up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange
from vitrail.core.tensors import flatten

BITS = 62  # that hold all sites at their limit, with one for the sign
LEAST = 3  # sites in a sum: of two, each knows the other's part
LIMIT = 2.0**24  # of a number in a report: beyond it nothing is sent
ZERO, ZEROS = "zeros", 4  # beside the numbers: some zeros are summed, to see whether the masks cancel


def places(sites: int, limit: float = LIMIT) -> int:
    """p, for so many sites."""
    return BITS - math.ceil(math.log2(sites * limit))


def rounded(ex: AnyExchange, up: Any, sites: int) -> Any:
    """A report [site, ...] in double, each number as it would be sent; what may be no number and is none is NaN."""
    by = 2.0 ** places(sites)
    parts = {}
    for name, t in flatten(up):
        v = t.double()
        if name.split("/")[0] in ex.wire.may_be_nan:
            v = torch.where(v.abs() <= LIMIT, v, torch.nan)
        parts[name] = (v * by).round() / by
    return _put(up, parts)


def beyond(ex: AnyExchange, up: Any) -> dict[str, Tensor]:
    """By name of a tensor, [site] bool: where it holds what cannot be sent: beyond the limit, or no number."""
    return {
        name: ~(t.abs() <= LIMIT).reshape(len(t), -1).all(1)
        for name, t in flatten(up)
        if name.split("/")[0] not in ex.wire.may_be_nan
    }


def as_reported(total: Any, spec: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> Any:
    """A total in double, with the types that the method's own report has."""
    return _put(total, {k: v.to(spec[k][1]) for k, v in flatten(total)})


def _put(tree: Any, parts: dict[str, Tensor], prefix: str = "") -> Any:
    """The same with these tensors. Unlike `unflatten`, they keep their types."""
    if isinstance(tree, Tensor):
        return parts[prefix]
    items = tree.items() if isinstance(tree, dict) else zip(tree._fields, tree, strict=True)
    inner = {k: _put(v, parts, f"{prefix}/{k}" if prefix else k) for k, v in items}
    return inner if isinstance(tree, dict) else type(tree)(*inner.values())


def fewest_of(sites: int, least: int) -> int:
    """Of how many sites a sum is at least, where `sites` agreed: more than two thirds of them, and never fewer than
    `least`. Two such lists share more than a third: not all of these lie as long as no more than a third do.

    >>> [fewest_of(n, 3) for n in (3, 4, 5, 6, 9, 10)]
    [3, 3, 4, 5, 7, 7]
    """
    return max(least, LEAST, 2 * sites // 3 + 1)

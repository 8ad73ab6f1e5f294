"""Whether a stretch of numbers is among others, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class NumberSearch:
    """All numbers of some tensors, one tensor after the other."""

    def __init__(self, some: Iterable[Tensor]) -> None:
        self.flat = torch.empty(0, dtype=torch.double)
        self.add(some)

    def add(self, some: Iterable[Tensor]) -> None:
        self.flat = torch.cat([self.flat, *(t.detach().cpu().double().flatten() for t in some)])

    def hold(self, value: Tensor) -> bool:
        """Whether this stretch of numbers is among them."""
        wanted = value.cpu().double().flatten()
        at = _close(self.flat[: len(self.flat) - len(wanted) + 1], wanted[0]).nonzero()[:, 0]
        return bool(_close(self.flat[at[:, None] + torch.arange(len(wanted))], wanted).all(1).any())


def _close(one: Tensor, other: Tensor) -> Tensor:
    return torch.isclose(one, other, rtol=1e-9, atol=0)

"""What a network's scores are judged by, as values. A loss knows its own slope, and what scores mean as an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from vitrail.core.fused import softmax_slope

if TYPE_CHECKING:
    from vitrail.core.task import Batch, Out


class Loss(Protocol):
    def rows(self, out: Out, batch: Batch) -> Tensor: ...  # [site, row]: of each row, weighted
    def slope(self, out: Out, batch: Batch) -> Tensor: ...  # [site, row, output]: its gradient at the scores
    def answers(self, z: Tensor) -> Tensor: ...  # [..., output]: what scores say: shares of classes, or the number


@dataclass(frozen=True)
class CrossEntropy:
    """Of classes: -log of the softmax at the true one."""

    def rows(self, out: Out, batch: Batch) -> Tensor:
        return (-out.z.log_softmax(-1) * batch.y * batch.w).sum(-1)

    def slope(self, out: Out, batch: Batch) -> Tensor:
        return softmax_slope(out.z, batch.y, batch.w)

    def answers(self, z: Tensor) -> Tensor:
        return z.softmax(-1)


@dataclass(frozen=True)
class SquaredError:
    """Of a number."""

    def rows(self, out: Out, batch: Batch) -> Tensor:
        return ((out.z - batch.y) ** 2 * batch.w).sum(-1)

    def slope(self, out: Out, batch: Batch) -> Tensor:
        return (out.z - batch.y).mul_(2).mul_(batch.w)

    def answers(self, z: Tensor) -> Tensor:
        return z

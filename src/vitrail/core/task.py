"""What is learned: a network and a loss. All tensors have the site axis first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from vitrail.core.tensors import Params, add_


class Batch(NamedTuple):
    x: Tensor  # [site, row, feature]
    y: Tensor  # [site, row, output]: 1 for the class and 0 for the others; or the number itself
    w: Tensor  # [site, row, 1]: weight in the loss; 0 marks padding
    keep: tuple[Tensor, ...] = ()  # [site, row, unit] int32 for each layer: which units stay, when there is dropout


class Net(Protocol):
    """A network that knows its own gradient, for all sites at once."""

    @property
    def groups(self) -> dict[str, tuple[str, ...]]: ...
    @property
    def widths(self) -> tuple[int, ...]: ...  # units before each layer; the first is the number of features
    @property
    def outputs(self) -> int: ...
    @property
    def dropout(self) -> float: ...
    def init(self, generator: torch.Generator) -> Params: ...  # one site's, without the site axis
    def forward(self, params: Params, x: Tensor, keep: tuple[Tensor, ...] = ()) -> tuple[Tensor, Any]: ...
    def replaced(self, params: Params, x: Tensor, columns: list[int], values: Tensor) -> Tensor: ...
    def backward(self, params: Params, tape: Any, slope: Tensor, into: Params, times: float, scale: float) -> None:
        """into = times * into + scale * gradient, where slope is the gradient at the output."""


@dataclass(frozen=True)
class Task:
    """A network, its loss, and the parameters everyone starts from."""

    net: Net
    start: Params  # one site's, without the site axis
    kind: Literal["classes", "number"] = "classes"

    @property
    def dropout(self) -> float:
        return self.net.dropout

    def select(self, params: Params, groups: tuple[str, ...]) -> Params:
        """The parameters of these groups."""
        names = {n for g in groups for n in self.net.groups.get(g, ())}
        return {k: v for k, v in params.items() if k in names}

    def others(self, groups: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(g for g in self.net.groups if g not in groups)

    def output(self, params: Params, x: Tensor) -> Tensor:
        """[site, row, class] scores before the softmax, or [site, row, 1] numbers."""
        return self.net.forward(params, x)[0]

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Weighted sum over the rows, for each site: [site]."""
        z = self.output(params, batch.x)
        rows = (z - batch.y) ** 2 if self.kind == "number" else -z.log_softmax(2) * batch.y
        return (rows * batch.w).sum((1, 2))

    def accumulate(self, params: Params, batch: Batch, into: Params, times: float, scale: float) -> None:
        """into = times * into + scale * gradient of the loss, in place."""
        z, tape = self.net.forward(params, batch.x, batch.keep)
        slope = (z - batch.y).mul_(2) if self.kind == "number" else z.softmax(2).sub_(batch.y)
        self.net.backward(params, tape, slope.mul_(batch.w), into, times, scale)

    def grad(self, params: Params, batch: Batch) -> Params:
        """The gradient of the loss, for each site."""
        into = {k: torch.empty(v.shape, dtype=v.dtype, device=v.device) for k, v in params.items()}
        self.accumulate(params, batch, into, 0.0, 1.0)
        return into

    def push(self, params: Params, velocity: Params, batch: Batch, lr: float, momentum: float) -> None:
        """velocity = momentum * velocity - lr * gradient, in place."""
        self.accumulate(params, batch, velocity, momentum, -lr)

    def descend(self, params: Params, velocity: Params, batch: Batch, lr: float, momentum: float) -> None:
        """One step of SGD with momentum, in place."""
        self.push(params, velocity, batch, lr, momentum)
        add_(params, velocity)

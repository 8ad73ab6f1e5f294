"""A guest's step where scores are added up: by the curvature of its own columns, so that few questions suffice.

    P = (c A'A / rows + damp)^-1           once, of its training rows;  c = 1/4 bounds the curvature of logistic loss
    W <- W - lr P A'g / rows               (Boehning 1992), and is 1 for squared errors

Every question is asked with other weights, and what differs between answers is free of the noise that stays. In a world
of 1000 people with a category of ten, a host with 300 known rows guessed it right in .44 of the others after 50 epochs
of small steps, in .22 after two (by its own columns in .13). Three of these steps do what 50 small ones do, and in the
world of tests/vertical/training/test_newton.py they told the host nothing more, where 50 small ones told .26.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.core.optimizers import ExtraGrad
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params

DAMP = 0.02  # of columns that are standardised: what few rows say moves little


def curvature(columns: Tensor, bound: float) -> Tensor:
    """P, [column, column], of the training rows."""
    a = columns.double()
    h = bound * (a.T @ a) / len(a) + DAMP * torch.eye(a.shape[1], dtype=torch.float64)
    inverse: Tensor = torch.linalg.inv(h).to(columns)
    return inverse


@dataclass(frozen=True, eq=False)
class Newton:
    lr: float
    by: Tensor  # P
    stateful: ClassVar[bool] = False

    @property
    def alone(self) -> Newton:
        return self

    def at(self, lr: float) -> Newton:
        return replace(self, lr=lr)

    def state(self, params: Params, held: Mapping[str, Tensor] | None = None) -> Params:
        return {}

    def step(
        self, task: Task, params: Params, state: Params, batch: Batch, extra_grad: ExtraGrad | None = None
    ) -> None:
        self.apply(params, state, task.grad(params, batch))

    def apply(self, params: Params, state: Params, grad: Params) -> None:
        for k, v in params.items():
            v.sub_(self.by @ grad[k], alpha=self.lr)

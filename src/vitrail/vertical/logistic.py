"""Vertical logistic regression (linear regression where the loss is squared): scores add up over parties.

    s = x W + b + z_1 + ... + z_G,   z_i = x_i W_i at guest i;     classes: softmax of (0, s), the first class apart

From the same start, without rounding, every step is that of the same model on all columns in one place.
A guest answers as many numbers per row as there are scores: one for two classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.core.tensors import Params


@dataclass(frozen=True)
class Logistic:
    columns: int
    answer: int = 1  # classes - 1, or 1 for a number
    classes: bool = True

    def init(self) -> Params:
        return {"weight": torch.zeros(self.columns, self.answer), "bias": torch.zeros(self.answer)}

    def scores(self, params: Params, x: Tensor, answers: Tensor) -> Tensor:
        s = x @ params["weight"] + params["bias"]
        s = s + answers.view(len(x), -1, self.answer).sum(1)
        return torch.cat([s.new_zeros(len(s), 1), s], 1) if self.classes else s

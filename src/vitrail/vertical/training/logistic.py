"""Vertical logistic regression (linear regression where the loss is squared): scores add up over parties.

    s = x W + b + z_1 + ... + z_G,   z_i = x_i W_i at guest i;     classes: softmax of (0, s), the first class apart

From the same start, without rounding and noise, every step is that of the same model on all columns in one place.
Answers that are rounded or noisy the host `weighs`: s = x W + b + c_1 z_1 + ..., c_i learned by the host, from 1 on.
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
    weighs: int = 0  # guests whose answers are weighed: all or none

    def init(self) -> Params:
        start = {"weight": torch.zeros(self.columns, self.answer), "bias": torch.zeros(self.answer)}
        return start | ({"trust": torch.ones(self.weighs, 1)} if self.weighs else {})

    def scores(self, params: Params, x: Tensor, answers: Tensor) -> Tensor:
        s = x @ params["weight"] + params["bias"]
        z = answers.view(len(x), -1, self.answer)  # [row, guest, score]
        s = s + (z * params["trust"] if self.weighs else z).sum(1)
        return torch.cat([s.new_zeros(len(s), 1), s], 1) if self.classes else s

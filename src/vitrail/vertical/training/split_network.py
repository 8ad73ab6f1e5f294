"""A split model: the guests' linear answers beside the host's own columns go through the host's network.

    guest i   z_i = [x_i, tanh(x_i V + c)] W_i      V, c drawn once by the guest and fixed (guest.py says why)
    host      s = MLP([x, z_1, ..., z_G])

`features` are a guest's; `bends` of them beside its columns let one number say more than a weighted sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitrail.core.random import key
from vitrail.core.tensors import Params
from vitrail.nets.mlp import MLP


@dataclass(frozen=True)
class SplitNetwork:
    columns: int
    answers: int  # of all guests together
    outputs: int
    hidden: tuple[int, ...] = (64,)

    @cached_property
    def net(self) -> MLP:
        return MLP(self.columns + self.answers, self.outputs, self.hidden)

    def init(self, seed: int) -> Params:
        return self.net.init(torch.Generator().manual_seed(key(seed, "vertical", "host")))

    def scores(self, params: Params, x: Tensor, answers: Tensor) -> Tensor:
        joined = torch.cat([x, answers], 1)[None]
        return self.net.forward({k: v[None] for k, v in params.items()}, joined).z[0]

    def parts(self, params: Params) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The first layer's weights [column and answer, unit], and scores of what comes out of it: for explanations."""
        first, *others = self.net.layers

        def rest(h: Tensor) -> Tensor:
            h = h + params[f"{first}.bias"]
            for name in others:
                h = torch.addmm(params[f"{name}.bias"], h.tanh_(), params[f"{name}.weight"])
            return h

        return params[f"{first}.weight"], rest


def features(columns: Tensor, bends: int, seed: int) -> Tensor:
    """[row, column] -> [row, column + bend], at the guest, from a seed of its own."""
    if not bends:
        return columns
    drawn = torch.Generator().manual_seed(key(seed, "vertical", "bends"))
    v = torch.randn(columns.shape[1], bends, generator=drawn, dtype=torch.float64).to(columns)
    c = torch.randn(bends, generator=drawn, dtype=torch.float64).to(columns)
    return torch.cat([columns, torch.tanh(columns @ v + c)], 1)

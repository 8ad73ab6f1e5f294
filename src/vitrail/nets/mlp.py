"""Multi-layer perceptron of the iFedAvg paper; without hidden layers it is the linear softmax model.

    f_in(x) = (x + shift) * scale                      group input   (optional, element-wise)
    h = tanh(dropout(h) W + b), for each hidden layer   group body
    z = dropout(h) W + b                                group head
    f_out(z) = (z + shift) * scale                      group output  (optional, element-wise)

The gradient is written out by hand for all sites at once: it is added straight into the velocity (one batched matrix
product a layer), which is what makes a round fast. tests/engines/test_gradients.py compares it with autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.random import dropped_
from vitrail.core.tensors import Params


class Tape(NamedTuple):
    """What the backward pass needs of the forward pass."""

    x: Tensor  # before f_in
    inputs: list[Tensor]  # of each linear layer, after dropout
    z: Tensor  # before f_out
    keep: list[Tensor]  # dropout mask of each linear layer's input; empty without dropout


@dataclass(frozen=True)
class MLP:
    features: int
    outputs: int
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.0
    affine_in: bool = False
    affine_out: Literal["no", "each", "scalar"] = "no"

    @property
    def layers(self) -> list[str]:
        return [f"body.{i}" for i in range(len(self.hidden))] + ["head"]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        body = tuple(f"{n}.{p}" for n in self.layers[:-1] for p in ("weight", "bias"))
        groups = {
            "input": ("input.shift", "input.scale") if self.affine_in else (),
            "body": body,
            "head": ("head.weight", "head.bias"),
            "output": ("output.shift", "output.scale") if self.affine_out != "no" else (),
        }
        return {g: names for g, names in groups.items() if names}

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.features, *self.hidden)

    @property
    def units(self) -> int:
        """Units that dropout may drop."""
        return sum(self.widths)

    def init(self, generator: torch.Generator) -> Params:
        """Uniform in +-1/sqrt(inputs), as torch's own linear layers; the affine ends start as the identity."""
        params: Params = {}
        if self.affine_in:
            params["input.shift"], params["input.scale"] = torch.zeros(self.features), torch.ones(self.features)
        for name, (n, m) in zip(self.layers, pairwise((*self.widths, self.outputs)), strict=True):
            bound = n**-0.5
            params[f"{name}.weight"] = (torch.rand(n, m, generator=generator) * 2 - 1) * bound
            params[f"{name}.bias"] = (torch.rand(m, generator=generator) * 2 - 1) * bound
        if self.affine_out != "no":
            params["output.shift"] = torch.zeros(self.outputs)
            params["output.scale"] = torch.ones(self.outputs if self.affine_out == "each" else 1)
        return params

    def forward(self, params: Params, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tape]:
        """With `keep`, x is overwritten by its dropped self when there is no f_in: a second pass changes nothing."""
        h = x
        if self.affine_in:
            h = (x + params["input.shift"].unsqueeze(1)) * params["input.scale"].unsqueeze(1)
        ends = list(accumulate(self.widths))
        masks = [] if keep is None else [keep[..., e - w : e] for e, w in zip(ends, self.widths, strict=True)]
        rescale = 1.0 if keep is None else 1 / (1 - self.dropout)  # of what dropout left, inside the product
        inputs = []
        for i, name in enumerate(self.layers):
            if masks:
                dropped_(h, masks[i])
            inputs.append(h)
            h = torch.baddbmm(params[f"{name}.bias"].unsqueeze(1), h, params[f"{name}.weight"], alpha=rescale)
            if name != "head":
                h.tanh_()
        tape = Tape(x, inputs, h, masks)
        if self.affine_out != "no":
            h = (h + params["output.shift"].unsqueeze(1)) * params["output.scale"].unsqueeze(1)
        return h, tape

    def backward(self, params: Params, tape: Tape, slope: Tensor, into: Params, times: float) -> None:
        """into = times * into + gradient."""
        rescale = 1 / (1 - self.dropout) if tape.keep else 1.0
        if self.affine_out != "no":
            stretch = slope * (tape.z + params["output.shift"].unsqueeze(1))
            slope = slope * params["output.scale"].unsqueeze(1)
            _gather(into["output.shift"], slope.sum(1), times)
            _gather(into["output.scale"], stretch.sum((1, 2) if self.affine_out == "scalar" else 1), times)
        ones = torch.ones(slope.shape[0], 1, slope.shape[1], dtype=slope.dtype, device=slope.device)
        for i in reversed(range(len(self.layers))):
            name, h = self.layers[i], tape.inputs[i]
            into[f"{name}.weight"].baddbmm_(h.transpose(1, 2), slope, beta=times, alpha=rescale)
            into[f"{name}.bias"].unsqueeze(1).baddbmm_(ones, slope, beta=times)
            if i == 0 and not self.affine_in:
                break
            slope = torch.bmm(slope, params[f"{name}.weight"].transpose(1, 2)).mul_(rescale)
            if tape.keep:
                dropped_(slope, tape.keep[i])
            if i > 0:
                slope = torch.ops.aten.tanh_backward(slope, h)
        if self.affine_in:
            stretch = slope * (tape.x + params["input.shift"].unsqueeze(1))
            _gather(into["input.shift"], (slope * params["input.scale"].unsqueeze(1)).sum(1), times)
            _gather(into["input.scale"], stretch.sum(1), times)


def _gather(into: Tensor, gradient: Tensor, times: float) -> None:
    gradient = gradient.view(into.shape)
    if times == 0:  # `into` may hold anything, even NaN
        into.copy_(gradient)
    else:
        into.mul_(times).add_(gradient)

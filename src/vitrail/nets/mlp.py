"""Multi-layer perceptron of the iFedAvg paper; without hidden layers it is the linear softmax model.

    f_in(x) = (x + shift) * scale                      group input   (optional, element-wise)
    h = tanh(dropout(h) W + b), for each hidden layer   group body
    z = dropout(h) W + b                                group head
    f_out(z) = (z + shift) * scale                      group output  (optional, element-wise; one of the two alone)

A proportional network is for times to an event. It has one score for all intervals and a constant for each interval:

    z_k = dropout(h) w + PACE b_k

The constants start where half of the patients are free of the event at the end, with the same hazard in every interval.
Events are rare in one interval, so the gradient of its constant is small: PACE makes its steps PACE^2 times as long and
lets weight decay hardly touch it.

The gradient is written out by hand for all sites at once: it is added straight into the velocity (one batched matrix
product a layer), which is what makes a round fast. tests/nets/test_gradients.py compares it with autograd.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import WITH_FACTOR, WITH_SHIFT, Adapters, OutputLayer, output_sizes
from vitrail.core.kernels import (
    SideStream,
    input_backward_,
    input_forward,
    layer_forward,
    layer_step,
    linear,
    tanh_backward,
)
from vitrail.core.random import dropped_
from vitrail.core.task import Out
from vitrail.core.tensors import Params, add_, scratch

PACE = 4.0  # of the constants of intervals; see decision 054


class MLPTape(NamedTuple):
    """What the backward pass needs of the forward pass."""

    x: Tensor  # before f_in
    inputs: list[Tensor]  # of each linear layer, after dropout
    z: Tensor  # before f_out
    keep: tuple[Tensor, ...]  # dropout mask of each linear layer's input; empty without dropout


@dataclass(frozen=True)
class MLP:
    """A network of fully connected layers with ReLU between them, and the gradient written by hand."""

    features: int
    outputs: int
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.0
    affine_in: bool = False
    affine_out: OutputLayer = "no"
    proportional: bool = False  # one score for all outputs, which are intervals

    @cached_property
    def layers(self) -> list[str]:
        return [f"body.{i}" for i in range(len(self.hidden))] + ["head"]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        body = tuple(f"{n}.{p}" for n in self.layers[:-1] for p in ("weight", "bias"))
        groups = {
            "input": ("input.shift", "input.scale") if self.affine_in else (),
            "body": body,
            "head": ("head.weight", "head.bias"),
            "output": tuple(output_sizes(self.affine_out, self.outputs)),
        }
        return {g: names for g, names in groups.items() if names}

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Units before each linear layer."""
        return (self.features, *self.hidden)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features,)

    @property
    def units(self) -> tuple[int, ...]:
        return self.widths if self.dropout else ()

    @property
    def linear(self) -> bool:
        return not self.hidden

    @property
    def stacks(self) -> bool:
        return True

    def framed(self, ends: Adapters) -> MLP:
        """The same with element-wise layers before and after it."""
        return replace(self, affine_in=ends.input, affine_out=ends.output)

    def init(self, generator: torch.Generator) -> Params:
        """Uniform in +-1/sqrt(inputs), as torch's own linear layers; the affine ends start as the identity."""
        params: Params = {}
        if self.affine_in:
            params["input.shift"], params["input.scale"] = (
                torch.zeros(self.features),
                torch.ones(self.features),
            )
        scores = 1 if self.proportional else self.outputs
        for name, (n, m) in zip(self.layers, pairwise((*self.widths, scores)), strict=True):
            bound = n**-0.5
            params[f"{name}.weight"] = (torch.rand(n, m, generator=generator) * 2 - 1) * bound
            params[f"{name}.bias"] = (torch.rand(m, generator=generator) * 2 - 1) * bound
        if self.proportional:
            params["head.bias"] = torch.full((self.outputs,), math.log(math.expm1(math.log(2) / self.outputs)) / PACE)
        for name, size in output_sizes(self.affine_out, self.outputs).items():
            params[name] = torch.full((size,), float(name == "output.scale"))
        return params

    def prepared(self, x: Tensor, keep: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The input dropped, where nothing comes before that; an empty mask says so."""
        if not keep or self.affine_in:
            return x, keep
        return dropped_(x, keep[0]), (keep[0].new_empty(*x.shape[:-1], 0), *keep[1:])

    def forward(self, params: Params, x: Tensor, keep: tuple[Tensor, ...] = (), *, tape: bool = True) -> Out:
        """With `keep`, x is overwritten by its dropped self when there is no f_in: a second pass changes nothing."""
        h = x
        if self.affine_in:
            h = input_forward(x, params["input.shift"], params["input.scale"], keep[0] if keep else None)
        rescale = 1 / (1 - self.dropout) if keep else 1.0  # of what dropout left, inside the product
        inputs = []
        for i, name in enumerate(self.layers):
            if keep and i == 0 and not self.affine_in and keep[0].shape[-1]:
                dropped_(h, keep[0])
            inputs.append(h)
            weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
            if name == "head" and self.proportional:
                h = rescale * torch.bmm(h, weight) + PACE * bias.unsqueeze(1)
            elif name == "head":
                h = linear(h, weight, bias, rescale)
            else:
                h = layer_forward(h, weight, bias, rescale, keep[i + 1] if keep else None)
        held = MLPTape(x, inputs, h, keep)
        if self.affine_out in WITH_SHIFT & WITH_FACTOR:
            h = input_forward(h, params["output.shift"], params["output.scale"], None)
        elif self.affine_out == "shift":
            h = h + params["output.shift"].unsqueeze(1)
        elif self.affine_out == "factor":
            h = h * params["output.scale"].unsqueeze(1)
        return Out(h, inputs[-1], held)

    def backward(
        self,
        params: Params,
        tape: MLPTape,
        grad: Tensor,
        into: Params,
        times: float,
        scale: float,
        features: Tensor | None = None,
        step: bool = False,
    ) -> None:
        rescale = 1 / (1 - self.dropout) if tape.keep else 1.0
        ones = _ones(grad.shape[0], grad.shape[1], grad.dtype, grad.device)
        side = SideStream(grad.device)  # no other gradient waits for those of the ends
        if self.affine_out in WITH_FACTOR:
            after, grad = grad, grad * params["output.scale"].unsqueeze(1)
            with side(after, grad):
                stretch, every = self._shifted(params, tape.z) * after, ones
                if self.affine_out == "scalar":
                    stretch = stretch.view(len(stretch), -1, 1)
                    every = _ones(len(stretch), stretch.shape[1], grad.dtype, grad.device)
                into["output.scale"].unsqueeze(1).baddbmm_(every, stretch, beta=times, alpha=scale)
        if self.affine_out in WITH_SHIFT:
            with side(grad):
                into["output.shift"].unsqueeze(1).baddbmm_(ones, grad, beta=times, alpha=scale)
        done: list[str] = []  # parameters whose step is made
        if self.proportional:
            into["head.bias"].unsqueeze(1).baddbmm_(ones, grad, beta=times, alpha=PACE * scale)
            grad = grad.sum(-1, keepdim=True)
        for i in reversed(range(len(self.layers))):
            name, h, mask = self.layers[i], tape.inputs[i], tape.keep[i] if tape.keep else None
            weight, bias = f"{name}.weight", f"{name}.bias"
            back, after = params[weight].transpose(1, 2), grad
            if i == 0 and self.affine_in:
                with side(grad):
                    memory = scratch("slope", tape.x.shape, grad)
                    torch.baddbmm(grad.new_empty(1), grad, back, beta=0, alpha=rescale, out=memory)
                    input_backward_(memory, tape.x, mask, ones, params, into, times, scale)
                side.join()  # the weight that it reads is about to change
            if i > 0:
                grad = torch.baddbmm(grad.new_empty(1), grad, back, beta=0, alpha=rescale)
                if features is not None and i == len(self.layers) - 1:
                    grad = grad + features
                grad = tanh_backward(grad, h, mask)
            with side(h, after) if i > 0 else nullcontext():
                layer, moved = (params[weight], params[bias]), (into[weight], into[bias])
                constants = self.proportional and name == "head"  # done above
                if step and not constants and layer_step(h, after, layer, moved, times, scale, rescale):
                    done += [weight, bias]
                else:
                    into[weight].baddbmm_(h.transpose(1, 2), after, beta=times, alpha=rescale * scale)
                    if not constants:
                        into[bias].unsqueeze(1).baddbmm_(ones, after, beta=times, alpha=scale)
        side.join()
        if step:
            add_({k: v for k, v in params.items() if k not in done}, into)

    def row_norms(self, params: Params, tape: MLPTape, grad: Tensor) -> Tensor:
        """[site, row]: how long each row's gradient is. That of a linear layer is an outer product, whose length is the
        product of two."""
        rescale = 1 / (1 - self.dropout) if tape.keep else 1.0
        total = torch.zeros_like(grad[..., 0])
        if self.affine_out in WITH_FACTOR:
            stretch = self._shifted(params, tape.z) * grad
            grad = grad * params["output.scale"].unsqueeze(1)
            total = total + (stretch.sum(2).square() if self.affine_out == "scalar" else stretch.square().sum(2))
        if self.affine_out in WITH_SHIFT:
            total = total + grad.square().sum(2)
        if self.proportional:
            total, grad = total + PACE**2 * grad.square().sum(2), grad.sum(-1, keepdim=True)
        for i in reversed(range(len(self.layers))):
            h = tape.inputs[i]
            offset = 0 if self.proportional and self.layers[i] == "head" else 1  # constants are counted above
            total = total + (rescale**2 * h.square().sum(2) + offset) * grad.square().sum(2)
            back = params[f"{self.layers[i]}.weight"].transpose(1, 2)
            if i > 0:
                grad = tanh_backward(rescale * grad @ back, h, tape.keep[i] if tape.keep else None)
            elif self.affine_in:
                before = rescale * grad @ back
                if tape.keep:
                    dropped_(before, tape.keep[0])
                total = total + (before * params["input.scale"].unsqueeze(1)).square().sum(2)
                total = total + (before * (tape.x + params["input.shift"].unsqueeze(1))).square().sum(2)
        return total.sqrt()

    def _shifted(self, params: Params, z: Tensor) -> Tensor:
        """What the factors of f_out are given."""
        return z if self.affine_out == "factor" else z + params["output.shift"].unsqueeze(1)


@cache
def _ones(sites: int, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(sites, 1, rows, dtype=dtype, device=device)

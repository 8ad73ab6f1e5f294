"""How a step is made of a gradient, as values: SGD and Adam, with a rate for each parameter.

    SGD    v <- momentum v - lr g;  w <- w + v
    Adam   m <- b1 m + (1 - b1) g;  s <- b2 s + (1 - b2) g^2
           w <- w - lr (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)

Both: g + decay w where there is weight decay (see `decaying`); lr times a parameter's own factor where it has one. A
method's own term enters the gradient (`extra_grad`), so that it means the same under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from vitrail.core.kernels import adam_step
from vitrail.core.tensors import Params, add_, empty_like, per_site, scratch

if TYPE_CHECKING:
    from vitrail.core.task import Batch, Task

ExtraGrad = Callable[[Params, float], None]  # (into, by): into += by * the method's own term of the gradient


class Optimizer(Protocol):
    """How a gradient changes parameters, and what it remembers from step to step."""

    @property
    def lr(self) -> float: ...
    @property
    def stateful(self) -> bool: ...  # whether its memory holds anything from one step to the next
    @property
    def alone(self) -> Optimizer: ...  # the same for a model of one site's rows alone
    def at(self, lr: float) -> Optimizer: ...  # the same with another learning rate
    def state(self, params: Params, held: Mapping[str, torch.Tensor] | None = None) -> Params:
        """What it remembers of these parameters, by name: zero at first, or what is `held` from before."""

    def step(
        self, task: Task, params: Params, state: Params, batch: Batch, extra_grad: ExtraGrad | None = None
    ) -> None:
        """One step down the loss of this batch, in place."""

    def apply(self, params: Params, state: Params, grad: Params) -> None:
        """One step along a gradient that is given, in place."""


def of_parameter(name: str) -> str:
    """The parameter that an entry of a memory is about.

    >>> of_parameter("first/head.bias"), of_parameter("head.bias")
    ('head.bias', 'head.bias')
    """
    return name.rpartition("/")[2]


def decaying(params: Params) -> Params:
    """What weight decay pulls to zero: all but the element-wise layers at both ends, of which a factor starts at one.

    >>> list(decaying({"input.scale": torch.ones(1, 1), "head.weight": torch.ones(1, 1)}))
    ['head.weight']
    """
    return {k: v for k, v in params.items() if not k.startswith(("input.", "output."))}


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent; weight decay is part of the gradient, as in torch."""

    lr: float
    momentum: float = 0.0
    decay: float = 0.0
    factors: tuple[tuple[str, float], ...] = ()  # parameter -> factor of the learning rate
    decay_alone: float | None = None  # of a model of one site's rows alone; None: the same

    @property
    def stateful(self) -> bool:
        return self.momentum > 0

    @property
    def alone(self) -> SGD:
        return self if self.decay_alone is None else replace(self, decay=self.decay_alone)

    def at(self, lr: float) -> SGD:
        return replace(self, lr=lr)

    def state(self, params: Params, held: Mapping[str, torch.Tensor] | None = None) -> Params:
        return _initial_state(params, held or {})

    def step(
        self, task: Task, params: Params, state: Params, batch: Batch, extra_grad: ExtraGrad | None = None
    ) -> None:
        if self.factors:
            self.apply(params, state, with_term(task.grad(params, batch), extra_grad))
            return
        more = extra_grad is not None or self.decay > 0
        task.accumulate(params, batch, state, self.momentum, -self.lr, step=not more)  # straight into the velocity
        if extra_grad:
            extra_grad(state, -self.lr)
        if self.decay:
            add_({k: state[k] for k in decaying(params)}, decaying(params), -self.lr * self.decay)
        if more:
            add_(params, state)

    def apply(self, params: Params, state: Params, grad: Params) -> None:
        rate = dict(self.factors)
        for k, v in state.items():
            v.mul_(self.momentum).add_(grad[k], alpha=-self.lr * rate.get(k, 1.0))
            if self.decay and k in decaying(params):
                v.add_(params[k], alpha=-self.lr * rate.get(k, 1.0) * self.decay)
        add_(params, state)


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba 2015; weight decay is part of the gradient, as there."""

    PARTS: ClassVar[tuple[str, ...]] = ("first", "second", "steps")
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 0.0
    factors: tuple[tuple[str, float], ...] = ()
    decay_alone: float | None = None
    stateful: ClassVar[bool] = True

    @property
    def alone(self) -> Adam:
        return self if self.decay_alone is None else replace(self, decay=self.decay_alone)

    def at(self, lr: float) -> Adam:
        return replace(self, lr=lr)

    def state(self, params: Params, held: Mapping[str, torch.Tensor] | None = None) -> Params:
        shapes: Params = {f"{part}/{k}": v for part in self.PARTS[:2] for k, v in params.items()}
        # counted for each parameter: of some the memory may have been kept, of others not
        shapes |= {f"steps/{k}": v.reshape(len(v), -1)[:, 0] for k, v in params.items()}
        return _initial_state(shapes, held or {})

    def step(
        self, task: Task, params: Params, state: Params, batch: Batch, extra_grad: ExtraGrad | None = None
    ) -> None:
        slope = {k: scratch(f"slope/{k}", v.shape, v) for k, v in params.items()}  # done with after this step
        task.accumulate(params, batch, slope, 0.0, 1.0)
        self.apply(params, state, with_term(slope, extra_grad))

    def apply(self, params: Params, state: Params, grad: Params) -> None:
        (a, b), rate = self.betas, dict(self.factors)
        if self.decay:
            add_({k: grad[k] for k in decaying(params)}, decaying(params), self.decay)
        torch._foreach_add_([state[f"steps/{k}"] for k in params], 1)
        mine = {k: [state[f"{part}/{k}"] for part in self.PARTS] for k in params}
        names = [
            k
            for k, v in params.items()
            if not adam_step(v, grad[k], mine[k], self.lr * rate.get(k, 1.0), self.betas, self.eps)
        ]
        if not names:
            return
        first, second, steps = zip(*(mine[k] for k in names), strict=True)
        g = [grad[k] for k in names]
        torch._foreach_lerp_(first, g, 1 - a)
        torch._foreach_mul_(second, b)
        torch._foreach_addcmul_(second, g, g, 1 - b)
        for k, m, s, t in zip(names, first, torch._foreach_sqrt(second), steps, strict=True):
            s.div_(per_site((1 - b**t).sqrt_(), s)).add_(self.eps)
            by = -self.lr * rate.get(k, 1.0) / (1 - a**t)
            params[k].addcdiv_(m * per_site(by, m), s)


def with_term(grad: Params, extra_grad: ExtraGrad | None) -> Params:
    """The gradient with a further term added to it, in place; `None` adds nothing."""
    if extra_grad:
        extra_grad(grad, 1.0)
    return grad


def _initial_state(shapes: Params, held: Mapping[str, torch.Tensor]) -> Params:
    return {k: empty_like(v).copy_(held[k]) if k in held else empty_like(v).zero_() for k, v in shapes.items()}

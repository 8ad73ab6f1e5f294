"""What is learned: a network, a loss, and how a step is made. All tensors have the site axis first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from vitrail.core.losses import CrossEntropy, Loss, ScheduledLoss
from vitrail.core.optimizers import SGD, Optimizer, of_parameter
from vitrail.core.tensors import Params, zeros


class Batch(NamedTuple):
    """Rows of one step, of all sites at once."""

    x: Tensor  # [site, row, ...]: numbers, or pictures
    y: Tensor  # [site, row, output]: 1 for the class and 0 for the others; the number; or `metrics.survival.periods`
    w: Tensor  # [site, row, 1]: weight in the loss; 0 marks padding
    keep: tuple[Tensor, ...] = ()  # [site, row, unit] int32 for each layer: which units stay, when there is dropout
    at: Tensor | None = None  # [site, row]: place of the row among the site's own, for what is computed once per row
    noise_source: Any = None  # for draws in this step: what a task that adds noise to gradients draws from
    share: Tensor | None = None  # [site, row]: one part in the number of rows of its person, where persons are named


class Out(NamedTuple):
    """What a network makes of rows."""

    z: Tensor  # [site, row, output]: scores before the softmax, or the numbers
    features: Tensor  # [site, row, unit]: what the last layer is given
    tape: Any = None  # what the backward pass needs


class Net(Protocol):
    """A network that knows its own gradient, for all sites at once."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # of one row
    @property
    def outputs(self) -> int: ...
    @property
    def groups(self) -> dict[str, tuple[str, ...]]: ...  # names of parameters by part: input, body, head, output, ...
    @property
    def units(self) -> tuple[int, ...]: ...  # those that dropout chooses from, layer by layer; empty without dropout
    @property
    def dropout(self) -> float: ...
    @property
    def linear(self) -> bool: ...  # whether scores are a weighted sum of the features: head.weight and head.bias
    @property
    def stacks(self) -> bool: ...  # whether on a CPU many sites at once are faster than one after the other
    def init(self, generator: torch.Generator) -> Params: ...  # one site's, without the site axis
    def forward(self, params: Params, x: Tensor, keep: tuple[Tensor, ...] = (), *, tape: bool = True) -> Out: ...
    def prepared(self, x: Tensor, keep: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Rows and masks of many steps at once, [..., row, ...], with what does not depend on parameters done."""

    def backward(
        self,
        params: Params,
        tape: Any,
        grad: Tensor,
        into: Params,
        times: float,
        scale: float,
        features: Tensor | None = None,
        step: bool = False,
    ) -> None:
        """into = times * into + scale * gradient, where slope is the gradient at the scores; `features`: at those.
        With `step`, then params += into: what both do in one pass need not be done in two."""


@dataclass(frozen=True)
class Task:
    """A network, its loss, the parameters everyone starts from, and the optimizer that improves them.

    `memory` says what of an optimiser's memory outlives a round: nothing ("fresh"), that of parameters which do not
    leave the site ("own"), or that of the shared ones too ("kept").
    """

    net: Net
    start: Params  # one site's, without the site axis
    loss: Loss = field(default_factory=CrossEntropy)
    rule: Optimizer = field(default_factory=lambda: SGD(0.01))  # its rate is that of the first round
    memory: Literal["fresh", "own", "kept"] = "fresh"

    @property
    def like(self) -> Tensor:
        """A tensor of the type and place of all parameters."""
        return next(iter(self.start.values()))

    def at(self, epochs: int) -> Task:
        """As it is after so many epochs at each site."""
        return replace(self, loss=self.loss.at(epochs)) if isinstance(self.loss, ScheduledLoss) else self

    def select(self, params: Params, groups: tuple[str, ...]) -> Params:
        """The parameters of these groups."""
        names = {n for g in groups for n in self.net.groups.get(g, ())}
        return {k: v for k, v in params.items() if k in names}

    def others(self, groups: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(g for g in self.net.groups if g not in groups)

    def output(self, params: Params, x: Tensor) -> Tensor:
        """[site, row, output] scores."""
        return self.net.forward(params, x, tape=False).z

    def value(self, params: Params, batch: Batch) -> Tensor:
        """The loss, a weighted sum over the rows, for each site: [site]."""
        return self.loss.rows(self.net.forward(params, batch.x, tape=False), batch).sum(1)

    def accumulate(
        self, params: Params, batch: Batch, into: Params, times: float, scale: float, *, step: bool = False
    ) -> None:
        """into = times * into + scale * gradient of the loss, in place; with `step`, then params += into."""
        out = self.net.forward(params, batch.x, batch.keep)
        self.net.backward(params, out.tape, self.loss.grad(out, batch), into, times, scale, step=step)

    def grad(self, params: Params, batch: Batch) -> Params:
        """The gradient of the loss, for each site."""
        out = self.net.forward(params, batch.x, batch.keep)
        return self.through(params, out, self.loss.grad(out, batch))

    def through(self, params: Params, out: Out, grad: Tensor, features: Tensor | None = None) -> Params:
        """The gradient, for each site, of what has this slope at the scores, and that one at the features."""
        into = {k: torch.empty(v.shape, dtype=v.dtype, device=v.device) for k, v in params.items()}
        self.net.backward(params, out.tape, grad, into, 0.0, 1.0, features)
        return into

    def initial_state(self, params: Params, shared: Iterable[str] = ()) -> Params:
        """What is kept of the optimiser's memory between rounds, as it is before the first. `shared` parameters leave
        the site."""
        if self.memory == "fresh" or not self.rule.stateful:
            return {}
        gone = set(shared) if self.memory == "own" else set()
        return zeros({k: v for k, v in self.rule.state(params).items() if of_parameter(k) not in gone})


def carry_state(state: Params, held: Mapping[str, Tensor]) -> Params:
    """The part of a round's memory that is kept for the next round."""
    return {k: state[k] for k in held}

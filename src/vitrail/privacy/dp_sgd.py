"""Row-level privacy: in every step the gradient of each row is clipped, and noise is added to their sum.

    g = sum over rows r of  g_r min(1, c / |g_r|)  +  N(0, (z c)^2)

Where the study names persons, a row of one with m training rows is clipped to c / m. In an epoch each of the m rows is
in one step; with k_s of them in step s the person moves that step by at most k_s c / m, and sum k_s^2 <= m^2: over the
epoch the person costs no more than one row of length c in one step. So the budget is that of a whole person, at the
same noise, whichever rows fall into one step.

Whatever a method makes of such gradients tells no more about a row (privacy/budget.py). It holds for rows whose numbers
are taken away; how many there are is told. Exact lengths |g_r| come from the forward and backward pass that is made
anyway: the gradient of a linear layer is an outer product, its length the product of two (`row_norms` of a network).
In a simulation the noise is drawn from the seed (DrawnNoise); between machines from each site's own generator
(StepNoise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vitrail.core.random import mixed, normals
from vitrail.core.task import Batch, Out, Task
from vitrail.core.tensors import Params, add_
from vitrail.privacy.noise import Generator, blurred

BLOCK = 64  # rows whose gradients are added up in single precision


@runtime_checkable
class ByRow(Protocol):
    """A network that knows how long each row's gradient is."""

    def row_norms(self, params: Params, tape: Any, grad: Tensor) -> Tensor:
        """[site, row]"""


class DrawnNoise:
    """The noise of one step at each site; what is asked for later in the step is drawn anew."""

    def __init__(self, keys: Tensor) -> None:
        self.keys, self.asked = keys, 0  # [site]

    def draw(self, like: Tensor) -> Tensor:
        """Standard normal, for a tensor [site, ...]; or [site * model, ...] where a site trains several at once."""
        self.asked += 1
        times = len(like) // len(self.keys)
        keys = mixed(self.keys[:, None], torch.arange(1, times + 1, device=self.keys.device) + (self.asked << 20))
        return normals(keys.reshape(-1), like[0].numel()).view(like.shape).to(like)


class StepNoise:
    """The noise of one step from the sites' own generators, on a grid; `step`: which step of which exchange."""

    def __init__(self, generators: Sequence[Generator], *step: object) -> None:
        self.generators, self.step, self.asked = generators, step, 0

    def add_to(self, grad: Params, clip: float, noise: float) -> None:
        """To gradients [site, ...], or [site * model, ...] where a site trains several at once, in place."""
        self.asked += 1
        whole = torch.cat([v.flatten(1) for v in grad.values()], 1)
        models = len(whole) // len(self.generators)
        for i, row in enumerate(whole):
            site, model = divmod(i, models)
            row.copy_(blurred(row, clip, noise, self.generators[site], "step", *self.step, self.asked, model))
        sizes = [v[0].numel() for v in grad.values()]
        for v, part in zip(grad.values(), torch.split(whole, sizes, 1), strict=True):
            v.copy_(part.view(v.shape))


@dataclass(frozen=True)
class PrivateTask(Task):
    clip: float = 1.0
    noise: float = 0.0  # z

    def accumulate(
        self, params: Params, batch: Batch, into: Params, times: float, scale: float, *, step: bool = False
    ) -> None:
        if isinstance(batch.noise_source, StepNoise):  # what was there before is not released again
            for k, v in self._released(params, batch).items():
                torch.add(into[k] * times if times else torch.zeros_like(v), v, alpha=scale, out=into[k])
        else:
            out = self.net.forward(params, batch.x, batch.keep)
            self.net.backward(params, out.tape, self._clipped(params, out, batch), into, times, scale)
            self._stir(into, batch, scale)
        if step:
            add_(params, into)

    def grad(self, params: Params, batch: Batch) -> Params:
        if isinstance(batch.noise_source, StepNoise):
            return self._released(params, batch)
        into = self._sum(params, batch)
        self._stir(into, batch, 1.0)
        return into

    def _sum(self, params: Params, batch: Batch) -> Params:
        """Of the rows' clipped gradients."""
        out = self.net.forward(params, batch.x, batch.keep)
        slope = self._clipped(params, out, batch)
        into = {k: torch.empty_like(v) for k, v in params.items()}
        self.net.backward(params, out.tape, slope, into, 0.0, 1.0)
        return into

    def _released(self, params: Params, batch: Batch) -> Params:
        """The same under noise of the sites' own, on a grid. Blocks of rows are added up in double precision, so that
        one row's rounding errors reach no further than its own block (ROOM in privacy/noise.py)."""
        total: Params = {k: torch.zeros_like(v, dtype=torch.double) for k, v in params.items()}
        for first in range(0, batch.x.shape[1], BLOCK):
            for k, v in self._sum(params, block_of(batch, slice(first, first + BLOCK))).items():
                total[k] += v
        if self.noise and bool(batch.w.any()):  # rows of no weight: a rehearsal
            batch.noise_source.add_to(total, self.clip, self.noise)
        return {k: total[k].to(v) for k, v in params.items()}

    def through(self, params: Params, out: Out, grad: Tensor, features: Tensor | None = None) -> Params:
        raise NotImplementedError("a gradient from elsewhere than the loss has no row-level privacy")

    def _clipped(self, params: Params, out: Out, batch: Batch) -> Tensor:
        assert isinstance(self.net, ByRow)
        slope = self.loss.grad(out, batch)
        size = self.net.row_norms(params, out.tape, slope)
        most = self.clip if batch.share is None else self.clip * batch.share
        return slope * (most / size.clamp(min=1e-12)).clamp(max=1)[..., None]

    def _stir(self, into: Params, batch: Batch, scale: float) -> None:
        if not self.noise or not bool(batch.w.any()):  # rows of no weight: a rehearsal
            return
        assert isinstance(batch.noise_source, DrawnNoise), "noise has to be drawn from something"
        for v in into.values():
            v.add_(batch.noise_source.draw(v), alpha=scale * self.noise * self.clip)


def block_of(batch: Batch, rows: slice) -> Batch:
    """Some rows of each site."""
    x, y, w = (v[:, rows].contiguous() for v in batch[:3])
    at = None if batch.at is None else batch.at[:, rows]
    share = None if batch.share is None else batch.share[:, rows]
    return Batch(x, y, w, tuple(m[:, rows].contiguous() for m in batch.keep), at, share=share)

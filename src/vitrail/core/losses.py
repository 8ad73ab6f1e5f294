"""What a network's scores are judged by, as values. A loss knows its own slope, and what scores mean as an answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from vitrail.core.kernels import softmax_grad

if TYPE_CHECKING:
    from vitrail.core.task import Batch, Out


class Loss(Protocol):
    """What training minimises: the loss of rows, its gradient at the scores, and what the scores mean."""

    def rows(self, out: Out, batch: Batch) -> Tensor: ...  # [site, row]: of each row, weighted
    def grad(self, out: Out, batch: Batch) -> Tensor: ...  # [site, row, output]: its gradient at the scores
    def predictions(self, z: Tensor) -> Tensor: ...  # [..., output]: what scores say: shares of classes, or the number


@runtime_checkable
class UncertaintyLoss(Protocol):
    """A loss whose scores also say how unsure the answer is."""

    @property
    def uncertainty_means(self) -> str: ...  # what it measures, in plain words

    def uncertainty(self, z: Tensor) -> Tensor: ...  # [...]: from 0, sure, to 1, knows nothing


@runtime_checkable
class ScheduledLoss(Protocol):
    """A loss that changes while training goes on."""

    def at(self, epochs: int) -> Loss: ...  # as it is after so many epochs at each site


@dataclass(frozen=True)
class CrossEntropy:
    """For classes: -log of the softmax at the true one."""

    uncertainty_means: ClassVar[str] = "how evenly the probability is spread over the classes (its entropy)"
    constant: Tensor | None = field(
        default=None, compare=False
    )  # a site's own (metrics/recalibration.py): for answers alone

    def rows(self, out: Out, batch: Batch) -> Tensor:
        return (-out.z.log_softmax(-1) * batch.y * batch.w).sum(-1)

    def grad(self, out: Out, batch: Batch) -> Tensor:
        return softmax_grad(out.z, batch.y, batch.w)

    def predictions(self, z: Tensor) -> Tensor:
        return with_constant(self, z).softmax(-1)

    def uncertainty(self, z: Tensor) -> Tensor:
        """The entropy of the shares, relative to that of equal ones."""
        entropy: Tensor = torch.special.entr(self.predictions(z)).sum(-1)
        return entropy / math.log(z.shape[-1])


@dataclass(frozen=True)
class SquaredError:
    """The squared error of a number."""

    constant: Tensor | None = field(default=None, compare=False)

    def rows(self, out: Out, batch: Batch) -> Tensor:
        return ((out.z - batch.y) ** 2 * batch.w).sum(-1)

    def grad(self, out: Out, batch: Batch) -> Tensor:
        return (out.z - batch.y).mul_(2).mul_(batch.w)

    def predictions(self, z: Tensor) -> Tensor:
        return with_constant(self, z)


@dataclass(frozen=True)
class Hazard:
    """For the time to an event, by intervals (metrics/survival.py): -log of the likelihood of what each row showed.

        h_k = sigmoid(z_k);  loss = -sum over the intervals in which the row was seen: log h_k, or log (1 - h_k)

    That is a logistic regression over the intervals that each row lived through. Answers are S_k = prod (1 - h_j).
    """

    constant: Tensor | None = field(default=None, compare=False)

    def rows(self, out: Out, batch: Batch) -> Tensor:
        each = torch.nn.functional.softplus(out.z) - out.z * batch.y
        return (each * (batch.y >= 0) * batch.w).sum(-1)

    def grad(self, out: Out, batch: Batch) -> Tensor:
        return (out.z.sigmoid() - batch.y).mul_(batch.y >= 0).mul_(batch.w)

    def predictions(self, z: Tensor) -> Tensor:
        return torch.nn.functional.softplus(with_constant(self, z)).cumsum(-1).neg().exp()


@dataclass(frozen=True)
class Evidence:
    """For classes, with networks that say how unsure they are (Sensoy et al. 2018; RIPFL, section 3.2).

        e = exp(bound tanh(z / bound));  alpha = e + prior + 1;  S = sum alpha;  p = alpha / S;  doubt u = K / S
        loss = digamma(S) - digamma(alpha_y) + kl_t KL(Dir(alpha~) || Dir(1));  alpha~ = y + (1 - y) alpha

    kl_t grows to `kl` over `anneal` epochs. exp would overflow: scores are bounded softly, since a hard bound has no
    slope. All in double: in single precision the KL is wrong from scores of 20 on. `prior` is evidence from elsewhere.
    """

    uncertainty_means: ClassVar[str] = "how little evidence the model sees for any class"
    kl: float = 0.1
    anneal: int = 10
    bound: float = 10.0
    epochs: int = 0  # done so far
    constant: Tensor | None = field(default=None, compare=False)  # added to the logarithm of shares

    def at(self, epochs: int) -> Evidence:
        return replace(self, epochs=min(epochs, self.anneal))

    @property
    def weight(self) -> float:
        return self.kl * min(1.0, self.epochs / self.anneal) if self.anneal else self.kl

    def evidence(self, z: Tensor) -> Tensor:
        return (self.bound * torch.tanh(z.double() / self.bound)).exp()

    def rows(self, out: Out, batch: Batch, prior: Tensor | float = 0.0) -> Tensor:
        alpha, y = self.evidence(out.z) + prior + 1, batch.y.double()
        total = alpha.sum(-1)
        loss = torch.digamma(total) - (y * torch.digamma(alpha)).sum(-1)
        if self.weight:
            loss = loss + self.weight * _from_nothing(y + (1 - y) * alpha)
        return loss.to(out.z.dtype) * batch.w[..., 0]

    def grad(self, out: Out, batch: Batch, prior: Tensor | float = 0.0) -> Tensor:
        e, y = self.evidence(out.z), batch.y.double()
        alpha = e + prior + 1
        slope = _trigamma(alpha.sum(-1, keepdim=True)) - y * _trigamma(alpha)
        if self.weight:
            wrong = y + (1 - y) * alpha
            total = wrong.sum(-1, keepdim=True)
            excess = (wrong - 1) * _trigamma(wrong) - (total - wrong.shape[-1]) * _trigamma(total)
            slope += self.weight * (1 - y) * excess
        within = 1 - torch.tanh(out.z.double() / self.bound) ** 2
        return (slope * e * within).to(out.z.dtype) * batch.w

    def predictions(self, z: Tensor) -> Tensor:
        alpha = self.evidence(z) + 1
        shares = (alpha / alpha.sum(-1, keepdim=True)).to(z.dtype)
        return shares if self.constant is None else with_constant(self, shares.log()).softmax(-1)

    def uncertainty(self, z: Tensor) -> Tensor:
        return (z.shape[-1] / (self.evidence(z) + 1).sum(-1)).to(z.dtype)


@dataclass(frozen=True, eq=False)
class PriorEvidence:
    """Evidence on top of what is known already."""

    loss: Evidence
    prior: Tensor  # [site, row, output]

    def rows(self, out: Out, batch: Batch) -> Tensor:
        return self.loss.rows(out, batch, self.prior)

    def grad(self, out: Out, batch: Batch) -> Tensor:
        return self.loss.grad(out, batch, self.prior)

    def predictions(self, z: Tensor) -> Tensor:
        return self.loss.predictions(z)


def with_constant(loss: Loss, z: Tensor) -> Tensor:
    """Scores with the site's own constant added, where the loss has one."""
    constant: Tensor | None = getattr(loss, "constant", None)
    return z if constant is None else z + constant.to(z)


def takes_constant(loss: Loss) -> bool:
    """Whether answers by this loss can have a site's own constant."""
    return is_dataclass(loss) and any(f.name == "constant" for f in fields(loss))


def log_hazard(z: Tensor) -> Tensor:
    """[...]: of what `Hazard` is about, the logarithm of -log of being free of the event to the end: one number, in
    which a factor on every hazard is a sum."""
    return torch.nn.functional.softplus(z).sum(-1).log()


def log_shares(loss: Loss, z: Tensor) -> Tensor:
    """[..., output]: the logarithm of the share of each class."""
    return with_constant(loss, z).log_softmax(-1) if isinstance(loss, CrossEntropy) else loss.predictions(z).log()


def _trigamma(x: Tensor) -> Tensor:
    slope: Tensor = torch.special.polygamma(1, x)
    return slope


def _from_nothing(alpha: Tensor) -> Tensor:
    """KL(Dir(alpha) || Dir(1)), [...]."""
    total, outputs = alpha.sum(-1, keepdim=True), alpha.shape[-1]
    surplus = ((alpha - 1) * (torch.digamma(alpha) - torch.digamma(total))).sum(-1)
    return torch.lgamma(total)[..., 0] - math.lgamma(outputs) - torch.lgamma(alpha).sum(-1) + surplus

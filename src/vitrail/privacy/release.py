"""One answer of a site under a privacy budget of its own: vectors clipped to a length, and Gaussian noise.

    v <- v min(1, clip / |v|)  for each vector along the last axis;  told = v + N(0, (2 R z)^2),  R = clip sqrt(vectors)

All vectors together lie in a ball of radius R, so that two answers differ by at most its diameter, whatever they were
made of: neighbours are any two sets of rows, and the budget is that of the whole site (privacy/budget.py). It is so
large a distance because nothing is assumed of how an answer depends on rows.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from torch import Tensor

from vitrail.core.exchange import Release
from vitrail.core.tensors import flatten, unflatten
from vitrail.privacy.budget import Budget, noise_for
from vitrail.privacy.guards import AddNoise


def released(up: Any, release: Release, add_noise: AddNoise) -> Any:
    """The report [site, ..., vector, number] as it may be told."""
    noise = _noise(Budget(release.epsilon, release.delta))
    values = dict(flatten(up))
    assert len(values) == 1, "two tensors would be drawn the same noise"
    return unflatten(up, {k: _blurred(v, release.clip, noise, add_noise) for k, v in values.items()})


@cache
def _noise(budget: Budget) -> float:
    return noise_for(budget, 1)


def _blurred(values: Tensor, clip: float, noise: float, add_noise: AddNoise) -> Tensor:
    length = values.double().norm(dim=-1, keepdim=True).clamp(min=1e-30)
    short = values * (clip / length).clamp(max=1).to(values)
    reach = clip * math.sqrt(values[0].numel() // values.shape[-1])
    return add_noise(short.flatten(1), reach, 2 * noise).view_as(values)

"""A site's own constant: the number that brings a model's mean answer at the site to what its training rows show.

Sites differ in how common an outcome is, beyond what their columns explain, and a model that was trained with class
weights answers for a world in which all classes are equally common. Both are corrected at the site, by one constant for
each class (one for a number, one for each interval of a time to an event), fitted by maximum likelihood to the site's
training rows with the model held fixed:

    classes    softmax(z + c)          number    z + c          time    hazard of interval k = sigmoid(z_k + c_k)

A weak penalty keeps the constant of a very small site near zero. It is private to the site, like its scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.losses import Hazard, Loss, SquaredError, log_shares, takes_constant

PENALTY = 1.0  # as if the site had one more unit of information, which says that its constant is zero
TIME_PENALTY = 5.0  # of times to an event: of what all intervals of a site have in common
INTERVAL_PENALTY = 50.0  # of what a single interval has beyond the others
STEPS, LONGEST, ENOUGH = 50, 2.0, 1e-10  # of Newton's method; how far one step goes; a step that ends it
Floats = NDArray[np.float64]
L = TypeVar("L", bound=Loss)


def placed(loss: L, constant: Tensor | None) -> L:
    """The same loss, whose answers have this constant added."""
    if constant is None or not takes_constant(loss):
        return loss
    moved: L = replace(loss, constant=constant)  # type: ignore[type-var]
    return moved


def fit_constant(loss: Loss, z: Tensor, y: Floats, w: Floats) -> Floats | None:
    """[output], of one site; None where this loss takes none. z, y [row, output] as the loss takes them, w [row]: for
    how many each row stands. Zero where scores are no numbers. Sums are numpy's: the same whatever runs beside it."""
    if not takes_constant(loss):
        return None
    if not len(y) or not bool(z.isfinite().all()):
        return np.zeros(z.shape[1])
    if isinstance(loss, SquaredError):
        return np.asarray(((y - z.double().numpy()) * w[:, None]).sum(0) / (w.sum() + PENALTY), np.float64)
    if isinstance(loss, Hazard):
        return _hazard_constants(z.double().numpy(), y, w[:, None] * (y >= 0))
    return _class_constants(log_shares(loss, z.double()).numpy(), y, w)


def _hazard_constants(z: Floats, y: Floats, w: Floats) -> Floats:
    """c + d_k: what all intervals of a site have in common, and what each has beyond that, which is held back more;
    w [row, interval] is 0 where nothing was seen of the row."""
    intervals = z.shape[1]
    parts = np.c_[np.ones(intervals), np.eye(intervals)]  # [interval, parameter]
    penalty = np.r_[TIME_PENALTY, np.full(intervals, INTERVAL_PENALTY)]
    constants = np.zeros(intervals + 1)
    for _ in range(STEPS):
        h = 1 / (1 + np.exp(-(z + parts @ constants).clip(-500, 500)))
        slope = parts.T @ ((h - y) * w).sum(0) + penalty * constants
        curvature = (parts.T * (h * (1 - h) * w).sum(0)) @ parts + np.diag(penalty)
        step = np.linalg.solve(curvature, slope).clip(-LONGEST, LONGEST)
        constants -= step
        if np.abs(step).max() < ENOUGH:
            break
    return np.asarray(parts @ constants, np.float64)


def _class_constants(logs: Floats, y: Floats, w: Floats) -> Floats:
    classes = logs.shape[1]
    penalty = 2 * PENALTY  # of two classes: PENALTY on the difference of their constants
    c = np.zeros(classes)
    for _ in range(STEPS):
        p = np.exp(logs + c - (logs + c).max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        weighted = p * w[:, None]
        total = weighted.sum(0)
        slope = total - (y * w[:, None]).sum(0) + penalty * c
        curvature = np.diag(total + penalty) - np.einsum("rk,rl->kl", p, weighted)
        step = np.linalg.solve(curvature, slope).clip(-LONGEST, LONGEST)
        c -= step
        if np.abs(step).max() < ENOUGH:
            break
    return c

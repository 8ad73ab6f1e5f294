"""How good predictions are, on one site's rows. Checked against scikit-learn in the tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NAN = float("nan")


def accuracy(y: Ints, p: Floats) -> float:
    return float((p.argmax(1) == y).mean())


def balanced_accuracy(y: Ints, p: Floats) -> float:
    """Mean recall over the classes that occur."""
    guess = p.argmax(1)
    return float(np.mean([(guess[y == k] == k).mean() for k in np.unique(y)]))


def f1(y: Ints, p: Floats) -> float:
    """F1 of each class, weighted by how often it occurs."""
    guess, total = p.argmax(1), 0.0
    for k in np.unique(y):
        hit = int(((guess == k) & (y == k)).sum())
        total += (y == k).mean() * 2 * hit / ((guess == k).sum() + (y == k).sum())
    return float(total)


def _pair_auc(positive: Floats, negative: Floats) -> float:
    """Chance that a positive scores above a negative, ties counted half."""
    positive, negative = np.sort(positive), np.sort(negative)
    below, not_above = (np.searchsorted(negative, positive, side).sum() for side in ("left", "right"))
    return float((below + not_above) / 2 / (len(positive) * len(negative)))


def auc(y: Ints, p: Floats) -> float:
    """Area under the ROC curve; with more than two classes the mean over pairs (one against one)."""
    if p.shape[1] == 2:
        here, there = p[y == 1, 1], p[y == 0, 1]
        return _pair_auc(here, there) if len(here) and len(there) else NAN
    pairs, rows = [], {k: p[y == k] for k in np.unique(y)}
    for a, b in combinations(rows, 2):
        ours, theirs = rows[a], rows[b]
        pairs.append((_pair_auc(ours[:, a], theirs[:, a]) + _pair_auc(theirs[:, b], ours[:, b])) / 2)
    return float(np.mean(pairs)) if pairs else NAN


def log_loss(y: Ints, p: Floats) -> float:
    return float(-np.log(np.clip(p[np.arange(len(y)), y], 1e-15, 1)).mean())


def rmse(y: Floats, p: Floats) -> float:
    return float(np.sqrt(np.mean((p[:, 0] - y) ** 2)))


def mae(y: Floats, p: Floats) -> float:
    return float(np.abs(p[:, 0] - y).mean())


def r2(y: Floats, p: Floats) -> float:
    spread = ((y - y.mean()) ** 2).sum()
    return float(1 - ((p[:, 0] - y) ** 2).sum() / spread) if np.ptp(y) > 0 else NAN


TABLE: dict[str, Callable[..., float]] = {
    f.__name__: f for f in (balanced_accuracy, accuracy, f1, auc, log_loss, rmse, mae, r2)
}


def score(names: tuple[str, ...], y: NDArray[np.generic], p: Floats) -> dict[str, float]:
    """The named metrics; NaN where there are no rows, the model has diverged, or the metric has no meaning (AUC of a
    single class)."""
    sound = len(y) > 0 and bool(np.isfinite(p).all())
    return {n: TABLE[n](y, p) if sound else NAN for n in names}

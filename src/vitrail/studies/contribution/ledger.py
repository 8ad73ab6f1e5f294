"""Credits for one user's gain: which sites earn any, and how much.

A site is paid where its Shapley value is above zero with its whole 95 % interval; the values of these sites are scaled
by one factor so that they sum to the gain. A site whose value may as well be nothing, or is negative, is shown and gets
nothing. There are no credits where there is no gain, so where everybody's model is no better for the user than one
answer to every row. How often a site with permuted outcomes is paid, and an honest one is not, is measured in
benchmarks/verdicts/credits.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.stats.shapley import Floats, Values

Span = tuple[float, float, float]  # value, low, high


def credits_of(values: Floats, paid: NDArray[np.bool_]) -> Floats:
    """[..., site] Shapley values -> credits: the positive ones of those who are paid, scaled to sum to the sum of all;
    none without a gain.

    >>> everybody = np.array([True, True, True])
    >>> credits_of(np.array([0.3, 0.1, -0.1]), everybody).round(3).tolist()
    [0.225, 0.075, 0.0]
    >>> credits_of(np.array([0.3, 0.1, -0.1]), np.array([True, False, False])).round(3).tolist()
    [0.3, 0.0, 0.0]
    """
    positive, gain = np.where(paid, values.clip(min=0), 0.0), values.sum(-1, keepdims=True).clip(min=0)
    whole = positive.sum(-1, keepdims=True)
    return np.asarray(positive * gain / np.where(whole > 0, whole, 1.0))


def between(value: Floats, resampled: Floats, half: Floats) -> tuple[Floats, Floats, Floats]:
    """95 % of the resamples of the test rows, widened by what drawing orders and seeds add."""
    low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
    return (
        value,
        value - np.hypot(value - low.clip(max=value), half),
        value + np.hypot(high.clip(min=value) - value, half),
    )


def spans_of(values: pd.DataFrame, way: str, kind: str) -> dict[str, Span]:
    """Site -> its value and interval, of one way to count and one way to rebuild."""
    part = values[(values.way == way) & (values.kind == kind)]
    return {
        str(s): (float(v), float(low), float(high))
        for s, v, low, high in zip(part.site, part.value, part.low, part.high, strict=True)
    }


def disagreement(shapley: Mapping[str, Span], left_out: Mapping[str, Span], user: str) -> str:
    """Where leaving one site out and averaging over all orders say different things; "" where they do not.

    >>> disagreement({"a": (0.1, 0.05, 0.15)}, {"a": (0.001, -0.01, 0.01)}, "b")
    'Shapley value and leave-one-out disagree: a helped (+0.100), but its absence would hardly matter to b (+0.001).'
    """
    words = []
    for site, (value, low, _) in shapley.items():
        alone, alone_low, alone_high = left_out[site]
        if low > 0 and alone_low <= 0:
            rest = "would hardly matter" if alone_high > 0 else "would be better"
            words.append(f"{site} helped ({value:+.3f}), but its absence {rest} to {user} ({alone:+.3f})")
        elif low <= 0 < alone_low:
            words.append(f"{site} did not clearly help ({value:+.3f}), but {user} would miss it ({alone:+.3f})")
    if not words:
        return ""
    return f"Shapley value and leave-one-out disagree: {'; '.join(words)}."


def ledger_of(names: Sequence[str], rounds: NDArray[np.int64], got: Values, draws: Floats) -> pd.DataFrame:
    """A line for each site: its value and its credit, with intervals. draws [resample, row]: weights of test rows."""
    resampled = draws @ got.rows.T
    mean, low, high = between(got.rows.mean(1), resampled, got.half)
    credit = between(credits_of(mean, low > 0), credits_of(resampled, low > 0), np.where(low > 0, got.half, 0.0))
    columns = {"site": names, "rounds": rounds, "value": mean, "low": low, "high": high}
    named = zip(("credit", "credit_low", "credit_high"), credit, strict=True)
    return pd.DataFrame(columns | {name: part.clip(min=0) for name, part in named})

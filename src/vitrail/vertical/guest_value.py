"""What guests are worth to a host: scores of several models on the same held-out rows, with intervals over these rows.

Intervals are bootstrapped: the rows are drawn again with repetition, the same ones for all models, so that the interval
of a gain is that of a difference on the same people. How else training could have gone is not in them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.random import key
from vitrail.metrics.scores import baseline_scores, score_all
from vitrail.runs.setup import MAJORITY
from vitrail.study.model import LOWER_IS_BETTER, Study

DRAWS, AT_ONCE = 1000, 50
WORTH = ["model", "metric", "value", "low", "high", "gain", "gain_low", "gain_high"]


def guest_values(
    study: Study,
    y: NDArray[np.float64],
    predictions: Mapping[str, NDArray[np.float64]],
    seed: int,
    draws: int = DRAWS,
    thresholds: NDArray[np.float64] | None = None,
) -> pd.DataFrame:
    """y [row], predictions: model -> [row, class]; the first model is what the others gain over. A gain above 0 is
    better. Decisions are made at these thresholds [class]. Last comes what always giving the same answer comes to."""
    truth = y if study.target.kind == "number" else y.astype(np.int64)
    rng, n = np.random.default_rng(key(seed, "worth")), len(y)
    picked = [np.arange(n)[None]] + [rng.integers(n, size=(k, n)) for k in _chunks(draws)]
    every = np.ones((max(map(len, picked)), n), dtype=bool)
    by_model: dict[str, dict[str, NDArray[np.float64]]] = {}
    for name, p in predictions.items():
        parts = [
            score_all(
                study.metrics,
                truth[at],
                p[at],
                every[: len(at)],
                thresholds=None if thresholds is None else np.tile(thresholds, (len(at), 1)),
            )
            for at in picked
        ]
        by_model[name] = {m: np.concatenate([part[m] for part in parts]) for m in study.metrics}
    first, rows = next(iter(by_model)), []
    for name, scores in by_model.items():
        for m, v in scores.items():
            gain = (v - by_model[first][m]) * (-1 if m in LOWER_IS_BETTER else 1)
            gains = (np.nan,) * 3 if name == first else _interval_of(gain)
            rows.append((name, m, *_interval_of(v), *gains))
    usual = baseline_scores(study.metrics, truth, len(study.target.levels))
    rows += [(MAJORITY, m, v, *(np.nan,) * 5) for m, v in usual.items()]
    return pd.DataFrame(rows, columns=WORTH)


def _chunks(draws: int) -> list[int]:
    return [min(AT_ONCE, draws - i) for i in range(0, draws, AT_ONCE)]


def _interval_of(v: NDArray[np.float64]) -> tuple[float, float, float]:
    """The value on the rows as they are, and what 95 % of the draws lie between; NaN where a draw has no value."""
    drawn = v[1:][~np.isnan(v[1:])]
    if len(drawn) < 0.9 * len(v[1:]) or len(v) < 2:
        return float(v[0]), np.nan, np.nan
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(v[0]), float(low), float(high)

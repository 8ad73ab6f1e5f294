"""A made-up explanation of a site's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.analysis.explanations.rows import Explanation, FeatureLabel

NAMES = ["chol", "smokes", "ward", "lab"]
COLUMNS = (
    FeatureLabel("mg/dL", (), 210.0),
    FeatureLabel("", ("no", "yes"), "no"),
    FeatureLabel("", ("a", "b", "c"), "b"),
    FeatureLabel(),
)


def made(rows: int = 140, seed: int = 1, names: list[str] = NAMES, **more: Any) -> Explanation:
    """A guest's united feature among a number with gaps, two levels and three."""
    rng = np.random.default_rng(seed)
    values = rng.normal([0.5, 0, -0.2, 0.1], [0.5, 0.3, 0.1, 0.4], (rows, 4))
    data = np.empty((rows, 4), object)
    data[:, 0] = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(210, 30, rows).round())
    data[:, 1], data[:, 2] = rng.choice(["no", "yes"], rows), rng.choice(["a", "b", "c"], rows)
    data[:, 3] = np.nan
    at = tuple(f"line{i}" for i in range(rows))
    given: dict[str, Any] = {"united": (names[3],), "answer": "sick = yes", "scale": "odds", "rows": at} | more
    base = np.full(rows, -0.4)
    return Explanation(values, base, data, names, np.zeros((rows, 4)), "the median", columns=COLUMNS, **given)

"""What sites show each other of their explanations: site x feature, how much a feature moves the site's own model and
in which direction. Never a row: a dot is a patient.

A site with fewer than 100 explained rows is left out; so is a feature that fewer than 10 of them have otherwise than
the site's reference, since its mean would be about those few.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from vitrail.explain.rows import Explanation

LEAST_ROWS = 100
LEAST_OTHERS = 10  # rows in which the feature is not as in the reference
COLUMNS = ["site", "feature", "size", "low", "high", "sign"]


class Among(NamedTuple):
    """size: mean |value| with its 95 % interval over rows, NaN where too few rows have the feature otherwise. sign: +
    or -, where the mean value is above or below 0 beyond its own interval; ± where it is not."""

    table: pd.DataFrame  # COLUMNS
    small: list[str]  # sites with too few rows
    measure: str  # what the values add up to

    @property
    def sites(self) -> list[str]:
        return list(dict.fromkeys(self.table.site))


def among_sites(told: Mapping[str, Explanation]) -> Among:
    """By name, so that the order tells nothing."""
    large = {s: e for s, e in sorted(told.items()) if len(e) >= LEAST_ROWS}
    rows = [(s, *cells) for s, e in large.items() for cells in _of_site(e)]
    measure = next((e.measure for e in told.values()), "")
    return Among(pd.DataFrame(rows, columns=COLUMNS), sorted(told.keys() - large.keys()), measure)


def _of_site(e: Explanation) -> list[tuple[str, float, float, float, str]]:
    n, out = len(e), []
    at = {r["feature"]: r for r in e.importance()}
    wide = e.values.std(0, ddof=1) / np.sqrt(n) * stdtrit(n - 1, 0.975)
    for i, name in enumerate(e.feature_names):
        mean = e.values[:, i].mean()
        sign = "±" if abs(mean) <= wide[i] else "+" if mean > 0 else "-"
        if (e.values[:, i] != 0).sum() < LEAST_OTHERS:
            out.append((name, np.nan, np.nan, np.nan, ""))
        else:
            out.append((name, at[name]["size"], at[name]["low"], at[name]["high"], sign))
    return out

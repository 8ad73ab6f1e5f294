"""What sites show each other of their explanations: site x feature, how much a feature moves the site's own model and
in which direction (analysis/explanations/direction.py). Never a row: a dot is a patient.

A site with fewer than 100 explained rows is left out; so is a feature that fewer than 10 of them have otherwise than
the site's reference, since its mean would be about those few. Of a level that fewer than 10 rows have, no direction is
told. Where the study names persons, one row of each is explained, so that these are numbers of persons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitrail.analysis.explanations.direction import FEWEST
from vitrail.analysis.explanations.rows import Explanation, Scale

LEAST_ROWS = 100
LEAST_OTHERS = FEWEST  # rows in which the feature is not as in the reference
COLUMNS = ["site", "feature", "size", "low", "high", "sign", "moves"]


class ExplanationSummary(NamedTuple):
    """size: mean |value| with its 95 % interval over rows, NaN where too few rows have the feature otherwise. sign
    and moves: its direction, as a sign and in words."""

    table: pd.DataFrame  # COLUMNS
    small: list[str]  # sites with too few rows
    measure: str  # what the values add up to
    unit: str = "row"  # what an explained row is: a patient, where the study names persons
    moved: str = ""  # what features move, in words
    scale: Scale = "number"  # of the values

    @property
    def sites(self) -> list[str]:
        return list(dict.fromkeys(self.table.site))


def summarise_sites(explanations: Mapping[str, Explanation], unit: str = "row") -> ExplanationSummary:
    """By name, so that the order tells nothing. `unit`: what one explained row is, in words."""
    large = {s: e for s, e in sorted(explanations.items()) if len(e) >= LEAST_ROWS}
    rows = [(s, *cells) for s, e in large.items() for cells in _of_site(e)]
    first = next(iter(explanations.values()), None)
    about = (first.measure, unit, first.moved, first.scale) if first else ("", unit)
    return ExplanationSummary(pd.DataFrame(rows, columns=COLUMNS), sorted(explanations.keys() - large.keys()), *about)


def _of_site(e: Explanation) -> list[tuple[str, float, float, float, str, str]]:
    by_feature, out = {r["feature"]: r for r in e.importance()}, []
    for i, name in enumerate(e.feature_names):
        if (e.values[:, i] != 0).sum() < LEAST_OTHERS:
            out.append((name, np.nan, np.nan, np.nan, "", ""))
        else:
            r = by_feature[name]
            out.append((name, r["size"], r["low"], r["high"], r["sign"], r["moves"]))
    return out

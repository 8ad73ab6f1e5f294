"""Whose data does not fit, before the first round: from what sites publish by consent.

Three legs, the same for all sites, each a dict of float64 arrays whose names and shapes are known before (`parts`):

    sketch    a site -> how many rows, levels and missing values; quantiles of numbers
    counts    asked: the pooled cuts.  A site -> rows below each cut, its stand-out value, ties with the outcome; and
              (a total, of which nobody sees a single part) the products of all columns
    ties      asked: the totals.  A site takes its own part out of them, predicts its outcomes by the others' rows, and
              says how well that went; and its ties between related columns

`ScreeningSite` is the site's side, `ScreeningCoordinator` the coordinator's; `screen` runs both in one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.core.loading import lazy_names

if TYPE_CHECKING:
    from vitrail.quality.screening.coordinator import ScreeningCoordinator, screen
    from vitrail.quality.screening.pooled_reference import compare_with_pooled
    from vitrail.quality.screening.result import CAUSES, LABEL, Finding, Screening, ScreeningTensor
    from vitrail.quality.screening.schema import Said, budget, parts
    from vitrail.quality.screening.site import ScreeningSite
else:
    _NAMES = {
        "coordinator": "ScreeningCoordinator screen",
        "pooled_reference": "compare_with_pooled",
        "result": "CAUSES LABEL Finding Screening ScreeningTensor",
        "schema": "Said budget parts",
        "site": "ScreeningSite",
    }
    __getattr__ = lazy_names(
        __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}
    )

__all__ = [
    "CAUSES",
    "LABEL",
    "Finding",
    "Said",
    "Screening",
    "ScreeningCoordinator",
    "ScreeningSite",
    "ScreeningTensor",
    "budget",
    "compare_with_pooled",
    "parts",
    "screen",
]

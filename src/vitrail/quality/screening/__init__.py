"""Whose data does not fit, before the first round: from what sites publish by consent.

Three legs, the same for all sites, each a dict of float64 arrays whose names and shapes are known before (`parts`):

    sketch    a site -> how many rows, levels and missing values; quantiles of numbers
    counts    asked: the pooled cuts.  A site -> rows below each cut, its stand-out value, ties with the outcome; and
              (a total, of which nobody sees a single part) the products of all columns
    ties      asked: the totals.  A site takes its own part out of them, predicts its outcomes by the others' rows, and
              says how well that went; and its ties between related columns

`ScreeningSite` is the site's side, `ScreeningCoordinator` the coordinator's; `screen` runs both in one process.
"""

from vitrail.quality.screening.coordinator import ScreeningCoordinator, screen
from vitrail.quality.screening.pooled_reference import compare_with_pooled
from vitrail.quality.screening.result import CAUSES, LABEL, Finding, Screening, ScreeningTensor
from vitrail.quality.screening.schema import Said, budget, parts
from vitrail.quality.screening.site import ScreeningSite

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

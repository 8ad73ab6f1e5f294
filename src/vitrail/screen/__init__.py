"""Whose data does not fit, before the first round: from what sites publish by consent.

Three legs, the same for all sites, each a dict of float64 arrays whose names and shapes are known before (`parts`):

    sketch    a site -> how many rows, levels and missing values; quantiles of numbers
    counts    asked: the pooled cuts.  A site -> rows below each cut, its stand-out value, ties with the outcome; and
              (a total, of which nobody sees a single part) the products of all columns
    ties      asked: the totals.  A site takes its own part out of them, predicts its outcomes by the others' rows, and
              says how well that went; and its ties between related columns

`Seat` is the site's side, `Desk` the coordinator's; `screen` runs both in one process.
"""

from vitrail.screen.against import against
from vitrail.screen.desk import Desk, screen
from vitrail.screen.found import CAUSES, LABEL, Finding, Part, Screening
from vitrail.screen.layout import Said, budget, parts
from vitrail.screen.seat import Seat

__all__ = [
    "CAUSES",
    "LABEL",
    "Desk",
    "Finding",
    "Part",
    "Said",
    "Screening",
    "Seat",
    "against",
    "budget",
    "parts",
    "screen",
]

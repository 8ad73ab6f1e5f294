"""What a risk is worth as a test, from counts of rows by risk (metrics/calibration.py): the ROC curve, the area under
it with its interval, and the table of hits and mistakes at a threshold.

    ROC curve  over all thresholds at which a group begins: sensitivity, the share of the rows with the event whose risk
               is at the threshold or above, over 1 - specificity, that share of the rows without it
    area       the chance that a row with the event lies in a higher group than one without; the same group counts half
    interval   95 %: DeLong, DeLong and Clarke-Pearson's variance (1988), on the scale of the logit. Where it is 0, as
               where the risk tells all rows apart, the interval is Wilson's of as many rows as the rarer kind has
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vitrail.metrics.calibration import Floats, RiskCounts

Z = 1.959964
NEAR = 1e-9  # two thresholds that are the same


class Confusion(NamedTuple):
    """Rows by whether they had the event, and whether their risk was at the threshold or above."""

    hits: float  # with the event, at or above
    misses: float  # with the event, below
    alarms: float  # without, at or above
    rests: float  # without, below

    @property
    def sensitivity(self) -> tuple[float, float]:
        """So many of so many, as all of these shares."""
        return self.hits, self.hits + self.misses

    @property
    def specificity(self) -> tuple[float, float]:
        return self.rests, self.rests + self.alarms

    @property
    def positive_value(self) -> tuple[float, float]:
        return self.hits, self.hits + self.alarms

    @property
    def negative_value(self) -> tuple[float, float]:
        return self.rests, self.rests + self.misses


def confusion_at(counts: RiskCounts, threshold: float) -> Confusion | None:
    """None where no group begins at that risk, so that nobody can say how many rows lie above it."""
    at = np.flatnonzero(np.abs(counts.low - threshold) < NEAR)
    if not len(at):
        return None
    events, others = counts.events, counts.rows - counts.events
    above, below = slice(at[0], None), slice(0, at[0])
    return Confusion(*(float(part.sum()) for part in (events[above], events[below], others[above], others[below])))


def roc_points(counts: RiskCounts) -> tuple[Floats, Floats]:
    """1 - specificity and sensitivity, from no row above the threshold to all; NaN where all rows are of one kind."""
    events, others = counts.events, counts.rows - counts.events
    with np.errstate(invalid="ignore"):
        rates = [np.append(0.0, part[::-1].cumsum()) / part.sum() for part in (others, events)]
    return np.asarray(rates[0]), np.asarray(rates[1])


def roc_area(counts: RiskCounts) -> tuple[float, float, float]:
    """The area under the curve and its interval; NaN where all rows are of one kind."""
    events, others = counts.events, counts.rows - counts.events
    many, rest = float(events.sum()), float(others.sum())
    if not many or not rest:
        return math.nan, math.nan, math.nan
    beaten = (others.cumsum() - others / 2) / rest  # [group]: the chance that a row with the event beats one without
    beats = (events[::-1].cumsum()[::-1] - events / 2) / many
    area = float((events * beaten).sum() / many)
    variance = _spread(beaten, events) / many + _spread(beats, others) / rest
    if variance <= 0:
        return area, *_wilson(area, min(many, rest))
    error = math.sqrt(variance) / (area * (1 - area))
    middle = math.log(area / (1 - area))
    low, high = (1 / (1 + math.exp(-(middle + side * Z * error))) for side in (-1, 1))
    return area, low, high


def _spread(values: Floats, rows: Floats) -> float:
    """The variance of values that so many rows have each; 0 of a single row."""
    total = rows.sum()
    if total <= 1:
        return 0.0
    mean = (values * rows).sum() / total
    return float((rows * (values - mean) ** 2).sum() / (total - 1))


def _wilson(share: float, rows: float) -> tuple[float, float]:
    middle, wide = share + Z**2 / (2 * rows), Z * math.sqrt(share * (1 - share) / rows + Z**2 / (4 * rows**2))
    return (middle - wide) / (1 + Z**2 / rows), (middle + wide) / (1 + Z**2 / rows)

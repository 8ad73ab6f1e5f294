"""What the shared model takes a site's values for.

The site's encoder makes z = (x - mean) / sd of a value x, and the site's private layer hands (z + b) w to the shared
network. The average other site, with b' and w', would have to hold
    z' = (z + b) w / w' - b'        x' = mean + sd z'
for the network to get the same. Only published layers are used for b' and w', never another site's values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.data.schema import Feature

Floats = NDArray[np.float64]
OFF = 0.05  # a layer that multiplies by less switches the feature off
NOBODY = "No other site published its layers, so that there is nothing to hold this against."
SWITCHED_OFF = "The other sites' layers all but switch this column off: no value of theirs would be read like these."


class InputLayers(NamedTuple):
    """Input layers: this site's own, and the mean of those that the others published."""

    b: Floats  # [column]
    w: Floats
    others_b: Floats
    others_w: Floats
    others: int  # how many published


def read_number(
    feature: Feature, at: int, ends: InputLayers | None, mean: float, sd: float, values: pd.Series
) -> tuple[str, float | None, float]:
    """In words; and the line x' = factor x + start, in the column's unit (no factor: there is no picture)."""
    if values.isna().all():
        return "No value was measured here, so that there is nothing to read.", None, 0.0
    if ends is None:
        return NOBODY, None, 0.0
    if abs(ends.others_w[at]) < OFF:
        return SWITCHED_OFF, None, 0.0
    factor = float(ends.w[at] / ends.others_w[at])
    start = mean * (1 - factor) + float(sd * (ends.b[at] * factor - ends.others_b[at]))
    middle = float(values.mean())
    shift = factor * middle + start - middle
    unit = f" {feature.unit}" if feature.unit else ""
    if abs(factor - 1) < 0.02 and abs(shift) < 0.02 * sd:
        return f"{_who(ends, start=True)} would read these values as this site does.", factor, start
    words = f"The federation treats it as a shift of {shift:+.3g}{unit} and a factor of {factor:.2g}"
    return f"{words} around this site's mean of {middle:.4g}{unit}, against {_who(ends)}.", factor, start


def read_levels(
    feature: Feature, at: list[int], ends: InputLayers | None
) -> tuple[str, tuple[tuple[float, float], ...]]:
    """In words; and what each level counts as where it is, and where it is not (binary: its 1 and its 0). NaN of a
    reference level, which comes first and has no column: `at` are the columns of the others."""
    if ends is None:
        return NOBODY, ()
    if (np.abs(ends.others_w[at]) < OFF).any():
        return SWITCHED_OFF, ()
    factor = ends.w[at] / ends.others_w[at]
    low = ends.b[at] * factor - ends.others_b[at]
    read = [(float(b + f), float(b)) for b, f in zip(low, factor, strict=True)]
    if feature.kind == "binary":
        (one, zero), (no, yes) = read[0], feature.levels
        words = f"Against {_who(ends)}, the federation counts {no} as {zero:.2f} (not 0) and {yes} as {one:.2f}"
        return f"{words} (not 1).", ((zero, math.nan), (one, math.nan))
    references = len(feature.levels) - len(at)
    far = int(np.abs(factor - 1).argmax())
    level = feature.levels[references + far]
    words = f"Against {_who(ends)}, the federation weighs {level} most differently: times"
    return f"{words} {factor[far]:.2f}.", (*[(math.nan, math.nan)] * references, *read)


def _who(ends: InputLayers, start: bool = False) -> str:
    text = "the one other site that published" if ends.others == 1 else f"the average of {ends.others} other sites"
    return text[:1].upper() + text[1:] if start else text

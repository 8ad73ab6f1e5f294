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
NOBODY = "No other site published its layers, so there is nothing to compare with."
SWITCHED_OFF = "The other sites' layers nearly switch this column off, so no value of theirs corresponds to these."


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
        return "No value was measured here, so there is nothing to compare.", None, 0.0
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
    words = f"Compared with {_who(ends)}, the shared model shifts these values by {shift:+.3g}{unit} and scales them by"
    return f"{words} {factor:.2g} around this site's mean of {middle:.4g}{unit}.", factor, start


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
        words = f"Compared with {_who(ends)}, the shared model counts {no} as {zero:.2f} instead of 0 and {yes} as"
        return f"{words} {one:.2f} instead of 1.", ((zero, math.nan), (one, math.nan))
    references = len(feature.levels) - len(at)
    far = int(np.abs(factor - 1).argmax())
    level = feature.levels[references + far]
    words = f"Compared with {_who(ends)}, the shared model weights {level} most differently: by a factor of"
    return f"{words} {factor[far]:.2f}.", (*[(math.nan, math.nan)] * references, *read)


def _who(ends: InputLayers, start: bool = False) -> str:
    text = (
        "the only other site that published its layers"
        if ends.others == 1
        else f"the average of {ends.others} other sites"
    )
    return text[:1].upper() + text[1:] if start else text

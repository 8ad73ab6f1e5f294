"""Numbers that stand for "not measured": a heap of one value where no measured value would be."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitrail.data.schema import Feature
from vitrail.data.units import choose_conversions, is_outside

CODES = (0, -1, -9, -99, -999, -9999, 99, 999, 9999, 888, 8888)  # what people type for "not measured"


def spot_codes(values: pd.Series, name: str, feature: Feature) -> list[float]:
    """The codes in this column."""
    distinct, times = np.unique(values.dropna().to_numpy(), return_counts=True)  # a third of what value_counts holds
    counts = pd.Series(times, index=distinct)
    outside = is_outside(counts.index.to_series(), feature).to_numpy()
    usual, heights = counts.index.isin(CODES), counts.to_numpy()
    likely = usual.copy()
    for part in (np.full(len(counts), True), outside):  # and the highest heap: of all, and of those outside
        highest = part & ~usual & (heights == heights[part].max(initial=0))
        likely |= highest & (highest.sum() == 1)  # of several, each has a rival as high
    candidates = [float(code) for code in counts.index[likely & (heights > 1)]]
    candidates.sort(
        key=lambda code: (-counts[code], (values == code).to_numpy().argmax())
    )  # as often, then as they come
    codes = [code for code in candidates if _is_code(code, counts, len(values), feature)]
    return [code for code in codes if code in CODES or not _converts(code, name, feature)]


def _converts(value: float, name: str, feature: Feature) -> bool:
    """A measured value in another unit can repeat as well."""
    low, high = feature.range or (np.inf, -np.inf)
    return any(low <= c.convert(value) <= high for c in choose_conversions(name, feature))


def _is_code(code: float, counts: pd.Series, rows: int, feature: Feature) -> bool:
    low, high = feature.range or (-np.inf, np.inf)
    count, rest = counts[code], counts[~counts.index.isin([*CODES, code])]
    heap = not len(rest) or count >= 3 * rest.max()
    spread = np.subtract(*np.quantile(rest.index, [0.75, 0.25])) if len(rest) else 0.0
    apart = not len(rest) or np.abs(rest.index.to_numpy() - code).min() > spread / 2
    if not low <= code <= high:
        rivals = rest[is_outside(rest.index.to_series(), feature).to_numpy()]
        lonely = not len(rivals) or count >= 3 * rivals.max()
        if code in CODES:  # -1 lies next to 0, and a high heap may touch the rest
            return bool(lonely and (apart or heap or code < 0 <= low))
        return bool(lonely and apart and count >= max(3, 0.01 * rows))
    if feature.range and (code == 0 or not len(rest)):
        return False  # by the study's own words this is a value: a heap of 0 is natural for counts
    continuous, often = len(rest) >= 10 or not len(rest), code in CODES or count >= 0.3 * rows
    return bool(count >= 3 and heap and apart and continuous and often)

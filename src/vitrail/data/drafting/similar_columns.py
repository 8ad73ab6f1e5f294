"""Columns of different sites that may be one under two names: the names are alike, and so are the values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from vitrail.data.column_names import fold, is_like_name
from vitrail.data.drafting.column import concat, find_levels
from vitrail.data.drafting.numbers import usual_bounds
from vitrail.data.readers.cells import as_numbers

SHARED = 0.5  # of the categories of the column that has fewer
COMPARED = 200  # columns of some sites only that are held against each other, at most


def may_be_same(columns: Mapping[str, Mapping[str, pd.Series]]) -> list[tuple[str, str]]:
    """Pairs of columns (by name, each site's cells) that no site has both of; each column is in one pair at most."""
    pairs, taken = list[tuple[str, str]](), set[str]()
    names = list(columns)[:COMPARED]
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            alone = not set(columns[name]) & set(columns[other])
            if not {name, other} & taken and alone and is_like_name(name, other):
                cells = [concat(list(columns[n].values())) for n in (name, other)]
                if _are_alike(*cells):
                    pairs.append((name, other))
                    taken |= {name, other}
    return pairs


def _are_alike(one: pd.Series, two: pd.Series) -> bool:
    """Numbers whose usual value would be a usual one in the other column as well, or categories that they share."""
    (a, bad_a), (b, bad_b) = as_numbers(one), as_numbers(two)
    if bad_a.any() or bad_b.any():
        levels = [{fold(str(level)) for level in find_levels(cells)} for cells in (one, two)]
        return len(levels[0] & levels[1]) >= SHARED * min(map(len, levels)) > 0
    pair = [values.dropna().to_numpy(np.float64) for values in (a, b)]
    if not all(map(len, pair)):
        return False
    bounds = [usual_bounds(values) for values in pair]
    middles = [float(np.median(values)) for values in pair]
    return all(low <= middle <= high for (low, high), middle in zip(bounds, reversed(middles), strict=True))

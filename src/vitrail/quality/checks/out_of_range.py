"""New rows unlike any that the study agreed on: outside a column's range, or with a category that nobody named."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.readers.cells import find_values
from vitrail.data.readers.tables import place_columns
from vitrail.data.schema import TableSchema
from vitrail.data.units import is_outside

OUTSIDE = "outside"  # the column beside the predictions
LISTED = 3  # unknown categories of a column that are named


class OutOfRange(NamedTuple):
    """Which columns of each row lie outside ("" where none does), and a sentence for each such column."""

    columns: pd.Series
    notes: list[str]

    @property
    def rows(self) -> int:
        return int((self.columns != "").sum())


def find_strange(frame: pd.DataFrame, table: TableSchema) -> OutOfRange:
    """Of raw rows. Columns that are missing, or there twice, are told where they are read."""
    places, repeated = place_columns(frame, table)
    named, notes = np.full(len(frame), "", dtype=object), list[str]()
    for name, feature in table.features.items():
        if name not in places or name in repeated:
            continue
        cells = frame.iloc[:, places[name]]
        values = pd.Series(find_values(cells, feature), index=frame.index)
        if feature.kind == "numeric":
            which = (is_outside(values, feature) & np.isfinite(values)).to_numpy()
            low, high = feature.range or (-np.inf, np.inf)
            words = f"outside {low:g} to {high:g} {feature.unit}".rstrip()
        else:
            which = np.isinf(values.to_numpy())
            unknown = [str(cell) for cell in pd.unique(cells[which])]
            words = f"not one of its categories ({', '.join(unknown[:LISTED])}{', ...' * (len(unknown) > LISTED)})"
        if which.any():
            named[which] = [f"{before}; {name}" if before else name for before in named[which]]
            notes.append(f"{name} is {words} in {which.sum()} of {len(frame)} rows")
    return OutOfRange(pd.Series(named, index=frame.index), notes)


def empty_unknown(frame: pd.DataFrame, table: TableSchema) -> pd.DataFrame:
    """The same rows with unknown categories read as missing: a model has learned nothing about them."""
    places, repeated = place_columns(frame, table)
    out = frame
    for name, feature in table.features.items():
        if feature.kind != "numeric" and name in places and name not in repeated:
            unknown = np.isinf(find_values(frame.iloc[:, places[name]], feature))
            if unknown.any():
                out = frame.copy() if out is frame else out
                out.isetitem(places[name], out.iloc[:, places[name]].astype(object).mask(unknown, None).to_numpy())
    return out

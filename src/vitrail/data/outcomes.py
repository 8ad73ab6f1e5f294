"""Columns that are no features: how long a row was followed, and for how many it stands."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.persons import key_problems
from vitrail.data.schema import Feature, TableSchema
from vitrail.metrics.survival import in_days, in_intervals


def with_outcome_columns(table: TableSchema) -> TableSchema:
    """The table as it is read: times and weights are numbers beside the features."""
    plain = table.plain
    if not table.weight_column:
        return plain
    stands = {table.weight_column: Feature(kind="numeric")}
    return plain.model_copy(update={"features": {**plain.features, **stands}})


def fold_outcome(rows: pd.DataFrame, table: TableSchema, file: str) -> pd.DataFrame:
    """Rows as they were read -> as a model sees them: of a time to an event its column holds the one number that
    metrics/survival.py describes; rows without a time are dropped."""
    target, stands, problems = table.target, table.weight_column, key_problems(rows, table, file)
    if target.kind == "time":
        time = rows[target.time].to_numpy()
        if bad := int((time < 0).sum()):
            what = f"expected times of at least 0, but {bad} of {len(rows)} are below."
            problems.append(Problem(f"{file}, column {target.time}", what, "Correct or empty them."))
    if stands:
        weight = rows[stands].to_numpy()
        if bad := int((~(weight > 0)).sum()):
            what = (
                f"expected a weight above 0 in every row, the number of people it stands for, but {bad} of "
                f"{len(rows)} have none."
            )
            problems.append(Problem(f"{file}, column {stands}", what, "Correct them."))
    if problems:
        raise VitrailError(f"{file} does not fit the study", problems)
    if target.kind == "time":
        happened = rows[target.column].to_numpy() == 1
        outcome = np.where(np.isnan(time), np.nan, in_intervals(np.nan_to_num(time), happened, target.ends))
        rows = rows.drop(columns=target.time).assign(**{target.column: outcome})
        rows = rows[~np.isnan(outcome)]
    return rows


def as_plain(rows: pd.DataFrame, table: TableSchema) -> pd.DataFrame:
    """Rows of `clean` -> one column each for `TableSchema.plain`: whether the event was seen until the horizon, and how
    long the row was followed."""
    target = table.target
    if target.kind != "time":
        return rows
    y = rows[target.column].to_numpy()
    return rows.assign(**{target.time: in_days(y, target.ends), target.column: (y > 0).astype(np.int64)})


def weights_of(rows: pd.DataFrame, table: TableSchema) -> np.ndarray | None:
    """[row]: for how many each stands, where the study says so."""
    return rows[table.weight_column].to_numpy(np.float64) if table.weight_column else None

"""Who each prediction is of: a column of the new rows, written beside what the model says and used for nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.readers.tables import place_columns
from vitrail.study.model import Study


def name_rows_by(column: str, frame: pd.DataFrame, study: Study) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """What writes the column in front of a table of predictions; a mistake in its name is told before any is made."""
    if not column:
        return lambda predictions: predictions
    places, repeated = place_columns(frame, study)
    if column not in places or column in repeated:
        what = f"expected one column {column!r}, but there is {'none' if column not in places else 'more than one'}."
        raise VitrailError("cannot predict", [Problem("--id", what, nearest(column, places))])
    if column in (*study.features, study.target.column):
        what = f"{column!r} is {'a feature' if column in study.features else 'the target'} of the study."
        raise VitrailError(
            "cannot predict", [Problem("--id", what, "Name a column that identifies the person of each row.")]
        )
    ids = frame.iloc[:, places[column]]

    def name(predictions: pd.DataFrame) -> pd.DataFrame:
        heading = column
        while heading in predictions.columns:  # a class may be called so
            heading += "_"
        predictions = predictions.copy()
        predictions.insert(0, heading, ids.loc[predictions.index].to_numpy())
        return predictions

    return name

"""What a site adds to the sums of a common scale under masks."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitrail.core.errors import SumRefused
from vitrail.data.encoding import numeric
from vitrail.privacy.secure_sum.limbs import exact_sums, to_limbs
from vitrail.privacy.secure_sum.spec import Values
from vitrail.study.model import Study


def scale_values(rows: pd.DataFrame, study: Study) -> Values:
    """Of the rows that a site trains with, for each numeric column."""
    columns = [rows[name].to_numpy(dtype=np.float64) for name in numeric(study)]
    columns = [column[~np.isnan(column)] for column in columns]
    try:
        sums = [exact_sums(column) for column in columns]
        limbs = [to_limbs(numbers) for numbers in zip(*sums, strict=True)]
    except OverflowError:
        what = "the values of a column are infinite, or too large to be added up."
        raise SumRefused("columns", what, "Nothing was sent.") from None
    return {"rows": np.array([float(len(column)) for column in columns]), "total": limbs[0], "squares": limbs[1]}

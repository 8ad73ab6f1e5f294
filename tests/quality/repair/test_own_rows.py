"""Of a drafted study ranges are extremes of the tables as they were, faults and all: a repair is not refused because
a value or two then lie just outside."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.quality.repair.own_rows import own_cause
from vitrail.quality.screening.result import Finding

ROWS = 200


@pytest.mark.parametrize(("below", "repaired"), [(0, True), (1, True), (4, True), (10, False)])
def test_a_few_values_may_leave_the_range(below: int, repaired: bool) -> None:
    values = np.linspace(0.5, 2.5, ROWS)
    values[:below] = 0.3  # mg/dL; the other sites' smallest is 0.45
    table = TableSchema(
        target=Target(column="died", classes=("no", "yes")),
        features={"creatinine": Feature(kind="numeric", range=(0.45, 250.0))},
    )
    frame = pd.DataFrame({"creatinine": values * 88.4, "died": ["no", "yes"] * (ROWS // 2)})
    finding = Finding("west", "creatinine", "unit", True, 5.0, "", {"factor": 1 / 88.4})
    cause, repair = own_cause(finding, frame, table)
    assert (repair is not None) is repaired, cause.numbers
    assert f"0 before, {below} after" in cause.numbers

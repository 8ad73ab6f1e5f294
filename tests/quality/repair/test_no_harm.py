"""No repair that is proposed empties, turns or moves sound values, whatever the fault was."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.support.planted import SITE, PlantedFault, kinds, planted
from vitrail.data.readers.cells import as_described
from vitrail.quality.repair.own_rows import own_cause
from vitrail.quality.repair.plan import plan
from vitrail.quality.screening.result import LABEL

MAY = 0.02  # of the sound values


def values(frame: pd.DataFrame, fault: PlantedFault, column: str) -> pd.Series:
    table = fault.table
    what = table.target if column == table.target.column else table.features[column]
    return as_described(frame[column], what)[0].astype(float)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("kind", kinds())
def test_no_repair_harms_sound_values(kind: str, alike: bool) -> None:
    fault = planted(kind, alike, seed=0 if alike else 1)
    if fault is None:
        pytest.skip("it cannot be planted in this federation")
    for finding in fault.screening.wrong:
        if finding.site != SITE:
            continue
        cause, repair = own_cause(finding, fault.file, fault.table, fault.screening.pooled)
        if repair is None:
            continue
        assert "before and" in cause.numbers, "before and after against the others"
        now = plan([repair], fault.file, fault.table)[1]
        for column in filter(None, (repair.column, repair.other)):
            was, is_now = values(fault.file, fault, column), values(now, fault, column)
            true = fault.before[column].astype(float).set_axis(was.index)
            near = 0.25 * float(true.std())
            sound = (was == true) | (was.isna() & true.isna())
            off = (is_now - true).abs() > near
            harmed = sound & true.notna() & (off | is_now.isna())
            assert harmed.sum() <= MAY * len(true), f"{column}: {repair.words()}"


def test_repairs_are_proposed_at_all() -> None:
    """The positive control: units, offsets, codes, swaps, flips and recodings are repaired, and come out true."""
    for kind in ("unit", "offset", "code", "swap", "recode", "label flip"):
        fault = planted(kind)
        assert fault is not None
        feature = LABEL if fault.columns[0] == fault.table.target.column else fault.columns[0]
        (finding, *_) = [f for f in fault.screening.wrong if (f.site, f.feature) == (SITE, feature)]
        repair = own_cause(finding, fault.file, fault.table, fault.screening.pooled)[1]
        assert repair is not None, kind
        now = values(plan([repair], fault.file, fault.table)[1], fault, fault.columns[0])
        true = fault.before[fault.columns[0]].astype(float).set_axis(now.index)
        left = now.notna()
        assert np.abs(now - true)[left].mean() < 0.15 * true.std(), kind


def test_a_repair_that_does_not_bring_the_column_closer_is_not_proposed() -> None:
    """A coordinator who sends a made-up cause has no sound value changed."""
    fault = planted("unit")
    assert fault is not None
    believed, sound = 0, next(n for n in ("pulse", "age") if n not in fault.columns)
    for kind, numbers in (
        ("unit", {"factor": 0.1}),
        ("offset", {"offset": -40.0}),
        ("sign", {"offset": 150.0}),
        ("code", {"code": float(fault.before[sound].mode().iloc[0])}),
        ("swapped", {"other": "sugar"}),
    ):
        lie = fault.screening.wrong[0]._replace(site=SITE, feature=sound, kind=kind, numbers=numbers)
        cause, repair = own_cause(lie, fault.file, fault.table, fault.screening.pooled)
        assert repair is None, kind
        assert "would not bring the column closer" in cause.numbers or "does not show it" in cause.numbers
        believed += own_cause(lie, fault.file, fault.table)[1] is not None
    assert believed >= 2, "the positive control: without the others' numbers some would be proposed"

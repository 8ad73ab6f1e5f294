"""Blocks that were pasted over other rows are told by the site itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.screened import draw
from vitrail.data.findings import CheckFinding
from vitrail.quality.checks.pasted_rows import find_block
from vitrail.quality.checks.table import find_faults

STUDY = vt.Study.infer({"a": draw(200, 1), "b": draw(200, 2)}, "y")


def pasted(frame: pd.DataFrame) -> list[CheckFinding]:
    return [f for f in find_faults(frame, STUDY) if f.kind == "pasted_rows"]


def test_a_block_of_one_column() -> None:
    frame = draw(200, 3)
    assert not pasted(frame)
    frame.loc[100:119, "pulse"] = frame.loc[20:39, "pulse"].to_numpy()
    (found,) = pasted(frame)
    assert (found.column, found.count, found.rows[0]) == ("pulse", 20, 100)


def test_a_block_of_rows_with_another_number_in_front() -> None:
    """Whole rows that repeat are told as such; where one column differs, the block is."""
    frame = draw(200, 3)
    frame.loc[100:119] = frame.loc[20:39].to_numpy()
    assert not pasted(frame)
    assert [f.count for f in find_faults(frame, STUDY) if f.kind == "duplicate_rows"] == [20]
    frame["smoker"] = 0
    frame.loc[::3, "smoker"] = 1
    (found,) = [f for f in pasted(frame) if not f.column]
    assert found.count == 20


def test_no_block_by_chance_or_by_design() -> None:
    """200 tables without a fault, sorted or not; and visits that are numbered anew for each patient."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = np.round(rng.normal(75, 12, 300), int(rng.integers(0, 2)))
        assert find_block(x) is None
        assert find_block(np.sort(x)) is None
    assert find_block(np.tile(np.arange(20.0), 30)) is None
    assert find_block(np.repeat(rng.normal(size=40), 10)) is None
    assert find_block(np.full(100, 3.0)) is None


@pytest.mark.parametrize("rows", [0, 5, 11])
def test_few_rows_tell_nothing(rows: int) -> None:
    assert find_block(np.arange(float(rows))) is None

"""Large tables: numbers are kept as numbers, and nothing else about the table changes, wherever a batch ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitrail.data import gather
from vitrail.data.cells import as_numbers
from vitrail.data.read import clean, read_table
from vitrail.data.schema import Feature, Table, Target

TABLE = Table(
    target=Target(column="y", classes=(0, 1)),
    features={
        "x": Feature(kind="numeric", missing=("unknown", -9)),
        "z": Feature(kind="categorical", categories=(1, 2)),
    },
)
ODD = (
    "1 -3 0 2.50 0.10 1e5 -0.0 -0 007 +4 1,5 1.234,5 NA nan unknown -9 inf 12345678901234567 0.12345678901234567 x 1_0"
)
CELLS = st.sampled_from(["", " 7 ", *ODD.split()])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(CELLS, min_size=1, max_size=12), kind=st.sampled_from(["mixed", "whole", "fixed", "exact"]))
def test_same_values_wherever_a_batch_ends(tmp_path: Path, cells: list[str], kind: str) -> None:
    if kind != "mixed":
        numbers = np.random.default_rng(len(cells)).normal(0, 50, 30)
        cells = [f"{v:.0f}" if kind == "whole" else f"{v:.3f}" if kind == "fixed" else repr(float(v)) for v in numbers]
        cells[3] = ""
    path = tmp_path / "a.csv"
    path.write_text("id,x,z,y\n" + "".join(f'{i},"{c}",{i % 2 + 1},{i % 2}\n' for i, c in enumerate(cells)))
    small, few = read_table(path), read_table(path, TABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "BATCH", 8)  # two rows
        large, read = read_table(path), read_table(path, TABLE)
    assert large.index.equals(small.index)
    assert list(large.columns) == list(small.columns)
    for one, two in ((small, large), (few, read)):
        for found, wanted in zip(as_numbers(two.x), as_numbers(one.x), strict=True):
            np.testing.assert_array_equal(found.to_numpy(), wanted.to_numpy())
    if large.x.dtype == object:  # then it is the text as it was
        assert large.x.tolist() == small.x.tolist()
    assert read.id.map(str).tolist() == few.id.tolist()
    assert read.z.tolist() == few.z.tolist()
    if not as_numbers(few.x)[1].any():
        pd.testing.assert_frame_equal(clean(read, TABLE), clean(few, TABLE))


def test_numbers_of_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of the memory; and of a column that the study does not know, only whole numbers."""
    monkeypatch.setattr(gather, "BATCH", 40)
    rows = pd.DataFrame({"pid": range(100, 150), "code": [f"{i:03d}" for i in range(50)], "x": np.arange(50) / 7})
    rows["z"], rows["y"], rows["late"] = 1 + rows.pid % 2, rows.pid % 2, [*["5"] * 49, "five"]
    rows.to_csv(tmp_path / "a.csv", index=False)
    rows.to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        kinds = read_table(tmp_path / name, TABLE).dtypes.map(str).to_dict()
        assert kinds == {
            "pid": "int64",
            "code": "object",
            "x": "float64",
            "z": "object",
            "y": "object",
            "late": "object",
        }
        frame = read_table(tmp_path / name, TABLE)
        assert frame.late.tolist() == rows.late.tolist()
        assert frame.code.tolist() == rows.code.tolist()
        assert frame.x.tolist() == rows.x.tolist()

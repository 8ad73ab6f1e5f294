"""Large tables: numbers are kept as numbers, and nothing else about the table changes, wherever a batch ends."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitrail.core.errors import VitrailError
from vitrail.data.readers import column_buffer, delimited_text
from vitrail.data.readers.cells import as_numbers
from vitrail.data.readers.tables import clean, read_table
from vitrail.data.schema import Feature, TableSchema, Target

TABLE = TableSchema(
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
        patch.setattr(column_buffer, "BATCH", 8)  # two rows
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
    monkeypatch.setattr(column_buffer, "BATCH", 40)
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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("encoding", "extra"), [("utf-8", ""), ("utf-8-sig", ""), ("cp1252", ""), ("utf-16", ""), ("utf-8", "\x1a")]
)
def test_a_large_file_is_read_line_by_line_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, encoding: str, extra: str
) -> None:
    rows = "".join(f'{i};"a\r\nb";{i / 7};{"é" if i == 400 else ""}\r\n' for i in range(500))
    raw = ("id;note;x;ö\r\n" + rows + extra).encode(encoding)
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    small = read_table(path)
    monkeypatch.setattr(delimited_text, "LARGE", 8)
    monkeypatch.setattr(delimited_text, "CHUNK", 100)
    monkeypatch.setattr("vitrail.data.readers.tables.load_bytes", lambda path: pytest.fail("it was read whole"))
    pd.testing.assert_frame_equal(read_table(path), small)
    assert small["ö"].dropna().tolist() == ["é"]
    assert small.index[:3].tolist() == [2, 4, 6]  # a quoted cell has two lines


def test_a_large_file_that_is_no_text_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited_text, "LARGE", 8)
    monkeypatch.setattr(delimited_text, "CHUNK", 10)
    path = tmp_path / "a.csv"
    for late in ("1,2\x00,3\n", "\x1a1,2\n"):
        path.write_text("x,y\n" + "1,2\n" * 20 + late)
        with pytest.raises(VitrailError, match="binary data"):
            read_table(path)
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(("x,y\n" + "1,2\n" * 2000).encode())[:-9])
    with pytest.raises(VitrailError, match="cannot be read"):
        read_table(packed)


def test_numbers_stay_numbers_where_the_last_batch_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_buffer, "BATCH", 4)
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2.5\n" * 4)
    assert read_table(tmp_path / "a.csv").dtypes.map(str).tolist() == ["float64", "float64"]


def test_columns_of_numbers_lie_in_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wide table an array for each column would cost more than it holds; text is put beside it, not copied in."""
    monkeypatch.setattr(column_buffer, "BATCH", 400)
    wide = pd.DataFrame(np.arange(2000.0).reshape(20, 100) / 8, columns=[f"c{i}" for i in range(100)])
    wide.insert(3, "word", ["x", "y"] * 10)
    wide["c7"] = wide["c7"].map(repr)
    wide.loc[15, "c7"] = "many"  # text, from a later batch on
    wide.to_csv(tmp_path / "a.csv", index=False)
    read = read_table(tmp_path / "a.csv")
    assert list(read.columns) == list(wide.columns)
    assert read.c7.tolist() == wide.c7.tolist()
    assert read.word.tolist() == wide.word.tolist()
    rest = [n for n in wide.columns if n not in ("word", "c7")]
    np.testing.assert_array_equal(read[rest].to_numpy(), wide[rest].to_numpy())
    assert read["c0"].to_numpy().base is read["c99"].to_numpy().base is not None

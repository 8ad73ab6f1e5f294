"""Files of SAS, SPSS and Stata: cells as they are written there, with the words that stand for codes (value labels)
where every code has one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.errors import VitrailError
from vitrail.data.readers.column_buffer import ColumnBuffer, as_written
from vitrail.data.readers.delimited_text import refuse_file
from vitrail.data.readers.source import tell
from vitrail.data.readers.sql import need
from vitrail.data.schema import TableSchema, canon
from vitrail.storage.temporary_folders import TemporaryFolder

Labels = Mapping[str, Mapping[Any, str]]  # column -> code -> what it means
SHOWN = 4  # labels of a column that are told
PROGRAMS = {"sas7bdat": "SAS", "xpt": "SAS transport", "sav": "SPSS", "zsav": "SPSS", "dta": "Stata"}


def read_labelled(path: Path, raw: bytes, ending: str, table: TableSchema | None) -> tuple[list[str], ColumnBuffer]:
    """Header and cells; the value labels that were used, or not, are told."""
    ending = ending.lower()
    try:
        frame, labels = _load(path, raw, ending)
    except VitrailError:
        raise
    except Exception as error:  # the decoder may raise anything on a damaged file, and none of it is ours
        what = f"expected a file of {PROGRAMS[ending]}, got something else or part of one ({type(error).__name__})."
        raise refuse_file(path, what, "Export it again, or as CSV.") from None
    header = [str(name).strip() for name in frame.columns]
    words = {name: _words_for(frame.iloc[:, i], labels.get(str(frame.columns[i]), {}), header[i], table)
             for i, name in enumerate(header)}  # fmt: skip
    _tell_labels(path, {n: labels[n] for n in map(str, frame.columns) if labels.get(n)}, words)
    out = ColumnBuffer(len(header))
    step = max(1, out.room)
    for at in range(0, len(frame), step):
        some = frame.iloc[at : at + step]
        columns = [_written(some.iloc[:, i], words[name]) for i, name in enumerate(header)]
        out.add_columns(columns, range(at + 2, at + 2 + len(some)))
    return header, out


def _load(path: Path, raw: bytes, ending: str) -> tuple[pd.DataFrame, Labels]:
    if ending == "dta":
        with pd.read_stata(io.BytesIO(raw), iterator=True, convert_categoricals=False) as reader:
            frame = reader.read()  # type: ignore[attr-defined]  # pandas-stubs lack it
            sets = reader.value_labels()  # by the name of the set; most programs call it as the column
            used = dict(zip(frame.columns, getattr(reader, "_lbllist", []), strict=False))
            return frame, {str(name): sets[label] for name, label in used.items() if label in sets}
    if ending in ("sas7bdat", "xpt"):
        options = {"format": "sas7bdat", "encoding": "infer"} if ending == "sas7bdat" else {"format": "xport"}
        frame = pd.read_sas(io.BytesIO(raw), **({"encoding": "utf-8"} | options))  # type: ignore[call-overload]
        return frame, {}
    spss = need("pyreadstat", path)
    with TemporaryFolder() as folder:  # it reads files alone; here none but this user can
        place = folder.path / f"table.{ending}"
        place.write_bytes(raw)
        frame, about = spss.read_sav(str(place))
    return frame, about.variable_value_labels


def _words_for(column: pd.Series, labels: Mapping[Any, str], name: str, table: TableSchema | None) -> dict[str, str]:
    """By code what a cell is to say instead: nothing, unless every code that occurs has words, and the study, where it
    knows the column, does not have the codes themselves."""
    words = {canon(code): str(text).strip() for code, text in labels.items()}
    there = {canon(value) for value in column.dropna().unique()}
    if not words or not there <= words.keys() or len({words[code] for code in there}) < len(there):
        return {}
    feature = table.features.get(name) if table else None
    if table and name == table.target.column:
        levels, numbers = table.target.levels, table.target.kind == "number"
    else:
        levels, numbers = feature.levels if feature else (), feature is not None and feature.kind == "numeric"
    return {} if numbers or there & set(levels) else words


def _written(column: pd.Series, words: Mapping[str, str]) -> list[Any]:
    if words:
        return [None if pd.isna(v) else words[canon(v)] for v in column.tolist()]
    if column.dtype == np.float32:  # 1.1 is what a person typed, not 1.10000002384
        return [None if v != v else as_written(float(str(v))) for v in column.to_numpy()]
    return [as_written(v) for v in column.tolist()]


def _tell_labels(path: Path, labels: Labels, words: Mapping[str, Mapping[str, str]]) -> None:
    for name, texts in labels.items():
        some = ", ".join(f"{canon(code)} = {text}" for code, text in list(texts.items())[:SHOWN])
        some += ", ..." * (len(texts) > SHOWN)
        how = "the labels were read" if words.get(name.strip()) else "the codes were read, not the labels"
        tell(f"{path.name}, column {name}: value labels ({some}); {how}.")

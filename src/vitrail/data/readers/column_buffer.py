"""Cells as they are read, batch by batch: text, as everything here expects. Of a large table, columns of numbers are
kept as numbers, an eighth of the memory; only where each text can be written again from its number, so that what comes
later in the column may still make it text."""

from __future__ import annotations

import mmap
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.readers.cells import MISSING_WORDS, NUMBER
from vitrail.data.schema import TableSchema, UnreadTableSchema, canon

BATCH = 250_000  # cells that are looked at together; a table of no more is text throughout
# the text of columns, a line for each cell: each can be written again from its number and how many digits it has; ++,
# for a way back, of which there is none, would be kept for every cell
_PLAIN = re.compile(r"(?:-?[1-9][0-9]{0,14}\n|-?(?:0|[1-9][0-9]{0,6})\.[0-9]{1,8}\n|0\n|\n)++", re.ASCII)
MANY = 64  # columns that are put among the numbers one by one
Texts = list[str | None]


class NumberCells(NamedTuple):
    """A batch's cells of one column, and how many digits each has behind the point: 0 whole, -1 as many as needed."""

    values: np.ndarray
    digits: int

    def write(self) -> Texts:
        if self.digits < 0:
            return [None if v != v else repr(v) for v in self.values.tolist()]
        return [None if v != v else f"{v:.{self.digits}f}" for v in self.values.tolist()]


def settle(cells: Sequence[Any], absent: frozenset[str] = MISSING_WORDS) -> Texts:
    """Stripped text, None for missing; equal texts are one object."""
    texts = [cell if type(cell) is str else "" if cell is None else str(cell) for cell in cells]
    settled = {t: None if t.strip().casefold() in absent else t.strip() for t in set(texts)}
    return [settled[t] for t in texts]


def absent_words(name: str, table: TableSchema | None) -> frozenset[str]:
    """Words for "missing", except those that the study uses as a category of this column. Before there is a study only
    an empty cell is missing."""
    if isinstance(table, UnreadTableSchema) and name != table.site_column:
        return frozenset({""})
    levels = table.target.states if table and name == table.target.column else ()
    levels += table.features[name].levels if table and name in table.features else ()
    return MISSING_WORDS - {level.casefold() for level in levels} if levels else MISSING_WORDS


class CellBatch(NamedTuple):
    """Rows of all columns. Numbers of many columns lie together: of a wide table each would cost more than it holds."""

    rows: int
    at: np.ndarray  # columns of numbers, ascending
    values: np.ndarray  # [column of numbers, row]
    digits: np.ndarray  # [column of numbers]
    texts: dict[int, Texts]

    def piece(self, column: int) -> NumberCells | Texts:
        if column in self.texts:
            return self.texts[column]
        place = int(np.searchsorted(self.at, column))
        return NumberCells(self.values[place].copy(), int(self.digits[place]))


class ColumnBuffer:
    """A table's cells by column; rows may be added until they are taken."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = array("q")
        self._open: list[list[Any]] = [[] for _ in range(width)]  # cells as they came, of the batch not yet closed
        self._closed: list[CellBatch] = []
        self._numbers = list(range(width))  # columns that may still be numbers

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def room(self) -> int:
        """Rows until the next batch."""
        return BATCH // max(self.width, 1) - (len(self._open[0]) if self._open else 0)

    def add(self, rows: Sequence[Sequence[Any]], lines: Iterable[int]) -> None:
        self.add_columns(zip(*rows, strict=True), lines)

    def add_columns(self, columns: Iterable[Sequence[Any]], lines: Iterable[int]) -> None:
        self.lines.extend(lines)
        for column, cells in zip(self._open, columns, strict=False):
            column.extend(cells)
        if self.room <= 0:
            self._close()

    def _close(self) -> None:
        cells, self._open = self._open, [[] for _ in range(self.width)]
        rows = len(cells[0]) if cells else 0
        if not rows:
            return
        several = _plain_numbers([cells[i] for i in self._numbers]) if self._closed else None
        if several is None:
            numbers = {i: n for i in self._numbers if (n := _to_numbers(cells[i])) is not None}
            self._numbers = list(numbers)
            values = np.array([n.values for n in numbers.values()]).reshape(len(numbers), rows)
            several = values, np.array([n.digits for n in numbers.values()], np.int8)
        several = _lent(several[0]), several[1]
        texts = {i: settle(cells[i], frozenset()) for i in set(range(self.width)).difference(self._numbers)}
        self._closed.append(CellBatch(rows, np.array(self._numbers, np.int64), *several, texts))

    def frame(self, header: Sequence[str], table: TableSchema | None) -> pd.DataFrame:
        """Takes the cells: afterwards nothing is left here."""
        index = pd.Index(np.frombuffer(self.lines, np.int64))
        if not self._closed:
            cells = {n: settle(c, absent_words(n, table)) for n, c in zip(header, self._open, strict=True)}
            return pd.DataFrame(cells, index=index, dtype=object)
        self._close()
        of_numbers = np.array([i for i in self._numbers if _may_be_numbers(header[i], table)], np.int64)
        others: dict[int, list[NumberCells | Texts]] = {
            i: [] for i in sorted({*range(self.width)} - {*of_numbers.tolist()})
        }
        block, at = np.empty((len(of_numbers), len(index))), 0  # [column of numbers, row]
        while self._closed:
            batch = self._closed.pop(0)
            block[:, at : at + batch.rows] = batch.values[np.searchsorted(batch.at, of_numbers)]
            for column, pieces in others.items():
                pieces.append(batch.piece(column))
            at += batch.rows
        frame = pd.DataFrame(block.T, index, [header[i] for i in of_numbers.tolist()], copy=False)
        rest = {i: _join(others.pop(i), header[i], table).set_axis(index) for i in list(others)}
        if len(rest) > MANY:
            named = pd.DataFrame({header[i]: column for i, column in rest.items()}, index=index)
            return pd.concat([frame, named], axis=1)[list(header)]
        for i, texts in rest.items():  # in their places, one by one: the block of numbers is not copied
            frame.insert(i, header[i], texts)
        return frame


def _join(batches: list[NumberCells | Texts], name: str, table: TableSchema | None) -> pd.Series:
    """All batches of a column: text, but whole numbers of which the study knows nothing (who a row is of) stay so."""
    is_used = table is None or name in (table.target.column, table.site_column) or name in table.features
    if not is_used and all(
        isinstance(b, NumberCells) and b.digits == 0 and not np.isnan(b.values).any() for b in batches
    ):
        return pd.Series(np.concatenate([b.values for b in batches if isinstance(b, NumberCells)]).astype(np.int64))
    texts = [text or "" for b in batches for text in (b.write() if isinstance(b, NumberCells) else b)]
    return pd.Series(settle(texts, absent_words(name, table)), dtype=object)


def _may_be_numbers(name: str, table: TableSchema | None) -> bool:
    """Columns that the study takes for numbers; without a study, all. Others may be codes, of which spelling counts."""
    if table is None or (not table.features and not table.target.classes):
        return True
    described = table.target if name == table.target.column else table.features.get(name)
    return described is not None and described.kind in ("numeric", "number")


def _to_numbers(cells: list[Any]) -> NumberCells | None:
    """The cells as numbers from which each of them can be written again; None where they are something else."""
    if any(type(cell) is not str for cell in cells):
        return _typed_numbers(cells)
    plain = _plain_numbers([cells])
    return (
        _exact_numbers([text.strip() for text in cells])
        if plain is None
        else NumberCells(plain[0][0], int(plain[1][0]))
    )


def _plain_numbers(columns: list[list[Any]]) -> tuple[np.ndarray, np.ndarray] | None:
    """[column, row] and the digits of each column, where every cell is written plainly, and all of a column alike."""
    if any(type(cell) is not str for column in columns for cell in column):
        return None
    tidy = [text.strip() for column in columns for text in column]
    if not _PLAIN.fullmatch("\n".join(tidy) + "\n"):
        return None
    behind = [len(text) - 1 - text.find(".") if "." in text else 0 if text else -1 for text in tidy]
    digits = np.array(behind, np.int8).reshape(len(columns), -1)
    most = digits.max(1).clip(min=0)
    even = ((digits == most[:, None]) | (digits < 0)).all()
    return (_floats(tidy).reshape(digits.shape), most) if even else None


def _exact_numbers(tidy: list[str]) -> NumberCells | None:
    try:
        values = _floats(tidy)
    except ValueError:
        return None
    cells = NumberCells(values, -1)
    return cells if cells.write() == [text or None for text in tidy] and not np.isinf(values).any() else None


def _lent(values: np.ndarray) -> np.ndarray:
    """A copy in memory of its own, which the system has back at once when it is let go: what is freed among others
    stays with the process, and a table would be there twice."""
    if not values.size:
        return values
    out = np.frombuffer(mmap.mmap(-1, values.nbytes), values.dtype).reshape(values.shape)
    out[:] = values
    return out


def _floats(tidy: list[str]) -> np.ndarray:
    return np.array([float(text) if text else np.nan for text in tidy])


def _typed_numbers(cells: list[Any]) -> NumberCells | None:
    kinds = {type(cell) for cell in cells} - {type(None)}
    if len(kinds) != 1 or not kinds <= {int, float}:
        return None
    if kinds == {int} and any(cell is not None and abs(cell) >= 1 << 53 for cell in cells):
        return None
    values = np.array([np.nan if cell is None else float(cell) for cell in cells])
    return None if np.isinf(values).any() else NumberCells(values, 0 if kinds == {int} else -1)


def as_written(cell: Any) -> Any:
    """A typed cell as a person would write it: whole numbers without a point, midnight without an hour.

    >>> import datetime
    >>> as_written(63.0), as_written(0.5), as_written(datetime.datetime(2020, 1, 31)), as_written("x")
    ('63', '0.5', '2020-01-31', 'x')
    """
    if cell is None or type(cell) is str:
        return cell
    if cell is pd.NaT or cell is pd.NA or cell != cell:
        return None
    if hasattr(cell, "hour") and hasattr(cell, "year"):
        text = str(cell)
        return text.removesuffix(" 00:00:00")
    return canon(cell) if isinstance(cell, NUMBER) else str(cell)

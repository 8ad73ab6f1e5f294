"""Cells as they are read, batch by batch: text, as everything here expects. Of a large table, columns of numbers are
kept as numbers, an eighth of the memory; only where each text can be written again from its number, so that what comes
later in the column may still make it text."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.cells import MISSING_WORDS, NUMBER
from vitrail.data.schema import Table, canon

BATCH = 2_000_000  # cells that are looked at together; a table of no more is text throughout
_WHOLE = re.compile(r"(?:-?[1-9][0-9]{0,14}\n|0\n|\n)+", re.ASCII)  # the text of a column, a line for each cell
_FIXED = [re.compile(rf"(?:-?(?:0|[1-9][0-9]{{0,6}})\.[0-9]{{{digits}}}\n|\n)+", re.ASCII) for digits in range(1, 9)]
Texts = list[str | None]


class Numbers(NamedTuple):
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


def absent_words(name: str, table: Table | None) -> frozenset[str]:
    """Words for "missing", except those that the study uses as a category of this column."""
    levels = table.target.states if table and name == table.target.column else ()
    levels += table.features[name].levels if table and name in table.features else ()
    return MISSING_WORDS - {level.casefold() for level in levels} if levels else MISSING_WORDS


class Gathered:
    """A table's cells by column; rows may be added until they are taken."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = array("q")
        self._open: list[list[Any]] = [[] for _ in range(width)]  # cells as they came, of the batch not yet closed
        self._closed: list[list[Numbers | Texts]] = []  # batches of columns
        self._numbers = [True] * width  # whether a column may still be numbers

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
        batch: list[Numbers | Texts] = []
        for i, cells in enumerate(self._open):
            found = _to_numbers(cells) if self._numbers[i] else None
            if found is None:
                self._numbers[i] = False
            batch.append(settle(cells, frozenset()) if found is None else found)
        self._closed.append(batch)
        self._open = [[] for _ in range(self.width)]

    def frame(self, header: Sequence[str], table: Table | None) -> pd.DataFrame:
        """Takes the cells: afterwards nothing is left here."""
        index = pd.Index(np.array(self.lines, np.int64))
        if not self._closed:
            cells = {n: settle(c, absent_words(n, table)) for n, c in zip(header, self._open, strict=True)}
            return pd.DataFrame(cells, index=index, dtype=object)
        self._close()
        kept = [number and _may_be_numbers(name, table) for name, number in zip(header, self._numbers, strict=True)]
        block = np.empty((sum(kept), len(index)))  # [column of numbers, row]
        others: dict[str, list[Numbers | Texts]] = {}
        at = 0
        while self._closed:
            batch, row = self._closed.pop(0), 0
            past = at + len(batch[0].values if isinstance(batch[0], Numbers) else batch[0])
            for name, number, piece in zip(header, kept, batch, strict=True):
                if number and isinstance(piece, Numbers):
                    block[row, at:past] = piece.values
                    row += 1
                else:
                    others.setdefault(name, []).append(piece)
            at = past
        frame = pd.DataFrame(block.T, index, [n for n, number in zip(header, kept, strict=True) if number], copy=False)
        if not others:
            return frame
        rest = {name: _join(others.pop(name), name, table).set_axis(index) for name in list(others)}
        return pd.concat([frame, pd.DataFrame(rest, index=index)], axis=1)[list(header)]


def _join(batches: list[Numbers | Texts], name: str, table: Table | None) -> pd.Series:
    """All batches of a column: text, but whole numbers of which the study knows nothing (who a row is of) stay so."""
    known = table is None or name in (table.target.column, table.site_column) or name in table.features
    if not known and all(isinstance(b, Numbers) and b.digits == 0 and not np.isnan(b.values).any() for b in batches):
        return pd.Series(np.concatenate([b.values for b in batches if isinstance(b, Numbers)]).astype(np.int64))
    texts = [text or "" for b in batches for text in (b.write() if isinstance(b, Numbers) else b)]
    return pd.Series(settle(texts, absent_words(name, table)), dtype=object)


def _may_be_numbers(name: str, table: Table | None) -> bool:
    """Columns that the study takes for numbers; without a study, all. Others may be codes, of which spelling counts."""
    if table is None or (not table.features and not table.target.classes):
        return True
    known = table.target if name == table.target.column else table.features.get(name)
    return known is not None and known.kind in ("numeric", "number")


def _to_numbers(cells: list[Any]) -> Numbers | None:
    """The cells as numbers from which each of them can be written again; None where they are something else."""
    if any(type(cell) is not str for cell in cells):
        return _typed_numbers(cells)
    tidy = [text.strip() for text in cells]
    lines = "\n".join(tidy) + "\n"
    if _WHOLE.fullmatch(lines):
        return Numbers(_floats(tidy), 0)
    first = next(text for text in tidy if text)
    digits = len(first) - first.find(".") - 1
    if 1 <= digits <= len(_FIXED) and _FIXED[digits - 1].fullmatch(lines):
        return Numbers(_floats(tidy), digits)
    return _exact_numbers(tidy)


def _exact_numbers(tidy: list[str]) -> Numbers | None:
    try:
        values = _floats(tidy)
    except ValueError:
        return None
    found = Numbers(values, -1)
    return found if found.write() == [text or None for text in tidy] and not np.isinf(values).any() else None


def _floats(tidy: list[str]) -> np.ndarray:
    return np.array([float(text) if text else np.nan for text in tidy])


def _typed_numbers(cells: list[Any]) -> Numbers | None:
    kinds = {type(cell) for cell in cells} - {type(None)}
    if len(kinds) != 1 or not kinds <= {int, float}:
        return None
    if kinds == {int} and any(cell is not None and abs(cell) >= 1 << 53 for cell in cells):
        return None
    values = np.array([np.nan if cell is None else float(cell) for cell in cells])
    return None if np.isinf(values).any() else Numbers(values, 0 if kinds == {int} else -1)


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

"""A site's table, written again with a few cells changed. Of a text table everything else stays as it stands in the
file; what has types, or is in a database, is written as CSV."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from vitrail.data.outcomes import with_outcome_columns
from vitrail.data.readers.cells import has_decimal_comma
from vitrail.data.readers.delimited_text import TextFile, decode, lines_of, load_bytes, read_records, sniff
from vitrail.data.readers.source import ENDING, Query, to_place
from vitrail.data.readers.tables import place_columns, read_table
from vitrail.data.schema import TableSchema

Changes = Mapping[str, Mapping[int, str]]  # column -> the row's line -> what the cell says instead


class TableFile(NamedTuple):
    """The file as it is written, and the frame that `read_table` makes of it."""

    path: Path
    frame: pd.DataFrame
    whole: TextFile
    delimiter: str

    def comma(self, column: str) -> bool:
        """Whether a number in this column is written with a decimal comma; where it has none, as the rest of the file
        does."""
        own = has_decimal_comma(self.frame[column])
        if own is not None:
            return own
        others = [has_decimal_comma(cells) for _, cells in self.frame.items()]
        return sum(o is True for o in others) > sum(o is False for o in others)

    def with_cells(self, changes: Changes) -> bytes:
        """The file's bytes with these cells changed, unpacked; cells keep their quotes and the spaces around them."""
        lines, at = lines_of(self.whole.text), place_columns(self.frame)[0]
        touched = {line for cells in changes.values() for line in cells}
        for record in read_records(self.path, list(lines), self.delimiter):
            if record.line not in touched:
                continue
            span = slice(record.line - 1, record.past - 1)
            pieces, end = split_cells("".join(lines[span]), self.delimiter)
            assert len(pieces) == len(record.cells)
            for column, cells in changes.items():
                if record.line in cells:
                    pieces[at[column]] = _replace(pieces[at[column]], cells[record.line], self.delimiter)
            lines[span] = [self.delimiter.join(pieces) + end] + [""] * (record.past - record.line - 1)
        return self.whole.encode("".join(lines))


def load_sheet(path: Path, table: TableSchema) -> TableFile:
    """A file that is no text becomes CSV with the same cells in the same lines: a correction may change a type."""
    path = to_place(path)
    frame = read_table(path, table)
    if not is_text(path):
        return TableFile(Path(f"{as_csv(path).name}"), frame, TextFile(_to_csv(frame), "utf-8", b"", ""), ",")
    whole = decode(path, load_bytes(path))
    names = {table.target.column, table.site_column, *with_outcome_columns(table).features}
    return TableFile(path, frame, whole, sniff(whole.text, names))


def is_text(path: Path) -> bool:
    ending = ENDING.search(path.name)
    return not isinstance(path, Query) and not (ending and not ending["text"])


def as_csv(path: Path, more: str = "") -> Path:
    """The name of a copy: as the file's own where it is text, else .csv."""
    if isinstance(path, Query):
        return Path(f"{path.name.partition(',')[0].replace('.', '_')}{more}.csv")
    ending = ENDING.search(path.name)
    return path.with_name(f"{ENDING.sub('', path.name)}{more}{ending[0] if ending and is_text(path) else '.csv'}")


def _to_csv(frame: pd.DataFrame) -> str:
    """Each row in the line that its index says; lines without a row are empty."""
    out = io.StringIO()
    writer, line = csv.writer(out, lineterminator="\n"), 1
    writer.writerow(frame.columns)
    for at, row in zip(frame.index.tolist(), frame.astype(object).itertuples(index=False), strict=True):
        out.write("\n" * (at - line - 1))
        writer.writerow([_one_line(cell) for cell in row])
        line = at
    return out.getvalue()


def _one_line(cell: object) -> str:
    return "" if cell is None or cell != cell else re.sub(r"[\r\n]+", " ", str(cell))


def pack(raw: bytes, path: Path) -> bytes:
    """As a file of this name holds them."""
    return gzip.compress(raw, mtime=0) if path.name.casefold().endswith(".gz") else raw


def split_cells(raw: str, delimiter: str) -> tuple[list[str], str]:
    r"""A row's pieces as they are written, and its end.

    >>> split_cells('1; "a;b" ;2,5\r\n', ";")
    (['1', ' "a;b" ', '2,5'], '\r\n')
    """
    field = re.compile(rf' *"(?:[^"]|"")*"[^{re.escape(delimiter)}\r\n]*|[^{re.escape(delimiter)}\r\n]*')
    pieces, at = [], 0
    while match := field.match(raw, at):
        pieces.append(match.group())
        at = match.end()
        if raw[at : at + 1] != delimiter:
            break
        at += 1
    return pieces, raw[at:]


def _replace(piece: str, text: str, delimiter: str) -> str:
    core = piece.strip(" ")
    before, _, after = piece.partition(core) if core else (piece, "", "")
    if core.startswith('"') or any(mark in text for mark in (delimiter, '"', "\r", "\n")):
        text = '"' + text.replace('"', '""') + '"'
    return before + text + after

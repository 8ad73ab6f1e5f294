"""Excel workbooks: one sheet as a table, its cells as a person sees them there."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

from vitrail.core.errors import nearest
from vitrail.data.readers.column_buffer import ColumnBuffer, as_written
from vitrail.data.readers.delimited_text import refuse_file
from vitrail.data.readers.source import tell
from vitrail.data.readers.sql import need

OLD_OR_LOCKED = b"\xd0\xcf\x11\xe0"  # how files of the old Excel begin, and those with a password
NOT_THERE = ("#N/A", "#NULL!")


def read_book(path: Path, raw: bytes, sheet: str | None) -> tuple[list[str], ColumnBuffer]:
    """The sheet of this name, or the first that is not hidden; its first row with something in it is the header."""
    excel = need("openpyxl", path)
    if raw.startswith(OLD_OR_LOCKED):
        what = "expected an Excel workbook, got one with a password or in the old format (.xls)."
        raise refuse_file(path, what, "Save it as .xlsx without a password, or export it as CSV.")
    try:
        book = excel.load_workbook(io.BytesIO(raw), read_only=True, data_only=True)
        name = _choose(path, book, sheet)
        cells, numbers = _cells(book[name])
    except Exception as error:  # the decoder may raise anything on a damaged file, and none of it is ours
        if type(error).__name__ == "VitrailError":
            raise
        what = f"expected an Excel workbook, got something else or part of one ({type(error).__name__})."
        raise refuse_file(path, what, "Save it again as .xlsx, or export it as CSV.") from None
    if not cells:
        raise refuse_file(path, f"expected a table, but the sheet {name!r} is empty.", "Name another: FILE.xlsx#SHEET.")
    _require_values(path, raw, name, cells, numbers, excel)
    width = max(max((i for i, c in enumerate(row) if c is not None), default=-1) for row in cells) + 1
    header = ["" if c is None else str(c).strip() for c in _fill(cells[0], width)]
    out = ColumnBuffer(width)
    for row, number in zip(cells[1:], numbers[1:], strict=True):
        out.add([_fill(row, width)], [number])
    return header, out


def _choose(path: Path, book: Any, sheet: str | None) -> str:
    shown = [s.title for s in book.worksheets if s.sheet_state == "visible"]
    if sheet is not None and sheet not in book.sheetnames:
        raise refuse_file(path, f"there is no sheet {sheet!r}.", nearest(sheet, book.sheetnames))
    if sheet is None and not shown:
        raise refuse_file(path, "expected a visible sheet, but all are hidden.", "Name one: FILE.xlsx#SHEET.")
    if sheet is None and len(shown) > 1:
        rest = ", ".join(map(repr, shown[1:4])) + (", ..." if len(shown) > 4 else "")
        tell(f"{path.name}: the sheet {shown[0]!r} was read; not read: {rest}. To read another: {path.name}#SHEET.")
    return sheet or str(shown[0])


def _cells(sheet: Any) -> tuple[list[list[Any]], list[int]]:
    """Rows with something in them, and their numbers in the sheet."""
    rows, numbers = [], []
    for number, row in enumerate(sheet.iter_rows(), 1):
        cells = [_seen(cell) for cell in row]
        if any(cell is not None and str(cell).strip() for cell in cells):
            rows.append(cells)
            numbers.append(number)
    return rows, numbers


def _seen(cell: Any) -> Any:
    """What a person sees in it: 15 digits of a number, as Excel shows; zeros in front where the format has them."""
    value = cell.value
    if isinstance(value, float):
        return as_written(float(f"{value:.15g}"))
    if type(value) is int:
        form = cell.number_format or ""
        return f"{value:0{len(form)}d}" if re.fullmatch("0{2,}", form) else str(value)
    return None if value in NOT_THERE else "TRUE" if value is True else "FALSE" if value is False else as_written(value)


def _fill(row: list[Any], width: int) -> list[Any]:
    return [*row, *[None] * (width - len(row))][:width]


def _require_values(path: Path, raw: bytes, name: str, cells: list[list[Any]], numbers: list[int], excel: Any) -> None:
    """A program may write a formula without its value: then nothing is there to be read, though Excel would show it."""
    with zipfile.ZipFile(io.BytesIO(raw)) as packed:
        sheets = [n for n in packed.namelist() if n.startswith("xl/worksheets/") and n.endswith(".xml")]
        if not any(re.search(rb"<f[ >/]", packed.read(n)) for n in sheets):
            return
    row_cells = dict(zip(numbers, cells, strict=True))
    lost = []
    for row in excel.load_workbook(io.BytesIO(raw), read_only=True)[name].iter_rows():
        for at, cell in enumerate(row):
            if cell.data_type == "f":
                there = row_cells.get(cell.row, [])
                lost += [cell.coordinate] if at >= len(there) or there[at] is None else []
    if lost:
        some = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        what = f"expected values, got formulas without any ({some})."
        raise refuse_file(path, what, "Open it in Excel and save it, so that they are computed.")

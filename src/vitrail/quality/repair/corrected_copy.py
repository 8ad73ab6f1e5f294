"""A corrected copy of a site's file, and a note beside it that says what, why, when and on whose word."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import fingerprint_rows
from vitrail.data.readers.source import ENDING
from vitrail.data.readers.tables import clean, parse_table
from vitrail.data.schema import TableSchema
from vitrail.quality.repair.plan import ColumnChange, plan
from vitrail.quality.repair.remedies import Repair
from vitrail.quality.repair.table_writer import is_text, load_sheet, pack
from vitrail.quality.screening.result import CAUSES

SHOWN = 5  # rows, as examples


class CorrectedCopy(NamedTuple):
    """What a copy would hold, and how it differs from the file; nothing of it is written yet."""

    file: Path
    raw: bytes
    changes: list[ColumnChange]
    prints: dict[str, tuple[str, str]]  # of what -> fingerprint before and after


def correct(path: Path, table: TableSchema, repairs: Sequence[Repair]) -> CorrectedCopy:
    sheet = load_sheet(path, table)
    changes, meant = plan(repairs, sheet.frame, table, sheet.comma)
    cells = {c.column: dict(zip(c.after.index.tolist(), c.after.tolist(), strict=True)) for c in changes}
    raw = sheet.with_cells(cells)
    back = parse_table(sheet.path, raw, table)
    if not _same(back, meant):  # a file so strange that a cell cannot be replaced alone
        what = "the corrected copy would be read back with other values than intended."
        raise VitrailError("cannot repair", [Problem(str(path), what, "Export the table again as plain CSV.")])
    old = sheet.whole.encode(sheet.whole.text)
    what = "the file (SHA-256)" if is_text(path) else "the table as CSV (SHA-256)"
    prints = {what: (hashlib.sha256(old).hexdigest(), hashlib.sha256(raw).hexdigest())}
    prints["the rows as the study reads them"] = (_rows_print(sheet.frame, table), _rows_print(back, table))
    return CorrectedCopy(path, raw, changes, prints)


def _same(one: pd.DataFrame, two: pd.DataFrame) -> bool:
    alike = list(one.columns) == list(two.columns) and one.index.equals(two.index)
    return alike and np.array_equal(one.fillna("").to_numpy(str), two.fillna("").to_numpy(str))


def _rows_print(frame: pd.DataFrame, table: TableSchema) -> str:
    try:
        return fingerprint_rows(clean(frame, table))
    except VitrailError:
        return "none: `vitrail check` says what else does not fit"


def to_text(copy: CorrectedCopy) -> str:
    """What would change, for a terminal."""
    lines = []
    for change in copy.changes:
        lines.append(f"{change.column}: {CAUSES[change.repair.cause]}. Repair: {change.repair.words()}")
        lines.append(f"  {change.numbers}")
        lines += ["  This makes the column fit the study worse than before."] * change.worse
        lines += [f"  row {row}: {a} -> {b}" for row, a, b in _examples(change)]
        lines += [f"  and {len(change.after) - SHOWN} more"] * (len(change.after) > SHOWN)
    return "\n".join(lines)


def _examples(change: ColumnChange) -> list[tuple[int, str, str]]:
    pairs = zip(change.before.index[:SHOWN], change.before, change.after, strict=False)
    return [(int(row), _plain(a), _plain(b)) for row, a, b in pairs]


def _plain(cell: object, most: int = 60) -> str:
    """A cell on one line, without characters that a terminal or Markdown would obey."""
    text = "" if cell is None or cell != cell else str(cell)
    return "".join(c if c.isprintable() and c not in "`|" else "?" for c in text)[:most] or "(empty)"


def write_copy(
    copy: CorrectedCopy, path: Path, word: str, why: str = "", now: datetime | None = None
) -> tuple[Path, Path]:
    """The copy and its note; never over anything that is there, and both or neither."""
    note = path.with_name(f"{ENDING.sub('', path.name)}.note.md")
    problems = [Problem(str(p), "the file exists already.", "Choose another name for --write.") for p in (path, note)
                if p.exists() or p.is_symlink()]  # fmt: skip
    if not ENDING.search(path.name) or not is_text(path):
        problems.append(
            Problem(
                str(path),
                "expected the name of a text file, because the table is one.",
                "Choose a name that ends in .csv, like the table's.",
            )
        )
    if problems:
        raise VitrailError("nothing was written", problems)
    when = (now or datetime.now().astimezone()).isoformat(timespec="seconds")
    content = {path: pack(copy.raw, path), note: _note(copy, path, word, why, when).encode()}
    made: list[Path] = []
    try:
        for place, raw in content.items():
            with place.open("xb") as file:
                made.append(place)
                file.write(raw)
    except OSError as error:
        for place in made:
            place.unlink(missing_ok=True)
        what = f"it cannot be written: {error.strerror}."
        raise VitrailError(
            "nothing was written", [Problem(str(place), what, "Choose another name for --write.")]
        ) from None
    return path, note


def _note(copy: CorrectedCopy, path: Path, word: str, why: str, when: str) -> str:
    lines = [
        f"# Correction of `{_plain(copy.file.name)}`",
        "",
        f"- Copy: `{_plain(path.name)}`. The file itself was not touched.",
        f"- When: {when}",
        f"- Confirmed by: {_plain(word)}",
        *([f"- Why: {_plain(why, 500)}"] if why else []),
        f"- Made by: vitrail repair, version {version('vitrail')}",
        "",
        "| fingerprint of | before | after |",
        "|---|---|---|",
        *(f"| {what} | `{a}` | `{b}` |" for what, (a, b) in copy.prints.items()),
    ]
    for change in copy.changes:
        lines += ["", f"## `{_plain(change.column)}`: {CAUSES[change.repair.cause]}", ""]
        lines += [f"- Repair: {_plain(change.repair.words())}", f"- {change.numbers}", f"- Rows: {_spans(change)}", ""]
        lines += ["| row | before | after |", "|---|---|---|"]
        lines += [f"| {row} | `{a}` | `{b}` |" for row, a, b in _examples(change)]
    return "\n".join(lines) + "\n"


def _spans(change: ColumnChange) -> str:
    """All rows that changed: 2-7, 9, 12-40."""
    rows = np.sort(change.after.index.to_numpy())
    parts = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)

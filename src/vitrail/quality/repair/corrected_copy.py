"""A corrected copy of a site's file, and a note beside it that says what, why, when and on whose word."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import fingerprint_rows
from vitrail.data.readers.source import ENDING
from vitrail.data.readers.tables import clean, parse_table
from vitrail.data.schema import TableSchema
from vitrail.quality.repair.closeness import compare
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
    closeness: dict[str, str] = {}  # noqa: RUF012  column -> distance from the other sites, before and after


def correct(
    path: Path, table: TableSchema, repairs: Sequence[Repair], pooled: Mapping[str, Any] | None = None
) -> CorrectedCopy:
    """`pooled`: what all sites published; a repair that does not bring its column closer to it is refused."""
    sheet = load_sheet(path, table)
    changes, meant = plan(repairs, sheet.frame, table, sheet.comma)
    closeness = _closer(changes, sheet.frame, meant, table, pooled) if pooled else {}
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
    return CorrectedCopy(path, raw, changes, prints, closeness)


def _closer(
    changes: Sequence[ColumnChange],
    frame: pd.DataFrame,
    meant: pd.DataFrame,
    table: TableSchema,
    pooled: Mapping[str, Any],
) -> dict[str, str]:
    out, problems = dict[str, str](), list[Problem]()
    for change in changes:
        columns = [change.column, *([change.repair.other] if change.repair.other else [])]
        distance = compare(columns, frame, meant, table, pooled)
        if distance is None:
            continue
        out[change.column] = distance.words
        if not distance.closer(change.repair.cause):
            shown = distance.words or "nothing can be compared"
            what = f"it would not bring the column closer to the other sites: {shown}."
            hint = "To repair it all the same, name the study file in place of the run's folder."
            problems.append(Problem(f"column {change.column}", what, hint))
    if problems:
        raise VitrailError("this repair is refused", problems)
    return out


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
        if words := copy.closeness.get(change.column, ""):
            lines.append(f"  {words[:1].upper()}{words[1:]}.")
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
        lines += [f"- Repair: {_plain(change.repair.words())}", f"- {change.numbers}", f"- Rows: {_spans(change)}"]
        lines += [f"- {words}"] if (words := copy.closeness.get(change.column, "")) else []
        lines += [""]
        lines += ["| row | before | after |", "|---|---|---|"]
        lines += [f"| {row} | `{a}` | `{b}` |" for row, a, b in _examples(change)]
    return "\n".join(lines) + "\n"


def _spans(change: ColumnChange) -> str:
    """All rows that changed: 2-7, 9, 12-40."""
    rows = np.sort(change.after.index.to_numpy())
    parts = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)

"""Looking at a site's table before anything is trained on it: what is wrong, where, and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.findings import CheckFinding
from vitrail.data.outcomes import with_outcome_columns
from vitrail.data.readers.cells import LazyColumns, find_values
from vitrail.data.readers.image_files import read_pictures
from vitrail.data.readers.tables import clean, name_rows, place_columns, read_table
from vitrail.data.repeated_persons import REPEATED, find_repeated_persons
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.quality.checks.columns import CHECKS, ParsedTable
from vitrail.quality.checks.duplicate_sites import find_twins
from vitrail.quality.checks.images import find_picture_faults, find_shared_pictures
from vitrail.quality.checks.outcomes import find_outcome_faults
from vitrail.quality.checks.pasted_rows import find_pasted_rows


def find_faults(frame: pd.DataFrame, table: TableSchema) -> list[CheckFinding]:
    """Everything worth saying about this table or these pictures, errors first."""
    if table.images:
        return _errors_first(find_picture_faults(frame, table))
    own, table, original = table, with_outcome_columns(table), frame
    frame = frame.reset_index(drop=True)  # labels may repeat, positions do not
    places, repeated = place_columns(frame, table)
    wanted: dict[str, Feature | Target] = {**table.features, table.target.column: table.target}
    row_of = {name: i for i, name in enumerate(name for name in wanted if name in places)}
    cells = np.empty((len(row_of), len(frame)))  # of wide tables a series for each column would weigh more than cells
    for name, i in row_of.items():
        cells[i] = find_values(frame.iloc[:, places[name]], wanted[name])
    seen = ParsedTable(
        table,
        original.index,
        LazyColumns(places, lambda name: frame.iloc[:, places[name]]),
        repeated,
        LazyColumns(
            row_of, lambda name: pd.Series(np.where(np.isinf(cells[row_of[name]]), np.nan, cells[row_of[name]]))
        ),
        LazyColumns(row_of, lambda name: pd.Series(np.isinf(cells[row_of[name]]))),
    )
    beside = [*find_outcome_faults(seen, own), *find_repeated_persons(original, own)]
    named = {finding.column for finding in beside if finding.kind == REPEATED}  # not "leave it out if you can"
    faults = [f for look in CHECKS for f in look(seen) if f.kind != "extra_column" or f.column not in named]
    twice = max((f.count for f in faults if f.kind == "duplicate_rows"), default=0)  # whole rows: said by that
    pasted = [f for f in find_pasted_rows(seen) if f.column or f.count > twice]
    return _errors_first([*faults, *pasted, *beside])


def repeated_rows(frame: pd.DataFrame, table: TableSchema) -> list[str]:
    """What a site is told of its own file before anything leaves: rows that repeat, and blocks that were pasted."""
    faults = [] if table.images else find_faults(frame, table)
    repeats = [f for f in faults if f.kind in ("duplicate_rows", "pasted_rows")]
    return [f"{f.column}: {f.text}. {f.hint}" if f.column else f"{f.text}. {f.hint}" for f in repeats]


def check_sites(files: Sequence[Path], table: TableSchema) -> dict[Path, tuple[list[CheckFinding], int]]:
    """Each file's findings and rows; of several sites' pictures also those that more than one of them holds."""
    frames, problems = dict[Path, pd.DataFrame](), list[Problem]()
    for file in dict.fromkeys(files):
        try:
            frames[file] = read_pictures(file, table, strict=False) if table.images else read_table(file, table)
        except VitrailError as error:
            title, problems = error.title, problems + error.problems
    if problems:
        raise VitrailError(title if len(files) == 1 else "cannot read the files", problems)
    findings_of = {file: find_faults(frame, table) for file, frame in frames.items()}
    if not table.images and len(frames) > 1:
        for file, findings in _find_twin_files(frames, table).items():
            findings_of[file] = findings_of[file] + findings
    if table.images and len(frames) > 1:
        shared = find_shared_pictures({str(file): frame for file, frame in frames.items()}, table)
        findings_of = {file: findings + shared[str(file)] for file, findings in findings_of.items()}
    return {file: (findings, len(frames[file])) for file, findings in findings_of.items()}


def _find_twin_files(frames: dict[Path, pd.DataFrame], table: TableSchema) -> dict[Path, list[CheckFinding]]:
    """Files with the same rows; what cannot be read as the study says has findings enough."""
    cleaned = dict[str, pd.DataFrame]()
    for file, frame in frames.items():
        with suppress(VitrailError):
            cleaned[str(file)] = clean(frame, table)
    out: dict[Path, list[CheckFinding]] = {}
    hint = "Give each site its own file."
    for pair in find_twins(cleaned):
        for file in (Path(pair.one), Path(pair.other)):
            other = next(f for f in frames if str(f) in (pair.one, pair.other) and f != file)
            text = f"{pair.shared} of {pair.rows} rows are also in {other.name}"
            out.setdefault(file, []).append(CheckFinding("same_rows", "warning", "", (), pair.shared, text, hint))
    return out


def _errors_first(findings: list[CheckFinding]) -> list[CheckFinding]:
    return sorted(findings, key=lambda finding: finding.severity)  # "error" < "warning", and sorted is stable


def to_text(findings: Sequence[CheckFinding], name: str, rows: int, word: str = "row") -> str:
    """The findings for a terminal; `word`: what a row is.

    >>> found = CheckFinding("constant_column", "warning", "sex", (), 9, "9 of 9 values are 1", "Hm.")
    >>> print(to_text([found], "a.csv", 9))
    a.csv: 9 rows, 0 errors, 1 warning
      warning  sex: 9 of 9 values are 1 [constant_column]
               Hm.
    """
    totals = {word: rows, **{s: sum(f.severity == s for f in findings) for s in ("error", "warning")}}
    lines = [f"{name}: " + ", ".join(f"{n} {what}{'s' * (n != 1)}" for what, n in totals.items())]
    for f in findings:
        where = f" ({name_rows(f.rows)}{', ...' if f.count > len(f.rows) else ''})" if f.rows else ""
        about = f"{f.column}: " if f.column else ""
        lines.append(f"  {f.severity:<7}  {about}{f.text}{where} [{f.kind}]\n{'':11}{f.hint}")
    return "\n".join(lines)


def to_json(findings: Sequence[CheckFinding], name: str, rows: int) -> str:
    """The findings for a program: {"file", "rows", "errors", "warnings", "findings": [...]}."""
    errors = sum(f.severity == "error" for f in findings)
    warnings = sum(f.severity == "warning" for f in findings)
    entries = [f._asdict() for f in findings]
    summary = {"file": name, "rows": rows, "errors": errors, "warnings": warnings, "findings": entries}
    return json.dumps(summary, indent=2)

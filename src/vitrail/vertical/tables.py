"""The tables of a study with parties. The host's is what the study describes. A guest's is described at home: by a file
beside it, NAME.toml with [features.COLUMN] sections as a study has them, which never leaves; without one, by a look at
the table. Neither the names nor the kinds of its columns are in the study."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.drafting.features import infer_features
from vitrail.data.findings import CheckFinding
from vitrail.data.readers.source import ENDING
from vitrail.data.readers.tables import read_table, take_columns
from vitrail.data.schema import TableSchema
from vitrail.quality.checks.table import find_faults
from vitrail.storage.untrusted_files import LONGEST_TEXT, read_text
from vitrail.study.model import Study
from vitrail.vertical.matching.ids import ParsedIds, look, spell, write

OWN = "own_columns"  # of a frame's attrs: the file that describes a guest's columns


def read_party(file: Path, study: Study, party: str) -> pd.DataFrame:
    """A party's table, as text; a guest's with what its own file says, where there is one."""
    frame = read_table(file, study if party == study.host else None)
    own = file.with_name(f"{ENDING.sub('', file.name)}.toml")
    if party != study.host and own.is_file():
        frame.attrs[OWN] = str(own)
    return frame


def read_parties(folder: Path, study: Study) -> dict[str, pd.DataFrame]:
    """NAME.csv (or another table) of every party; all problems at once."""
    if not folder.is_dir():
        what = f"expected a folder with a table for each party: {', '.join(study.parties)}."
        raise VitrailError("cannot read the parties", [Problem(str(folder), what, "Name the files after the parties.")])
    files = [file for file in sorted(folder.iterdir()) if ENDING.search(file.name)]
    by = {party: [file for file in files if ENDING.sub("", file.name) == party] for party in study.parties}
    frames, problems = dict[str, pd.DataFrame](), list[Problem]()
    for file in files:
        if (name := ENDING.sub("", file.name)) not in by:
            hint = nearest(name, study.parties)
            problems.append(Problem(str(file), f"the study has no party {name!r}.", hint))
    for party, files in by.items():
        if len(files) != 1:
            what = f"expected one table of {party}, got {len(files)}."
            problems.append(Problem(str(folder / f"{party}.csv"), what, "Put it there." if not files else "Keep one."))
            continue
        try:
            frames[party] = read_party(files[0], study, party)
        except VitrailError as error:
            problems += error.problems
    if problems:
        raise VitrailError(f"cannot read the parties in {folder}", problems)
    return frames


def described(study: Study, party: str, frame: pd.DataFrame) -> TableSchema:
    """What a party's columns are: the study's features at the host, a guest's own at the guest. Never to be sent."""
    if party == study.host:
        return study
    own, column, target = frame.attrs.get(OWN), study.parties[party].id, study.target.column
    features = _read_own(Path(own)) if own else infer_features({party: frame}, {column, target})
    where = own or f"{party}'s columns"
    if not features:
        what = "besides the id, a guest needs at least one column that the model can use."
        raise VitrailError("there is nothing to learn from", [Problem(where, what, "Add columns, or describe them.")])
    if column in features:
        problem = Problem(f"{where} features.{column}", "the id is among the features.", "Remove this section.")
        raise VitrailError("the id would identify the person to the model", [problem])
    whole = {"target": study.target, "features": features, "standardise": study.standardise, "split": study.split}
    return Study.parse(whole, where, lambda *path: f"{where} {'.'.join(map(str, path))}")


def _read_own(own: Path) -> Any:
    try:
        sections = tomllib.loads(read_text(own, LONGEST_TEXT, "utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise VitrailError(f"cannot read {own.name}", [Problem(str(own), f"expected TOML: {error}.")]) from None
    if sections.keys() != {"features"}:
        what = f"expected only [features.COLUMN] sections, got {', '.join(sections) or 'nothing'}."
        raise VitrailError(f"{own.name} does not describe a guest's columns", [Problem(str(own), what, "Correct it.")])
    return sections["features"]


def check_party(frame: pd.DataFrame, study: Study, party: str) -> list[CheckFinding]:
    """What a party finds about its own table, alone and offline, errors first."""
    column, target = study.parties[party].id, study.target.column
    seen, findings = look(frame, study, party)
    try:
        table = described(study, party, frame)
    except VitrailError as error:
        return findings + [
            CheckFinding("own_columns", "error", "", (), 1, p.what.rstrip("."), p.hint) for p in error.problems
        ]
    rest = find_faults(frame, table)
    if party != study.host:  # the target is elsewhere, and no class can be compared
        rest = [finding for finding in rest if finding.column != target]
    findings += [finding for finding in rest if (finding.kind, finding.column) != ("extra_column", column)]
    findings += _copies(frame, table, seen) if seen else []
    return sorted(findings, key=lambda finding: finding.severity)


def _copies(frame: pd.DataFrame, table: TableSchema, seen: ParsedIds) -> list[CheckFinding]:
    """Features that are the id under another name."""
    out, columns = [], take_columns(frame)[0]
    for name in (name for name in table.features if name in columns):
        cells = zip(columns[name].tolist(), seen.spelled, strict=True)
        same = sum(spell(write(cell), seen.form) == spelled for cell, spelled in cells)
        if same > 0.9 * len(frame):
            text = f"this feature repeats the id in {same} of {len(frame)} rows"
            out.append(CheckFinding("id_is_feature", "error", name, (), same, text, "Leave the column out."))
    return out


def check_files(files: Sequence[Path], study: Study, party: str) -> dict[Path, tuple[list[CheckFinding], int]]:
    """The party's file, its findings and its rows."""
    if party not in study.parties or len(files) != 1:
        what, hint = f"the study has no party {party!r}.", nearest(party, study.parties)
        if party in study.parties:
            what, hint = f"expected only the table of {party}, got {len(files)} files.", "Check one file at a time."
        raise VitrailError("cannot check", [Problem("--party", what, hint)])
    frame = read_party(files[0], study, party)
    return {files[0]: (check_party(frame, study, party), len(frame))}

"""A folder of OMOP CDM tables (CSV or Parquet) as one table, a row for each person, by a small file NAME.omop.toml:

    folder = "cdm"                  # beside this file; without it, this file's own folder
    site = "care_site"              # the column that names the site, by what the person's care site is called

    [columns.birth]                 # what the person's own row says
    table = "person"
    value = "year_of_birth"

    [columns.sex]
    table = "person"
    value = "gender_concept_id"
    words = { 8507 = "male", 8532 = "female" }

    [columns.pressure]              # of the rows with one of these concepts
    table = "measurement"
    concept_id = [3004249]
    take = "last"                   # first, last, mean, min, max: of `value`; count, any: of the rows

    [columns.diabetes]
    table = "condition_occurrence"
    concept_id = 201826
    take = "any"

First and last go by the table's date. Concepts below a concept are not looked for: name all that are meant."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import ValidationError

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.readers.cells import as_numbers
from vitrail.data.readers.column_buffer import ColumnBuffer, as_written
from vitrail.data.readers.delimited_text import load_bytes, refuse_file
from vitrail.data.readers.source import ENDING
from vitrail.data.schema import Strict, canon

PERSON = "person_id"
CONCEPTS = {  # table -> the column of what it is about, and that of when
    "condition_occurrence": ("condition_concept_id", "condition_start_date"),
    "device_exposure": ("device_concept_id", "device_exposure_start_date"),
    "drug_exposure": ("drug_concept_id", "drug_exposure_start_date"),
    "measurement": ("measurement_concept_id", "measurement_date"),
    "observation": ("observation_concept_id", "observation_date"),
    "procedure_occurrence": ("procedure_concept_id", "procedure_date"),
    "visit_occurrence": ("visit_concept_id", "visit_start_date"),
}
Tables = Mapping[str, pd.DataFrame]


class OmopColumn(Strict):
    """One column of the table to be made."""

    table: str
    concept_id: int | tuple[int, ...] = ()
    take: Literal["first", "last", "mean", "min", "max", "count", "any"] | None = None
    value: str = ""  # without it value_as_number
    words: dict[str, str] = {}  # noqa: RUF012

    @property
    def concepts(self) -> set[str]:
        return {str(c) for c in ((self.concept_id,) if isinstance(self.concept_id, int) else self.concept_id)}


class OmopMapping(Strict):
    """The whole file."""

    folder: str = "."
    site: Literal["", "care_site"] = ""
    columns: dict[str, OmopColumn]


def read_omop(path: Path) -> tuple[list[str], ColumnBuffer]:
    """Header and rows, in the order of the table of persons; all that is wrong with file and folder at once."""
    mapped = _load(path)
    folder = path.parent / mapped.folder
    files = {ENDING.sub("", f.name).lower(): f for f in sorted(folder.glob("*")) if ENDING.search(f.name)}
    needed = {"person", *(c.table for c in mapped.columns.values())}
    tables, problems = dict[str, pd.DataFrame](), list[Problem]()
    for name in sorted(needed | ({"care_site"} & files.keys() if mapped.site else set())):
        try:
            if name not in files:
                raise refuse_file(
                    folder, f"expected a table {name!r} (CSV or Parquet), but there is none.", "Put it there."
                )
            tables[name] = _read(files[name])
        except VitrailError as error:
            problems += error.problems
    for name, column in mapped.columns.items():
        where = f"{path}, columns.{name}"
        problems += [Problem(where, *what) for what in _misfits(column, tables)]
    people = tables.get("person", pd.DataFrame())
    if "person" in tables:
        lack = [c for c in (PERSON, *(["care_site_id"] if mapped.site else [])) if c not in people]
        problems += [Problem(str(files["person"]), f"there is no column {c!r}.", "Export it too.") for c in lack]
    if problems:
        raise VitrailError(f"cannot read {path.name}", problems)
    made = {PERSON: people[PERSON].tolist()}
    if mapped.site:
        made[mapped.site] = _name_sites(people, tables.get("care_site"))
    made |= {name: _make(column, tables, people[PERSON]) for name, column in mapped.columns.items()}
    out = ColumnBuffer(len(made))
    out.add_columns(made.values(), range(2, len(people) + 2))
    return list(made), out


def _load(path: Path) -> OmopMapping:
    try:
        content = tomllib.loads(load_bytes(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise refuse_file(path, f"expected TOML: {error}.", "Correct it.") from None
    content = _as_tuples(content)
    try:
        return OmopMapping.model_validate(content)
    except ValidationError as error:
        problems = [
            Problem(f"{path}, {'.'.join(map(str, e['loc']))}", f"{e['msg']}.", "See docs/files.md.")
            for e in error.errors()
        ]
        raise VitrailError(f"cannot read {path.name}", problems) from None


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _as_tuples(v) for k, v in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _read(file: Path) -> pd.DataFrame:
    from vitrail.data.readers.tables import read_table  # which reads us

    frame = read_table(file)
    return frame.set_axis([str(c).lower() for c in frame.columns], axis=1)


def _misfits(column: OmopColumn, tables: Tables) -> list[tuple[str, str]]:
    """What is expected and not there, with what to do."""
    out = []
    about = CONCEPTS.get(column.table)
    if column.table != "person" and about is None:
        return [(f"there is no table {column.table!r} to take it from.", nearest(column.table, ["person", *CONCEPTS]))]
    if column.table == "person" and (column.take or column.concepts or not column.value):
        out.append(("expected `value` alone, because each person has one row.", 'Write value = "year_of_birth".'))
    if about and (not column.take or not column.concepts):
        out.append(("expected `concept_id` and `take`.", 'For example: take = "last".'))
    frame = tables.get(column.table)
    if frame is None:
        return out
    wanted = [_value(column)] if column.take not in ("count", "any") else []
    if about:
        wanted += [PERSON, about[0], *([about[1]] if column.take in ("first", "last") else [])]
    return out + [
        (f"the table {column.table!r} has no column {c!r}.", nearest(c, frame.columns))
        for c in wanted
        if c and c not in frame
    ]


def _value(column: OmopColumn) -> str:
    return column.value or ("value_as_number" if column.table != "person" else "")


def _name_sites(people: pd.DataFrame, sites: pd.DataFrame | None) -> list[Any]:
    ids = people["care_site_id"]
    if sites is None or not {"care_site_id", "care_site_name"} <= set(sites.columns):
        return ids.tolist()
    names = dict(zip(sites["care_site_id"].map(canon), sites["care_site_name"], strict=True))
    return [None if i is None else names.get(canon(i)) or i for i in ids]


def _make(column: OmopColumn, tables: Tables, people: pd.Series) -> list[Any]:
    frame = tables[column.table]
    cells = frame[_value(column)].tolist() if column.table == "person" else _take(column, frame, people)
    return [column.words.get(canon(c), c) if c is not None else None for c in cells] if column.words else cells


def _take(column: OmopColumn, frame: pd.DataFrame, people: pd.Series) -> list[Any]:
    """For each person what the rows with these concepts say; nothing where there are none."""
    concept, date = CONCEPTS[column.table]
    mine = frame[frame[concept].map(canon).isin(column.concepts)]
    by = mine[PERSON].map(canon)
    wanted = people.map(canon)
    if column.take in ("count", "any"):
        counts = by.value_counts()
        return [str(int(n)) if column.take == "count" else str(int(n > 0)) for n in wanted.map(counts).fillna(0)]
    values = mine[_value(column)]
    if column.take in ("first", "last"):
        present = values.notna()
        order = mine[date][present].map(str).sort_values(kind="stable").index
        first = values.loc[order].groupby(by.loc[order], sort=False)
        by_person = first.first() if column.take == "first" else first.last()
    else:
        numbers, wrong = as_numbers(values)
        if wrong.any():
            what = f"expected numbers to take the {column.take} of, got {str(values[wrong].iloc[0])!r}."
            raise VitrailError("cannot read the OMOP tables", [Problem(f"{column.table}, {_value(column)}", what)])
        by_person = numbers.dropna().groupby(by).agg(column.take)
    return [None if cell is None or cell != cell else as_written(cell) for cell in wanted.map(by_person.to_dict())]

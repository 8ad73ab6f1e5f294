"""Whose row it is. Rows of one person stay together wherever rows are split, and count as one person in thresholds.

A cleaned table holds the persons in the study's person column as numbers: a hash of the id that does not depend on the
order of the rows, so that the same patient has the same number in a later export. The numbers never leave the site.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem
from vitrail.data.dates import as_days
from vitrail.data.schema import Feature, TableSchema, canon

Ints = NDArray[np.int64]


def key_columns(table: TableSchema) -> list[str]:
    """The columns by which rows are split; none of them is a feature."""
    date = table.split.column if table.split.by == "date" else ""
    return [name for name in dict.fromkeys((table.person_column, date)) if name]


def columns_kept(table: TableSchema) -> TableSchema:
    """The table with these columns as numbers beside the features."""
    keys = {name: Feature(kind="numeric") for name in key_columns(table)}
    return table.model_copy(update={"features": {**table.features, **keys}}) if keys else table


def as_numbers(frame: pd.DataFrame, table: TableSchema) -> pd.DataFrame:
    """The frame with ids and dates as numbers, NaN where they are missing or cannot be read."""
    out = frame.copy(deep=False)
    names = [str(name).strip() for name in frame.columns]
    for column in (name for name in key_columns(table) if name in names):
        at = names.index(column)
        values = frame.iloc[:, at]
        numbers = person_numbers(values) if column == table.person_column else as_days(values)
        out.isetitem(at, numbers)
    return out


def person_numbers(ids: pd.Series) -> NDArray[np.float64]:
    """[row]: a whole number below 2^52 for each id; NaN where there is none."""
    places, different = pd.factorize(ids.astype(object))
    texts = [canon(value) for value in different]
    numbers = np.array([_number(text) if text else np.nan for text in texts] + [np.nan])
    return np.asarray(numbers[places], np.float64)


def _number(text: str) -> float:
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 12)


def key_problems(rows: pd.DataFrame, table: TableSchema, file: str) -> list[Problem]:
    """Rows without a person, or without a date for the split."""
    problems = []
    for column in key_columns(table):
        if lacking := int(rows[column].isna().sum()):
            person = column == table.person_column
            wanted = "a person" if person else "a date (preferably as 2021-12-31)"
            hint = "Fill them in, or remove these rows." if person else "Correct them, or remove these rows."
            what = f"expected {wanted} in every row, but {lacking} of {len(rows)} rows have none that can be read."
            problems.append(Problem(f"{file}, column {column}", what, hint))
    return problems


def persons_of(rows: pd.DataFrame, table: TableSchema) -> Ints | None:
    """[row]: whose each row of `clean` is, counted from 0; None where the study does not name persons."""
    if not table.person_column or table.person_column not in rows:
        return None
    return np.asarray(np.unique(rows[table.person_column].to_numpy(), return_inverse=True)[1], np.int64)


def count_units(frame: pd.DataFrame, table: TableSchema) -> int:
    """Of a table as it was read: how many persons, or rows where the study names none."""
    names = [str(name).strip() for name in frame.columns]
    if table.person_column not in names:
        return len(frame)
    return len(np.unique(person_numbers(frame.iloc[:, names.index(table.person_column)].dropna())))


def count_persons(rows: pd.DataFrame, table: TableSchema) -> int:
    """How many persons these rows are of; without persons, how many rows."""
    persons = persons_of(rows, table)
    return len(rows) if persons is None else how_many(persons)


def how_many(persons: Ints) -> int:
    return len(np.unique(persons))


def one_row_each(rows: pd.DataFrame, table: TableSchema) -> Ints:
    """Places of one row of each person, in the order of the file; of all rows where the study names no persons. Which
    row it is follows from the person's number: neither the first visits nor the last are preferred, and the answer is
    the same every time."""
    persons = persons_of(rows, table)
    if persons is None or not len(persons):
        return np.arange(len(rows))
    order = np.argsort(persons, kind="stable")
    _, starts, counts = np.unique(persons[order], return_index=True, return_counts=True)
    numbers = np.nan_to_num(rows[table.person_column].to_numpy()[order[starts]]).astype(np.int64)
    return np.sort(order[starts + numbers % counts])


def most_rows(persons: Ints | None) -> int:
    """The largest number of rows of one person; 1 where each row is a person."""
    return 1 if persons is None or not len(persons) else int(np.unique(persons, return_counts=True)[1].max())


def person_shares(persons: Ints) -> NDArray[np.float64]:
    """[row]: one part in the number of rows of its person."""
    _, at, counts = np.unique(persons, return_inverse=True, return_counts=True)
    return np.asarray(1 / counts[at], np.float64)


def outcome_by_person(y: NDArray[np.generic], persons: Ints, table: TableSchema) -> NDArray[np.generic]:
    """[person]: the outcome by which persons are stratified. Of two classes or a time whether any row had the event;
    of more classes the one that is rarest here; of numbers the mean."""
    people, target = int(persons.max()) + 1, table.target
    if target.kind == "number":
        return np.asarray(np.bincount(persons, y.astype(np.float64), people) / np.bincount(persons, minlength=people))
    if target.kind == "time" or len(target.levels) == 2:
        out = np.zeros(people, y.dtype)
        np.maximum.at(out, persons, (y.astype(np.float64) > 0).astype(y.dtype))
        return out
    classes, times = np.unique(y, return_counts=True)
    ranked = classes[np.argsort(-times, kind="stable")]  # the rarest last
    place = np.zeros(people, np.int64)
    np.maximum.at(place, persons, np.argsort(np.argsort(-times, kind="stable"))[np.searchsorted(classes, y)])
    return np.asarray(ranked[place])


def rarest_persons(y: NDArray[np.generic], persons: Ints, timed: bool) -> int:
    """Persons with a row of the class that the fewest persons have, of those that occur; or with the event."""
    if timed:
        return how_many(persons[y.astype(np.float64) > 0])
    return min((how_many(persons[y == k]) for k in np.unique(y)), default=0)

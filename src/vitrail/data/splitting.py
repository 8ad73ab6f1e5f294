"""Which of a site's rows are trained on and which are held out: by lot or by date, persons never on both sides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.dates import day_number
from vitrail.data.persons import outcome_by_person, persons_of
from vitrail.data.schema import TableSchema

Ints = NDArray[np.int64]
Splits = dict[str, tuple[Ints, Ints]]  # site -> places of the rows to train on and of those to test on


def hold_out(rows: pd.DataFrame, table: TableSchema, seed: int, site: str) -> tuple[Ints, Ints]:
    """Places of the rows of `clean` to train on and to test on. By lot it depends on (seed, site) alone."""
    if table.split.by == "date":
        if problems := split_problems(rows, table, site):
            raise VitrailError("the data does not fit the study", problems)
        return _by_date(rows, table)
    y, persons = rows[table.target.column].to_numpy(), persons_of(rows, table)
    if persons is None:
        return split_rows(y, table, seed, site)
    _, held = split_rows(outcome_by_person(y, persons, table), table, seed, site)
    test = np.isin(persons, held)
    return np.flatnonzero(~test), np.flatnonzero(test)


def split_sites(cleaned: Mapping[str, pd.DataFrame], table: TableSchema, seed: int, whole: bool = False) -> Splits:
    """The split of every site's rows. `whole`: all rows are trained on, and none is held out."""
    none = np.empty(0, np.int64)
    return {n: (np.arange(len(f)), none) if whole else hold_out(f, table, seed, n) for n, f in cleaned.items()}


def _by_date(rows: pd.DataFrame, table: TableSchema) -> tuple[Ints, Ints]:
    """Later rows of a person who was seen before the date are in neither part: trained on, they would bring the later
    time into the training; tested on, the person would be on both sides."""
    late = rows[table.split.column].to_numpy() >= day_number(table.split.test_from)
    persons = persons_of(rows, table)
    seen_before = np.zeros(len(rows), bool) if persons is None else np.isin(persons, persons[~late])
    return np.flatnonzero(~late), np.flatnonzero(late & ~seen_before)


def split_problems(rows: pd.DataFrame, table: TableSchema, site: str) -> list[Problem]:
    """Where one of the two parts would be empty."""
    word = "persons" if table.person_column else "rows"
    if table.split.by != "date":
        persons = persons_of(rows, table)
        if persons is None or not len(persons) or persons.max() > 0:
            return []
        what = "expected at least 2 persons with a target, got 1."
        return [Problem(f"{site}, the table", what, "Leave the site out, or check the column that names persons.")]
    train, test = _by_date(rows, table)
    where, day = f"{site}, column {table.split.column}", table.split.test_from
    hint = "Agree on another date, or leave the site out."
    problems = []
    if not len(train):
        problems.append(Problem(where, f"expected rows before {day} to train on, but there are none.", hint))
    if not len(test):
        new = f"{word} first seen" if table.person_column else word
        problems.append(Problem(where, f"expected {new} from {day} on to test on, but there are none.", hint))
    return problems


def split_rows(y: NDArray[np.generic], table: TableSchema, seed: int, site: str) -> tuple[Ints, Ints]:
    """Row numbers to train on and to test on; depends on (seed, site) alone."""
    n, rule = len(y), table.split
    want = rule.count(n)
    order = np.random.default_rng(key(seed, site, "split")).permutation(n)
    if not (rule.stratify and table.target.kind != "number"):
        return np.sort(order[want:]), np.sort(order[:want])
    of = y.astype(np.float64) > 0 if table.target.kind == "time" else y  # whether the event was seen
    groups = [order[of[order] == k] for k in np.unique(of)]
    share = np.array([len(g) * want / n for g in groups])
    room = np.array([len(g) - 1 for g in groups])  # one of each class is left to learn from
    take = np.minimum(np.floor(share).astype(int), room)
    while take.sum() < min(want, room.sum()):  # largest remainder
        take[np.argmax(np.where(take < room, share - take, -np.inf))] += 1
    test = np.concatenate([g[:k] for g, k in zip(groups, take, strict=True)])
    return np.setdiff1d(np.arange(n), test), np.sort(test).astype(np.int64)


def partition_folds(
    y: NDArray[np.generic], table: TableSchema, seed: int, folds: int, persons: Ints | None = None
) -> NDArray[np.int64]:
    """The fold of each row; classes are spread evenly where the study stratifies. All rows of a person are in one
    fold."""
    if persons is not None:
        return partition_folds(outcome_by_person(y, persons, table), table, seed, folds)[persons]
    order = np.random.default_rng(seed).permutation(len(y))
    if table.split.stratify and table.target.kind != "number":
        of = y.astype(np.float64) > 0 if table.target.kind == "time" else y  # whether the event was seen
        order = order[np.argsort(of[order], kind="stable")]
    lots = np.empty(len(y), dtype=np.int64)
    lots[order] = np.arange(len(y)) % folds
    return lots

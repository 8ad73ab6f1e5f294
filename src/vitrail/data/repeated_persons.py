"""People with several rows, in tables that do not say so: a column of ids that repeat, and rows that are nearly alike.

If visits of one patient lie on both sides of a split, a model is tested on patients it was trained on, and its scores
are too good. A column is taken for the one that names persons if its values repeat a few times and
    its name says so (patient_id, subject), or
    it is called like a number of something (id, case no.) and another column hardly changes within a value, or
    its values look like codes and several other columns hardly change within a value, as age and sex of one person.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.data.column_names import bare, numbers_people
from vitrail.data.drafting.column import DATE
from vitrail.data.findings import CheckFinding
from vitrail.data.persons import key_columns, person_numbers
from vitrail.data.readers.tables import place_columns
from vitrail.data.schema import TableSchema, canon

NAMED = re.compile(
    r"(patient|patienten|subject|person|participant|pat|proband|subj|pt)(s|id|ids|nr|no|num|number|nummer|key|code)?"
    r"|mrn|pid"
)
IDS = re.compile(r"(^|[^a-z])(id|ids|no|mrn|pid|key|patient|subject|[a-z]*nr|[a-z]*nummer)$")  # not num_children
CODE = re.compile(r"(?=.*[0-9])[A-Za-z0-9._/-]{4,}")  # P0012, 10432; not 57, not "yes"
REPEATED = "repeated_persons"  # the kind of finding
ROWS, PEOPLE = 20, 5  # fewer rows, or fewer different values: nothing is said
OFTEN = 0.1  # of the rows share their value with another; where the name says persons, PEOPLE rows are enough
SEVERAL = 50.0  # rows of one value, in the mean: more are of a group, not of a person
STEADY, CHANCE = 0.9, 0.8  # pairs within a value that agree in a column; pairs of any rows, at most
COMPARED = 40  # other columns that are looked at
LOOKED_AT = 1500  # rows that are compared with each other
CLOSE, ALIKE, FAR = 0.1, 0.8, 6.0  # standard deviations of a number; share of columns; deviations beyond chance


class RepeatedPersons(NamedTuple):
    """A column that seems to name persons, over all sites."""

    column: str
    rows: int
    persons: int

    @property
    def words(self) -> str:
        return f"The column {self.column} repeats: its {self.rows} rows hold {self.persons} different values"


def find_person_column(sites: Mapping[str, pd.DataFrame], but: Collection[str]) -> RepeatedPersons | None:
    """The column that most likely says whose row it is, where people have several rows at some site; None where no
    column does."""
    candidates: list[tuple[bool, int, int, RepeatedPersons]] = []
    places = [place_columns(frame)[0] for frame in sites.values()]
    for name in (n for n in (places[0] if places else ()) if n not in but and all(n in p for p in places)):
        columns = [f.iloc[:, p[name]] for f, p in zip(sites.values(), places, strict=True)]
        named = bool(NAMED.fullmatch(bare(name)))
        counted = _count(columns, named or numbers_people(name))
        if counted is None or counted[2] < (PEOPLE if named else OFTEN * counted[0]):
            continue
        each = [_count_steady(f, p, name, but) for f, p in zip(sites.values(), places, strict=True)]
        steady = min((count for count in each if count is not None), default=0)
        if named or steady >= (1 if numbers_people(name) else 2):
            candidates.append((named, steady, counted[1], RepeatedPersons(name, *counted[:2])))
    return max(candidates)[-1] if candidates else None


def repeating_ids(sites: Mapping[str, pd.DataFrame], but: Collection[str]) -> list[str]:
    """Columns that are called like numbers of people or cases and have many values that repeat: no features."""
    places = [place_columns(frame)[0] for frame in sites.values()]
    names = [n for n in (places[0] if places else ()) if n not in but and IDS.search(_parted(n))]
    out = []
    for name in (n for n in names if all(n in p for p in places)):
        columns = [f.iloc[:, p[name]] for f, p in zip(sites.values(), places, strict=True)]
        counted = _count(columns, True)
        if counted and counted[2] and counted[1] >= max(ROWS, OFTEN * counted[0]):
            out.append(name)
    return out


def _parted(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip(" .")).casefold()


def _count(columns: list[pd.Series], named: bool) -> tuple[int, int, int] | None:
    """Rows, different values, and rows that share their value with another, of whole numbers or texts that repeat a few
    times; None where it is no such column. Sites with few rows, or with few ids, count for the total alone: one small
    ward must not hide what the others show."""
    rows = persons = shared = large = 0
    for column in columns:
        present = column.dropna()
        if present.dtype.kind == "f" and bool((present.to_numpy() % 1 > 0).any()):
            return None  # measured, and seen at once: there may be many thousands of such columns
        texts = present.map(canon).astype(str)
        times = texts.value_counts()
        some = times.index[:200]
        fit = [re.fullmatch(r"[^.,]*", t) if named else CODE.fullmatch(t) for t in some]
        if not all(fit) or sum(bool(DATE.fullmatch(t)) for t in some) > 0.5 * len(some):
            return None
        rows, persons, shared = rows + len(texts), persons + len(times), shared + int(times[times > 1].sum())
        if len(texts) < ROWS or len(texts) < OFTEN * len(column):
            continue
        large += 1
        if len(times) < PEOPLE or times.mean() > SEVERAL or (not named and len(times) < OFTEN * len(texts)):
            return None
    return (rows, persons, shared) if large else None


def _count_steady(frame: pd.DataFrame, places: Mapping[str, int], name: str, but: Collection[str]) -> int | None:
    """Other columns that hardly change within a value, and often do between any two rows; None where too few rows share
    a value."""
    values = person_numbers(frame.iloc[:, places[name]])
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    within = values[order][1:] == values[order][:-1]
    if within.sum() < PEOPLE:
        return None
    mixed = np.random.default_rng(0).permutation(order)
    steady = 0
    for other in [n for n in places if n != name and n not in but][:COMPARED]:
        codes = pd.factorize(frame.iloc[:, places[other]])[0]
        sorted_codes = codes[order]
        both = (sorted_codes[1:] >= 0) & (sorted_codes[:-1] >= 0)
        inside, drawn = both & within, codes[mixed]
        apart = (drawn[1:] >= 0) & (drawn[:-1] >= 0)
        if inside.sum() < PEOPLE or not apart.any():
            continue
        same = (sorted_codes[1:] == sorted_codes[:-1])[inside].mean()
        steady += bool(same >= STEADY and (drawn[1:] == drawn[:-1])[apart].mean() <= CHANCE)
    return steady


def find_repeated_persons(frame: pd.DataFrame, table: TableSchema) -> Iterator[CheckFinding]:
    """What `check` says of persons: ids that are missing, or where the study names none, signs that it should."""
    places, _ = place_columns(frame, table)
    if table.person_column:
        if table.person_column in places:
            empty = np.isnan(person_numbers(frame.iloc[:, places[table.person_column]]))
            if empty.any():
                text = f"{empty.sum()} of {len(empty)} rows do not name a person"
                yield CheckFinding(
                    "person_missing", "error", table.person_column, (), int(empty.sum()), text, "Fill it in."
                )
        return
    but = {table.target.column, table.target.time, table.site_column, table.weight_column, *key_columns(table)}
    repeated = find_person_column({"": frame}, but)
    means = "Otherwise visits of one patient are in training and test data at once, and scores come out too good."
    if repeated:
        text = (
            f"{repeated.rows} rows hold {repeated.persons} different values, like the ids of people with several rows"
        )
        hint = f'Write person = "{repeated.column}" in the study, and remove it from the features. {means}'
        yield CheckFinding(REPEATED, "warning", repeated.column, (), repeated.rows, text, hint)
    elif alike := count_alike(frame, table, places):
        text = f"{alike} of {min(len(frame), LOOKED_AT)} rows are nearly the same as another row"
        hint = f"If these are several rows of one patient, export the patient's id and write person = COLUMN. {means}"
        yield CheckFinding("nearly_same_rows", "warning", "", (), alike, text, hint)


def count_alike(frame: pd.DataFrame, table: TableSchema, places: Mapping[str, int]) -> int:
    """Rows that agree with another one in nearly all features, far more than chance would have it; 0 where they are
    fewer than a tenth."""
    names = [n for n in table.features if n in places][:COMPARED]
    rows = min(len(frame), LOOKED_AT)
    if len(names) < PEOPLE or rows < ROWS:
        return 0
    agree = np.zeros((rows, rows), np.int16)
    mean = spread = 0.0
    for name in names:
        column = frame.iloc[:rows, places[name]]
        if table.features[name].kind == "numeric":
            values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, copy=True)
            values[np.isinf(values)] = np.nan
            width = CLOSE * float(np.nanstd(values)) if np.isfinite(values).any() else 0.0
            with np.errstate(invalid="ignore"):
                same: NDArray[np.bool_] = np.abs(values[:, None] - values) <= width
        else:
            codes = pd.factorize(column)[0]
            same = (codes[:, None] == codes) & (codes >= 0)
        agree += same
        share = float(same.mean())
        mean, spread = mean + share, spread + share * (1 - share)
    np.fill_diagonal(agree, 0)
    least = max(ALIKE * len(names), mean + FAR * np.sqrt(spread))
    alike = int((agree >= least).any(1).sum())
    return alike if alike >= OFTEN * rows else 0

"""Whose picture it is: by a pattern of the pictures' paths, by a column of the file, or by an index file.

An index file lies in the site's folder beside the classes: index.csv, with a column `file` (the path within the folder,
or the file's own name) and the column that the study calls person.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from vitrail.data.schema import TableSchema

INDEX, FILE = "index.csv", "file"
PASSED = "passed over"  # of a frame's attrs: names of files that are no pictures
GUESSES = (r"([^/_-]+)[_-][^/]*$", r"([^/_-]+[_-][^/_-]+)[_-][^/]*$")  # p012_3.png, IM-0001-0002.png
FEWEST, SEVERAL = 5, 1.2  # different persons; pictures of each, in the mean


def with_persons(frame: pd.DataFrame, path: Path, table: TableSchema) -> pd.DataFrame:
    """The frame with a column that says whose each picture is, where the study asks for it; None where that is not
    known."""
    column = table.person_column
    if not column or column in frame:
        return frame
    names = [str(name) for name in frame.index]
    if table.images and table.images.person:
        frame[column] = [match[1] if (match := re.search(table.images.person, name)) else None for name in names]
    elif path.is_dir() and (path / INDEX).is_file():
        persons = _read_index(path / INDEX, column)
        frame[column] = [persons.get(name) or persons.get(name.rsplit("/", 1)[-1]) for name in names]
        frame.attrs[PASSED] = tuple(name for name in frame.attrs.get(PASSED, ()) if name != INDEX)
    return frame


def _read_index(path: Path, column: str) -> dict[str, str]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {row[FILE].strip(): row[column].strip() for row in rows if row.get(FILE) and row.get(column)}


def guess_pattern(sites: Mapping[str, pd.DataFrame]) -> tuple[str, int, int] | None:
    """A pattern of the pictures' paths under which they seem to be of people with several pictures, how many people,
    and how many pictures; None where there is none."""
    for pattern in GUESSES:
        persons = pictures = 0
        for frame in sites.values():
            matches = [re.search(pattern, name) if isinstance(name, str) else None for name in frame.index]
            times = Counter(match[1] for match in matches if match)
            coded = sum(any(c.isdigit() for c in name) for name in times)
            if (
                not all(matches)
                or len(times) < FEWEST
                or coded < 0.9 * len(times)
                or len(matches) < SEVERAL * len(times)
            ):
                break
            persons, pictures = persons + len(times), pictures + len(matches)
        else:
            return (pattern, persons, pictures) if pictures else None
    return None

"""What is wrong with the column that names persons, or with a split by date, in a study."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitrail.core.errors import Problem
from vitrail.data.dates import day_number


def person_problems(
    raw: Mapping[str, Any], target: Mapping[str, Any], features: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    column, images = raw.get("person", ""), raw.get("images")
    pattern = images.get("person", "") if isinstance(images, Mapping) else ""
    if column and isinstance(column, str):
        yield from _column_problems("person", column, raw, target, features, place("person"), place)
    if pattern and isinstance(pattern, str):
        where, example = place("images", "person"), 'For example: "(p[0-9]+)_".'
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            yield Problem(where, f"it is not a regular expression ({error}).", example)
        else:
            if groups != 1:
                what = f"expected exactly one group in ( ), for the person; it has {groups}."
                yield Problem(where, what, example)
        if column:
            what = "persons are named twice, by a column and by a pattern of the pictures' paths."
            yield Problem(where, what, "Remove one of the two.")
    if (column or pattern) and raw.get("parties"):
        what = "parties match their rows by ids, and each person has one row."
        yield Problem(place("person"), what, "Remove it.")
    protect = raw.get("protect")
    if (column or pattern) and isinstance(protect, Mapping) and protect.get("rows") and raw.get("weight_column"):
        yield Problem(
            place("person"), "under row-level privacy neither rows nor persons can have weights.", "Remove the weights."
        )


def split_problems(
    raw: Mapping[str, Any], target: Mapping[str, Any], features: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    split = raw.get("split")
    if not isinstance(split, Mapping):
        return
    column, day = split.get("column", ""), split.get("test_from", "")
    if split.get("by") != "date":
        for key in (key for key in ("column", "test_from") if split.get(key)):
            yield Problem(place("split", key), "only a split by date has this key.", 'Write by = "date", or remove it.')
        return
    if not column:
        yield Problem(place("split", "column"), "expected the column with each row's date.", "Name it.")
    elif isinstance(column, str):
        yield from _column_problems("split", column, raw, target, features, place("split", "column"), place)
        if column == raw.get("person"):
            yield Problem(place("split", "column"), "the column names persons.", "Name the one with the dates.")
    if isinstance(day, str) and math.isnan(day_number(day)):
        what = f"expected the first day of the test rows, got {day!r}."
        yield Problem(place("split", "test_from"), what, 'For example: test_from = "2021-01-01".')
    for section in ("images", "parties"):
        if raw.get(section):
            what = f"a study with [{section}] cannot be split by date."
            yield Problem(place("split", "by"), what, "Remove it.")
    if raw.get("verdict"):
        what = "its folds ignore dates, but the study splits by date."
        yield Problem(place("verdict"), what, "Remove [verdict]; `vitrail compare` splits by date.")


def _column_problems(
    key: str,
    column: str,
    raw: Mapping[str, Any],
    target: Mapping[str, Any],
    features: Mapping[str, Any],
    where: str,
    place: Callable[..., str],
) -> Iterable[Problem]:
    if column in features:
        what = "the column that names persons is also a feature." if key == "person" else ""
        what = what or "the column by which rows are split is also a feature."
        yield Problem(place("features", column), what, "Remove this section.")
    others = target.get("column"), target.get("time"), raw.get("site_column"), raw.get("weight_column")
    if column in others:
        yield Problem(where, "this column already has another role in the study.", "Name another.")

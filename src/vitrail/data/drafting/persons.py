"""What `init` drafts of persons: the column or pattern that names them, and what it says about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import pandas as pd

from vitrail.data.readers.image_persons import guess_pattern
from vitrail.data.repeated_persons import find_person_column, repeating_ids

# notes that only tell what was done
PLAIN = ("Left out (", "Treated as one column", "Read as missing", "To predict when")
TOGETHER = "rows of one patient stay together when rows are held out, and patients are counted instead of rows"


class StudyDraft(NamedTuple):
    """What a study file would say of the tables, and what a person should know who reads it."""

    content: dict[str, Any]
    notes: list[str] = []  # noqa: RUF012

    @property
    def questions(self) -> list[str]:
        """The notes that a person has to answer."""
        return [note for note in self.notes if not note.startswith(PLAIN)]


class KeyColumns(NamedTuple):
    """Columns that name rows and are no features."""

    columns: list[str]
    settings: dict[str, Any]
    notes: list[str]


def find_keys(sites: Mapping[str, pd.DataFrame], but: Collection[str]) -> KeyColumns:
    """The column that names persons, where people have several rows, and other ids that repeat."""
    repeated = find_person_column(sites, but)
    persons = [repeated.column] if repeated else []
    others = repeating_ids(sites, {*but, *persons})
    notes = []
    if repeated:
        notes.append(f"{repeated.words}. It is used as person: {TOGETHER}.")
    if others:
        notes.append(f"Left out (identifiers that repeat): {', '.join(others)}.")
    return KeyColumns([*persons, *others], {"person": repeated.column} if repeated else {}, notes)


def with_picture_persons(draft: StudyDraft, sites: Mapping[str, pd.DataFrame]) -> StudyDraft:
    """A draft of pictures whose paths seem to name people with several pictures."""
    if (guess := guess_pattern(sites)) is None:
        return draft
    pattern, persons, pictures = guess
    note = f"Judging by their names, the {pictures} pictures show {persons} people (images.person): "
    note += f"{TOGETHER.replace('rows', 'pictures')}. Remove it if it is wrong."
    content = {**draft.content, "images": {**draft.content["images"], "person": pattern}}
    return StudyDraft(content, [*draft.notes, note])

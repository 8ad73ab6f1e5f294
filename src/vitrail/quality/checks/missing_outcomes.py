"""Rows that a run cannot use because their outcome is missing."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from vitrail.data.readers.source import tell
from vitrail.data.schema import TableSchema
from vitrail.quality.checks.duplicate_sites import find_twins


def count_lost(sites: Mapping[str, pd.DataFrame], cleaned: Mapping[str, pd.DataFrame]) -> dict[str, int]:
    """Of each site that has any."""
    return {name: lost for name, rows in cleaned.items() if (lost := len(sites[name]) - len(rows))}


def describe_lost(lost: int, rows: int, table: TableSchema) -> str:
    """39 of 160 rows have no outcome (died) and are left out."""
    return f"{lost} of {rows} {table.row_word}s have no outcome ({table.target.column}) and are left out"


def warn_about_rows(sites: Mapping[str, pd.DataFrame], cleaned: Mapping[str, pd.DataFrame], table: TableSchema) -> None:
    """What a person should know of the rows before anything is trained on them."""
    for name, lost in count_lost(sites, cleaned).items():
        tell(f"{name}: {describe_lost(lost, len(sites[name]), table)}.")
    for pair in find_twins(cleaned):
        tell(pair.words)

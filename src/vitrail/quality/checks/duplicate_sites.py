"""Sites that hold the same rows: one file given twice, or one hospital under two names."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

FEWEST = 10  # rows: fewer may be the same by chance
NEARLY = 0.9  # of the smaller site's rows, where nearly every row of both is like no other of its site
COMPARED = 100  # sites that are held against each other pair by pair, at most


class DuplicateSites(NamedTuple):
    """Two sites and how many rows they have in common."""

    one: str
    other: str
    shared: int
    rows: int  # of the smaller site

    @property
    def words(self) -> str:
        same = (
            f"the same {self.rows} rows" if self.shared == self.rows else f"{self.shared} of {self.rows} rows in common"
        )
        return (
            f"Sites {self.one} and {self.other} have {same}: one file was given twice, or one hospital takes part "
            "under two names. Its patients count twice, and the two sites confirm each other."
        )


def find_twins(sites: Mapping[str, pd.DataFrame]) -> list[DuplicateSites]:
    """Pairs of sites, by their rows as `data.readers.tables.clean` gives them."""
    marks = {name: np.sort(_digest_rows(rows)) for name, rows in sites.items() if len(rows) >= FEWEST}
    different = {name: np.unique(own) for name, own in marks.items()}
    every, times = np.unique(np.concatenate([*different.values(), np.empty(0, np.uint64)]), return_counts=True)
    seen_twice = every[times > 1]
    if not len(seen_twice):
        return []
    elsewhere = [name for name, own in different.items() if np.isin(own, seen_twice).sum() >= FEWEST][:COMPARED]
    twins = []
    for one, other in combinations(elsewhere, 2):
        rows = min(len(marks[one]), len(marks[other]))
        if np.array_equal(marks[one], marks[other]):
            twins.append(DuplicateSites(one, other, rows, rows))
        elif all(len(different[name]) >= NEARLY * len(marks[name]) for name in (one, other)):
            shared = len(np.intersect1d(different[one], different[other], assume_unique=True))
            twins += [DuplicateSites(one, other, shared, rows)] * (shared >= NEARLY * rows)
    return twins


def _digest_rows(rows: pd.DataFrame) -> np.ndarray:
    """[row]: a number that is the same for rows that are."""
    marks = np.zeros(len(rows), np.uint64)
    for _, column in rows.items():
        if column.dtype.kind == "O":
            parts = [int.from_bytes(hashlib.blake2b(_bytes(cell), digest_size=8).digest(), "big") for cell in column]
            hashed = np.array(parts, np.uint64)
        else:
            hashed = pd.util.hash_array(column.to_numpy(np.float64) + 0.0, categorize=False)  # there are two zeros
        marks = marks * np.uint64(0x9E3779B97F4A7C15) + hashed
    return marks


def _bytes(cell: object) -> bytes:
    return np.ascontiguousarray(cell).tobytes()


def digest_table(rows: pd.DataFrame, run: str) -> np.ndarray:
    """Two whole numbers that stand for all rows, in whatever order, keyed by the run: the same rows have others in
    another run, and nothing but sameness can be told from them."""
    key = hashlib.sha256(f"vitrail same rows {run}".encode()).digest()
    values = np.ascontiguousarray(rows.to_numpy(np.float64) + 0.0)
    marks = sorted(hashlib.blake2b(row.tobytes(), digest_size=16, key=key).digest() for row in values)
    whole = hmac.new(key, b"".join(marks), hashlib.sha256).digest()
    return np.array([int.from_bytes(whole[at : at + 6], "big") for at in (0, 6)], np.float64)

"""Cross-validation within each site's own rows: its training rows (`folds_of`: hold-out rows take no part, not even in
standardising), or all of them (`whole_folds`: every row is held out once).

Where a study splits by date, `whole_folds` cuts earlier and later rows apart: a fold trains on the earlier rows outside
it and tests on the later rows in it. So every later row is judged once, by a model that saw nothing from that day on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.encoding import Encoder, SiteData, fit_encoders
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import count_persons, persons_of
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.data.splitting import hold_out, partition_folds

Flags = NDArray[np.bool_]


def folds_of(
    sites: Mapping[str, pd.DataFrame],
    table: TableSchema,
    seed: int,
    folds: int,
    secrets: Mapping[str, str] | None = None,
    encoders: Mapping[str, Encoder] | None = None,
) -> list[list[SiteData]]:
    """For each fold, all sites: `train` the training rows outside it, `test` those in it. Standardised anew each time,
    unless by given `encoders`.

    Which row is in which fold depends on (seed, site) alone, or on a site's own secret in place of the seed; classes
    are spread evenly where the study stratifies.
    """
    if folds < 2:
        raise VitrailError("cannot cross-validate", [Problem("folds", f"expected at least 2, got {folds}.", "Use 5.")])
    column = table.target.column
    train, lot = {}, {}
    for name, frame in sites.items():
        rows = clean(frame, table)
        mine = rows.iloc[hold_out(rows, table, seed, name)[0]]
        y, persons = mine[column].to_numpy(), persons_of(mine, table)
        train[name], lot[name] = (
            mine,
            partition_folds(y, table, key((secrets or {}).get(name, seed), name, "folds"), folds, persons),
        )
    few = {name: n for name, frame in train.items() if (n := count_persons(frame, table)) < folds}
    if few:
        hint = "Use fewer folds, or leave the site out."
        problems = [
            Problem(n, f"expected at least one training {table.unit_word} for each of {folds} folds, got {k}.", hint)
            for n, k in few.items()
        ]
        raise VitrailError("cannot cross-validate", problems)
    return [_fold(train, lot, table, k, encoders) for k in range(folds)]


class FoldedRows(NamedTuple):
    """All rows of every site, cut into folds."""

    folds: int
    lots: dict[str, NDArray[np.int64]]  # site -> [row]: its fold
    cleaned: dict[str, pd.DataFrame]
    table: TableSchema
    late: dict[str, Flags] | None = None  # site -> [row]: tested and never trained on, the others the other way round

    def fold(self, k: int, encoders: Mapping[str, Encoder] | None = None) -> list[SiteData]:
        """All sites: `train` the rows outside it, `test` those in it, in their order. Standardised anew, unless by
        what is `known`."""
        return _fold(self.cleaned, self.lots, self.table, k, encoders, self.late)

    def tested(self, site: str) -> Flags:
        """[row]: whether it is in the test rows of some fold."""
        return np.ones(len(self.lots[site]), dtype=bool) if self.late is None else self.late[site]

    def trained(self, site: str, k: int) -> Flags:
        """[row]: whether fold k trains on it."""
        return _trained(self.lots[site], k, None if self.late is None else self.late[site])


def whole_folds(cleaned: Mapping[str, pd.DataFrame], table: TableSchema, seed: int, folds: int) -> FoldedRows:
    """The same number of folds at every site, fewer where a site has fewer rows: none is without rows."""
    if table.split.by == "date":
        return _folds_by_date(cleaned, table, seed, folds)
    sizes = {n: count_persons(f, table) for n, f in cleaned.items()}
    count, lots = _count_folds(sizes, table, folds), {}
    for n, f in cleaned.items():
        lots[n] = _cut(f, table, key(seed, n, "whole folds"), count)
    return FoldedRows(count, lots, dict(cleaned), table)


def _folds_by_date(cleaned: Mapping[str, pd.DataFrame], table: TableSchema, seed: int, folds: int) -> FoldedRows:
    """Rows that the split by date leaves out are left out here too."""
    parts = {n: hold_out(f, table, seed, n) for n, f in cleaned.items()}
    sizes = {n: min(count_persons(cleaned[n].iloc[at], table) for at in both) for n, both in parts.items()}
    count = _count_folds(sizes, table, folds, " on either side of the date")
    lots, eligible, late = {}, {}, {}
    for n, both in parts.items():
        at = np.sort(np.concatenate(both))
        eligible[n], late[n] = cleaned[n].iloc[at], np.isin(at, both[1])
        lots[n] = np.empty(len(at), np.int64)
        for name, mine in (("early", ~late[n]), ("late", late[n])):
            lots[n][mine] = _cut(eligible[n][mine], table, key(seed, n, f"{name} folds"), count)
    return FoldedRows(count, lots, eligible, table, late)


def _cut(rows: pd.DataFrame, table: TableSchema, seed: int, count: int) -> NDArray[np.int64]:
    return partition_folds(rows[table.target.column].to_numpy(), table, seed, count, persons_of(rows, table))


def _count_folds(sizes: Mapping[str, int], table: TableSchema, folds: int, where: str = "") -> int:
    """As many folds as are wanted and every site has rows for. `sizes`: rows or persons of each site."""
    count = min(folds, *sizes.values())
    if count < 2:
        problems = [
            Problem(n, f"expected at least 2 {table.unit_word}s{where}, got {size}.", "Leave the site out.")
            for n, size in sizes.items()
            if size < 2
        ]
        problems = problems or [Problem("folds", f"expected at least 2, got {folds}.", "Use 10.")]
        raise VitrailError("cannot cross-validate", problems)
    return count


def _trained(lots: NDArray[np.int64], k: int, late: Flags | None) -> Flags:
    outside: Flags = lots != k
    return outside if late is None else outside & ~late


def _fold(
    frames: Mapping[str, pd.DataFrame],
    lots: Mapping[str, NDArray[np.int64]],
    table: TableSchema,
    k: int,
    given_encoders: Mapping[str, Encoder] | None = None,
    late: Mapping[str, Flags] | None = None,
) -> list[SiteData]:
    tested = {name: lots[name] == k if late is None else (lots[name] == k) & late[name] for name in frames}
    part = {n: frame[_trained(lots[n], k, None if late is None else late[n])] for n, frame in frames.items()}
    encoders = given_encoders or fit_encoders(part, table)
    out = []
    for name, frame in frames.items():
        e, held = encoders[name], frame[tested[name]]
        weights = [weights_of(rows, table) for rows in (part[name], held)]
        train, test = (persons_of(rows, table) for rows in (part[name], held))
        site = SiteData(name, e, *_encoded(e, part[name]), *_encoded(e, held), "", None, weights[0], weights[1])
        out.append(site._replace(train_persons=train, test_persons=test))
    return out


def _encoded(encoder: Encoder, frame: pd.DataFrame) -> tuple[NDArray[Any], NDArray[np.generic]]:
    target = encoder.table.target
    y = frame[target.column].to_numpy(copy=True)
    return encoder.matrix(frame, kind=np.float32), (y - target.center) / target.scale if target.kind == "number" else y

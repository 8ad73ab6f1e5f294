"""Cross-validation within each site's own rows: its training rows (`folds_of`: hold-out rows take no part, not even in
standardising), or all of them (`whole_folds`: every row is held out once)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.problems import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.encode import Encoder, Matrix, SiteData, fit_encoders
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import count_persons, persons_of
from vitrail.data.read import clean
from vitrail.data.schema import Table
from vitrail.data.split import cut_folds as cut_folds
from vitrail.data.split import hold_out


def folds_of(sites: Mapping[str, pd.DataFrame], table: Table, seed: int, folds: int) -> list[list[SiteData]]:
    """For each fold, all sites: `train` the training rows outside it, `test` those in it. Standardised anew each time.

    Which row is in which fold depends on (seed, site) alone; classes are spread evenly where the study stratifies.
    """
    if folds < 2:
        raise VitrailError("cannot cross-validate", [Problem("folds", f"expected at least 2, got {folds}.", "Use 5.")])
    column = table.target.column
    train, lot = {}, {}
    for name, frame in sites.items():
        rows = clean(frame, table)
        mine = rows.iloc[hold_out(rows, table, seed, name)[0]]
        y, persons = mine[column].to_numpy(), persons_of(mine, table)
        train[name], lot[name] = mine, cut_folds(y, table, key(seed, name, "folds"), folds, persons)
    few = {name: n for name, frame in train.items() if (n := count_persons(frame, table)) < folds}
    if few:
        hint = "Use fewer folds, or leave the site out."
        problems = [
            Problem(n, f"expected a training {table.unit_word} for each of {folds} folds, got {k}.", hint)
            for n, k in few.items()
        ]
        raise VitrailError("cannot cross-validate", problems)
    return [_fold(train, lot, table, k) for k in range(folds)]


class Cut(NamedTuple):
    """All rows of every site, cut into folds."""

    folds: int
    lots: dict[str, NDArray[np.int64]]  # site -> [row]: its fold
    cleaned: dict[str, pd.DataFrame]
    table: Table

    def fold(self, k: int, known: Mapping[str, Encoder] | None = None) -> list[SiteData]:
        """All sites: `train` the rows outside it, `test` those in it, in their order. Standardised anew, unless by
        what is `known`."""
        return _fold(self.cleaned, self.lots, self.table, k, known)


def whole_folds(cleaned: Mapping[str, pd.DataFrame], table: Table, seed: int, folds: int) -> Cut:
    """The same number of folds at every site, fewer where a site has fewer rows: none is without rows."""
    sizes = {n: count_persons(f, table) for n, f in cleaned.items()}
    count = min(folds, *sizes.values())
    if count < 2:
        problems = [
            Problem(n, f"expected at least 2 {table.unit_word}s, got {size}.", "Leave the site out.")
            for n, size in sizes.items()
            if size < 2
        ]
        problems = problems or [Problem("folds", f"expected at least 2, got {folds}.", "Use 10.")]
        raise VitrailError("cannot cross-validate", problems)
    target = table.target.column
    lots = {
        n: cut_folds(f[target].to_numpy(), table, key(seed, n, "whole folds"), count, persons_of(f, table))
        for n, f in cleaned.items()
    }
    return Cut(count, lots, dict(cleaned), table)


def _fold(
    frames: Mapping[str, pd.DataFrame],
    lots: Mapping[str, NDArray[np.int64]],
    table: Table,
    k: int,
    known: Mapping[str, Encoder] | None = None,
) -> list[SiteData]:
    part = {name: frame[lots[name] != k] for name, frame in frames.items()}
    encoders = known or fit_encoders(part, table)
    out = []
    for name, frame in frames.items():
        e, held = encoders[name], frame[lots[name] == k]
        weights = [weights_of(rows, table) for rows in (part[name], held)]
        train, test = (persons_of(rows, table) for rows in (part[name], held))
        site = SiteData(name, e, *_encoded(e, part[name]), *_encoded(e, held), "", None, weights[0], weights[1])
        out.append(site._replace(train_persons=train, test_persons=test))
    return out


def _encoded(encoder: Encoder, frame: pd.DataFrame) -> tuple[Matrix, NDArray[np.generic]]:
    target = encoder.table.target
    y = frame[target.column].to_numpy(copy=True)
    return encoder.matrix(frame), (y - target.center) / target.scale if target.kind == "number" else y

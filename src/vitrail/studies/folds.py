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
from vitrail.data.encode import Encoder, Matrix, SiteData, fit_encoders, split_rows
from vitrail.data.outcomes import weights_of
from vitrail.data.read import clean
from vitrail.data.schema import Table


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
        mine = rows.iloc[split_rows(rows[column].to_numpy(), table, seed, name)[0]]
        train[name], lot[name] = mine, cut_folds(mine[column].to_numpy(), table, key(seed, name, "folds"), folds)
    few = {name: len(frame) for name, frame in train.items() if len(frame) < folds}
    if few:
        hint = "Use fewer folds, or leave the site out."
        problems = [
            Problem(n, f"expected a training {table.row_word} for each of {folds} folds, got {k}.", hint)
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
    count = min(folds, *map(len, cleaned.values()))
    if count < 2:
        problems = [
            Problem(n, f"expected at least 2 {table.row_word}s, got {len(f)}.", "Leave the site out.")
            for n, f in cleaned.items()
            if len(f) < 2
        ]
        problems = problems or [Problem("folds", f"expected at least 2, got {folds}.", "Use 10.")]
        raise VitrailError("cannot cross-validate", problems)
    target = table.target.column
    lots = {n: cut_folds(f[target].to_numpy(), table, key(seed, n, "whole folds"), count) for n, f in cleaned.items()}
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
        both = (weights_of(of, table) for of in (part[name], held))
        out.append(SiteData(name, e, *_encoded(e, part[name]), *_encoded(e, held), "", None, *both))
    return out


def cut_folds(y: NDArray[np.generic], table: Table, seed: int, folds: int) -> NDArray[np.int64]:
    """The fold of each row; classes are spread evenly where the study stratifies."""
    order = np.random.default_rng(seed).permutation(len(y))
    if table.split.stratify and table.target.kind != "number":
        of = y.astype(np.float64) > 0 if table.target.kind == "time" else y  # whether the event was seen
        order = order[np.argsort(of[order], kind="stable")]
    lots = np.empty(len(y), dtype=np.int64)
    lots[order] = np.arange(len(y)) % folds
    return lots


def _encoded(encoder: Encoder, frame: pd.DataFrame) -> tuple[Matrix, NDArray[np.generic]]:
    target = encoder.table.target
    y = frame[target.column].to_numpy(copy=True)
    return encoder.matrix(frame), (y - target.center) / target.scale if target.kind == "number" else y

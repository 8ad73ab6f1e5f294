"""Cross-validation within each site's training rows. Hold-out rows take no part, not even in standardising."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.problems import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.encode import Encoder, Matrix, SiteData, fit_encoders, split_rows
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
        train[name], lot[name] = mine, _lots(mine[column].to_numpy(), table, key(seed, name, "folds"), folds)
    few = {name: len(frame) for name, frame in train.items() if len(frame) < folds}
    if few:
        hint = "Use fewer folds, or leave the site out."
        problems = [
            Problem(n, f"expected a training {table.row_word} for each of {folds} folds, got {k}.", hint)
            for n, k in few.items()
        ]
        raise VitrailError("cannot cross-validate", problems)
    out = []
    for k in range(folds):
        part = {name: frame[lot[name] != k] for name, frame in train.items()}
        encoders = fit_encoders(part, table)
        fold = []
        for name, frame in train.items():
            e = encoders[name]
            fold.append(SiteData(name, e, *_encoded(e, part[name]), *_encoded(e, frame[lot[name] == k]), ""))
        out.append(fold)
    return out


def _lots(y: NDArray[np.generic], table: Table, seed: int, folds: int) -> NDArray[np.int64]:
    """The fold of each row."""
    order = np.random.default_rng(seed).permutation(len(y))
    if table.split.stratify and table.target.kind == "classes":
        order = order[np.argsort(y[order], kind="stable")]
    lots = np.empty(len(y), dtype=np.int64)
    lots[order] = np.arange(len(y)) % folds
    return lots


def _encoded(encoder: Encoder, frame: pd.DataFrame) -> tuple[Matrix, NDArray[np.generic]]:
    target = encoder.table.target
    y = frame[target.column].to_numpy(copy=True)
    return encoder.matrix(frame), (y - target.center) / target.scale if target.kind == "number" else y

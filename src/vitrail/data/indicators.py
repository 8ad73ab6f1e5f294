"""What is drafted beside kinds and ranges: indicators, which tell the model where a value is missing, and the weight
decay that suits the number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitrail.data.cells import find_values
from vitrail.data.read import place_columns
from vitrail.data.schema import Feature

FEWEST, SHARE = 10, 0.005  # so many missing values, and such a share of all rows; of fewer nothing can be learned

RIDGE, BATCH = 4.0, 16  # the penalty, chosen on the tables of benchmarks/quality.py; rows in a step of training


def add_indicators(sites: Mapping[str, pd.DataFrame], features: dict[str, dict[str, Any]]) -> None:
    """Marks drafted features whose values are missing often enough, in place."""
    places = {site: place_columns(frame)[0] for site, frame in sites.items()}
    for name, drafted in features.items():
        feature, missing, rows = Feature(**_frozen(drafted)), 0, 0
        for site, frame in sites.items():
            at = next(places[site][n] for n in (name, *feature.aliases) if n in places[site])
            missing += int(np.isnan(find_values(frame.iloc[:, at], feature)).sum())
            rows += len(frame)
        if missing >= max(FEWEST, SHARE * rows):
            drafted["indicator"] = True


def draft_weight_decay(rows: int) -> float:
    """So that over all rows together it is a ridge penalty of RIDGE, whatever their number; to two digits.

    >>> draft_weight_decay(920), draft_weight_decay(40830)
    (0.07, 0.0016)
    """
    return float(f"{RIDGE * BATCH / max(rows, 1):.2g}")


def _frozen(drafted: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in drafted.items()}

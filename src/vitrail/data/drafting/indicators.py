"""What is drafted beside kinds and ranges: indicators, which tell the model where a value is missing, and how far and
how freely a network is trained, which follows from the target and the number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitrail.data.readers.cells import find_values
from vitrail.data.readers.tables import place_columns
from vitrail.data.schema import Feature

FEWEST, SHARE = 10, 0.005  # so many missing values, and such a share of all rows; of fewer nothing can be learned

RIDGE, CLASS_RIDGE = 4.0, 8.0  # the penalty over all rows; for classes: benchmarks/verdicts/quality.py
BATCH = 16  # rows in a step of training
CLASS_RATE = 0.02  # the learning rate for classes; squared errors have steeper slopes and would diverge


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


def draft_training(kind: str, rows: int, sites: int) -> dict[str, float]:
    """Weight decay that is the same ridge penalty whatever the number of rows, of all sites together or of one of them
    alone; to two digits.

    >>> draft_training("classes", 920, 4)
    {'weight_decay': 0.14, 'weight_decay_alone': 0.56, 'lr': 0.02}
    >>> draft_training("number", 40830, 16)
    {'weight_decay': 0.0016, 'weight_decay_alone': 0.025}
    """
    each = (CLASS_RIDGE if kind == "classes" else RIDGE) * BATCH / max(rows, 1)
    decay = {"weight_decay": float(f"{each:.2g}"), "weight_decay_alone": float(f"{each * sites:.2g}")}
    return {**decay, "lr": CLASS_RATE} if kind == "classes" else decay


def _frozen(drafted: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in drafted.items()}

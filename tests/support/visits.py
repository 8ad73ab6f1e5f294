"""Federations whose patients have several visits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import vitrail as vt

COLUMNS = [f"x{i}" for i in range(8)]


def visits(
    people: int = 60, each: int = 4, sites: int = 3, seed: int = 0, prefix: str = "P"
) -> dict[str, pd.DataFrame]:
    """Visits of a patient are nearly alike and have one outcome, which nothing else tells: whoever knows a patient's
    other visits knows the outcome, and nobody else does."""
    out = {}
    for s in range(sites):
        r = np.random.default_rng([seed, s])
        whose = np.repeat(np.arange(people), each)
        x = r.normal(size=(people, len(COLUMNS)))[whose] + 0.05 * r.normal(size=(len(whose), len(COLUMNS)))
        frame = pd.DataFrame(x, columns=COLUMNS).assign(sick=r.integers(0, 2, people)[whose])
        frame = frame.assign(patient=[f"{prefix}{p:03d}" for p in whose], day=[f"20{15 + p % 10}-03-01" for p in whose])
        frame = frame.iloc[r.permutation(len(frame))].reset_index(drop=True)
        frame.index = frame.index + 2
        out[f"s{s}"] = frame
    return out


def study_of(**given: Any) -> vt.Study:
    usual: dict[str, Any] = {
        "target": {"column": "sick", "classes": [0, 1], "positive": 1},
        "features": {name: {"kind": "numeric", "range": [-6, 6]} for name in COLUMNS},
        "screen": {"ask": False},
        "metrics": ["auc", "log_loss"],
        "network": {"hidden": [64], "dropout": 0.0},
        "training": {"rounds": 100, "lr": 0.01, "total": "mean", "optimiser": "adam", "weight_decay": 0.0},
    }
    return vt.Study.parse(usual | given)

"""A made-up study of times to an event."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import vitrail as vt

TARGET = {"kind": "time", "time": "days", "event": "died", "horizon": 365.0, "intervals": 5, "unit": "days"}


def study_of(**changes: Any) -> vt.Study:
    said: dict[str, Any] = {
        "target": TARGET,
        "features": {"a": {"kind": "numeric"}, "b": {"kind": "numeric"}},
        "network": {"kind": "linear"},
        "training": {"rounds": 6, "lr": 0.02},
        "screen": {"ask": False},
    }
    return vt.Study.parse({**said, **changes})


def made(rows: int, seed: int, until: float = 900.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    time, leave = rng.exponential(200 * np.exp(-1.5 * x[:, 0])), rng.uniform(0, until, rows)
    days, died = np.ceil(np.minimum(time, leave)), (time <= leave).astype(int)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "days": days, "died": died})

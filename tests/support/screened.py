"""A made-up federation whose columns go together, for tests of screening."""

from __future__ import annotations

import numpy as np
import pandas as pd

import vitrail as vt
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema


def draw(rows: int, seed: int, number: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    pressure = 80 + age + rng.normal(0, 12, rows)
    sugar = np.round(90 + 0.4 * (age - 60) + rng.normal(0, 10, rows), 1)
    pulse = rng.normal(75, 12, rows)
    smoker = (rng.random(rows) < 1 / (1 + np.exp((age - 55) / 8))).astype(int)
    risk = (age - 60) / 8 + (pressure - 140) / 20 + 1.5 * (smoker - 0.4) - (pulse - 75) / 15
    stage = np.digitize(risk + rng.normal(0, 1, rows), [-2.0, 0.5, 2.0])
    outcome = np.round(risk * 10 + rng.normal(0, 8, rows), 1) if number else (risk + rng.logistic(0, 0.8, rows) > 0)
    return pd.DataFrame(
        {
            "age": np.round(age),
            "pressure": np.round(pressure),
            "sugar": sugar,
            "pulse": np.round(pulse, 1),
            "smoker": smoker,
            "stage": [("low", "mild", "middle", "severe")[k] for k in stage],
            "y": outcome.astype(float) if number else outcome.astype(int),
        }
    )


def federation(
    sites: int = 5, rows: int = 250, seed: int = 0, number: bool = False
) -> tuple[dict[str, pd.DataFrame], TableSchema]:
    """{site: rows as `clean` gives them}, and the table."""
    raw = {f"site-{k}": draw(rows, 100 * seed + k, number) for k in range(sites)}
    study = vt.Study.infer(raw, "y")
    kinds = {"smoker": "binary", "stage": "categorical"}
    assert all(study.features[name].kind == kinds.get(name, "numeric") for name in study.features)
    sugar = study.features["sugar"].model_copy(update={"unit": "mg/dL", "description": "glucose"})
    study = study.model_copy(update={"features": {**study.features, "sugar": sugar}})
    return {name: clean(frame, study) for name, frame in raw.items()}, study


def spoil(rows: dict[str, pd.DataFrame], site: str, **columns: object) -> dict[str, pd.DataFrame]:
    """The same with columns of one site replaced."""
    return {**rows, site: rows[site].assign(**columns)}

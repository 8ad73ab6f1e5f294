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


def unlike(
    sites: int = 6, rows: int = 200, seed: int = 0, number: bool = False, ranges: bool = False
) -> tuple[dict[str, pd.DataFrame], TableSchema]:
    """Sites with other patients: ages, pressures and follow-up differ between them; and columns whose unit is agreed.
    `ranges`: of all numbers, as a draft takes them from the data."""
    raw = {}
    for k in range(sites):
        rng = np.random.default_rng(1000 * seed + k)
        frame = draw(rows, 100 * seed + k, number)
        frame["age"] = np.round(frame.age + 6 * rng.normal())
        frame["pressure"] = np.round(frame.pressure * np.exp(0.06 * rng.normal()))
        frame["pulse"] = np.round((frame.pulse + 5 * rng.normal()) * np.exp(0.1 * rng.normal()), 1)
        frame["weight"] = np.round(rng.normal(3200 + 120 * rng.normal(), 450, rows))
        frame["follow"] = np.round(rng.exponential(700 * np.exp(0.3 * rng.normal()), rows)) + 1
        raw[f"site-{k}"] = frame
    study = vt.Study.infer(raw, "y")
    features = {n: f if ranges else f.model_copy(update={"range": None}) for n, f in study.features.items()}
    for name, more in {
        "sugar": {"unit": "mg/dL", "description": "glucose"},
        "weight": {"unit": "g"},
        "follow": {"unit": "days"},
        "age": {"range": (0.0, 110.0)},
    }.items():
        features[name] = features[name].model_copy(update=more)
    study = study.model_copy(update={"features": features})
    return {name: clean(frame, study) for name, frame in raw.items()}, study


def as_file(rows: pd.DataFrame, table: TableSchema) -> pd.DataFrame:
    """Cleaned rows as a site's file has them."""
    out = rows.copy()
    for name, feature in table.features.items():
        if feature.kind != "numeric":
            out[name] = [feature.levels[int(v)] if v == v else None for v in rows[name]]
    if table.target.kind == "classes":
        out[table.target.column] = [table.target.levels[int(v)] for v in rows[table.target.column]]
    return out

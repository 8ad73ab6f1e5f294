"""Draft the features of a study from the sites' tables. Guesses, to be read by a person who knows the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.data.read import as_numbers
from vitrail.data.schema import canon

FEW = 6  # whole numbers with at most this many different values are taken for codes, not quantities


def infer_table(sites: Mapping[str, pd.DataFrame], target: str) -> dict[str, Any]:
    """target and features as a study file would write them."""
    if not sites:
        raise VitrailError("cannot draft a study", [Problem("data", "there are no sites.", "Give one table per site.")])
    known = list(dict.fromkeys(str(c) for f in sites.values() for c in f.columns))
    lacking = [n for n, f in sites.items() if target not in f.columns]
    if lacking:
        raise VitrailError("cannot draft a study", [Problem(n, f"there is no column {target!r}.", nearest(target, map(str, sites[n].columns))) for n in lacking])  # fmt: skip
    pooled = {c: pd.concat([f[c] for f in sites.values() if c in f.columns], ignore_index=True) for c in known}
    features = {}
    for c, values in pooled.items():
        if c != target and (feature := _feature(values)):
            features[c] = feature
    return {"target": _target(target, pooled[target]), "features": features}


def _levels(values: pd.Series) -> list[Any]:
    """Different values, numbers in order, as a person would write them."""
    texts = sorted({canon(v) for v in values.dropna()}, key=_in_order)
    return [int(t) if t.lstrip("-").isdigit() and canon(int(t)) == t else t for t in texts]


def _in_order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _feature(values: pd.Series) -> dict[str, Any] | None:
    levels = _levels(values)
    if len(levels) < 2:
        return None  # constant or empty: nothing to learn from
    if len(levels) == 2:
        return {"kind": "binary", "categories": levels}
    numbers, bad = as_numbers(values)
    if bad.any():
        if len(levels) > max(20, 0.2 * len(values)):
            return None  # free text or identifiers
        return {"kind": "categorical", "categories": levels}
    found = numbers.dropna().to_numpy(dtype=np.float64)
    if len(levels) <= FEW and (found == np.round(found)).all():
        return {"kind": "categorical", "categories": levels}
    return {"kind": "numeric", "range": [float(found.min()), float(found.max())]}


def _target(name: str, values: pd.Series) -> dict[str, Any]:
    levels = _levels(values)
    numbers, bad = as_numbers(values)
    if len(levels) > 20 and not bad.any():
        found = numbers.dropna().to_numpy(dtype=np.float64)
        scale = float(found.std()) or 1.0
        return {"column": name, "kind": "number", "center": float(found.mean()), "scale": scale}
    out: dict[str, Any] = {"column": name, "kind": "classes", "classes": levels}
    if len(levels) == 2:
        out["positive"] = levels[1]
    return out

"""Draft the features of a study from the sites' tables. Guesses, to be read by a person who knows the data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.data.read import MISSING_WORDS, as_numbers, is_plain, read_sites, read_table, take_columns
from vitrail.data.schema import Table, Target, canon

FEW = 6  # whole numbers with at most this many different values are taken for codes, not quantities


def infer_table(sites: Mapping[str, pd.DataFrame], target: str, site_column: str = "") -> dict[str, Any]:
    """target and features as a study file would write them."""
    columns = {site: take_columns(frame) for site, frame in sites.items()}
    problems = []
    for site, (found, repeated) in columns.items():
        if target not in found:
            problems.append(Problem(site, f"there is no column {target!r}.", nearest(target, found)))
        problems += [Problem(site, f"there is more than one column {c!r}.", "Rename one.") for c in repeated]
    if not sites:
        problems.append(Problem("data", "there are no sites.", "Give one table per site."))
    if problems:
        raise VitrailError("cannot draft a study", problems)
    features = {}
    pooled: dict[str, list[pd.Series]] = {}
    for found, _ in columns.values():
        for c, values in found.items():
            pooled.setdefault(c, []).append(_with_points(values))
    for c, parts in pooled.items():
        if c not in (target, site_column) and (feature := _feature(_pool(parts))):
            features[c] = feature
    return {"target": _target(target, _concat(pooled[target])), "features": features}


def read_drafts(paths: list[Path], target: str, site_column: str = "") -> dict[str, pd.DataFrame]:
    """Tables to draft a study from: one per site, or a folder of them, or one that holds all sites."""
    table = Table(target=Target(column=target), features={}, site_column=site_column)
    if len(paths) == 1 and (site_column or paths[0].is_dir()):
        return read_sites(paths[0], table)
    return {str(p): read_table(p) for p in paths}


def _with_points(values: pd.Series) -> pd.Series:
    """One site may write 1,5 where another writes 1.5: read each site's way before putting them together."""
    if not is_plain(values) and any(isinstance(v, str) and "," in v for v in values):
        numbers, bad = as_numbers(values)
        return values if bad.any() else numbers
    return values


def _concat(parts: list[pd.Series]) -> pd.Series:
    return pd.concat([part.astype(object) for part in parts], ignore_index=True)


def _pool(parts: list[pd.Series]) -> pd.Series:
    """All sites' values of one feature; where all are numbers already, each different one once."""
    if all(map(is_plain, parts)):
        different = pd.unique(np.concatenate([part.to_numpy(np.float64) for part in parts]))
        if not (np.abs(different) >= 1e308).any():  # infinite or close to it: judged cell by cell
            return pd.Series(different)
    return _concat(parts)


def _levels(values: pd.Series) -> list[Any]:
    """Different values, numbers in order, as a person would write them."""
    texts = sorted({canon(v) for v in values.dropna()}, key=_in_order)
    texts = [t for t in texts if t.casefold() not in MISSING_WORDS]
    return [int(t) if re.fullmatch(r"-?[0-9]{1,15}", t) and canon(int(t)) == t else t for t in texts]


def _in_order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _feature(values: pd.Series) -> dict[str, Any] | None:
    numbers, bad = as_numbers(values)
    found = numbers.dropna().to_numpy(dtype=np.float64)
    if bad.any() or len(pd.unique(found)) <= FEW:  # else there are as many levels or more: no need to spell them
        levels = _levels(values)
        if len(levels) < 2:
            return None  # constant or empty: nothing to learn from
        if len(levels) == 2:
            return {"kind": "binary", "categories": levels}
        if bad.any():
            if len(levels) > max(20, 0.2 * len(values)):
                return None  # free text or identifiers
            return {"kind": "categorical", "categories": levels}
        if len(levels) <= FEW and (found == np.round(found)).all():
            return {"kind": "categorical", "categories": levels}
    low, high = float(found.min()), float(found.max())
    return {"kind": "numeric", "range": [low, high]} if low < high else None  # "1,0", "1,00" are one number


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

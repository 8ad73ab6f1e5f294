"""Draft the features of a study from the sites' tables. Guesses, to be read by a person who knows the data."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.data.cells import MISSING_WORDS, as_numbers, is_plain
from vitrail.data.picture_drafts import draft_pictures, holds_pictures, picture_column, read_picture_drafts
from vitrail.data.read import part_sites, place_columns, read_sites, read_table
from vitrail.data.schema import Table, Target, canon

FEW = 6  # whole numbers with at most this many different values are taken for codes, not quantities


def infer_table(sites: Mapping[str, pd.DataFrame], target: str, site_column: str = "") -> dict[str, Any]:
    """target and features as a study file would write them."""
    places = {site: place_columns(frame) for site, frame in sites.items()}
    problems = []
    for site, (found, repeated) in places.items():
        if target not in found:
            problems.append(Problem(site, f"there is no column {target!r}.", nearest(target, found)))
        problems += [Problem(site, f"there is more than one column {c!r}.", "Rename one.") for c in repeated]
    if not sites:
        problems.append(Problem("data", "there are no sites.", "Give one table per site."))
    pictures = picture_column(sites)
    if pictures:
        lack = [site for site, (found, _) in places.items() if pictures not in found]
        problems += [
            Problem(site, f"there is no column {pictures!r} of pictures.", "Add or rename it.") for site in lack
        ]
    if problems:
        raise VitrailError("cannot draft a study", problems)
    if pictures:
        tidy = {s: frame.set_axis([str(c).strip() for c in frame.columns], axis=1) for s, frame in sites.items()}
        labels = _concat([frame[target] for frame in tidy.values()])
        return {"target": _classes(target, _levels(labels)), **draft_pictures(tidy, pictures)}
    said = [_with_points(frame.iloc[:, places[site][0][target]]) for site, frame in sites.items()]
    return {"target": _target(target, _concat(said)), "features": infer_features(sites, {target, site_column})}


def infer_features(sites: Mapping[str, pd.DataFrame], but: Collection[str]) -> dict[str, dict[str, Any]]:
    """Of all columns but these."""
    at = {site: place_columns(frame)[0] for site, frame in sites.items()}
    quantities = _find_quantities(sites, at)

    def parts(c: str) -> list[pd.Series]:
        return [_with_points(frame.iloc[:, at[site][c]]) for site, frame in sites.items() if c in at[site]]

    features = {}
    for c in dict.fromkeys(c for found in at.values() for c in found):
        if c not in but and (feature := quantities.get(c) or _feature(_pool(parts(c)))):
            features[c] = feature
    return features


def _find_quantities(
    sites: Mapping[str, pd.DataFrame], at: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, Any]]:
    """What `_feature` says of columns that are numbers at every site and plainly quantities, without a look at each:
    there may be many thousands."""
    dtypes = {s: list(frame.dtypes) for s, frame in sites.items()}
    plain = [c for c in next(iter(at.values())) if all(c in at[s] and is_plain(dtypes[s][at[s][c]]) for s in sites)]
    out: dict[str, dict[str, Any]] = {}
    for names in (plain[i : i + 500] for i in range(0, len(plain), 500)):  # a copy of all at once may be too large
        blocks = [frame.iloc[:, [at[s][c] for c in names]].to_numpy(np.float64) for s, frame in sites.items()]
        values = np.sort(np.concatenate(blocks).T)  # [column, row]
        low, high = np.fmin.reduce(values, 1, initial=np.inf) + 0.0, np.fmax.reduce(values, 1, initial=-np.inf) + 0.0
        several = (values[:, 1:] > values[:, :-1]).sum(1) >= FEW  # missing ones come last and are not more
        sure = several & (np.abs([low, high]) < 1e308).all(0)
        out |= {names[i]: {"kind": "numeric", "range": [float(low[i]), float(high[i])]} for i in np.flatnonzero(sure)}
    return out


def read_drafts(paths: list[Path], target: str, site_column: str = "") -> dict[str, pd.DataFrame]:
    """Tables or pictures to draft a study from: one per site, or a folder of them, or one that holds all sites."""
    if any(map(holds_pictures, paths)):
        sites = read_picture_drafts(paths, target, site_column)
        whole = list(sites.values()) if site_column else []
        return part_sites(paths[0], whole[0], site_column) if len(whole) == 1 else sites
    table = Table(target=Target(column=target), features={}, site_column=site_column)
    if len(paths) == 1 and (site_column or paths[0].is_dir()):
        return read_sites(paths[0], table)
    return {str(p): read_table(p) for p in paths}


def _with_points(values: pd.Series) -> pd.Series:
    """One site may write 1,5 where another writes 1.5: read each site's way before putting them together."""
    if not is_plain(values.dtype) and any(isinstance(v, str) and "," in v for v in values):
        numbers, bad = as_numbers(values)
        return values if bad.any() else numbers
    return values


def _concat(parts: list[pd.Series]) -> pd.Series:
    return pd.concat([part.astype(object) for part in parts], ignore_index=True)


def _pool(parts: list[pd.Series]) -> pd.Series:
    """All sites' values of one feature; where all are numbers already, each different one once."""
    if all(is_plain(part.dtype) for part in parts):
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
    return _classes(name, levels)


def _classes(name: str, levels: list[Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"column": name, "kind": "classes", "classes": levels}
    if len(levels) == 2:
        out["positive"] = levels[1]
    return out

"""Draft the features of a study from the sites' tables. Guesses, to be read by a person who knows the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.data.cells import as_numbers, is_plain
from vitrail.data.drafted import (
    FEW,
    UNIQUE,
    Drafted,
    draft_feature,
    find_levels,
    is_identifier,
    leak_words,
    told_by,
)
from vitrail.data.drafted_times import draft_times
from vitrail.data.names import is_like_name, is_same_name
from vitrail.data.picture_drafts import draft_pictures, holds_pictures, picture_column, read_picture_drafts
from vitrail.data.read import part_sites, place_columns, read_sites, read_table
from vitrail.data.schema import Table, Target, canon

COMPARED = 2000  # columns looked at for leaks, at most


class Draft(NamedTuple):
    """What a study file would say of the tables, and what a person should know who reads it."""

    said: dict[str, Any]
    notes: list[str] = []  # noqa: RUF012


def infer_table(sites: Mapping[str, pd.DataFrame], target: str, site_column: str = "", time: str = "") -> Draft:
    """Target and features as a study file would write them, and what was left out and why. `time`: the column that
    says how long each row was followed, where the target is an event."""
    places = {site: place_columns(frame) for site, frame in sites.items()}
    problems = []
    for site, (found, repeated) in places.items():
        if target not in found:
            problems.append(Problem(site, f"there is no column {target!r}.", nearest(target, found)))
        if time and time not in found:
            problems.append(Problem(site, f"there is no column {time!r}.", nearest(time, found)))
        problems += [Problem(site, f"there is more than one column {c!r}.", "Rename one.") for c in repeated]
    if not sites:
        problems.append(Problem("data", "there are no sites.", "Give one table per site."))
    pictures = picture_column(sites)
    if pictures and time:
        problems.append(Problem("--time", "pictures are told apart by classes.", "Leave it out."))
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
        return Draft({"target": _classes(target, find_levels(labels)), **draft_pictures(tidy, pictures)})
    said = _concat([_with_points(frame.iloc[:, places[site][0][target]]) for site, frame in sites.items()])
    aim = _target(target, said)
    features, left = draft_features(sites, {target, site_column, time})
    notes = _tell_left(left) + _drop_leaks(sites, features, aim)
    if time:
        followed = _concat([_with_points(frame.iloc[:, places[site][0][time]]) for site, frame in sites.items()])
        aim, note = draft_times(aim, time, followed)
        notes = [note, *notes]
    return Draft({"target": aim, "features": features}, notes)


def infer_features(sites: Mapping[str, pd.DataFrame], but: Collection[str]) -> dict[str, dict[str, Any]]:
    """Of all columns but these."""
    return draft_features(sites, but)[0]


def draft_features(
    sites: Mapping[str, pd.DataFrame], but: Collection[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Of all columns but these: features that every site has, and why the others were left out."""
    at = {site: place_columns(frame)[0] for site, frame in sites.items()}
    quantities = _find_quantities(sites, at)
    features, left = dict[str, dict[str, Any]](), dict[str, str]()
    for c, others in _match_names(at, but).items():
        where = {site: next((n for n in (c, *others) if n in found), None) for site, found in at.items()}
        parts = [_with_points(sites[site].iloc[:, at[site][name]]) for site, name in where.items() if name is not None]
        feature: Drafted = quantities.get(c) or draft_feature(_pool(parts), sum(map(len, parts)))
        lack = [site for site, name in where.items() if name is None]
        if isinstance(feature, dict) and c not in quantities and is_identifier(c, parts):
            feature = "identifiers"
        if isinstance(feature, str):
            left[c] = feature
        elif lack:
            like = [n for site in lack for n in at[site] if n not in but and is_like_name(c, n)]
            perhaps = f'; perhaps {like[0]!r} there is the same: then write aliases = ["{like[0]}"]' if like else ""
            left[c] = f"not at {', '.join(lack)}{perhaps}"
        else:
            features[c] = {**feature, **({"aliases": list(others)} if others else {})}
    return features, left


def _match_names(at: Mapping[str, Mapping[str, int]], but: Collection[str]) -> dict[str, list[str]]:
    """Each column once, with the names that surely mean the same at sites that have no column of its name."""
    every = [c for c in dict.fromkeys(c for found in at.values() for c in found) if c not in but]
    partly = [c for c in every if any(c not in found for found in at.values())]
    taken, out = set[str](), dict[str, list[str]]()
    for c in every:
        if c in taken:
            continue
        out[c] = []
        for other in partly if c in partly else ():
            alone = not any(c in found and other in found for found in at.values())
            if other not in (c, *taken) and alone and is_same_name(c, other):
                out[c].append(other)
                taken.add(other)
    return out


def _tell_left(left: Mapping[str, str]) -> list[str]:
    by: dict[str, list[str]] = {}
    for name, why in left.items():
        by.setdefault(why, []).append(name)
    return [f"Left out ({why}): {', '.join(names)}." for why, names in sorted(by.items())]


def _drop_leaks(sites: Mapping[str, pd.DataFrame], features: dict[str, Any], target: dict[str, Any]) -> list[str]:
    """Takes out what seems to be known only after the outcome, and tells it."""
    notes = [f"Taken for one: {', '.join([n, *f['aliases']])}." for n, f in features.items() if "aliases" in f]
    if len(target.get("classes", ())) != 2:
        return notes
    positive = canon(target["positive"])
    whole = {s: frame.set_axis([str(c).strip() for c in frame.columns], axis=1) for s, frame in sites.items()}
    tell = np.concatenate([(f[target["column"]].map(canon) == positive).to_numpy() for f in whole.values()])
    for name in [n for n, f in features.items() if f["kind"] == "numeric"][:COMPARED]:
        names = [name, *features[name].get("aliases", ())]
        values = _concat([f[next(n for n in names if n in f)] for f in whole.values()])
        drop, words = leak_words(name, target["column"], told_by(values, tell))
        if words:
            notes.append(f"{'Left out' if drop else 'Look at this'}: {words}.")
        if drop:
            del features[name]
            notes.append(
                f"To ask when, and not only whether: vitrail init ... --target {target['column']} --time {name}."
            )
    return notes


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
        numbered = np.logical_and.reduce([_may_number(block) for block in blocks])
        sure = several & ~numbered & (np.abs([low, high]) < 1e308).all(0)  # others are looked at one by one
        out |= {names[i]: {"kind": "numeric", "range": [float(low[i]), float(high[i])]} for i in np.flatnonzero(sure)}
    return out


def _may_number(block: np.ndarray) -> np.ndarray:
    """[column]: whether a site's values [row, column] are nearly all different whole numbers."""
    values = np.sort(block, 0)
    different = 1 + (values[1:] > values[:-1]).sum(0)  # missing ones come last and are not more
    whole = (np.isnan(block) | (np.round(block) == block)).all(0)
    out: np.ndarray = whole & (different >= UNIQUE * (~np.isnan(block)).sum(0))
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


def _target(name: str, values: pd.Series) -> dict[str, Any]:
    levels = find_levels(values)
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

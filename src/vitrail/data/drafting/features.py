"""Draft the features of a study from the sites' tables. Guesses, to be read by a person who knows the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.column_names import fold, is_same_name
from vitrail.data.drafting.column import UNIQUE, ColumnDraft, concat, draft_column, find_levels, is_identifier
from vitrail.data.drafting.images import draft_pictures, holds_pictures, picture_column, read_picture_drafts
from vitrail.data.drafting.indicators import add_indicators, draft_training
from vitrail.data.drafting.leaks import find_leaks
from vitrail.data.drafting.missing_words import Events, count_words
from vitrail.data.drafting.numbers import FEW, REACH, is_code_like
from vitrail.data.drafting.persons import StudyDraft, find_keys, with_picture_persons
from vitrail.data.drafting.similar_columns import may_be_same
from vitrail.data.drafting.survival import draft_times
from vitrail.data.readers.cells import MISSING_WORDS, as_numbers, is_plain
from vitrail.data.readers.frames import Sites, as_sites
from vitrail.data.readers.source import ENDING, tell
from vitrail.data.readers.tables import part_sites, place_columns, read_sites, read_table
from vitrail.data.schema import Target, UnreadTableSchema, canon

COMPARED = 2000  # columns looked at one by one, at most; of wider tables, plain quantities are only given a range


class FeatureDrafts(NamedTuple):
    """Features as a study file would write them, why other columns were left out, and what a person should know."""

    features: dict[str, dict[str, Any]]
    left: dict[str, str]
    notes: list[str]


def infer_study(sites: Sites, target: str, site: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A drafted study with what else is given. What a person has to decide is told as warnings."""
    column = site or str(given.get("site_column", ""))
    draft = infer_table(as_sites(sites, site, column), target, column)
    for question in draft.questions:
        tell(question)
    drafted = {
        k: v for k, v in draft.content.items() if k != "training" or not given.get("paper")
    }  # a paper has its own
    if isinstance(training := given.get("training"), Mapping):
        given = {**given, "training": {**drafted.get("training", {}), **training}}
    return {**drafted, **given, **({"site_column": column} if column else {})}


def infer_table(sites: Mapping[str, pd.DataFrame], target: str, site_column: str = "", time: str = "") -> StudyDraft:
    """Target and features as a study file would write them, and what was left out and why. `time`: the column that
    says how long each row was followed, where the target is an event."""
    places = {site: place_columns(frame) for site, frame in sites.items()}
    problems = []
    for site, (columns, repeated) in places.items():
        if target not in columns:
            problems.append(Problem(site, f"there is no column {target!r}.", nearest(target, columns)))
        if time and time not in columns:
            problems.append(Problem(site, f"there is no column {time!r}.", nearest(time, columns)))
        problems += [Problem(site, f"there is more than one column {c!r}.", "Rename one.") for c in repeated]
    if not sites:
        problems.append(Problem("data", "there are no sites.", "Give one table per site."))
    pictures = picture_column(sites)
    if pictures and time:
        problems.append(Problem("--time", "a study of pictures predicts classes, not times.", "Leave it out."))
    if pictures:
        lack = [site for site, (columns, _) in places.items() if pictures not in columns]
        problems += [
            Problem(site, f"there is no column {pictures!r} of pictures.", "Add or rename it.") for site in lack
        ]
    if problems:
        raise VitrailError("cannot draft a study", problems)
    if pictures:
        tidy = {s: frame.set_axis([str(c).strip() for c in frame.columns], axis=1) for s, frame in sites.items()}
        labels = concat([frame[target] for frame in tidy.values()])
        drafted = {"target": _classes(target, find_levels(labels)), **draft_pictures(tidy, pictures)}
        return with_picture_persons(StudyDraft(drafted), tidy)
    cells = {site: _with_points(frame.iloc[:, places[site][0][target]]) for site, frame in sites.items()}
    aim = _target(target, concat(list(cells.values())))
    classes = _events(cells, aim)
    events = classes[0] if len(classes) == 1 else None
    keys = find_keys(sites, {target, site_column, time})
    features, left, notes = draft_features(sites, {target, site_column, time, *keys.columns}, events)
    notes = keys.notes + _warn_left_out(left) + _warn_aliases(features) + notes
    looked_at = {n: features[n] for n in list(features)[:COMPARED]} if classes else {}
    drop, leaks = find_leaks(_cells_of(sites, looked_at), looked_at, target, classes)
    features, notes = {n: f for n, f in features.items() if n not in drop}, notes + leaks
    add_indicators(sites, features)
    if time:
        followed = concat([_with_points(frame.iloc[:, places[site][0][time]]) for site, frame in sites.items()])
        aim, note = draft_times(aim, time, followed)
        notes = [note, *notes]
    training = draft_training(aim.get("kind", "classes"), sum(map(len, sites.values())), len(sites))
    drafted = {"target": aim, "features": features, "training": training, **keys.settings}
    return StudyDraft(drafted, [*_warn_lost_outcomes(cells, target), *notes])


def _warn_lost_outcomes(cells: Mapping[str, pd.Series], target: str) -> list[str]:
    """Rows without an outcome, which no run can use."""
    lost = {site: int(_is_absent(column).sum()) for site, column in cells.items()}
    parts = [f"{n} of {len(cells[site])} rows at {site}" for site, n in lost.items() if n]
    return [f"No outcome ({target} is missing): {', '.join(parts)}. A run leaves them out."] if parts else []


def _is_absent(column: pd.Series) -> np.ndarray:
    out: np.ndarray = column.map(lambda cell: cell != cell or str(cell).strip().casefold() in MISSING_WORDS).to_numpy(
        bool, na_value=True
    )
    return out


def _events(cells: Mapping[str, pd.Series], aim: Mapping[str, Any]) -> list[Events]:
    """For each class that is asked about, whether each row is of it: of two classes the positive one."""
    cells_by_site = {
        site: (_is_absent(column), [fold(canon(cell)) for cell in column]) for site, column in cells.items()
    }
    classes = [aim["positive"]] if "positive" in aim else aim.get("classes", ())
    return [
        {
            site: np.where(absent, np.nan, np.array([level == fold(canon(wanted)) for level in levels], np.float64))
            for site, (absent, levels) in cells_by_site.items()
        }
        for wanted in classes
    ]


def _cells_of(
    sites: Mapping[str, pd.DataFrame], features: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, pd.Series]]:
    """For each feature the cells of each site, under whatever name it has there; codes for missing values are not."""
    out: dict[str, dict[str, pd.Series]] = {name: {} for name in features}
    for site, frame in sites.items():
        at = place_columns(frame)[0]
        for name, feature in features.items():
            called, codes = (name, *feature.get("aliases", ())), feature.get("missing", ())
            column = _with_points(frame.iloc[:, next(at[n] for n in called if n in at)])
            out[name][site] = column.mask(column.map(canon).isin([canon(c) for c in codes])) if codes else column
    return out


def infer_features(sites: Mapping[str, pd.DataFrame], but: Collection[str]) -> dict[str, dict[str, Any]]:
    """Of all columns but these."""
    return draft_features(sites, but).features


def draft_features(
    sites: Mapping[str, pd.DataFrame], but: Collection[str], events: Events | None = None
) -> FeatureDrafts:
    """Of all columns but these: features that every site has, and why the others were left out. `events`: see
    `draft_column`."""
    at = {site: place_columns(frame)[0] for site, frame in sites.items()}
    quantities = _find_quantities(sites, at)
    features, left, notes, absent = dict[str, dict[str, Any]](), dict[str, str](), list[str](), Counter[str]()
    codes: dict[float, list[str]] = {}
    partly: dict[str, dict[str, pd.Series]] = {}  # columns that some sites have
    for c, others in _match_names(at, but).items():
        where = {site: next((n for n in (c, *others) if n in columns), None) for site, columns in at.items()}
        parts = {s: _with_points(sites[s].iloc[:, at[s][name]]) for s, name in where.items() if name is not None}
        drafted = ColumnDraft(quantities[c]) if c in quantities else draft_column(c, parts, events)
        feature = drafted.feature
        lack = [site for site, name in where.items() if name is None]
        if isinstance(feature, dict) and c not in quantities and is_identifier(c, list(parts.values())):
            feature = "identifiers"
        if isinstance(feature, str):
            left[c] = feature
        elif lack:
            left[c], partly[c] = f"not at {', '.join(lack)}", parts
        else:
            features[c] = {**feature, **({"aliases": list(others)} if others else {})}
            notes += drafted.notes
            absent.update(drafted.absent)
            for code, (times, rows) in drafted.codes.items():
                codes.setdefault(code, []).append(f"{c} in {times} of {rows} rows")
    for name, other in may_be_same(partly):
        at_one, at_other = ", ".join(partly[name]), ", ".join(partly[other])
        notes.append(
            f"Perhaps the same column: {name!r} at {at_one} and {other!r} at {at_other}. If so, write a feature "
            f'{name!r} with aliases = ["{other}"].'
        )
    return FeatureDrafts(features, left, [*count_words(absent), *map(_describe_code, codes, codes.values()), *notes])


def _match_names(at: Mapping[str, Mapping[str, int]], but: Collection[str]) -> dict[str, list[str]]:
    """Each column once, with the names that surely mean the same at sites that have no column of its name."""
    every = [c for c in dict.fromkeys(c for columns in at.values() for c in columns) if c not in but]
    partly = [c for c in every if any(c not in columns for columns in at.values())]
    taken, out = set[str](), dict[str, list[str]]()
    for c in every:
        if c in taken:
            continue
        out[c] = []
        for other in partly if c in partly else ():
            alone = not any(c in columns and other in columns for columns in at.values())
            if other not in (c, *taken) and alone and is_same_name(c, other):
                out[c].append(other)
                taken.add(other)
    return out


def _warn_left_out(left: Mapping[str, str]) -> list[str]:
    by: dict[str, list[str]] = {}
    for name, why in left.items():
        by.setdefault(why, []).append(name)
    return [f"Left out ({why}): {', '.join(names)}." for why, names in sorted(by.items())]


def _describe_code(code: float, where: list[str]) -> str:
    number = f"{code:.10g}"
    return (
        f"Probably a code for missing: {number}, far from all other values, is read as missing (missing = "
        f"[{number}]): {', '.join(where)}. Where it is a real value, remove it there, and widen the range or add it "
        "to the categories."
    )


def _warn_aliases(features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"Treated as one column: {', '.join([n, *f['aliases']])}." for n, f in features.items() if "aliases" in f]


def _find_quantities(
    sites: Mapping[str, pd.DataFrame], at: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, Any]]:
    """Of a wide table: columns that are numbers at every site and plainly quantities, with nothing far from the rest.
    They are not looked at one by one: there may be many thousands."""
    dtypes = {s: list(frame.dtypes) for s, frame in sites.items()}
    plain = [c for c in next(iter(at.values())) if all(c in at[s] and is_plain(dtypes[s][at[s][c]]) for s in sites)]
    out: dict[str, dict[str, Any]] = {}
    if len(plain) <= COMPARED:
        return out
    for names in (plain[i : i + 500] for i in range(0, len(plain), 500)):  # a copy of all at once may be too large
        blocks = [frame.iloc[:, [at[s][c] for c in names]].to_numpy(np.float64) for s, frame in sites.items()]
        values = np.sort(np.concatenate(blocks).T)  # [column, row]
        low, high = np.fmin.reduce(values, 1, initial=np.inf) + 0.0, np.fmax.reduce(values, 1, initial=-np.inf) + 0.0
        several = (values[:, 1:] > values[:, :-1]).sum(1) >= FEW  # missing ones come last and are not more
        numbered = np.logical_and.reduce([_may_number(block) for block in blocks])
        sure = several & ~numbered & (np.abs([low, high]) < 1e308).all(0)  # others are looked at one by one
        outer, middle, upper = np.nanquantile(values, [0.05, 0.5, 0.95], axis=1)
        sure &= (low >= middle - REACH * (middle - outer)) & (high <= middle + REACH * (upper - middle))
        sure &= ~np.array([is_code_like(end) for end in low.tolist()]) & (high > low)
        out |= {names[i]: {"kind": "numeric", "range": [float(low[i]), float(high[i])]} for i in np.flatnonzero(sure)}
    return out


def _may_number(block: np.ndarray) -> np.ndarray:
    """[column]: whether a site's values [row, column] are nearly all different whole numbers."""
    values = np.sort(block, 0)
    different = 1 + (values[1:] > values[:-1]).sum(0)  # missing ones come last and are not more
    whole = (np.isnan(block) | (np.round(block) == block)).all(0)
    out: np.ndarray = whole & (different >= UNIQUE * (~np.isnan(block)).sum(0))
    return out


def name_target(paths: list[Path]) -> str:
    """What the outcome is called where nobody says: the folders that pictures lie in are its classes. A table has to
    be told."""
    if all(path.is_dir() and holds_pictures(path) for path in paths):
        return "class"
    first, columns = paths[0], list[str]()
    with suppress(VitrailError, StopIteration):  # who reads it says why not
        file = next(p for p in sorted(first.iterdir()) if ENDING.search(p.name)) if first.is_dir() else first
        columns = [] if holds_pictures(file) else [str(c) for c in read_table(file).columns]
    what = "expected the column to predict; only folders of pictures need none."
    named = f"; the columns are {', '.join(columns[:20])}{', ...' * (len(columns) > 20)}" if columns else ""
    raise VitrailError("cannot draft a study", [Problem("--target", what, f"Write --target COLUMN{named}.")])


def read_drafts(paths: list[Path], target: str, site_column: str = "") -> dict[str, pd.DataFrame]:
    """Tables or pictures to draft a study from: one per site, or a folder of them, or one that holds all sites."""
    if any(map(holds_pictures, paths)):
        sites = read_picture_drafts(paths, target, site_column)
        whole = list(sites.values()) if site_column else []
        return part_sites(paths[0], whole[0], site_column) if len(whole) == 1 else sites
    table = UnreadTableSchema(target=Target(column=target), features={}, site_column=site_column)
    if len(paths) == 1 and (site_column or paths[0].is_dir()):
        return read_sites(paths[0], table)
    return {str(p): read_table(p, table) for p in paths}


def _with_points(values: pd.Series) -> pd.Series:
    """One site may write 1,5 where another writes 1.5: read each site's way before putting them together."""
    if not is_plain(values.dtype) and any(isinstance(v, str) and "," in v for v in values):
        numbers, bad = as_numbers(values)
        return values if bad.any() else numbers
    return values


def _target(name: str, values: pd.Series) -> dict[str, Any]:
    levels = find_levels(values)
    numbers, bad = as_numbers(values)
    if len(levels) > 20 and not bad.any():
        measured = numbers.dropna().to_numpy(dtype=np.float64)
        scale = float(measured.std()) or 1.0
        return {"column": name, "kind": "number", "center": float(measured.mean()), "scale": scale}
    return _classes(name, levels)


def _classes(name: str, levels: list[Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"column": name, "kind": "classes", "classes": levels}
    if len(levels) == 2:
        out["positive"] = levels[1]
    return out

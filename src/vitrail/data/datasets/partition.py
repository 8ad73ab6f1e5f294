"""Ways to cut one table into sites, for research. All deterministic in (table, arguments, seed); no row is lost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.random import key
from vitrail.data.readers.cells import as_numbers
from vitrail.data.schema import canon

Cut = dict[str, pd.DataFrame]

AGE_STRICT = {"0-20": (0, 20), "21-35": (20, 35), "36+": (35, float("inf"))}  # (above, up to]; 0 itself included


def _column(frame: pd.DataFrame, column: str) -> pd.Series:
    if column not in frame:
        hint = nearest(column, map(str, frame.columns))
        raise VitrailError("cannot partition the table", [Problem("column", f"there is no column {column!r}.", hint)])
    return frame[column]


def _refuse(*problems: Problem) -> None:
    if problems:
        raise VitrailError("cannot partition the table", problems)


def _require(whole: Mapping[str, object], **numbers: object) -> None:
    """Counts of at least 1 and numbers above 0."""
    bad = [(k, "a whole number above 0", v) for k, v in whole.items() if not _is_whole(v, 1)]
    for k, v in numbers.items():
        if not (isinstance(v, int | float | np.number) and 0 < v < np.inf):
            bad.append((k, "a number above 0", v))
    _refuse(*(Problem(k, f"expected {what}, got {v!r}.", "Correct it.") for k, what, v in bad))


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def _named(frame: pd.DataFrame, parts: list[NDArray[np.int64]]) -> Cut:
    width = len(str(len(parts)))
    return {f"site-{i + 1:0{width}d}": frame.iloc[np.sort(rows)] for i, rows in enumerate(parts)}


def by_column(frame: pd.DataFrame, column: str) -> Cut:
    """One site for each value of a column, which is then dropped; rows without a value are the site `unknown`."""
    values = _column(frame, column)
    names = values.astype(object).where(values.notna(), "unknown").map(canon)
    return {name: frame[names == name].drop(columns=column) for name in sorted(names.unique())}


def by_ranges(frame: pd.DataFrame, column: str, ranges: Mapping[str, tuple[float, float]]) -> Cut:
    """One site for each range (above, up to]; the lowest bound is included; rows outside or missing are `unknown`."""
    values, _ = as_numbers(_column(frame, column))
    wrong = [f"{name}: {bounds}" for name, bounds in ranges.items() if not bounds[0] < bounds[1]]
    if wrong or not ranges:
        what = f"expected names with (low, high) and low < high, got {', '.join(wrong) or 'none'}."
        _refuse(Problem("ranges", what, "Correct them."))
    lowest = min(low for low, _ in ranges.values())
    home = pd.Series("unknown", index=frame.index, dtype=object)
    for name, (low, high) in ranges.items():
        home[((values > low) | ((values == low) & (low == lowest))) & (values <= high)] = name
    return {n: frame[home == n] for n in [*ranges, "unknown"] if (home == n).any()}


def age_strict(frame: pd.DataFrame, column: str = "age") -> Cut:
    """The Weight Erosion report's AGE_STRICT: 0-20, 21-35, 36+, unknown."""
    return by_ranges(frame, column, AGE_STRICT)


def age_some(frame: pd.DataFrame, column: str = "age", seed: int = 0) -> Cut:
    """The report's AGE_SOME: two sites share the ages 0-35 at random; 36+ and unknown are sites of their own."""
    parts = by_ranges(frame, column, {"0-35": (0, 35), "36+": (35, float("inf"))})
    young = parts.pop("0-35", frame.iloc[:0])
    a, b = iid(young, 2, seed).values()
    return {n: f for n, f in {"0-35 a": a, "0-35 b": b, **parts}.items() if len(f)}


def iid(frame: pd.DataFrame, sites: int, seed: int = 0) -> Cut:
    """Sites of equal size, at random."""
    _require({"sites": sites})
    order = np.random.default_rng(key(seed, "iid", sites)).permutation(len(frame))
    return _named(frame, [np.asarray(p) for p in np.array_split(order, sites)])


def size_skew(frame: pd.DataFrame, sites: int, alpha: float = 1.0, seed: int = 0, at_least: int = 2) -> Cut:
    """Rows at random, sizes from a Dirichlet(alpha): the smaller alpha, the more unequal."""
    _require({"sites": sites}, alpha=alpha)
    if not _is_whole(at_least, 0):
        _refuse(Problem("at_least", f"expected a whole number of at least 0, got {at_least!r}.", "Correct it."))
    rng = np.random.default_rng(key(seed, "size", sites, alpha))
    return _named(frame, _dealt(rng.permutation(len(frame)), rng.dirichlet([alpha] * sites), at_least))


def dirichlet(frame: pd.DataFrame, label: str, sites: int, alpha: float = 0.5, seed: int = 0) -> Cut:
    """Label skew: each class is dealt to the sites by shares from a Dirichlet(alpha). A site may end up empty-handed
    of a class, but none without rows: such a site is given a row of the largest."""
    _require({"sites": sites}, alpha=alpha)
    values = _column(frame, label).map(str).to_numpy()
    rng = np.random.default_rng(key(seed, "dirichlet", sites, alpha))
    parts: list[list[int]] = [[] for _ in range(sites)]
    for k in sorted(set(values)):
        rows = rng.permutation(np.flatnonzero(values == k))
        for mine, more in zip(parts, _dealt(rows, rng.dirichlet([alpha] * sites), 0), strict=True):
            mine += more.tolist()
    for mine in parts:
        while len(mine) < 2 and max(map(len, parts)) > 2:
            mine.append(max(parts, key=len).pop())
    return _named(frame, [np.array(p, dtype=np.int64) for p in parts])


def sigma_classes(frame: pd.DataFrame, label: str, sites: int, sigma: int, seed: int = 0) -> Cut:
    """Each site holds up to sigma classes (RIPFL's setting); every class has a home, its rows shared equally there."""
    _require({"sites": sites, "sigma": sigma})
    values = _column(frame, label).map(str).to_numpy()
    classes = sorted(set(values))
    if sigma > len(classes) or sites * sigma < len(classes):
        what = f"{sites} sites with {sigma} different classes each do not fit {len(classes)} classes."
        raise VitrailError("cannot partition the table", [Problem("sigma", what, "Choose another sigma.")])
    rng = np.random.default_rng(key(seed, "sigma", sites, sigma))
    homes: dict[str, list[int]] = {k: [] for k in classes}
    for i in range(sites):
        # the classes with fewest homes first, at random among equals
        ranked = sorted(rng.permutation(len(classes)).tolist(), key=lambda c: len(homes[classes[c]]))
        for c in ranked[:sigma]:
            homes[classes[c]].append(i)
    parts: list[list[int]] = [[] for _ in range(sites)]
    for k in classes:
        rows = rng.permutation(np.flatnonzero(values == k))
        for i, more in zip(homes[k], np.array_split(rows, len(homes[k])), strict=True):
            parts[i] += more.tolist()
    return _named(frame, [np.array(p, dtype=np.int64) for p in parts])


def _dealt(rows: NDArray[np.int64], shares: NDArray[np.float64], at_least: int) -> list[NDArray[np.int64]]:
    """rows in consecutive parts of about these shares, each of at least so many rows where there are enough."""
    n, k = len(rows), len(shares)
    floor = min(at_least, n // k)
    sizes = floor + np.floor(shares * (n - floor * k)).astype(int)
    for i in np.argsort(-shares, kind="stable")[: n - sizes.sum()]:
        sizes[i] += 1
    return [np.asarray(p) for p in np.split(rows, np.cumsum(sizes)[:-1])]

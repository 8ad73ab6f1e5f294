"""A site's table as numbers: standardised, one column per category, missing values neutral; split for testing.

numeric      (value - mean) / sd, missing -> 0
binary       0 or 1, missing -> 0.5
categorical  one column per category but the first, which is the reference, 0 or 1, missing -> 1/categories
indicator    where a feature asks for one: a further column that is 1 where its value is missing, else 0

Mean and sd are those of the site's own training rows (`local`), of all sites' training rows (`global`: an exchange of
its own, see `Moments`), or 0 and 1 (`none`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import persons_of
from vitrail.data.readers.images import stacked
from vitrail.data.readers.tables import TOGETHER, clean, row_names
from vitrail.data.schema import Feature, TableSchema
from vitrail.data.splitting import Splits, split_problems, split_sites

Matrix = NDArray[np.float64]
NO_LEVEL = -1  # which no value has: the column of an indicator is 0, unless the value is missing


class Moments(NamedTuple):
    """What `global` standardisation exchanges, in two rounds; only sums over sites are needed."""

    rows: NDArray[np.float64]  # [numeric feature]: how many have a value
    total: NDArray[np.float64]  # [numeric feature]: round 1 sum of values, round 2 sum of squared distances to the mean


@dataclass(frozen=True)
class Encoder:
    """One site's way from table to matrix; private to the site when standardisation is local."""

    table: TableSchema
    mean: dict[str, float]
    sd: dict[str, float]
    constants: dict[str, list[float]] = field(default_factory=dict)  # by model: added to its answer at this site
    thresholds: Sequence[float] = ()  # by class: the site's own shares, from which on a class is predicted

    @property
    def columns(self) -> list[str]:
        """Names of the matrix columns."""
        return columns(self.table)

    @property
    def plain(self) -> dict[str, Any]:
        """As a file holds it, beside the study."""
        return {
            k: v for k in ("mean", "sd", "constants", "thresholds") if (v := getattr(self, k)) or k in ("mean", "sd")
        }

    @classmethod
    def of(cls, table: TableSchema, plain: Mapping[str, Any]) -> Encoder:
        """Of what `plain` gave; a file of an older version has no constants."""
        constants = {str(k): [float(n) for n in v] for k, v in plain.get("constants", {}).items()}
        return cls(table, dict(plain["mean"]), dict(plain["sd"]), constants, list(plain.get("thresholds", ())))

    @cached_property
    def layout(self) -> MatrixLayout:
        return _lay_out(self.table, self.mean, self.sd)

    def matrix(
        self, cleaned: pd.DataFrame, rows: NDArray[np.int64] | None = None, kind: type[np.floating] = np.float64
    ) -> NDArray[Any]:
        """Rows of `clean`, or those at these places -> [row, column]; or pictures, [row, channel, height, width] of
        uint8."""
        if self.table.images:
            column = cleaned[self.table.images.column]
            return stacked(column if rows is None else column.iloc[rows], self.table.images)
        at, names = self.layout, list(self.table.features)
        own = list(cleaned.columns[: len(names)]) == names  # as `clean` has them: no copy is made
        values = (cleaned.iloc[:, : len(names)] if own else cleaned[names]).to_numpy(np.float64)
        rows = np.arange(len(values)) if rows is None else rows
        out = np.empty((len(rows), len(at.source)), kind)
        step = max(1, TOGETHER // max(out.shape[1], 1))
        for some in (slice(first, first + step) for first in range(0, len(rows), step)):
            part = np.take(values[rows[some]], at.source, 1)
            missing = np.isnan(part)
            part -= at.mean
            part /= at.sd
            if len(at.hot):
                part[:, at.hot] = part[:, at.hot] == at.level
            np.copyto(part, at.neutral, where=missing)
            out[some] = part
        return out


class MatrixLayout(NamedTuple):
    """The matrix columns, all kinds side by side: found once, for there may be many thousands."""

    source: NDArray[np.int64]  # [column]: the feature it shows
    mean: Matrix  # [column]: 0 where there is nothing to standardise
    sd: Matrix  # [column]: 1 there
    neutral: Matrix  # [column]: what stands for a missing value
    hot: NDArray[np.int64]  # columns that show whether a feature has a certain level
    level: NDArray[np.int64]  # which, for each of those


def _lay_out(table: TableSchema, means: Mapping[str, float], sds: Mapping[str, float]) -> MatrixLayout:
    columns: list[tuple[int, float, float, float]] = []
    hot: list[tuple[int, int]] = []
    for at, (name, feature) in enumerate(table.features.items()):
        if feature.kind == "numeric":
            columns.append((at, means.get(name, 0.0), sds.get(name, 1.0), 0.0))
        elif feature.kind == "binary":
            columns.append((at, 0.0, 1.0, 0.5))
        else:
            for level in shown_levels(table, feature):
                hot.append((len(columns), level))
                columns.append((at, 0.0, 1.0, 1 / len(feature.categories)))
        if feature.indicator:
            hot.append((len(columns), NO_LEVEL))
            columns.append((at, 0.0, 1.0, 1.0))
    source, mean, sd, neutral = np.array(columns, np.float64).reshape(-1, 4).T
    place, which = np.array(hot, np.int64).reshape(-1, 2).T
    return MatrixLayout(source.astype(np.int64), mean, sd, neutral, place, which)


def shown_levels(table: TableSchema, feature: Feature) -> range:
    """The levels of a category that have a column: all but the first, where that is the reference."""
    return range(int(table.reference_level and len(feature.categories) > 1), len(feature.categories))


def columns(table: TableSchema) -> list[str]:
    return [name for name, _ in _named_columns(table)]


def owners(table: TableSchema) -> list[str]:
    """For each of these columns the feature that it is of."""
    return [owner for _, owner in _named_columns(table)]


def _named_columns(table: TableSchema) -> list[tuple[str, str]]:
    if table.images:
        return [(name, name) for name in table.images.names]
    out: list[tuple[str, str]] = []
    for name, f in table.features.items():
        levels = [f"{name}={f.levels[k]}" for k in shown_levels(table, f)] if f.kind == "categorical" else [name]
        out += [(column, name) for column in [*levels, *[f"{name} is missing"] * f.indicator]]
    return out


def numeric(table: TableSchema) -> list[str]:
    return [n for n, f in table.features.items() if f.kind == "numeric"]


class SiteData(NamedTuple):
    """What one site trains and tests on."""

    name: str
    encoder: Encoder
    train_x: NDArray[Any]
    train_y: NDArray[np.generic]
    test_x: NDArray[Any]
    test_y: NDArray[np.generic]
    fingerprint: str  # of the cleaned rows
    counts: Matrix | None = None  # of classes, where they are weighted by others than those of the training rows
    train_w: Matrix | None = None  # for how many each row stands, where the study says so
    test_w: Matrix | None = None
    train_persons: NDArray[np.int64] | None = None  # whose each row is, where the study says so
    test_persons: NDArray[np.int64] | None = None
    held_out: tuple[int | str, ...] = ()  # how the site's own table calls the test rows


def prepare(
    sites: Mapping[str, pd.DataFrame], table: TableSchema, seed: int, fitted: Encoder | None = None
) -> list[SiteData]:
    """Clean, split and encode every site's table; the problems of all sites at once. `fitted`: a scale that was fitted
    before."""
    cleaned = clean_sites(sites, table)
    return encode_sites(cleaned, table, split_sites(cleaned, table, seed), fitted)


def clean_sites(sites: Mapping[str, pd.DataFrame], table: TableSchema) -> dict[str, pd.DataFrame]:
    cleaned: dict[str, pd.DataFrame] = {}
    problems: list[Problem] = []
    for name, frame in sites.items():
        try:
            rows = clean(frame, table)
            if len(rows) < 2:
                what = f"expected at least 2 rows with a target, got {len(rows)}."
                problems.append(Problem(f"{name}, the table", what, "Leave the site out, or give it more rows."))
            else:
                problems += split_problems(rows, table, name)
            cleaned[name] = rows
        except VitrailError as error:
            problems += [p._replace(where=f"{name}, {p.where}") for p in error.problems]
    if not sites:
        problems.append(Problem("data", "there are no sites.", "Give one table per site."))
    if problems:
        raise VitrailError("the data does not fit the study", problems)
    return cleaned


def encode_sites(
    cleaned: Mapping[str, pd.DataFrame],
    table: TableSchema,
    splits: Splits,
    fitted: Encoder | Mapping[str, Encoder] | None = None,
) -> list[SiteData]:
    """Encode rows that `clean` gave, in single precision, as networks take them. `fitted`: a scale that was fitted
    before, one for all sites or each site's own."""
    target = table.target
    if isinstance(fitted, Encoder):
        fitted = dict.fromkeys(cleaned, fitted)
    encoders = (
        fit_encoders(cleaned, table, {n: train for n, (train, _) in splits.items()}) if fitted is None else fitted
    )
    out = []
    for name, frame in cleaned.items():
        y = frame[target.column].to_numpy()
        if target.kind == "number":
            y = (y - target.center) / target.scale
        a, b = splits[name]
        train, test = (encoders[name].matrix(frame, rows, np.float32) for rows in (a, b))
        w = weights_of(frame, table)
        weights = (None, None) if w is None else (w[a], w[b])
        site = SiteData(name, encoders[name], train, y[a], test, y[b], fingerprint_rows(frame), None, *weights)
        if (persons := persons_of(frame, table)) is not None:
            site = site._replace(train_persons=persons[a], test_persons=persons[b])
        out.append(site._replace(held_out=tuple(row_names(frame.index[b], b))))
    return out


def fit_encoders(
    cleaned: Mapping[str, pd.DataFrame], table: TableSchema, rows: Mapping[str, NDArray[np.int64]] | None = None
) -> dict[str, Encoder]:
    """From these rows of each site: those it trains on."""
    names, of = numeric(table), rows or {}
    if table.standardise == "none" or not names:
        return {site: Encoder(table, {}, {}) for site in cleaned}

    def fit(*sites: str) -> Encoder:
        some = [(cleaned[site], of.get(site)) for site in sites]
        mean, sd = finish_moments(lambda mean: [moments(f, names, mean, only) for f, only in some])
        return Encoder(table, dict(zip(names, mean.tolist(), strict=True)), dict(zip(names, sd.tolist(), strict=True)))

    if table.standardise == "local":
        return {site: fit(site) for site in cleaned}
    return dict.fromkeys(cleaned, fit(*cleaned))


def moments(
    frame: pd.DataFrame, names: list[str], mean: Matrix | None = None, only: NDArray[np.int64] | None = None
) -> Moments:
    """What one site says of its rows, or of those at these places `only`: sums of its values, or with the mean known,
    of squared distances to it."""
    rows, total = np.empty(len(names)), np.empty(len(names))
    step = max(1, TOGETHER // max(len(frame), 1))  # features at once: copies of all would be several times the table
    for some in (slice(at, at + step) for at in range(0, len(names), step)):
        v = frame[names[some]].to_numpy(dtype=np.float64).T
        v = np.ascontiguousarray(v if only is None else v[:, only])  # [feature, row]: sums keep an order
        present = ~np.isnan(v)
        values = v if mean is None else (v - mean[some, None]) ** 2
        rows[some], total[some] = present.sum(1), np.where(present, values, 0.0).sum(1)
    return Moments(rows, total)


def finish_moments(say: Callable[[Matrix | None], list[Moments]]) -> tuple[Matrix, Matrix]:
    """Mean and sd, from what the sites say: first without a mean, then of their distances to it."""
    mean = _mean_of(say(None))
    sd = np.sqrt(_mean_of(say(mean)))  # by their own rows: a site may have fallen silent in between
    return mean, np.where(sd > 1e-12 * (1 + np.abs(mean)), sd, 1.0)  # a constant column stays where it is


def _mean_of(parts: list[Moments]) -> Matrix:
    return np.asarray(np.sum([m.total for m in parts], 0) / np.sum([m.rows for m in parts], 0).clip(min=1))


def typical_row(cleaned: pd.DataFrame, table: TableSchema) -> pd.DataFrame:
    """One row: the median of each number, the most frequent level of each other feature; NaN where nothing is known."""

    def typical(column: pd.Series[float], kind: str) -> float:
        present = column.dropna()
        if not len(present):
            return float("nan")
        return float(present.median()) if kind == "numeric" else float(present.mode().iloc[0])

    return pd.DataFrame({name: [typical(cleaned[name], f.kind)] for name, f in table.features.items()})


def rows_as_text(cleaned: pd.DataFrame, table: TableSchema) -> NDArray[np.object_]:
    """[row, feature] as a person writes them: numbers in their unit, names of levels, NaN where missing."""
    out = cleaned[list(table.features)].to_numpy(np.float64).astype(object)
    for i, feature in enumerate(table.features.values()):
        if feature.levels:
            out[:, i] = [feature.levels[int(v)] if v == v else v for v in out[:, i]]
    return out


def class_weights(
    y: NDArray[np.generic], classes: int, counts: Matrix | None = None, rows: Matrix | None = None
) -> Matrix:
    """Inverse prevalence, scaled to sum to the number of classes that occur; 1 for a class that does not. `counts`: in
    place of those of `y`; `rows`: for how many each stands."""
    count = np.bincount(y.astype(np.int64), rows, classes).astype(np.float64) if counts is None else counts
    inverse = np.where(count > 0, 1 / np.where(count > 0, count, 1), 0.0)
    return np.where(count > 0, inverse * (count > 0).sum() / inverse.sum(), 1.0)


def fingerprint_rows(cleaned: pd.DataFrame) -> str:
    """Changes when any value the model sees changes."""
    hashed = hashlib.sha256("\x1f".join(cleaned.columns).encode())
    pictures = [name for name, kind in cleaned.dtypes.items() if kind.kind == "O"]
    for name in pictures:
        for picture in cleaned[name]:
            hashed.update(np.ascontiguousarray(picture).data)
    numbers = cleaned.drop(columns=pictures) if pictures else cleaned
    step = max(1, TOGETHER // max(numbers.shape[1], 1))
    for at in range(0, len(numbers), step):
        hashed.update(np.ascontiguousarray(numbers.iloc[at : at + step].to_numpy(dtype=np.float64)).data)
    return hashed.hexdigest()[:16]

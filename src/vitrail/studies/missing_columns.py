"""Which column should a site begin to record? What it would save of its loss if it had one that others have.

For a site u that lacks a column c, and the donors: the sites that record c.

    d_i      loss of donor row i under a model without c, less its loss under a model with c; both are trained by all
             donors with the study's method, and never on row i (whole_folds)
    w_i      how much row i is like u's rows: a density ratio from the columns that both record and the
             outcome (stats/density_ratio.py)
    x_j      the mean of d over the rows of donor j, weighted by w; its variance is that of a weighted mean, by person
             where the study names persons
    gain     the random-effects mean of x over donors, with the interval for a further site (stats/random_effects.py):
             it covers both the rows that happened to be there and how sites differ

The answer is "yes" or "no" where the interval is on one side of zero, and "cannot tell" where it holds zero, where
fewer than DONORS sites record the column, or where the donors' rows stand for fewer than LEAST rows like u's. A donor
whose weighted rows are still unlike u's is left out (LEAST_EACH, FAR).

What it supposes: given the other columns and the outcome, the column is distributed at u as it is at the donors. This
cannot be checked before u records it. Gains of several columns do not add up. It needs the rows of all sites in one
place: it is for simulation, not between machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.text import number
from vitrail.data.encoding import clean_sites, fit_encoders
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import persons_of
from vitrail.data.readers.frames import Sites, as_sites
from vitrail.methods import AnyMethod
from vitrail.runs.setup import check_trainable, resolve
from vitrail.stats.density_ratio import density_ratio, effective_size, imbalance
from vitrail.stats.random_effects import predict_further
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.studies.benefit import NO, UNSURE, YES
from vitrail.studies.cross_validation import row_losses, train_folds
from vitrail.studies.folds import whole_folds
from vitrail.study.model import Study

Floats = NDArray[np.float64]
CANNOT = "no column can be judged"
LACKS = 0.05  # a site with a smaller share of values lacks the column
RECORDS = 0.5  # a site with at least this share of values records it
DONORS = 2
LEAST = 50.0  # effective rows of all donors together
LEAST_EACH = 10.0  # effective rows of a donor: with fewer it is left out
FAR = 2.0  # so is a donor that, weighted, still is more standard deviations from the site in any column
SUPPOSES = (
    "This supposes that, among patients with the same other columns and outcome, the column is distributed at the "
    "site as it is at the others. Nobody can check that before the site records it."
)


class ColumnGain(NamedTuple):
    """What a column would bring to a site that lacks it; NaN where nothing can be estimated."""

    site: str
    column: str
    verdict: str
    gain: float  # loss saved per row
    low: float
    high: float
    between: float  # standard deviation between sites
    donors: str  # sites that record it, separated by commas
    rows: int  # of the donors
    effective: float  # rows like the site's own that these are worth
    unweighted: float  # the same gain when no row is weighted
    why: str  # it cannot be told


@dataclass
class MissingColumns:
    """`table` has a line for each site and column that it lacks, fields of ColumnGain, largest gain first."""

    study: Study
    seed: int
    folds: int
    method: str
    table: pd.DataFrame

    @property
    def unit(self) -> str:
        kind = self.study.target.kind
        return f"of squared error per {self.study.row_word}" if kind == "number" else "nats per case"

    def lines(self) -> list[ColumnGain]:
        return [ColumnGain(*row) for row in self.table.itertuples(index=False)]

    def sentences(self) -> list[str]:
        """Each line of the table in plain words."""
        return [self.sentence(line) for line in self.lines()]

    def sentence(self, line: ColumnGain) -> str:
        """One line in plain words."""
        sign = -1 if line.verdict == NO else 1
        low, high = sorted((sign * line.low, sign * line.high))
        gain = f"{number(sign * line.gain)} {self.unit}, 95 % interval {number(low)} to {number(high)}"
        if line.verdict == UNSURE:
            estimate = "" if np.isnan(line.gain) else f" (estimate {gain})"
            return f"Cannot tell what site {line.site} would save if it recorded {line.column}{estimate}: {line.why}."
        return f"Site {line.site} would {'lose' if sign < 0 else 'save'} {gain}, if it recorded {line.column}."

    def save(self, folder: str | Path) -> None:
        """columns.csv in a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "columns.csv", to_csv(self.table))


def missing_columns(
    study: Study,
    sites: Sites,
    users: Sequence[str] = (),
    columns: Sequence[str] = (),
    method: str | None = None,
    *,
    folds: int = 5,
    seed: int | None = None,
    rounds: int | None = None,
    engine: str = "vectorised",
    progress: Callable[[str, int, int], None] | None = None,
    site: str = "",
) -> MissingColumns:
    """For each site that lacks a column of the study: what it would save of its loss per case if it recorded it.

    `sites`: a table for each site by name, or one table of all whose column `site` names it. A table may be without a
    column of the study. `users` and `columns`: only these sites and columns. `method`: instead of the study's. Every
    row of the sites that record a column is judged by models of other `folds`. `seed`, `rounds` and `engine` are as of
    federate; progress(what, done, of) is called. It needs the rows of all sites: it is for simulation only."""
    tables = as_sites(sites, site, study.site_column)
    study, chosen = resolve(study, method or study.build_method(), rounds)
    if problems := _problems(study, tables, users, columns):
        raise VitrailError(CANNOT, problems)
    check_trainable([(study, chosen)])
    whole = {name: _with_all_columns(study, frame) for name, frame in tables.items()}
    seed = study.seeds[0] if seed is None else seed
    trial = ColumnTrial(study, clean_sites(whole, study), chosen, seed, folds, engine)
    pairs = [(u, c) for u in users or tables for c in columns or study.features if trial.lacks(u, c)]
    gains = []
    for at, (user, column) in enumerate(pairs):
        gains.append(trial.gain(user, column))
        if progress:
            progress(f"{user}, {column}", at + 1, len(pairs))
    table = pd.DataFrame(gains, columns=list(ColumnGain._fields))
    table = table.sort_values("gain", ascending=False, kind="stable", na_position="last").reset_index(drop=True)
    return MissingColumns(study, seed, folds, chosen.catalogue.title, table)


def _with_all_columns(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """The table, with an empty column for each feature that it does not have by any of its names."""
    there = {str(name).strip() for name in frame.columns}
    absent = [name for name, feature in study.features.items() if there.isdisjoint({name, *feature.aliases})]
    return frame.assign(**dict.fromkeys(absent, np.nan))


def _problems(study: Study, tables: Mapping[str, Any], users: Sequence[str], columns: Sequence[str]) -> list[Problem]:
    if study.images or study.parties:
        what = "expected a study of tables with the same columns at all sites."
        return [Problem("study", what, "Pictures and vertical studies have no column that a site lacks.")]
    unknown = [Problem("--site", f"there is no site {n!r}.", nearest(n, tables)) for n in users if n not in tables]
    return unknown + [
        Problem("--column", f"the study has no column {c!r}.", nearest(c, study.features))
        for c in columns
        if c not in study.features
    ]


class ColumnTrial:
    """Cleaned tables of all sites, and the losses of their rows under models of some columns of some sites."""

    def __init__(
        self,
        study: Study,
        cleaned: Mapping[str, pd.DataFrame],
        method: AnyMethod,
        seed: int,
        folds: int,
        engine: str = "vectorised",
    ) -> None:
        self.study, self.method = study, method
        self.cleaned = {name: frame.reset_index(drop=True) for name, frame in cleaned.items()}
        self.seed, self.folds, self.engine = seed, folds, engine
        self.share = {name: frame[list(study.features)].notna().mean().to_dict() for name, frame in cleaned.items()}
        self._tables: dict[tuple[str, ...], dict[str, Floats]] = {}
        self._losses: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, Floats]] = {}

    def lacks(self, site: str, column: str) -> bool:
        return bool(self.share[site][column] < LACKS)

    def donors(self, user: str, column: str) -> list[str]:
        return [name for name in self.cleaned if name != user and self._record(column, name)]

    def _record(self, column: str, *sites: str) -> bool:
        """Whether each of these sites records the column."""
        return all(self.share[name][column] >= RECORDS for name in sites)

    def losses(self, features: Sequence[str], sites: Sequence[str]) -> dict[str, Floats]:
        """Site -> [row]: the loss under a model of these sites and columns that was not trained on the row; NaN for
        rows that no fold tests."""
        at = tuple(features), tuple(sites)
        if at not in self._losses:
            study, rows = _with_features(self.study, features), {name: self.cleaned[name] for name in sites}
            cut = whole_folds(rows, study, self.seed, self.folds)
            given = study, self.method, cut, self.seed, self.engine, "cpu", lambda done, of: None
            answers = train_folds(*given).last
            target, out = study.target.column, {}
            for (name, frame), predicted in zip(cut.cleaned.items(), answers, strict=True):
                out[name] = np.full(len(rows[name]), np.nan)  # a split by date may leave rows out
                out[name][frame.index.to_numpy()] = row_losses(study, frame[target].to_numpy(), predicted)
            self._losses[at] = out
        return self._losses[at]

    def saved(self, features: Sequence[str], column: str, sites: Sequence[str]) -> dict[str, Floats]:
        """Site -> [row]: how much less the loss is with the column than without it, beside these features."""
        without = [name for name in features if name != column]
        ordered = [name for name in self.study.features if name in (*without, column)]
        with_it, without_it = self.losses(ordered, sites), self.losses(without, sites)
        return {name: without_it[name] - with_it[name] for name in sites}

    def gain(self, user: str, column: str) -> ColumnGain:
        """What `column` would bring to `user`, from the sites that record it; what the user has of it is not used."""
        donors, nan = self.donors(user, column), np.nan
        features = [c for c in self.study.features if c != column and not self.lacks(user, c)]
        if len(donors) < DONORS or not features:
            recorded = f"only site {donors[0]} records it" if donors else "no other site records it"
            why = f"{recorded}, and at least {DONORS} other sites must"
            why = why if features else "the site has no other column"
            return ColumnGain(user, column, UNSURE, nan, nan, nan, nan, ", ".join(donors), 0, 0.0, nan, why)
        saved = self.saved(features, column, donors)
        values, variances, plain, rows, effective, used = [], [], [], 0, 0.0, []
        for name in donors:
            frame = self.cleaned[name]
            tested = np.isfinite(saved[name])
            described = self._described([c for c in features if self._record(c, user, name)])
            ratio = density_ratio(described[user], described[name])
            apart = imbalance(described[user], described[name], ratio)
            weights = (ratio * _even(weights_of(frame, self.study), len(frame)))[tested]
            persons = persons_of(frame, self.study)
            by = np.arange(int(tested.sum())) if persons is None else persons[tested]
            worth = effective_size(np.bincount(by, weights).astype(np.float64))
            if worth < LEAST_EACH or apart > FAR:
                continue
            mean, variance = _weighted(saved[name][tested], weights, by)
            values.append(mean)
            variances.append(variance)
            plain.append(float(saved[name][tested].mean()))
            used.append(name)
            rows, effective = rows + int(tested.sum()), effective + worth
        if len(used) < DONORS:
            why = "too few rows of the sites that record it are like the site's own"
            return ColumnGain(user, column, UNSURE, nan, nan, nan, nan, ", ".join(donors), rows, effective, nan, why)
        value, low, high, between = predict_further(np.array(values), np.array(variances))
        verdict, why = UNSURE, ""
        if effective < LEAST:
            why = f"the other sites' rows are worth only {effective:.0f} rows like the site's own"
        elif low <= 0 <= high:
            why = "the interval contains zero"
        else:
            verdict = YES if low > 0 else NO
        unweighted = float(np.mean(plain))
        return ColumnGain(
            user, column, verdict, value, low, high, between, ", ".join(used), rows, effective, unweighted, why
        )

    def _described(self, common: Sequence[str]) -> dict[str, Floats]:
        """Site -> [row, column]: the columns in common on one scale, and the outcome."""
        at = tuple(common)
        if at not in self._tables:
            study = _with_features(self.study, common).model_copy(update={"standardise": "global"})
            encoders = fit_encoders(self.cleaned, study)
            self._tables[at] = {
                name: np.column_stack([encoders[name].matrix(frame), self._outcome(frame)])
                for name, frame in self.cleaned.items()
            }
        return self._tables[at]

    def _outcome(self, frame: pd.DataFrame) -> Floats:
        """[row, column]: all classes but the first, or the number; nothing of a time, which may be cut off."""
        target, y = self.study.target, frame[self.study.target.column].to_numpy(np.float64)
        if target.kind == "classes":
            return np.eye(len(target.levels))[y.astype(np.int64)][:, 1:]
        return y[:, None] if target.kind == "number" else np.empty((len(y), 0))


def _with_features(study: Study, names: Sequence[str]) -> Study:
    return study.model_copy(update={"features": {name: study.features[name] for name in names}})


def _even(weights: Floats | None, rows: int) -> Floats:
    return np.ones(rows) if weights is None else np.asarray(weights, np.float64)


def _weighted(values: Floats, weights: Floats, by: NDArray[np.int64]) -> tuple[float, float]:
    """A weighted mean, and its variance: rows with the same number in `by` are one person's."""
    mean = float((weights * values).sum() / weights.sum())
    parts = np.bincount(by, weights * (values - mean))
    people = max(2, int((np.bincount(by) > 0).sum()))
    return mean, float((parts**2).sum() / weights.sum() ** 2 * people / (people - 1))

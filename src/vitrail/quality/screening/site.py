"""A site's side of a screening: what it publishes of its rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from scipy.special import ndtri

from vitrail.data.outcomes import as_plain
from vitrail.data.persons import one_row_each
from vitrail.data.schema import TableSchema
from vitrail.quality.checks.duplicate_sites import digest_table
from vitrail.quality.screening.request_validation import clip_predictions, rare_answers, rows_below, rows_with
from vitrail.quality.screening.row_evidence.ratios import row_ratios
from vitrail.quality.screening.schema import (
    CUTS,
    FENCES,
    FLOOR,
    HELD,
    OUTER,
    QUANTILES,
    QUARTILES,
    RELATED,
    Flags,
    Numbers,
    Places,
    Said,
    ScreeningSchema,
    shares,
)

STEPS = np.array([m * 10.0**e for e in range(4, -7, -1) for m in (5, 2, 1)])  # how coarsely a number may be written
RIDGE = 0.02
SOME = 0.5  # of a column's product with itself, which is as many as have a value


class ScreeningSite:
    """`rows` as `data.readers.tables.clean` gives them; `run`: the name of the run, which keys the digest of all rows.

    Where the study names persons, one row of each is published and nothing of the others: so every threshold and every
    test, which count rows, count persons. The digest is of all rows.
    """

    def __init__(self, rows: pd.DataFrame, table: TableSchema, run: str = "") -> None:
        self.layout = ScreeningSchema(table)
        at = self.layout
        names = [*at.table.features, at.target]
        self.digest = partial(digest_table, as_plain(rows, table)[names], run)
        values = as_plain(rows.iloc[one_row_each(rows, table)], table)[names].to_numpy(np.float64)
        self.n = len(values)
        whole = values[:, at.column]  # [row, variable]
        level = np.where(whole == at.level, 1.0, 0.0)
        self.values = np.where(np.isnan(whole), np.nan, np.where(at.is_number, whole, level))
        self.share = shares(at, self.n)
        self.silent = all(s.numbers == 0 for s in self.share)
        self.scores = score_rows(self.values, at.is_number)
        self.rare = rare_answers(self.values, at.is_number)
        self.scores[:, self.rare] = np.nan  # what goes with it would be told of one or two people

    def sketch(self) -> Said:
        at = self.layout
        out = nothing(at, "sketch")
        out["rows"][:] = self.n
        if self.silent:
            return out
        out["digest"][:] = self.digest()
        observed = np.isfinite(self.values)
        for c, s in enumerate(self.share):
            if s.numbers:
                out["known"][c] = observed[:, np.flatnonzero(at.column == c)[0]].sum()
        counts = np.nansum(self.values[:, at.yesno], 0)
        out["levels"][:] = np.where(self._may(at.yesno, "counts"), counts, np.nan)
        self._describe_numbers(out)
        ties = np.stack([tie_pairs(self, at.inputs, np.full(len(at.inputs), k)) for k in at.outcome], 1)
        if len(at.inputs):
            both = ~at.is_number[at.inputs][:, None] & ~at.is_number[at.outcome]
            # yes-or-no on both sides: rows with the outcome among the known, and rows with both; else r and its scatter
            first, second = np.where(both, ties[..., 2], ties[..., 1]), np.where(both, ties[..., 3], ties[..., 2])
            allowed = self._allowed(at.inputs, "ties")[:, None]
            out["outcome"][..., 0] = np.where(allowed >= 1, first, np.nan)
            out["outcome"][..., 1] = np.where(allowed >= 2, second, np.nan)
        return out

    def counts(self, asked: Said) -> tuple[Said, Said]:
        at = self.layout
        out = nothing(at, "counts")
        total = {"products": np.zeros(out.pop("products").shape)}
        if self.silent:
            return out, total
        for i, (v, x) in enumerate(zip(at.numbers, self._ordered(), strict=True)):
            share = self.share[at.column[v]]
            cuts, seen = asked["cuts"][i], asked["values"][i]
            which = _cuts_of(share.counts)
            out["below"][i, which] = rows_below(x, cuts)[which]
            if share.values >= 3:
                out["same"][i] = rows_with(x, seen)
        z = self._predictors(asked["chosen"])
        total["products"] = z.T @ z
        return out, total

    def ties(self, asked: Said) -> Said:
        at = self.layout
        out = nothing(at, "ties")
        if self.silent:
            return out
        allowed = self._allowed(at.inputs, "related")
        for j in range(RELATED):
            other = asked["related"][:, j]
            here = np.flatnonzero(np.isfinite(other) & (allowed > j))
            out["related"][here, j] = tie_pairs(self, at.inputs[here], other[here].astype(np.int64))
        z = self._predictors(asked["chosen"])
        if self.share[-1].ties:
            out["predicted"][:] = predict_left_out(z, asked["products"], len(at.outcome))
        if np.isfinite(asked["products"]).all():
            self._compare_rows(out["ratios"], z, asked)
        return out

    def _compare_rows(self, out: Numbers, z: Numbers, asked: Said) -> None:
        at = self.layout
        variables = np.concatenate([at.inputs[asked["chosen"].astype(np.int64)], at.outcome])
        others = asked["products"] - z.T @ z
        result = row_ratios(
            z,
            np.isfinite(self.scores[:, variables]),
            at.column[variables],
            at.is_number[variables],
            others,
            sizes_of(others),
            ridge_of(len(variables), max(1.0, float(np.diag(others).max(initial=1.0)))),
            len(at.outcome),
        )
        for column, numbers in result.items():
            if self.share[column].ratios:
                out[column] = numbers

    def _ordered(self) -> list[Numbers]:
        """Of each number what is known, in order."""
        columns = np.ascontiguousarray(np.sort(self.values[:, self.layout.numbers], axis=0).T)  # NaN last
        return [x[:k] for x, k in zip(columns, np.isfinite(columns).sum(1), strict=True)]

    def _predictors(self, chosen: Numbers) -> Numbers:
        """[row, chosen variables, then the outcome's]: scores, 0 where missing."""
        take = np.concatenate([self.layout.inputs[chosen.astype(np.int64)], self.layout.outcome])
        return np.nan_to_num(self.scores[:, take])

    def _allowed(self, variables: Places, what: str) -> Numbers:
        each = np.array([getattr(s, what) for s in self.share], np.float64)
        return each[self.layout.column[variables]]

    def _may(self, variables: Places, what: str) -> Flags:
        return self._allowed(variables, what) > 0

    def _describe_numbers(self, out: Said) -> None:
        at = self.layout
        full: Flags = np.asarray(np.isfinite(self.values[:, at.numbers]).all(0))
        columns = self._ordered()
        wanted = {0: np.zeros(0, np.int64), 3: QUARTILES, 7: OUTER, 19: np.arange(len(QUANTILES))}
        for which in {s.quantiles for s in self.share} - {0}:
            here = full & (self._allowed(at.numbers, "quantiles") == which) & (self.n >= FLOOR)
            ordered = np.array([columns[i] for i in np.flatnonzero(here)]).reshape(-1, self.n)
            out["quantiles"][np.ix_(here, wanted[which])] = np.quantile(ordered, QUANTILES[wanted[which]], axis=1).T
        for i, v in enumerate(at.numbers):
            share = self.share[at.column[v]]
            x = columns[i]
            if not len(x) or share.numbers == 0:
                continue
            if not full[i] and len(x) >= FLOOR:
                out["quantiles"][i, wanted[share.quantiles]] = np.quantile(x, QUANTILES[wanted[share.quantiles]])
            starts = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))
            held = np.diff(np.append(starts, len(x)))
            for j, which in enumerate([int(held.argmax()), 0, len(held) - 1][: share.values]):
                if held[which] >= HELD:
                    out["held"][i, j] = x[starts[which]], held[which]
            if share.grain:
                out["grain"][i] = len(starts), step_of(x[starts])


def _cuts_of(counts: int) -> list[int]:
    inner = [j + 1 for j in range(len(CUTS))]
    return {
        0: [],
        2: [inner[1], inner[3]],
        3: inner[1:4],
        5: [*inner[1:4], *FENCES],
    }.get(counts, sorted([*inner, *FENCES]))


def nothing(layout: ScreeningSchema, leg: str) -> Said:
    """What a site says in a leg, all of it NaN: not published."""
    here = [p for p in layout.parts() if p.leg == leg and p.direction == "from site"]
    return {p.name: np.full(p.shape, np.nan) for p in here}


def step_of(values: Numbers) -> float:
    """The coarsest of 1, 2 and 5 times a power of ten that nearly all the different values are multiples of."""
    some = values[:: max(1, len(values) // 200)]  # these tell
    few = some[:: max(1, len(some) // 25)]  # and of these the first look: too many that are no multiples already?
    steps = STEPS[(~_multiples(few, STEPS)).sum(0) <= 0.05 * len(some) + 1e-9]
    fits = _multiples(some, steps).mean(0) >= 0.95
    return float(steps[int(fits.argmax())]) if fits.any() else 0.0


def _multiples(values: Numbers, steps: Numbers) -> Flags:
    """[value, step]"""
    scaled = values[:, None] / steps
    return np.asarray(np.abs(scaled - np.round(scaled)) < 1e-6 * np.maximum(1, np.abs(scaled)))


def score_rows(values: Numbers, is_number: Flags) -> Numbers:
    """[row, variable]: numbers by their rank among the site's own, all with mean 0 and spread 1; NaN where missing."""
    out, observed = values.copy(), np.isfinite(values)
    full = np.flatnonzero(observed.all(0) & is_number)
    for which in ([full] if len(full) else []) + [np.array([v]) for v in np.flatnonzero(~observed.all(0) & is_number)]:
        rows = observed[:, which[0]]
        if rows.sum() >= FLOOR // 2:
            ranks = pd.DataFrame(values[np.ix_(rows, which)]).rank().to_numpy()  # scipy.stats takes a second to load
            out[np.ix_(rows, which)] = ndtri((ranks - 0.5) / rows.sum()).clip(-2.5, 2.5)
    observed = observed.sum(0)
    with np.errstate(all="ignore"):
        mean = np.nansum(out, 0) / observed
        sd = np.sqrt(np.nansum((out - mean) ** 2, 0) / observed)
        scored = (out - mean) / sd
    scored = np.where(np.isnan(out), np.nan, np.where(sd > 1e-9, scored, 0.0))
    return np.where(observed >= FLOOR // 2, scored, np.nan)


def tie_pairs(seat: ScreeningSite, a: Places, b: Places) -> Numbers:
    """[pair, 4]: rows with both known; then, of two yes-or-no, rows with the first, the second, both; of others, the
    correlation of scores and how its estimate scatters (NaN where one does not vary)."""
    at = seat.layout
    if not len(a):
        return np.zeros((0, 4))
    u, w = seat.scores[:, a], seat.scores[:, b]
    ok = np.isfinite(u) & np.isfinite(w)
    n = ok.sum(0).astype(float)
    out = np.full((len(a), 4), np.nan)
    out[:, 0] = n
    r, scatter = correlate(np.where(ok, u, 0.0), np.where(ok, w, 0.0), ok)
    out[:, 1], out[:, 2] = np.where(n >= FLOOR // 2, r, np.nan), np.where(n >= FLOOR // 2, scatter, np.nan)
    both = ~at.is_number[a] & ~at.is_number[b]
    if both.any():
        x, y, here = seat.values[:, a[both]], seat.values[:, b[both]], ok[:, both]
        yes, too = np.where(here, x, 0.0), np.where(here, y, 0.0)
        out[both, 1:] = np.stack([yes.sum(0), too.sum(0), (yes * too).sum(0)], 1)
    out[seat.rare[a] | seat.rare[b]] = np.nan
    return out


def correlate(u: Numbers, w: Numbers, ok: Flags) -> tuple[Numbers, Numbers]:
    """[pair] r of two [row, pair] over the rows that are `ok` (0 elsewhere), and the variance of sqrt(n) atanh(r)."""
    n = np.maximum(ok.sum(0), 1)

    def standard(x: Numbers) -> Numbers:
        x = np.where(ok, x - x.sum(0) / n, 0.0)
        sd = np.sqrt((x * x).sum(0) / n)
        return x / np.where(sd > 1e-9, sd, np.nan)

    u, w = standard(u), standard(w)
    r = np.clip((u * w).sum(0) / n, -0.98, 0.98)
    influence = np.where(ok, u * w - r * (u * u + w * w) / 2, 0.0)  # of each row on r
    return r, (influence**2).sum(0) / n / (1 - r * r) ** 2


def sizes_of(products: Numbers) -> Numbers:
    """[variable]: by what products are divided so that they are correlations. A column that nobody has is taken out:
    a total that went under masks holds there what rounding left, not 0."""
    square = np.diag(products)
    return np.where(square > SOME, np.sqrt(np.maximum(square, SOME)), np.inf)


def ridge_of(inputs: int, rows: float) -> float:
    return RIDGE + 0.6 * inputs / rows


def solve(products: Numbers, outcomes: int) -> Numbers:
    """[input, outcome]: weights by which the rows behind the products predict the outcome, by ridge regression."""
    d = len(products) - outcomes
    size = sizes_of(products)
    r = products / size[:, None] / size
    rows = max(1.0, float(np.diag(products).max(initial=1.0)))
    weight = np.linalg.solve(r[:d, :d] + np.eye(d) * ridge_of(d, rows), r[:d, d:])
    return np.asarray(weight / size[:d, None] * np.sqrt(rows))


def predict_left_out(z: Numbers, total: Numbers, outcomes: int) -> Numbers:
    """[outcome, 2]: correlation of the outcome here with its prediction from the other sites' rows, and its scatter."""
    d = z.shape[1] - outcomes
    if d == 0:
        return np.full((outcomes, 2), np.nan)
    others = total - z.T @ z
    predictions = clip_predictions(z[:, :d] @ solve(others, outcomes))
    here = z[:, d:]
    r, scatter = correlate(predictions, here, np.ones(here.shape, bool))
    return np.stack([r, scatter], 1)

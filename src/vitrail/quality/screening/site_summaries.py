"""What all sites said, side by side, and the tests that follow from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitrail.quality.screening.request_validation import FEWEST
from vitrail.quality.screening.schema import CUTS, VALUES, Flags, Numbers, Places, Said, ScreeningSchema
from vitrail.quality.screening.site import ridge_of, sizes_of

MISSING, SHARE, BELOW, BEYOND, VALUE = "missing", "share", "below", "beyond", "value"
OUTCOME, RELATED_TO, PREDICTED, RATIO = "outcome", "related", "predicted", "ratio"
LOCATION, SIZE, KEPT = "location", "size", "kept"
FAMILIES = (MISSING, SHARE, BELOW, BEYOND, VALUE, OUTCOME, RELATED_TO, PREDICTED, RATIO, LOCATION, SIZE, KEPT)


class Margins(NamedTuple):
    """Counts, each of them tested at every site against the others."""

    family: Numbers  # [test]
    column: Places  # [test]
    variable: Places  # [test]
    at: Numbers  # [test]: the cut or the value
    hits: Numbers  # [site, test]
    trials: Numbers  # [site, test]: 0 where not published


class Associations(NamedTuple):
    """How two variables go together, each tested at every site against the others."""

    family: Numbers  # [test]
    first: Places  # [test]: variable
    second: Places  # [test]: variable
    rows: Numbers  # [site, test]: 0 where not published, or where one does not vary
    r: Numbers  # [site, test]
    scatter: Numbers  # [site, test]: of sqrt(n) atanh(r); NaN where not published
    few: Numbers  # [site, test]: rows that tell: fewer where one answer, or one value, is rare
    tables: Numbers  # [site, test, 4]: rows, first, second, both; NaN unless both are yes or no


class SiteSummaries:
    def __init__(
        self, layout: ScreeningSchema, sites: list[str], answers: dict[str, dict[str, Said]], asked: dict[str, Said]
    ):
        """`said`: leg -> site -> arrays; `asked`: leg -> arrays."""
        self.layout, self.sites = layout, sites

        def stacked(leg: str, name: str) -> Numbers:
            return np.stack([answers[leg][s][name] for s in sites])

        self.rows = stacked("sketch", "rows")[:, 0]
        self.known = stacked("sketch", "known")  # [site, column]
        self.levels = stacked("sketch", "levels")  # [site, yes-or-no]
        self.quantiles = stacked("sketch", "quantiles")  # [site, number, quantile]
        self.held = stacked("sketch", "held")  # [site, number, 3, 2]
        self.grain = stacked("sketch", "grain")  # [site, number, 2]
        self.outcome = stacked("sketch", "outcome")  # [site, input, outcome, 2]
        self.below = stacked("counts", "below")  # [site, number, cut]
        same = stacked("counts", "same")
        self.same = np.where(
            same < FEWEST, 0.0, same
        )  # [site, number, value]; fewer are told alike, as if there were some
        self.related = stacked("ties", "related")  # [site, input, 3, 4]
        self.predicted = stacked("ties", "predicted")  # [site, outcome, 2]
        self.ratios = stacked("ties", "ratios")  # [site, column, moment]
        self.cuts, self.values = asked["counts"]["cuts"], asked["counts"]["values"]
        self.chosen = layout.inputs[asked["counts"]["chosen"].astype(np.int64)]
        self.products, self.partners = asked["ties"]["products"], asked["ties"]["related"]
        self.widths = width_of(self.quantiles)  # [site, number]
        self.shares = self._shares()  # [site, variable]: of yes-or-no; NaN of numbers
        self._reckoned: dict[tuple[tuple[int, ...], bytes], Numbers] = {}
        self.margins = self._margins()
        self.ties = self._ties()

    def _shares(self) -> Numbers:
        at = self.layout
        out = np.full((len(self.sites), len(at.column)), np.nan)
        with np.errstate(all="ignore"):
            out[:, at.yesno] = self.levels / self.known[:, at.column[at.yesno]]
        return out

    def _margins(self) -> Margins:
        at = self.layout
        inputs = len(at.columns) - 1
        number = at.column[at.numbers]
        inner = np.arange(1, len(CUTS) + 1)
        n, s = len(at.numbers), len(self.sites)
        missing = (self.rows[:, None] - self.known)[:, :inputs]
        outside = self.below[:, :, 0] + self.known[:, number] - self.below[:, :, -1]
        blocks = [
            (
                MISSING,
                np.arange(inputs),
                np.full(inputs, -1),
                np.zeros(inputs),
                missing,
                np.tile(self.rows, (inputs, 1)).T,
            ),
            (SHARE, at.column[at.yesno], at.yesno, at.level[at.yesno], self.levels, self.known[:, at.column[at.yesno]]),
            (
                BELOW,
                number.repeat(len(CUTS)),
                at.numbers.repeat(len(CUTS)),
                self.cuts[:, inner].ravel(),
                self.below[:, :, inner].reshape(s, -1),
                self.known[:, number].repeat(len(CUTS), 1),
            ),
            (BEYOND, number, at.numbers, np.zeros(n), outside, self.known[:, number]),
            (
                VALUE,
                number.repeat(VALUES),
                at.numbers.repeat(VALUES),
                self.values.ravel(),
                self.same.reshape(s, -1),
                self.known[:, number].repeat(VALUES, 1),
            ),
        ]
        family = np.concatenate([np.full(len(b[1]), b[0]) for b in blocks])
        column, variable, place = (np.concatenate([b[i] for b in blocks]) for i in (1, 2, 3))
        hits, trials = (np.concatenate([b[i] for b in blocks], 1) for i in (4, 5))
        there = np.isfinite(hits) & np.isfinite(trials)
        hits, trials = np.where(there, hits, 0.0), np.where(there, trials, 0.0)
        used = (trials > 0).any(0) & (hits > 0).any(0) & (hits < trials).any(0)  # the same everywhere tells nothing
        return Margins(family[used], column[used], variable[used], place[used], hits[:, used], trials[:, used])

    def _ties(self) -> Associations:
        at = self.layout
        s, v, k = len(self.sites), len(at.inputs), len(at.outcome)
        first, second = at.inputs.repeat(k), np.tile(at.outcome, v)
        observed = self.known[:, at.column[first]]
        by_level = self.outcome.reshape(s, v * k, 2)
        both = ~at.is_number[first] & ~at.is_number[second]
        outcome = np.full((s, v * k, 4), np.nan)
        outcome[..., 0] = np.where(np.isfinite(by_level[..., 0]), observed, np.nan)
        share = self.shares[:, first] * observed
        outcome[..., 1] = np.where(both, share, by_level[..., 0])
        outcome[..., 2] = np.where(both, by_level[..., 0], by_level[..., 1])
        outcome[..., 3] = np.where(both, by_level[..., 1], np.nan)
        pairs = np.argwhere(np.isfinite(self.partners))
        one = at.inputs[pairs[:, 0]]
        other = self.partners[pairs[:, 0], pairs[:, 1]].astype(np.int64)
        related = self.related[:, pairs[:, 0], pairs[:, 1]]
        # of a pair that each side named, one is enough
        key = np.minimum(one, other) * len(at.column) + np.maximum(one, other)
        _, keep = np.unique(key, return_index=True)
        one, other, related = one[keep], other[keep], related[:, keep]
        first, second = np.concatenate([first, one]), np.concatenate([second, other])
        said4 = np.concatenate([outcome, related], 1)
        family = np.array([OUTCOME] * (v * k) + [RELATED_TO] * len(one))
        return self._measure(family, first, second, said4)

    def _measure(self, family: Numbers, first: Places, second: Places, sums: Numbers) -> Associations:
        at = self.layout
        both = ~at.is_number[first] & ~at.is_number[second]
        n, x, y, xy = (sums[..., i] for i in range(4))
        with np.errstate(all="ignore"):
            phi = (n * xy - x * y) / np.sqrt(x * (n - x) * y * (n - y))
        r = np.where(both, phi, x)
        rows = np.where(np.isfinite(r) & np.isfinite(n), n, 0.0)
        few = rows * np.prod([2 * self._rare()[:, variable] for variable in (first, second)], axis=0)
        r = np.clip(np.where(rows > 0, r, 0.0), -0.98, 0.98)
        scatter = np.where(both, 1.0, y)
        tables = np.where((both & (n > 0))[..., None], sums, np.nan)
        return Associations(family, first, second, rows, r, scatter, few, tables)

    def _rare(self) -> Numbers:
        """[site, variable]: the share of the rarer answer; of a number, of rows that do not hold its usual value."""
        rare = np.minimum(self.shares, 1 - self.shares)
        with np.errstate(all="ignore"):
            held = self.held[:, :, 0, 1] / self.known[:, self.layout.column[self.layout.numbers]]
        rare[:, self.layout.numbers] = 1 - held
        return np.asarray(np.minimum(np.nan_to_num(rare, nan=0.5), 0.5))

    def estimate(self, left_out: list[int], accused: Flags) -> Numbers:
        """[site, outcome]: how well the outcome would be predicted without some columns, and without accused cells in
        what is learned from the others: from the total and from the ties that each site published."""
        key = (tuple(sorted(left_out)), accused.tobytes())
        if key not in self._reckoned:
            self._reckoned[key] = self._estimate(left_out, accused)
        return self._reckoned[key]

    def _estimate(self, left_out: list[int], accused: Flags) -> Numbers:
        at, s, k = self.layout, len(self.sites), len(self.layout.outcome)
        keep = np.flatnonzero(~np.isin(at.column[self.chosen], left_out))
        place = np.full(len(at.column), -1)
        place[at.inputs] = np.arange(len(at.inputs))
        own = place[self.chosen[keep]]
        n, r = (x[:, : len(at.inputs) * k].reshape(s, -1, k)[:, own] for x in (self.ties.rows, self.ties.r))
        if not len(keep):
            return np.full((s, k), np.nan)
        d = len(self.chosen)
        products = without_flagged(self, accused)[np.ix_(keep, keep)]
        bad = accused[:, at.column[self.chosen[keep]]] | accused[:, [-1]]  # [site, input]
        each = np.where(bad[..., None], 0.0, n * r)
        total = self.products[keep][:, d:] - np.where(bad[..., None], n * r, 0.0).sum(0)
        size = sizes_of(products)
        cross = products / size[:, None] / size
        rows = max(1.0, float(np.diag(products).max(initial=1.0)))
        others = ((total - each) / size[None, :, None]).transpose(1, 0, 2).reshape(len(keep), -1)
        weight = np.linalg.solve(cross + np.eye(len(keep)) * ridge_of(len(keep), rows), others)
        spread = np.sqrt(np.maximum((weight * (cross @ weight)).sum(0), 1e-12)).reshape(s, k)
        predictions = np.einsum("sik,isk->sk", r, weight.reshape(len(keep), s, k)) / spread
        return np.asarray(np.clip(predictions, -0.98, 0.98))


def without_flagged(p: SiteSummaries, accused: Flags) -> Numbers:
    """[input, input]: the total of products of the chosen, less what accused cells put in: by their ties where these
    were published, else in proportion."""
    at, d = p.layout, len(p.chosen)
    out = p.products[:d, :d].copy()
    column = at.column[p.chosen]
    whole = np.diag(out).copy()
    gone = np.where(accused[:, column], np.nan_to_num(p.known[:, column]), 0.0).sum(0)  # [input]: rows
    if not gone.any():
        return out
    left = np.clip(1 - gone / np.maximum(whole, 1.0), 0.0, 1.0)
    place = np.full(len(at.column), -1)
    place[p.chosen] = np.arange(d)
    a, b = place[p.ties.first], place[p.ties.second]
    related = np.flatnonzero((a >= 0) & (b >= 0) & (p.ties.family == RELATED_TO))
    bad = accused[:, at.column[p.ties.first[related]]] | accused[:, at.column[p.ties.second[related]]]
    remaining = out[a[related], b[related]] - np.where(bad, p.ties.rows[:, related] * p.ties.r[:, related], 0.0).sum(0)
    out *= np.sqrt(left[:, None] * left)
    out[a[related], b[related]] = out[b[related], a[related]] = remaining
    np.fill_diagonal(out, whole * left)
    return out


def width_of(q: Numbers) -> Numbers:
    """[..., quantile] -> between quartiles, or what stands for it where half of the rows hold one value."""
    inner, outer = q[..., 14] - q[..., 4], (q[..., 18] - q[..., 0]) / 2.44
    return np.where(inner > 0, inner, np.where(np.isfinite(outer), outer, inner))

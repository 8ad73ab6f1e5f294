"""What all sites said, side by side, and the tests that follow from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitrail.screen.layout import CUTS, VALUES, Layout, Numbers, Places, Said
from vitrail.screen.seat import solve

MISSING, SHARE, BELOW, BEYOND, VALUE = "missing", "share", "below", "beyond", "value"
OUTCOME, RELATED_TO, PREDICTED = "outcome", "related", "predicted"
LOCATION, SIZE, KEPT = "location", "size", "kept"
FAMILIES = (MISSING, SHARE, BELOW, BEYOND, VALUE, OUTCOME, RELATED_TO, PREDICTED, LOCATION, SIZE, KEPT)


class Margins(NamedTuple):
    """Counts, each of them tested at every site against the others."""

    family: Numbers  # [test]
    column: Places  # [test]
    variable: Places  # [test]
    at: Numbers  # [test]: the cut or the value
    hits: Numbers  # [site, test]
    trials: Numbers  # [site, test]: 0 where not published


class Ties(NamedTuple):
    """How two variables go together, each tested at every site against the others."""

    family: Numbers  # [test]
    first: Places  # [test]: variable
    second: Places  # [test]: variable
    rows: Numbers  # [site, test]: 0 where not published, or where one does not vary
    r: Numbers  # [site, test]
    scatter: Numbers  # [site, test]: of sqrt(n) atanh(r); NaN where not published
    few: Numbers  # [site, test]: rows of the rarer answer, where one of the two is yes or no
    tables: Numbers  # [site, test, 4]: rows, first, second, both; NaN unless both are yes or no


class Published:
    def __init__(self, layout: Layout, sites: list[str], said: dict[str, dict[str, Said]], asked: dict[str, Said]):
        """`said`: leg -> site -> arrays; `asked`: leg -> arrays."""
        self.layout, self.sites = layout, sites

        def stacked(leg: str, name: str) -> Numbers:
            return np.stack([said[leg][s][name] for s in sites])

        self.rows = stacked("sketch", "rows")[:, 0]
        self.known = stacked("sketch", "known")  # [site, column]
        self.levels = stacked("sketch", "levels")  # [site, yes-or-no]
        self.quantiles = stacked("sketch", "quantiles")  # [site, number, quantile]
        self.held = stacked("sketch", "held")  # [site, number, 3, 2]
        self.grain = stacked("sketch", "grain")  # [site, number, 2]
        self.outcome = stacked("sketch", "outcome")  # [site, input, outcome, 2]
        self.below = stacked("counts", "below")  # [site, number, cut]
        self.same = stacked("counts", "same")  # [site, number, value]
        self.related = stacked("ties", "related")  # [site, input, 3, 4]
        self.predicted = stacked("ties", "predicted")  # [site, outcome, 2]
        self.cuts, self.values = asked["counts"]["cuts"], asked["counts"]["values"]
        self.chosen = layout.inputs[asked["counts"]["chosen"].astype(np.int64)]
        self.products, self.partners = asked["ties"]["products"], asked["ties"]["related"]
        self.widths = width_of(self.quantiles)  # [site, number]
        self.shares = self._shares()  # [site, variable]: of yes-or-no; NaN of numbers
        self._reckoned: dict[tuple[int, ...], Numbers] = {}
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

    def _ties(self) -> Ties:
        at = self.layout
        s, v, k = len(self.sites), len(at.inputs), len(at.outcome)
        first, second = at.inputs.repeat(k), np.tile(at.outcome, v)
        known = self.known[:, at.column[first]]
        said = self.outcome.reshape(s, v * k, 2)
        both = ~at.is_number[first] & ~at.is_number[second]
        outcome = np.full((s, v * k, 4), np.nan)
        outcome[..., 0] = np.where(np.isfinite(said[..., 0]), known, np.nan)
        share = self.shares[:, first] * known
        outcome[..., 1] = np.where(both, share, said[..., 0])
        outcome[..., 2] = np.where(both, said[..., 0], said[..., 1])
        outcome[..., 3] = np.where(both, said[..., 1], np.nan)
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

    def _measure(self, family: Numbers, first: Places, second: Places, said: Numbers) -> Ties:
        at = self.layout
        both = ~at.is_number[first] & ~at.is_number[second]
        n, x, y, xy = (said[..., i] for i in range(4))
        with np.errstate(all="ignore"):
            phi = (n * xy - x * y) / np.sqrt(x * (n - x) * y * (n - y))
        r = np.where(both, phi, x)
        rows = np.where(np.isfinite(r) & np.isfinite(n), n, 0.0)
        few = rows.copy()
        for variable in (first, second):
            rare = np.minimum(self.shares[:, variable], 1 - self.shares[:, variable])
            few = np.minimum(few, np.where(np.isfinite(rare), 2 * rare * rows, few))
        r = np.clip(np.where(rows > 0, r, 0.0), -0.98, 0.98)
        scatter = np.where(both, 1.0, y)
        tables = np.where((both & (n > 0))[..., None], said, np.nan)
        return Ties(family, first, second, rows, r, scatter, few, tables)

    def reckon(self, left_out: list[int]) -> Numbers:
        """[site, outcome]: how well the outcome would be predicted without some columns, from the ties alone."""
        key = tuple(sorted(left_out))
        if key not in self._reckoned:
            self._reckoned[key] = self._reckon(left_out)
        return self._reckoned[key]

    def _reckon(self, left_out: list[int]) -> Numbers:
        at = self.layout
        keep = ~np.isin(at.column[self.chosen], left_out)
        k = len(at.outcome)
        take = np.concatenate([np.flatnonzero(keep), len(keep) + np.arange(k)])
        part = self.products[np.ix_(take, take)]
        out = np.full((len(self.sites), k), np.nan)
        if not keep.any():
            return out
        weight = solve(part, k)
        size = np.sqrt(np.maximum(np.diag(part), 1e-9))
        cross = part[: len(take) - k, : len(take) - k] / size[: len(take) - k, None] / size[: len(take) - k]
        weight = weight * size[: len(take) - k, None]
        spread = np.sqrt(np.maximum((weight * (cross @ weight)).sum(0), 1e-12))
        place = np.full(len(at.column), -1)
        place[at.inputs] = np.arange(len(at.inputs))
        r = self.ties.r[:, : len(at.inputs) * k].reshape(len(self.sites), -1, k)[:, place[self.chosen[keep]]]
        return np.asarray(np.clip(np.einsum("sik,ik->sk", r, weight) / spread, -0.98, 0.98))


def width_of(q: Numbers) -> Numbers:
    """[..., quantile] -> between quartiles, or what stands for it where half of the rows hold one value."""
    inner, outer = q[..., 14] - q[..., 4], (q[..., 18] - q[..., 0]) / 2.44
    return np.where(inner > 0, inner, np.where(np.isfinite(outer), outer, inner))

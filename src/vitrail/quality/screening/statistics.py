"""Each site against the others, test by test: by chance alone, and beyond how much the others differ anyway."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from vitrail.quality.screening.diagnosis.location_scale import keeping, locations, sizes
from vitrail.quality.screening.row_evidence.tests import weigh_ratios
from vitrail.quality.screening.schema import FLOOR, Flags, Numbers, Places
from vitrail.quality.screening.site_spread import SITE_SPREAD
from vitrail.quality.screening.site_summaries import (
    BELOW,
    BEYOND,
    KEPT,
    LOCATION,
    OUTCOME,
    PREDICTED,
    RATIO,
    RELATED_TO,
    SHARE,
    SIZE,
    VALUE,
    SiteSummaries,
)
from vitrail.stats.tests import (
    arcsine,
    compare_counts,
    compare_odds,
    more_than,
    spread_of_others,
    t_as_z,
    usual_spread,
)

SHIPPED = 6.0  # columns that the shipped yardstick counts for
PRIOR = 12.0  # degrees of freedom that a family's usual spread counts for
GATE = {
    PREDICTED: 0.12,
    OUTCOME: 0.12,
    RELATED_TO: 0.12,
    RATIO: 0.15,
    LOCATION: 0.3,
    SIZE: 0.4,
    KEPT: 0.5,
}  # differences that matter: of atanh(r), or arcsines of shares
GATE_OF_SHARES = 0.10
LEAST_ROWS = FLOOR
LEAST_SCATTER = 1e-3  # of a row's log ratio: below that it tells nothing
TO_OUTCOME = 1 / 3  # of what chance may do, for how well the outcome is predicted
BETTER = 100.0  # outcomes that are predicted better than elsewhere must be so much less likely: few faults do that
ALIKE = 0.025  # spread of arcsines of shares between sites up to which they count as alike


class SiteTests:
    """Tests side by side: counts, ties, and how well the outcome is predicted."""

    def __init__(self, published: SiteSummaries, alpha: float) -> None:
        self.published = p = published
        self.alpha = alpha
        at, m, t = p.layout, p.margins, p.ties
        self.outcome = len(at.columns) - 1
        self.alike = False
        k = len(at.outcome)
        number, inputs = at.column[at.numbers], np.arange(self.outcome)
        shapes = [LOCATION] * len(number) + [SIZE] * len(number) + [KEPT] * len(inputs) + [RATIO] * len(at.columns)
        self.family = np.concatenate([m.family, t.family, np.full(k, PREDICTED), np.array(shapes, "<U9")])
        alone = np.concatenate([np.full(k, self.outcome), number, number, inputs, np.arange(len(at.columns))])
        self.first = np.concatenate([m.column, at.column[t.first], alone])
        self.second = np.concatenate([np.full(len(m.column), -1), at.column[t.second], np.full(len(alone), -1)])
        self.marginal = np.arange(len(self.family)) < len(m.family)
        self.marginal |= np.isin(self.family, (LOCATION, SIZE))
        self.predicted = self.family == PREDICTED
        shape = (len(p.sites), len(self.family))
        self.z, self.beyond, self.plain, self.effect = (np.zeros(shape) for _ in range(4))
        self.mine, self.theirs, self.rows, self.reach = (np.zeros(shape) for _ in range(4))
        self._t, self._df, self.variance = (
            np.zeros(shape) for _ in range(3)
        )  # how much the other sites differ, and chance
        self.accused = np.zeros((len(p.sites), len(at.columns)), bool)
        self.doubted = np.ones(len(p.sites), bool)  # an outcome that is off there is not explained by a column
        self.without: dict[int, list[int]] = {}  # site -> columns that its outcome is not predicted from
        self.silent = np.zeros(shape, bool)  # tests that are told otherwise
        names = self.kinds()
        self.shipped = np.array([SITE_SPREAD.get(name, np.nan) for name in names])  # [test]: between hospitals
        self._columns = {str(f): len(np.unique(self.first[self.family == f])) for f in np.unique(self.family)}
        self._usual: dict[str, Numbers] = {}  # family -> [site, 1]: how much the others differ in most columns
        self.level = self._levels()
        self.bar = -ndtri(self.level / 2)
        self.run_tests(np.arange(len(self.family)))
        counted = np.isin(self.family, (BELOW, SHARE))
        spread = np.median(self._t[:, counted]) if counted.any() else 0.0
        usual = np.median(self.variance[:, counted]) if counted.any() else 1.0
        self.alike = bool(spread < max(ALIKE**2, usual / 2))  # sites as if dealt from one pack of rows
        if self.alike:
            self._beyond_the_usual(np.arange(len(self.family)))

    def _levels(self) -> Numbers:
        """[test]: of how much chance it may make use. A part goes to how well the outcome is predicted, which is one
        test and the most harmful of faults; of the rest each cell has its share: half to counts, a quarter to whether
        values belong to their rows, a quarter to ties."""
        every = self.alpha / len(self.published.sites)
        per = (1 - TO_OUTCOME) * every / len(self.published.layout.columns)
        out = np.zeros(len(self.family))
        cells = len(self.published.layout.columns)
        ratio = self.family == RATIO
        to_outcome = self.predicted | (ratio & (self.first == self.outcome))
        for which, part in ((self.marginal, 1 / 2), (ratio, 1 / 4), (~self.marginal & ~ratio & ~self.predicted, 1 / 4)):
            number = np.bincount(self.first[which], minlength=cells).astype(float)
            number += np.bincount(self.second[which & (self.second >= 0)], minlength=cells)
            share = per * part / np.maximum(number, 1)
            mean = (share[self.first] + share[self.second]) / 2
            out = np.where(which, np.where(self.second >= 0, mean, share[self.first]), out)
        for which, part in ((self.predicted, 1 / 3), (to_outcome & ratio, 2 / 3)):
            out = np.where(which, TO_OUTCOME * part * every / max(1, which.sum()), out)
        return out

    def flag(self, site: int, column: int) -> None:
        """Set a cell aside as a yardstick, and weigh again what it was part of."""
        self.accused[site, column] = True
        again = (self.first == column) | (self.second == column) | (self.family == RATIO)
        near = np.isin(self.first, np.unique([self.first[again], self.second[again]])) & (self.family == KEPT)
        self.run_tests(np.flatnonzero(again | near))

    def tests_of(self, site: int, column: int) -> Flags:
        """[test]: those of a cell, but for ties with accused cells of the same site."""
        bad = [c for c in np.flatnonzero(self.accused[site]) if c != column]
        own = (self.first == column) | (self.second == column)
        return np.asarray(own & ~np.isin(self.first, bad) & ~np.isin(self.second, bad))

    def set_aside(self, sites: Places, column: int, tests: Flags, measuring: int) -> None:
        """Sites that do not measure a column are no yardstick for it, and are not judged by it."""
        self.accused[sites, column] = True
        again = (self.first == column) | (self.second == column)
        self.run_tests(np.flatnonzero(again | (self.family == RATIO)))
        for site in sites:
            self.silent[site] |= again
            self.predict_without(int(site), [*self.without.get(int(site), []), column])
        if measuring == 1:
            self.silent |= tests
        for loud in (self.z, self.beyond, self.reach):
            loud[self.silent] = 0.0

    def run_tests(self, which: Places) -> None:
        m, t = len(self.published.margins.family), len(self.published.ties.family)
        self._weigh_counts(which[which < m])
        self._weigh_ties(which[(which >= m) & (which < m + t)] - m)
        if self.predicted[which].any():
            self._weigh_predicted()
        self._weigh_shapes(which)
        weigh_ratios(self, which[self.family[which] == RATIO])
        self._beyond_the_usual(which)

    def _weigh_shapes(self, which: Places) -> None:
        """Never louder than chance allows the counts, or the ties, of the same column."""
        p = self.published
        for family, measured in ((LOCATION, locations), (SIZE, sizes), (KEPT, keeping)):
            place = which[self.family[which] == family]
            column = self.first[place]
            if not len(place):
                continue
            loud = self._most_extreme((RELATED_TO,) if family == KEPT else (BELOW, BEYOND))[:, column]
            if family == KEPT:
                x, v = (a[:, column] for a in keeping(p, self.accused))
            else:
                x, v = measured(p, ~self.accused[:, column], np.searchsorted(p.layout.column[p.layout.numbers], column))
            there = np.isfinite(x) & (~self.accused[:, column])
            usual = 1.0 if family == KEPT else 0.0
            gap = np.nan_to_num(x, nan=usual) - usual
            self.plain[:, place] = np.abs(gap) / np.sqrt(v)
            self.z[:, place] = np.minimum(self.plain[:, place], loud)
            self.effect[:, place], self.variance[:, place] = np.abs(gap), v
            self.mine[:, place], self.theirs[:, place] = x, usual
            self.rows[:, place] = np.where(np.isfinite(x), 1.0, 0.0)
            self._t[:, place], self._df[:, place] = spread_of_others(gap, v, there, True)

    def _most_extreme(self, families: tuple[str, ...]) -> Numbers:
        """[site, column]: of its tests, by chance alone."""
        out = np.zeros((self.outcome + 1, len(self.published.sites)))
        tests = np.flatnonzero(np.isin(self.family, families))
        for columns in (self.first[tests], self.second[tests]):
            np.maximum.at(out, columns[columns >= 0], self.z.T[tests[columns >= 0]])
        return out.T

    def _weigh_counts(self, which: Places) -> None:
        p = self.published.margins
        hits, trials = p.hits[:, which], p.trials[:, which]
        fair = ~self.accused[:, p.column[which]]  # [site, test]
        a, n = hits * fair, trials * fair
        b, m = a.sum(0) - a, n.sum(0) - n
        enough = ((n > 0).sum(0) - (n > 0)) >= 2
        z = np.where(enough, compare_counts(hits, trials, b, m), 0.0)
        value = p.family[which] == VALUE
        if value.any():
            here = which[value]
            number = np.searchsorted(self.published.layout.numbers, p.variable[here])
            with np.errstate(all="ignore"):
                tried = np.nansum(self.published.grain[:, number, 0], 0)  # values that could have stood out
            one = more_than(hits[:, value], trials[:, value], b[:, value], m[:, value], np.maximum(tried, 1))
            z[:, value] = np.where(enough[:, value], one, 0.0)
        with np.errstate(all="ignore"):
            mine, theirs = hits / trials, b / m
        estimate, variance = arcsine((a + 0.375) / (n + 0.75)), 1 / (4 * np.maximum(n, 0.5) + 2)
        self._t[:, which], self._df[:, which] = spread_of_others(estimate, variance, n > 0, False)
        self.z[:, which] = self.plain[:, which] = z
        self.mine[:, which], self.theirs[:, which] = mine, theirs
        self.rows[:, which] = trials
        self.effect[:, which] = np.nan_to_num(np.abs(arcsine(mine) - arcsine(theirs)))
        self.variance[:, which] = 1 / (4 * trials + 2) + 1 / (4 * np.maximum(m, 1) + 2)

    def _weigh_ties(self, which: Places) -> None:
        p, at = self.published.ties, self.published.layout
        first, second = at.column[p.first[which]], at.column[p.second[which]]
        fair = ~(self.accused[:, first] | self.accused[:, second])
        place = which + len(self.published.margins.family)
        few = p.few[:, which]
        self.compare(place, p.r[:, which], p.rows[:, which], p.scatter[:, which], few, fair)
        self._exact_odds(which, place, fair)

    def compare(
        self,
        place: Places,
        r: Numbers,
        rows: Numbers,
        scatter: Numbers,
        few: Numbers,
        fair: Flags,
        plain: bool = False,
    ) -> None:
        """Correlations, or means (`plain`), of each site against the others' mean; how they scatter is taken from the
        others."""
        there = rows >= LEAST_ROWS
        n = np.where(there & fair, rows, 0.0)
        mine = np.nan_to_num(r) if plain else np.arctanh(np.clip(r, -0.98, 0.98))
        others = n.sum(0) - n
        mean = ((n * mine).sum(0) - n * mine) / np.maximum(others, 1)
        weights = np.where(np.isfinite(scatter), n, 0.0)
        weight = weights.sum(0) - weights
        usual = ((weights * np.nan_to_num(scatter)).sum(0) - weights * np.nan_to_num(scatter)) / np.maximum(weight, 1)
        usual = np.where(weight > 0, np.maximum(scatter if plain else usual, LEAST_SCATTER if plain else 0.05), 1.0)
        enough = there & (((n > 0).sum(0) - (n > 0)) >= 2)
        v = usual * (1 / np.maximum(rows, 1) + 1 / np.maximum(others, 1))
        x = np.where(enough, np.abs(mine - mean) / np.sqrt(v), 0.0)
        df = np.maximum(3.0, np.minimum(few - 3, rows))
        self.plain[:, place], self.z[:, place] = x, t_as_z(x, df)
        self.effect[:, place], self.variance[:, place] = np.where(enough, np.abs(mine - mean), 0.0), v
        self.mine[:, place], self.theirs[:, place] = (mine, mean) if plain else (np.tanh(mine), np.tanh(mean))
        self.rows[:, place] = np.where(enough, rows, 0.0)
        each = np.where(n > 0, usual / np.maximum(n, 1), 1.0)
        self._t[:, place], self._df[:, place] = spread_of_others(mine, each, n > 0, True)

    def _exact_odds(self, which: Places, place: Places, fair: Flags) -> None:
        """Of two yes-or-no, where the approximation says that it might matter."""
        tables = self.published.ties.tables[:, which]
        both = np.isfinite(tables[..., 3]).any(0)
        self.z[:, place] = np.where(
            both & (self.plain[:, place] < 1.5), np.minimum(self.z[:, place], 1.5), self.z[:, place]
        )
        used = np.where(fair[..., None], np.nan_to_num(tables), 0.0)
        others = used.sum(0) - used
        for s, j in np.argwhere(both & (self.plain[:, place] >= 1.5)):
            if np.isfinite(tables[s, j]).all() and others[s, j, 0] > 0:
                self.z[s, place[j]] = compare_odds(tables[s, j], others[s, j])
            else:
                self.z[s, place[j]] = 0.0

    def _weigh_predicted(self) -> None:
        p = self.published
        place = np.flatnonzero(self.predicted)
        if not len(place):
            return
        rows = np.where(np.isfinite(p.predicted[..., 0]), p.rows[:, None], 0.0)
        arrays = (self.z, self.plain, self.effect, self.mine, self.theirs, self.rows, self._t, self._df, self.variance)
        before = [a[:, place].copy() for a in arrays]
        for columns in {(), *(tuple(c) for c in self.without.values())}:
            mine = np.array([tuple(self.without.get(s, ())) == columns for s in range(len(p.sites))])[:, None]
            # a site whose own prediction rests on a column that is wrong there is no yardstick for the others
            fair = np.array([{*self.without.get(s, ())} <= {*columns} for s in range(len(p.sites))])
            sound = ~self.accused[:, self.outcome]
            fair = np.repeat((sound & fair if (sound & fair).sum() > 2 else sound)[:, None], len(place), 1)
            least = np.full(fair.shape, np.inf)
            # as published, and without accused cells as reckoned from ties: off is what is off by both
            for predictions in self.predict(columns):
                self.compare(place, predictions, rows, p.predicted[..., 1], self._few(rows), fair)
                better = self.mine[:, place] * np.sign(self.theirs[:, place]) > np.abs(self.theirs[:, place])
                less = np.sqrt(np.maximum(0.0, self.z[:, place] ** 2 - 2 * np.log(BETTER)))
                self.z[:, place] = np.where(better, less, self.z[:, place])
                take = mine & (self.z[:, place] < least)
                least = np.where(take, self.z[:, place], least)
                for old, now in zip(before, arrays, strict=True):
                    old[take] = now[:, place][take]
        for old, now in zip(before, arrays, strict=True):
            now[:, place] = old

    def predict(self, columns: tuple[int, ...]) -> list[Numbers]:
        """[site, outcome]: as published; and moved by what the ties say that leaving out accused cells does. Without
        some columns, as the ties say."""
        p = self.published
        predictions = np.nan_to_num(p.predicted[..., 0])
        if columns:
            return [np.nan_to_num(p.estimate(list(columns), self.accused))]
        if not self.accused.any():
            return [predictions]
        after, before = p.estimate([], self.accused), p.estimate([], np.zeros_like(self.accused))
        moved = np.arctanh(np.clip(predictions, -0.98, 0.98)) + np.arctanh(after) - np.arctanh(before)
        return [predictions, np.nan_to_num(np.tanh(moved))]

    def _few(self, rows: Numbers) -> Numbers:
        share = self.published.shares[:, self.published.layout.outcome]
        return np.where(np.isfinite(share), 2 * np.minimum(share, 1 - share) * rows, rows)

    def predict_without(self, site: int, columns: list[int]) -> None:
        """At a site that lacks columns, or where they are accused, the outcome is judged by the other columns."""
        self.without[site] = sorted(set(columns))
        place = np.flatnonzero(self.predicted)
        self._weigh_predicted()
        self._beyond_the_usual(place)

    def spread_between(self) -> Numbers:
        """[site, test]: the variance between the other sites beyond chance; may be negative."""
        return self._t

    def freedom(self) -> Numbers:
        return self._df

    def _usual_spreads(self, t: Numbers, df: Numbers, family: Numbers) -> dict[str, Numbers]:
        """{family: [site, 1]}: how much these sites differ in most columns."""
        out = {str(f): usual_spread(t[:, family == f], df[:, family == f]) for f in np.unique(family)}
        out[PREDICTED] = np.zeros((len(t), 1))
        return out

    def _middle(self, which: Places) -> Numbers:
        """[site, test]: by how much sites differ in such columns. Of sites that differ, drawn to what hospitals differ
        by in quantities of that kind, the more the fewer columns of their own tell."""
        family = self.family[which]
        own = np.concatenate([self._usual[str(f)] for f in family], 1)
        if self.alike:
            return own
        shipped = self.shipped[which]
        columns = np.array([self._columns[str(f)] for f in family])
        return np.where(np.isnan(shipped), own, (columns * own + SHIPPED * shipped) / (columns + SHIPPED))

    def kinds(self) -> list[str]:
        """[test]: its family, and the kind of its column, as the shipped yardstick has them."""
        at = self.published.layout
        available = {"numeric": "number", "binary": "yes or no", "categorical": "category"}
        kind = ["outcome" if c == self.outcome else available[k] for c, k in enumerate(at.kinds)]
        return [f"{f}, {kind[c]}" for f, c in zip(self.family, self.first, strict=True)]

    def _beyond_the_usual(self, which: Places) -> None:
        """z and plain with the spread between the other sites; 0 where the difference is too small to matter."""
        t, df, family = self._t[:, which], self._df[:, which], self.family[which]
        if not self._usual:
            self._usual = self._usual_spreads(t, df, family)
        middle = self._middle(which)
        spread = np.where(df > 0, np.maximum(0.0, (PRIOR * middle + df * t) / (PRIOR + df)), 0.0)
        k, v, plain, z = np.maximum(df + 1, 1), self.variance[:, which], self.plain[:, which], self.z[:, which]
        grow = np.sqrt((v + spread * (1 + 1 / k)) / np.maximum(v, 1e-12))
        whole = np.where(np.isin(family, (LOCATION, SIZE, KEPT)), plain, z)
        beyond = np.where(grow > 1.00005, t_as_z(whole / grow, PRIOR + k - 1), z)
        beyond = np.minimum(beyond, z)
        reach = np.where(self.marginal[which], beyond, plain / grow)
        if self.alike:  # what chance does not do is no way in which they differ; but guesses are better at some sites
            guessed = np.isin(family, (RATIO, PREDICTED))
            beyond, reach = np.where(guessed, beyond, z), np.where(guessed | self.marginal[which], beyond, plain)
        small = self.effect[:, which] < np.array([GATE.get(str(f), GATE_OF_SHARES) for f in family])
        self.beyond[:, which], self.reach[:, which] = np.where(small, 0.0, beyond), np.where(small, 0.0, reach)
        self._as_elsewhere(which)

    def _as_elsewhere(self, which: Places) -> None:
        """Where other sites have values of their own that stand out, or rows beyond, one more is no fault."""
        p, number = self.published, self.published.layout.numbers
        for family in (VALUE, BEYOND):
            here = which[self.family[which] == family]
            if not len(here):
                continue
            gap = np.nan_to_num(self.mine[:, here] - self.theirs[:, here])
            used, of = np.unique(np.searchsorted(number, p.margins.variable[here]), return_inverse=True)
            own = np.zeros((len(used), len(p.sites)))
            np.maximum.at(own, of, gap.T)
            own = arcsine(own.T)
            column = p.layout.column[number[used]]
            rows = np.nan_to_num(p.known[:, column])
            fair = (rows > 0) & ~self.accused[:, column]
            v = 1 / (4 * np.maximum(rows, 1) + 2)
            w = fair.astype(float)
            k = np.maximum(w.sum(0) - w, 1)
            mean = ((w * own).sum(0) - w * own) / k
            t, _ = spread_of_others(own, v, fair, False)
            spread = np.maximum(0.0, t)
            away = np.maximum(arcsine(gap) - mean[:, of], 0.0) / np.sqrt(v + spread * (1 + 1 / k))[:, of]
            cap = np.where(spread[:, of] > 0, t_as_z(away, PRIOR + k[:, of] - 1), 99.0)
            self.beyond[:, here] = np.minimum(self.beyond[:, here], cap)
            self.reach[:, here] = np.minimum(self.reach[:, here], cap)
        for loud in (self.z, self.beyond, self.reach):
            loud[:, which] = np.where(self.silent[:, which], 0.0, loud[:, which])

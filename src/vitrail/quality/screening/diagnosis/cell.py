"""What was published of one cell, beside what the others published of it; and how a cause is put."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vitrail.quality.screening.row_evidence.tests import misplaced
from vitrail.quality.screening.schema import Numbers
from vitrail.quality.screening.site_summaries import FAMILIES, OUTCOME, PREDICTED, RELATED_TO
from vitrail.quality.screening.statistics import SiteTests
from vitrail.quality.screening.text import correlation, percent
from vitrail.stats.tests import median_known


class Diagnosis(NamedTuple):
    kind: str
    wrong: bool
    text: str
    numbers: dict[str, Any]


class Cell:
    """What was published of one column at one site, beside the others'."""

    def __init__(self, weighed: SiteTests, site: int, column: int) -> None:
        self.weighed, self.site, self.column = weighed, site, column
        p = self.p = weighed.published
        self.name, self.kind = p.layout.columns[column], p.layout.kinds[column]
        fair = ~weighed.accused[:, column] & (np.nan_to_num(p.known[:, column]) > 0)
        fair[site] = False
        self.others = np.flatnonzero(fair)
        self.known = float(np.nan_to_num(p.known[site, column]))
        self.own = np.flatnonzero(weighed.tests_of(site, column))
        beyond, family = weighed.beyond[site, self.own], weighed.family[self.own]
        self.loud = {f: float(beyond[family == f].max(initial=0.0)) for f in FAMILIES}
        self.counted = float(beyond[weighed.marginal[self.own]].max(initial=0.0))
        # whether ties with the outcome tell of this column: not where the outcome itself is in doubt
        self.predictable = not weighed.doubted[site] or bool((weighed.reach[site][weighed.predicted] < 2.5).all())
        self.feature = p.layout.table.features.get(self.name)
        if self.kind == "numeric":
            self._read_number()

    def _read_number(self) -> None:
        p, i = self.p, int(np.searchsorted(self.p.layout.column[self.p.layout.numbers], self.column))
        self.q = p.quantiles[self.site, i]
        self.usual = median_known(p.quantiles[self.others, i])
        self.wide = float(median_known(p.widths[self.others, i]))
        grain = median_known(p.grain[self.others, i])
        self.both = np.isfinite(self.q) & np.isfinite(self.usual)
        self.wide = self.wide if self.wide > 0 else float("nan")
        values, same = p.values[i], p.same[:, i]
        here = same[self.site] / max(self.known, 1)
        there = np.nansum(same[self.others], 0) / max(1.0, np.nansum(p.known[self.others, self.column]))
        gap = np.nan_to_num(here - there, nan=-1.0)
        j = int(gap.argmax())
        self.value, self.share, self.share_elsewhere = float(values[j]), float(here[j]), float(there[j])
        self.gap = float(gap[j])
        held = p.held[self.site, i]
        full = held[0, 1] == self.known if self.known else False
        self.constant = float(held[0, 0]) if full else None
        self.least, self.greatest = held[1], held[2]
        self.grain, self.usual_grain = p.grain[self.site, i], grain
        self.distinct = float(self.grain[0])
        medians = p.quantiles[self.others, i, 9]
        self.between = unlikeness(medians)
        self.apart = float(np.nanmax(np.abs(medians - self.usual[9]), initial=0.0) / self.wide)
        self.number = i

    def off(self, q: Numbers, usual: Numbers | None = None) -> float:
        """How far quantiles are from the others', on average, in widths."""
        usual = self.usual if usual is None else usual
        return float(np.abs(q - usual)[self.both].mean() / self.wide) if self.both.any() else float("nan")

    def follows(self) -> tuple[float, float]:
        """How the ties of this column follow the others', and how surely: 1 as theirs, 0 none, -1 reversed."""
        w = self.weighed
        families = (PREDICTED,) if self.column == w.outcome else (OUTCOME, RELATED_TO)
        mine = self.own[np.isin(w.family[self.own], families) & (w.rows[self.site, self.own] > 0)]
        a, b, n = (x[self.site][mine] for x in (w.mine, w.theirs, w.rows))
        total = float((n * b * b).sum())
        return (float((n * a * b).sum() / total), float(1 / np.sqrt(total))) if total > 1 else (1.0, 9.0)


def unlikeness(medians: Numbers) -> float:
    """How much sites' medians differ, as a logarithm; NaN where they tell of no factor."""
    ratio = medians[np.isfinite(medians)]
    ratio = ratio / np.median(ratio) if len(ratio) > 1 and np.median(ratio) else ratio[:0]
    return float(np.median(np.abs(np.log(ratio)))) if len(ratio) and (ratio > 0).all() else float("nan")


def tell(kind: str, text: str, **numbers: Any) -> Diagnosis:
    return Diagnosis(kind, kind not in ("differs", "only here", "not here"), text[:1].upper() + text[1:], numbers)


def tell_shuffled(lam: float) -> Diagnosis:
    text = (
        f"Its correlations with other columns have {correlation(lam)} of their strength at the other sites, though its "
        "values look alike: ask whether the rows of this column were put in another order, or linked to other persons."
    )
    return tell("shuffled", text, strength=lam)


def tell_misplaced(cell: Cell) -> Diagnosis:
    share = misplaced(cell.weighed, cell.site, cell.column)
    text = (
        f"Its values fit the other columns of their rows as if about {percent(share)} of them were other rows' values, "
        "though as a whole they look alike: ask whether a part of this column was put in another order, pasted twice, "
        "or linked to other persons."
    )
    return tell("shuffled", text, share=share)

"""The spread over sites: a row for each method, a dot for each site, and the worst site by name.

Where there are sites enough, a violin shows how closely the dots lie together, and where there are seeds enough, an
error bar is the SD over seeds of the median site's score (figures 5 to 12 of the iFedAvg paper).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.core.text import number
from vitrail.report.charts import axes, density, svg
from vitrail.report.charts.interval_rows import Head, IntervalRow, IntervalRows, Label, RowMark, interval_rows
from vitrail.report.charts.tables import where
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import SAME, Interval, marked, metric_words, spoken

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

DOT = 4.5  # pixels
FEWEST_SITES, FEWEST_SEEDS = 8, 3  # of which a violin says more than its dots, and an SD anything


class MethodSpread(NamedTuple):
    """One method's row."""

    title: str
    yardstick: bool
    dots: list[tuple[str, float]]  # site, mean over seeds; NaN left out
    worst: str | None  # the site, None with fewer than two
    interval: Interval  # of the worst site
    seed_sd: float = math.nan  # over seeds, of the median over sites; NaN: too few seeds
    is_baseline: bool = False


def has_spread(page: Page) -> bool:
    """More than one site and more than one method, and a score."""
    several = min(len(page.table.rows), len(page.table.methods)) > 1
    return several and any(math.isfinite(score.value) for _, scores in page.table.rows for score in scores)


def contents(page: Page) -> Contents:
    """The method that serves its worst site best comes first."""
    table, rows, deviations = page.table, [], seed_deviations(page)
    for i, method in enumerate(table.methods):
        dots = [(site, scores[i].value) for site, scores in table.rows if not math.isnan(scores[i].value)]
        title, yardstick = page.titles[method], method in page.yardsticks
        rows.append(MethodSpread(title, yardstick, dots, *table.worsts[i], deviations.get(method, math.nan)))
    served = {page.titles[m]: min(table.standings_of(m).values(), default=-math.inf) for m in table.methods}
    rows.sort(key=lambda r: -served[r.title])
    same = [(site, value) for site, value in table.chance.items() if math.isfinite(value)]
    rows.append(MethodSpread(SAME, True, same, None, Interval(math.nan), is_baseline=True))
    violins = [row for row in rows if has_violin(row)]
    return {
        "figure": spread_figure(rows, metric_words(page.metric), page.lower_is_better, page.few),
        "violins": bool(violins),
        "errors": any(math.isfinite(row.seed_sd) for row in violins),
    }


def has_violin(row: MethodSpread) -> bool:
    return not row.is_baseline and len(row.dots) >= FEWEST_SITES


def seed_deviations(page: Page) -> dict[str, float]:
    """Method -> the SD over seeds of the median over sites, where there are seeds enough."""
    scores = where(page.scores, split="test", metric=page.metric)
    if page.seeds < FEWEST_SEEDS or scores.empty:
        return {}
    medians = scores.groupby(["method", "seed"])["value"].median()
    return {str(method): float(of.std(ddof=1)) for method, of in medians.groupby("method") if len(of) >= FEWEST_SEEDS}


def spread_figure(
    rows: Sequence[MethodSpread], axis: str, lower_is_better: bool, few: Mapping[str, str] = MappingProxyType({})
) -> Markup:
    """Rows in the order given. Hollow dots: sites of `few`, which stand on few rows."""
    rows = [r for r in rows if r.dots]
    return svg.twice(lambda width: _figure(rows, axis, lower_is_better, few, width)) if rows else Markup()


def _figure(rows: Sequence[MethodSpread], axis: str, lower: bool, few: Mapping[str, str], width: int) -> Markup:
    shown = [_row(row, lower, few, svg.is_narrow(width)) for row in rows]
    ends = [end for row in shown if row.error.known for end in (row.error.low, row.error.high)]
    low, high = axes.interval_domain((row.interval for row in shown), [v for row in rows for _, v in row.dots] + ends)
    head: Head = (low, "← better", "start") if lower else (high, "better →", "end")
    figure = IntervalRows(
        f"Spread over sites: {axis}",
        shown,
        axis,
        low,
        high,
        step=(40.0, 54.0),
        letters=22,
        heads=[head],
        rail=True,
        swarm=lambda places, room: axes.swarm(places, 2 * DOT, room),
    )
    return interval_rows(figure, width)


def _row(row: MethodSpread, lower: bool, few: Mapping[str, str], narrow: bool) -> IntervalRow:
    """A dot for each site, a diamond for the worst one, and an upright tick at the median site."""
    middle = float(np.median([v for _, v in row.dots]))
    marks = [_mark(row, site, value, few) for site, value in row.dots]
    words = f"{row.title}: median {number(middle)}, worst {row.worst} {spoken(row.interval)}"
    median = RowMark(middle, "tick", "median", 12, f"{row.title}, median site: {number(middle)}")
    kind = "name yard" if row.yardstick else "name"
    if row.worst is None:
        return IntervalRow(row.title, f"{row.title}: {number(middle)}", marks=[*marks, median], name_kind=kind)
    name = Label(marked(row.worst, few), "worst-name", "end" if narrow or not lower else "start",
                 f"{row.worst} {number(row.interval.value)}")  # fmt: skip
    place = {"right": [name]} if narrow else {"beside": name}
    interval = row.interval._replace(value=dict(row.dots).get(row.worst, math.nan))
    whole = IntervalRow(row.title, words, interval, [*marks, median], line="whisker", name_kind=kind, **place)
    if not has_violin(row):
        return whole
    sd, shape = row.seed_sd, density.outline([v for _, v in row.dots])
    words_of_sd = f"SD over seeds of the median site {number(sd)}" if math.isfinite(sd) else ""
    return whole._replace(
        words=f"{words}, {words_of_sd}" if words_of_sd else words,
        violin=shape,
        error=Interval(middle, middle - sd, middle + sd),
        error_words=f"{row.title}, {words_of_sd}",
    )


def _mark(row: MethodSpread, site: str, value: float, few: Mapping[str, str]) -> RowMark:
    words, hollow = f"{row.title}, {site}: {number(value)}", " few" if site in few else ""
    words += f" (few held out: {few[site]})" if site in few else ""
    if site != row.worst:
        return RowMark(value, "dot", f"dot{hollow}", DOT, words)
    worst = f"worst: {spoken(row.interval)}" if row.interval.known else "the worst site"
    return RowMark(value, "diamond", f"worst{hollow}", 7, f"{words}; {worst}")


SECTION = Section(contents, has_spread)

"""Learning curves: a panel for each of the worst sites, a line for each method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, shorten
from vitrail.report.charts import axes, svg
from vitrail.report.charts.curves import Curves, Panel, Series, curves, last_values
from vitrail.report.charts.tables import lead_method, where
from vitrail.report.sections.scores.findings import best_method
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import SAME, marked, metric_words

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

PANELS = 12  # so many sites are drawn


def has_curves(page: Page) -> bool:
    points = where(page.curves, metric=page.metric)
    return len(points) > 0 and bool(np.isfinite(points["value"].astype(float)).any())


def contents(page: Page) -> Contents:
    methods, words = page.table.methods, metric_words(page.metric)
    picked = {lead_method(page, methods), best_method(page, page.table)}
    banded = [m for m in methods if m in picked or len(methods) <= 3]
    points, sites = where(page.curves, metric=page.metric), worst_first(page)[:PANELS]
    return {
        "figure": figure(points, sites, page.titles, page.yardsticks, words, banded, page.table.chance, page.few),
        "banded": [page.titles[m] for m in banded] if len(banded) < len(methods) else [],
        "yards": any(m in page.yardsticks for m in methods),
        "more_sites": left_out(page),
        "panels": PANELS,
    }


def left_out(page: Page) -> int:
    """How many sites have curves that are not drawn."""
    return max(0, len(worst_first(page)) - PANELS) if has_curves(page) else 0


def worst_first(page: Page) -> list[str]:
    """Sites from the one served worst under the leading method to the best; those that cannot be ranked last."""
    if (lead := lead_method(page, page.table.methods)) is None:
        return []
    served = page.table.standings_of(lead)
    return sorted(page.table.scores_of(lead), key=lambda site: served.get(site, math.inf))


def figure(
    points: pd.DataFrame,
    sites: Sequence[str],
    titles: Mapping[str, str],
    yardsticks: Sequence[str],
    axis: str,
    banded: Sequence[str],
    chance: Mapping[str, float] = MappingProxyType({}),
    few: Mapping[str, str] = MappingProxyType({}),
) -> Markup:
    """One panel per site, in the order given; a line per method; axes are shared. Dashed: what always giving the same
    answer comes to at the site. Those of `few` stand on few rows.

    `points`: method, seed, round, site, value. The methods in `banded` get a stronger line and the spread over seeds;
    nine bands over one another would show nothing."""
    points = points[np.isfinite(points["value"].astype(float)) & points["site"].isin(list(sites))]
    if points.empty:
        return Markup()
    values = points.groupby(["site", "method", "round"], sort=True)["value"].agg(["mean", "min", "max"])
    classes = method_classes(titles, yardsticks)
    bands = values[values.index.get_level_values("method").isin(list(banded))]
    levels = {site: chance[site] for site in sites if math.isfinite(chance.get(site, math.nan))}
    low, high = axes.domain([*values["mean"], *bands["min"], *bands["max"], *levels.values()])
    first, last = float(points["round"].min()), float(points["round"].max())
    ends = (first, last) if last > first else (first - 1, first + 1)
    entries = []
    for site in (s for s in sites if s in values.index.get_level_values("site")):
        here = values.loc[site]
        there = here.index.get_level_values("method")
        lines = [_series(titles[m], pd.DataFrame(here.loc[m]), classes[m], m in banded) for m in titles if m in there]
        level = (SAME, levels[site]) if site in levels else None
        text = f"{axis} at {site} after the last round: {last_values(lines)}."
        text += f" {SAME}: {number(levels[site])}." if level else ""
        named = [line._replace(name=f"{line.name}, {site}") for line in lines]
        drawn = Curves(f"Learning curves at {site}", text, [Panel(axis, named, low, high, level)], "round", *ends,
                       axes.round_ticks(first, last, 2))  # fmt: skip
        note = [svg.tag("small", f"few held out: {few[site]}")] if site in few else []
        entries.append([svg.tag("h3", marked(site, few), *note), curves(drawn, svg.PANEL)])
    return svg.panels(entries)


def method_classes(titles: Mapping[str, str], yardsticks: Sequence[str]) -> dict[str, str]:
    """The style of each method's line."""
    coloured = {m: svg.colour(i) for i, m in enumerate(m for m in titles if m not in yardsticks)}
    yard = {m: "yard" if i == 0 else "yard again" for i, m in enumerate(y for y in titles if y in yardsticks)}
    return coloured | yard


def _series(title: str, frame: pd.DataFrame, kind: str, banded: bool) -> Series:
    """`frame`: mean, min and max over seeds, by round."""
    mean, low, high = (frame[side].tolist() for side in ("mean", "min", "max"))
    spread = f"; seeds from {number(low[-1])} to {number(high[-1])}" if low != high else ""
    kind = f"{'series strong' if banded else 'series'} {kind}"
    rounds = [float(r) for r in frame.index]
    return Series(title, shorten(title, 20), kind, rounds, mean, more=spread, band=(low, high) if banded else None)


SECTION = Section(contents, has_curves)

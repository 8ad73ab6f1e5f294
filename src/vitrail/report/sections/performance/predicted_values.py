"""Of a number: what was predicted against what was true, in groups of a site's hold-out rows. Of a simulation alone,
since between machines nothing of the kind leaves a site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from markupsafe import Markup

from vitrail.core.text import decimals, number
from vitrail.metrics.holdout_summary import ValueGroups
from vitrail.metrics.scores import FEWEST
from vitrail.report.charts import axes, svg
from vitrail.report.charts.curves import Curves, Guide, Panel, Series, curves
from vitrail.report.sections.scores.learning_curves import worst_first
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import marked
from vitrail.runs.result import Run
from vitrail.runs.site.holdout import summaries_of
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

PANELS = 9  # sites that are drawn, the one served worst first


def groups_of(run: Run) -> dict[str, ValueGroups]:
    return {site: s.groups for site, s in summaries_of(run).items() if s.groups is not None}


def has_groups(page: Page) -> bool:
    return page.run is not None and bool(groups_of(page.run))


def contents(page: Page) -> Contents:
    run = run_of(page)
    groups, target = groups_of(run), run.study.target
    order = [site for site in worst_first(page) if site in groups]
    drawn = order[:PANELS]
    low, high = domain([groups[site] for site in drawn])
    return {
        "figure": svg.panels(
            [svg.tag("h3", marked(site, page.few)), figure(site, groups[site], low, high, run.study)] for site in drawn
        ),
        "target": target.column,
        "unit": target.unit,
        "fewest": FEWEST,
        "more": len(order) - len(drawn),
    }


def domain(groups: Sequence[ValueGroups]) -> tuple[float, float]:
    """Of both axes: all that is drawn of these sites."""
    return axes.domain(v for of_site in groups for v in (*of_site.expected, *chain(*limits(of_site))))


def limits(groups: ValueGroups) -> tuple[list[float], list[float]]:
    """One standard deviation to either side of what was true."""
    spread = [0.0 if math.isnan(s) else s for s in groups.spread.tolist()]
    means = groups.observed.tolist()
    return [m - s for m, s in zip(means, spread, strict=True)], [m + s for m, s in zip(means, spread, strict=True)]


def figure(site: str, groups: ValueGroups, low: float, high: float, study: Study) -> Markup:
    digits, word = decimals(max(abs(low), abs(high))), study.row_word
    tips = [
        f"{site}, {rows:.0f} {word}s: predicted {number(p, digits)}, true {number(y, digits)} ± {number(s, digits)}"
        for rows, p, y, s in zip(*(values.tolist() for values in groups), strict=True)
    ]
    points = Series(site, "", "series", groups.expected.tolist(), groups.observed.tolist(), band=limits(groups),
                    shape="points", tips=tips)  # fmt: skip
    unit_words = f" ({study.target.unit})" if study.target.unit else ""
    ticks = axes.tick_labels(low, high, 4)
    guide = Guide([(low, low), (high, high)], "zero", "as predicted")
    panel = Panel(f"true{unit_words}, mean of the group", [points], low, high, guides=[guide], ticks=ticks)
    title, text = f"What was true at {site}, over what was predicted", "; ".join(tips)
    drawing = Curves(title, f"{text}.", [panel], f"predicted{unit_words}", low, high, ticks, square=True)
    return curves(drawing, svg.PANEL)


SECTION = Section(contents, has_groups)

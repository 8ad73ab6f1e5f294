"""What a page says of scores: in short, whether joining is worth it, who is worst under each method, and the curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.report.charts import comparison as comparison_charts
from vitrail.report.charts.comparison import MethodSpread, SiteGain
from vitrail.report.charts.tables import lead_method, where
from vitrail.report.pages.findings import alone_title, best_method, findings
from vitrail.report.text import ANSWERS, SAME, VERDICT_CLASS, Interval, metric_words

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

Contents = dict[str, Any]


def short(page: Page) -> Contents:
    return {"findings": findings(page, page.table)}


def asks_for_joining(page: Page) -> bool:
    return page.kind == "compare" or len(page.verdicts) > 0


def joining(page: Page) -> Contents:
    verdicts = page.verdicts
    verdicts = verdicts if verdicts.empty else verdicts.sort_values("gain", ascending=False, kind="stable")
    rows = [{**r, "method": page.titles.get(r["method"], r["method"])} for r in verdicts.to_dict("records")]
    ends = ("low", "high") if page.has_intervals else ()  # two seeds allow none that says something
    gains = [
        SiteGain(r["site"], r["method"], Interval(r["gain"], *(r[e] for e in ends)), r["verdict"], r.get("harm", 0.0))
        for r in rows
    ]
    saved = "saved " if page.crossed else "gain in "
    return {
        "verdicts": rows,
        "figure": comparison_charts.verdict_figure(gains, f"{saved}{metric_words(page.yardstick)}", page.few),
        "answers": ANSWERS,
        "verdict_class": VERDICT_CLASS,
        "brier": any(math.isfinite(r.get("brier_alone", math.nan)) for r in rows),
        "alone": alone_title(),
    }


def has_spread(page: Page) -> bool:
    """More than one site, and a score."""
    several = len(page.table.rows) > 1
    return several and any(math.isfinite(score.value) for _, scores in page.table.rows for score in scores)


def spread(page: Page) -> Contents:
    """The method that serves its worst site best comes first."""
    table, rows = page.table, []
    for i, method in enumerate(table.methods):
        dots = [(site, scores[i].value) for site, scores in table.rows if not math.isnan(scores[i].value)]
        rows.append(MethodSpread(page.titles[method], method in page.yardsticks, dots, *table.worsts[i]))
    served = {page.titles[m]: min(table.standings_of(m).values(), default=-math.inf) for m in table.methods}
    rows.sort(key=lambda r: -served[r.title])
    same = [(site, value) for site, value in table.chance.items() if math.isfinite(value)]
    rows.append(MethodSpread(SAME, True, same, None, Interval(math.nan)))
    return {"figure": comparison_charts.spread_figure(rows, metric_words(page.metric), page.lower_is_better, page.few)}


def has_curves(page: Page) -> bool:
    curves = where(page.curves, metric=page.metric)
    return len(curves) > 0 and bool(np.isfinite(curves["value"].astype(float)).any())


def curves(page: Page) -> Contents:
    methods, words = page.table.methods, metric_words(page.metric)
    picked = {lead_method(page, methods), best_method(page, page.table)}
    banded = [m for m in methods if m in picked or len(methods) <= 3]
    order, curves = worst_first(page), where(page.curves, metric=page.metric)
    drawn = order[: comparison_charts.PANELS]
    return {
        "figure": comparison_charts.curves_figure(
            curves, drawn, page.titles, page.yardsticks, words, banded, page.table.chance, page.few
        ),
        "banded": [page.titles[m] for m in banded] if len(banded) < len(methods) else [],
        "yards": any(m in page.yardsticks for m in methods),
        "more_sites": len(order) - len(drawn),
        "panels": comparison_charts.PANELS,
    }


def worst_first(page: Page) -> list[str]:
    """Sites from the one served worst under the leading method to the best; those that cannot be ranked last."""
    if (lead := lead_method(page, page.table.methods)) is None:
        return []
    served = page.table.standings_of(lead)
    return sorted(page.table.scores_of(lead), key=lambda site: served.get(site, math.inf))

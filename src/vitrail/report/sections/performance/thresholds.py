"""How well the model tells rows with the event from those without, and what follows from a threshold: a ROC curve for
each site, and a table of hits and mistakes at the threshold that the reader chooses. Of more than two classes: which of
them the model takes for which.

Made of counts by risk. Between machines these are what sites tell ([bedside]); a simulation has them for every per
cent, and the page says so where a study between machines would show less."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from vitrail.analysis.calibration import wilson
from vitrail.core.text import number, percent
from vitrail.metrics.calibration import RiskCounts
from vitrail.metrics.holdout_summary import HoldOutSummary
from vitrail.metrics.roc import Confusion, confusion_at, roc_area, roc_points
from vitrail.report.charts import svg
from vitrail.report.charts.curves import Curves, Guide, Panel, Series, curves
from vitrail.report.sections.calibration import PERCENT, event_words, read_risk_counts
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import Interval, marked, spoken
from vitrail.runs.result import Run
from vitrail.runs.site.holdout import summaries_of
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

PANELS = 9  # sites with a curve, the one with the smallest area first
TABLE_ROWS = 40  # sites in each table
THRESHOLDS = tuple(k / 20 for k in range(1, 20))  # 5 to 95 %
CLASSES = 12  # of more, no table says anything
OWN = "each site’s own"
READ = ("own", "r25", "r50", "r75")  # the points that are told to who listens
SharesOf = Sequence[tuple[float, float]]


class ConfusionRow(NamedTuple):
    """A line of a table; None where the site's counts cannot say it."""

    site: str
    counts: Confusion | None
    shares: Sequence[tuple[str, str]]


class ThresholdTable(NamedTuple):
    name: str  # on the button
    words: str
    at: float  # the threshold; NaN of the sites' own
    rows: list[ConfusionRow]


def fine_counts(run: Run) -> dict[str, RiskCounts]:
    """By site, of two classes: as sites told them, or in a simulation by every per cent."""
    if len(run.study.target.levels) != 2:
        return {}
    if run.study.bedside.tell:
        return read_risk_counts(run)
    return {site: s.risks for site, s in summaries_of(run).items() if s.risks is not None}


def matrices(run: Run) -> dict[str, tuple[tuple[int, ...], ...]]:
    """By site: [true][predicted], by the site's own thresholds; of a simulation."""
    return {site: s.confusion for site, s in summaries_of(run).items() if s.confusion}


def own_cut(summary: HoldOutSummary) -> Confusion | None:
    """Of two classes: hits and mistakes at the site's own threshold; where persons are named, so many persons."""
    if not summary.confusion or len(summary.confusion) != 2:
        return None
    (rests, alarms), (misses, hits) = summary.confusion
    each = summary.risks.total / summary.rows if summary.risks else 1.0
    return Confusion(*(each * rows for rows in (hits, misses, alarms, rests)))


def has_tables(page: Page) -> bool:
    if (run := page.run) is None:
        return False
    cut = any(len(counts.low) > 1 for counts in fine_counts(run).values())
    return cut or (2 < len(run.study.target.levels) <= CLASSES and bool(matrices(run)))


def contents(page: Page) -> Contents:
    run = run_of(page)
    levels, counts, told = run.study.target.levels, fine_counts(run), run.study.bedside.tell
    own = {}
    if counts and not told:
        own = {site: cut for site, s in summaries_of(run).items() if (cut := own_cut(s))}
    areas = {site: area_of(run, site, of_site) for site, of_site in counts.items()}
    order = sorted(counts, key=lambda site: areas[site].value if math.isfinite(areas[site].value) else 2)
    drawn = [site for site in order if math.isfinite(areas[site].value)][:PANELS]
    return {
        "event": event_words(levels),
        "levels": levels,
        "figure": svg.panels(roc_entry(site, counts[site], own.get(site), areas[site], page.few) for site in drawn),
        "tables": threshold_tables(order[:TABLE_ROWS], counts, own),
        "start": start_of(run.study, bool(own)),
        "matrices": [] if counts else [(site, cells, right_share(cells)) for site, cells in matrices(run).items()],
        "heads": [("class", ""), *((level, "") for level in levels)],
        "simulated": not told,
        "more": len(order) - len(drawn),
    }


def area_of(run: Run, site: str, counts: RiskCounts) -> Interval:
    """As the tables of scores have it, where they do; else of the counts."""
    return summary_area(None if run.study.bedside.tell else summaries_of(run).get(site), counts)


def summary_area(summary: HoldOutSummary | None, counts: RiskCounts) -> Interval:
    if summary and "auc" in summary.scores:
        return Interval(*summary.scores["auc"][:3])
    return Interval(*roc_area(counts))


def roc_entry(
    site: str, counts: RiskCounts, own: Confusion | None, area: Interval, few: Mapping[str, str]
) -> list[Markup]:
    """A panel: heading, curve, and the area under it."""
    words = svg.tag("p", f"Area under the curve {spoken(area, lambda v: number(v, 2))}.", class_="foot")
    return [svg.tag("h3", marked(site, few)), roc_figure(site, counts, own), words]


def roc_figure(site: str, counts: RiskCounts, own: Confusion | None = None) -> Markup:
    """With a point for each threshold that can be chosen; page.css shows that of the chosen one."""
    false, true = (values.tolist() for values in roc_points(counts))
    curve = Series(site, "", "series strong m0", false, true, f"{site}: the ROC curve", dots=len(false) < 20)
    cuts = {f"r{round(100 * t)}": (f"threshold {100 * t:.0f} %", confusion_at(counts, t)) for t in THRESHOLDS}
    points = [
        chosen_point(site, kind, words, cut)
        for kind, (words, cut) in ({"own": ("the site’s own threshold", own)} | cuts).items()
        if cut is not None
    ]
    guide = Guide([(0.0, 0.0), (1.0, 1.0)], "zero")
    panel = Panel("sensitivity", [curve, *points], 0.0, 1.0, guides=[guide], ticks=PERCENT)
    text = "; ".join(point.tips[0] for point in points if point.kind.removeprefix("at ") in READ) + "."
    figure = Curves(f"ROC curve at {site}", text, [panel], "1 − specificity", 0.0, 1.0, PERCENT, square=True)
    return curves(figure, svg.PANEL)


def chosen_point(site: str, kind: str, words: str, cut: Confusion) -> Series:
    sensitivity, specificity = share(cut.sensitivity), share(cut.specificity)
    tip = f"{site}, {words}: sensitivity {percent(sensitivity)}, specificity {percent(specificity)}"
    return Series(site, "", f"at {kind}", [1 - specificity], [sensitivity], shape="points", tips=[tip])


def share(of: tuple[float, float]) -> float:
    return of[0] / of[1] if of[1] else math.nan


def share_words(of: tuple[float, float]) -> tuple[str, str]:
    """In per cent, and Wilson's interval."""
    if not of[1]:
        return "not defined", ""
    rate = wilson(*of)
    return f"{100 * rate.value:.0f} %", f"{100 * rate.low:.0f} to {100 * rate.high:.0f}"


def threshold_tables(
    sites: Sequence[str], counts: Mapping[str, RiskCounts], own: Mapping[str, Confusion]
) -> list[ThresholdTable]:
    """One for the sites' own thresholds, where they are known, and one for each of 5 to 95 % at which a site's counts
    are cut."""
    out = []
    if own:
        rows = [confusion_row(site, own.get(site)) for site in sites]
        out.append(ThresholdTable(OWN, "each site’s own threshold, by which this run is scored", math.nan, rows))
    for threshold in THRESHOLDS:
        cuts = {site: confusion_at(counts[site], threshold) for site in sites}
        if any(cuts.values()):
            words = f"a threshold of {100 * threshold:.0f} %"
            rows = [confusion_row(site, cut) for site, cut in cuts.items()]
            out.append(ThresholdTable(f"{100 * threshold:.0f} %", words, threshold, rows))
    return out


def confusion_row(site: str, cut: Confusion | None) -> ConfusionRow:
    shares: SharesOf = (cut.sensitivity, cut.specificity, cut.positive_value, cut.negative_value) if cut else ()
    return ConfusionRow(site, cut, [share_words(of) for of in shares])


def start_of(study: Study, own: bool) -> str:
    """The name of the table that is shown first; `own`: whether the sites' own thresholds are known."""
    if study.target.threshold is not None:
        return f"{round(20 * study.target.threshold) * 5} %"
    return OWN if own else "50 %"


def right_share(cells: Sequence[Sequence[int]]) -> str:
    total = sum(map(sum, cells))
    return percent(sum(row[i] for i, row in enumerate(cells)) / total) if total else "not defined"


SECTION = Section(contents, has_tables)

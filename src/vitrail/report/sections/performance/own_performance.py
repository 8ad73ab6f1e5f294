"""How the model does on a site's own hold-out rows, for the site's private page: scores, ROC curve and table at a
threshold, calibration; predicted against true; or Kaplan-Meier. Nothing of it leaves the site."""

from __future__ import annotations

from vitrail.analysis.calibration import judge
from vitrail.core.text import number
from vitrail.metrics.holdout_summary import HoldOutSummary
from vitrail.metrics.survival import end_words
from vitrail.quality.repair.inspection import HeldOutView
from vitrail.report.charts import svg
from vitrail.report.sections.calibration import calibration_figure, coarse_counts, event_words
from vitrail.report.sections.performance import predicted_values
from vitrail.report.sections.performance.thresholds import (
    own_cut,
    roc_entry,
    start_of,
    summary_area,
    threshold_tables,
)
from vitrail.report.sections.section import Contents
from vitrail.report.sections.survival_by_risk import exact_groups, risk_rows, site_panel
from vitrail.report.text import Interval, metric_words, spoken
from vitrail.study.model import Study


def own_performance(site: str, view: HeldOutView) -> Contents | None:
    """What the template is given; nothing without a hold-out row."""
    study, summary = view
    if not summary.rows:
        return None
    scores = [
        (metric_words(metric), spoken(Interval(*score[:3])), number(score.baseline))
        for metric, score in summary.scores.items()
    ]
    empty: Contents = {"roc": "", "tables": [], "calibration": "", "groups": "", "survival": "", "risks": []}
    return empty | _figures(site, study, summary) | {"rows": summary.rows, "scores": scores, "unit": study.unit_word}


def _figures(site: str, study: Study, summary: HoldOutSummary) -> Contents:
    target = study.target
    if target.kind == "time":
        groups = exact_groups(summary)
        figure = svg.panels([site_panel(site, groups, study, {})]) if groups else ""
        rows = risk_rows(study, summary, groups) if groups else []
        return {"survival": figure, "risks": rows, "horizon": end_words(target.ends, target.unit)[-1]}
    if target.kind == "number":
        if summary.groups is None:
            return {}
        low, high = predicted_values.domain([summary.groups])
        figure = predicted_values.figure(site, summary.groups, low, high, study)
        return {"groups": svg.panels([[figure]])}
    out: Contents = {}
    if (counts := coarse_counts(summary)) is not None:
        out |= {
            "calibration": svg.panels([[calibration_figure(site, counts, study.unit_word)]]),
            "judged": judge(counts),
        }
    if summary.risks is not None and len(target.levels) == 2:
        cut = own_cut(summary)
        own = {site: cut} if cut else {}
        out["roc"] = svg.panels([roc_entry(site, summary.risks, cut, summary_area(summary, summary.risks), {})])
        out["tables"] = threshold_tables([site], {site: summary.risks}, own)
        out["start"] = start_of(study, bool(own))
    return out | {"event": event_words(target.levels)}

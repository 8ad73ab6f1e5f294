"""Whether a model's risks come true, and what acting on them gains: for the federation's page of what sites told, or
of a simulation, and for a site's own card of all its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from vitrail.analysis.calibration import Benefit, is_off, judge, net_benefit, observed_expected, wilson
from vitrail.core.text import number
from vitrail.metrics.calibration import EDGES, RiskCounts, merged, read_counts, recut
from vitrail.metrics.holdout_summary import HoldOutSummary
from vitrail.metrics.scores import FEWEST
from vitrail.report.charts import svg
from vitrail.report.charts.curves import Curves, Guide, Panel, Series, curves
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.runs.result import Run
from vitrail.runs.setup import AT_BEDSIDE
from vitrail.runs.site.holdout import summaries_of

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

PANELS = 9  # so many sites are drawn, those farthest off first
PERCENT = [(v, f"{100 * v:.0f} %") for v in (0.0, 0.5, 1.0)]


def read_risk_counts(run: Run) -> dict[str, RiskCounts]:
    """Site -> its hold-out rows by risk, where it told enough."""
    if not (run.history.split == AT_BEDSIDE).any():
        return {}
    by_site = run.scores(AT_BEDSIDE).groupby("site", sort=False)
    cells = {s: read_counts(dict(zip(r["metric"], r["value"], strict=True))) for s, r in by_site}
    each = dict.fromkeys(cells, 1.0)  # persons for each row
    if "test_persons" in run.sizes:
        each |= dict(zip(run.sizes.site, run.sizes.test_persons / run.sizes.test_rows, strict=True))
    return {str(site): counts.of_persons(each[site]) for site, counts in cells.items() if counts is not None}


def risk_counts_of(run: Run) -> dict[str, RiskCounts]:
    """What sites told, where the study has them tell it; else, in a simulation, what they would have told."""
    if run.study.bedside.tell:
        return read_risk_counts(run)
    coarse = {site: coarse_counts(summary) for site, summary in summaries_of(run).items()}
    return {site: counts for site, counts in coarse.items() if counts is not None}


def coarse_counts(summary: HoldOutSummary) -> RiskCounts | None:
    """In groups of FEWEST or more, as a site would tell them."""
    counts = merged(recut(summary.risks, EDGES)) if summary.risks else None
    return counts if counts is not None and len(counts.low) else None


def has_risk_counts(run: Run | None) -> bool:
    return run is not None and bool(risk_counts_of(run))


def contents(page: Page) -> Contents:
    return contents_of(run_of(page))


def contents_of(run: Run) -> Contents:
    counts, target = risk_counts_of(run), run.study.target
    far = {site: abs(math.log(max(observed_expected(c).value, 1e-3))) for site, c in counts.items()}
    order = sorted(counts, key=lambda site: -far[site])
    benefits = {site: net_benefit(c) for site, c in counts.items()}
    two, drawn = len(target.levels) == 2, order[:PANELS]
    cut = any(len(benefits[site].at) for site in drawn)
    return {
        "event": event_words(target.levels),
        "two": two,
        "calibration": side_by_side((s, calibration_figure(s, counts[s], run.study.unit_word)) for s in drawn),
        "benefit": side_by_side((s, benefit_figure(s, benefits[s])) for s in drawn) if two and cut else "",
        "rows": [bedside_row(site, counts[site], benefits[site] if two else None) for site in order],
        "off": [site for site in order if is_off(counts[site])],
        "more": len(order) - len(drawn),
        "silent": [s for s in run.sites if s not in counts],
        "fewest": FEWEST,
        "simulated": not run.study.bedside.tell,
    }


def event_words(levels: Sequence[str]) -> str:
    return f"“{levels[1]}”" if len(levels) == 2 else "its answer is right"


def bedside_row(site: str, counts: RiskCounts, benefit: Benefit | None) -> list[str]:
    """A line of the table."""
    ratio = observed_expected(counts)
    cells = [
        site,
        f"{counts.total:.0f}",
        f"{100 * counts.share:.0f} %",
        f"{100 * counts.expected.sum() / counts.total:.0f} %",
        f"{number(ratio.value, 2)} ({number(ratio.low, 2)} to {number(ratio.high, 2)})",
        judge(counts),
    ]
    return cells + ([useful_words(benefit)] if benefit else [])


def useful_words(benefit: Benefit) -> str:
    """At which thresholds acting on the model clearly beats acting on all and on none."""
    if benefit.useful is None:
        return "none"
    low, high = (f"{100 * threshold:.0f}" for threshold in benefit.useful)
    return f"{low} %" if low == high else f"{low} to {high} %"


def calibration_figure(site: str, counts: RiskCounts, word: str = "case") -> Markup:
    """What came over what was said; on the diagonal both are the same."""
    rates = [wilson(float(e), float(n)) for e, n in zip(counts.events, counts.rows, strict=True)]
    risks = [float(v) for v in counts.expected / counts.rows]
    tips = [
        f"{site}: {n:.0f} {word}s, predicted {100 * risk:.0f} %, observed {100 * rate.value:.0f} % "
        f"({100 * rate.low:.0f} to {100 * rate.high:.0f} %)"
        for n, risk, rate in zip(counts.rows, risks, rates, strict=True)
    ]
    band = [rate.low for rate in rates], [rate.high for rate in rates]
    points = Series(site, "", "series", risks, [r.value for r in rates], band=band, shape="points", tips=tips)
    panel = Panel(
        "observed rate",
        [points],
        0.0,
        1.0,
        ("observed rate of all", counts.share),
        [Guide([(0.0, 0.0), (1.0, 1.0)], "zero")],
        PERCENT,
        2,
    )
    title, text = f"Observed rate at {site}, by predicted risk", "; ".join(tips)
    return curves(Curves(title, f"{text}.", [panel], "predicted risk", 0.0, 1.0, PERCENT, square=True), svg.PANEL)


def benefit_figure(site: str, benefit: Benefit) -> Markup:
    """Net benefit of acting by the model, on all, on none."""
    if not len(benefit.at):
        return svg.tag("p", "Too few cases to cut by risk.", class_="foot")
    share = float(benefit.all[0] * (1 - benefit.at[0]) + benefit.at[0])  # at 0 all who have it are gained
    most = max(float(benefit.high.max()), share, 0.02)
    least = max(-most, min(float(benefit.low.min()), -most / 4))
    everyone = [(k / 100, share - (1 - share) * k / (100 - k)) for k in range(100)]
    guides = [Guide([(0.0, 0.0), (1.0, 0.0)], "zero", "treat none: 0"), Guide(everyone, "treat-all", "treat all")]
    model, low, high = (values.tolist() for values in (benefit.model, benefit.low, benefit.high))
    words, few = f"{site}: acting by the model", len(benefit.at) < 20
    line = Series(site, "", "series strong m0", benefit.at.tolist(), model, words, band=(low, high), dots=few)
    panel, middle = Panel("net benefit per case", [line], least, most * 1.05, guides=guides), len(benefit.at) // 2
    text = (
        f"At {100 * benefit.at[middle]:.0f} % {number(model[middle])}, treating all "
        f"{number(float(benefit.all[middle]))}, none 0."
    )
    title = f"Net benefit of acting by the model at {site}, on all and on none"
    return curves(Curves(title, text, [panel], "risk from which one acts", 0.0, 1.0, PERCENT), svg.PANEL)


def side_by_side(figures: Iterable[tuple[str, Markup]]) -> Markup:
    """A panel a site."""
    return svg.panels([svg.tag("h3", site), figure] for site, figure in figures)


SECTION = Section(contents, lambda page: has_risk_counts(page.run))

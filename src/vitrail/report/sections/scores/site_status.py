"""The first screen of a run: each site's score with its interval beside its baseline, its status in words and colour,
which site needs attention, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from vitrail.analysis.calibration import LEVEL, counts_test, observed_expected
from vitrail.core.text import number
from vitrail.metrics.score_intervals import interval_of_counts
from vitrail.metrics.skill import no_better
from vitrail.privacy.score_rounding import OF_HITS, can_leave, rounding_variance
from vitrail.quality.screening.result import LABEL
from vitrail.report.charts import axes, svg
from vitrail.report.charts.interval_rows import Head, IntervalRow, IntervalRows, Label, Mark, Shape, interval_rows
from vitrail.report.charts.tables import ScoreTable, lead_method, score_table
from vitrail.report.sections.calibration import risk_counts_of
from vitrail.report.sections.scores.findings import RISKS, was_trained
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import FEW_MARK, METRICS, Interval, listed, metric_name, metric_words, name, opening, spoken
from vitrail.runs.site.holdout import summaries_of

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

ROWS = 10  # sites in the first figure: those that need attention first
LOSS, WARN, UNSURE, GAIN = "loss", "warn", "unsure", "gain"  # classes of page.css, the most urgent first
BAD_DATA, WORSE, NO_BETTER, NO_SCORE = "bad data", "worse", "no better", "no score"
BAD_RISKS, OFF, UNCLEAR, FEW, CLEAR = "bad risks", "off", "unclear", "few", "clear"
CAUSES = {  # how urgent
    BAD_DATA: LOSS,
    WORSE: LOSS,
    NO_BETTER: LOSS,
    BAD_RISKS: LOSS,
    OFF: WARN,
    UNCLEAR: UNSURE,
    NO_SCORE: UNSURE,
    FEW: UNSURE,
    CLEAR: GAIN,
}


class ScoreStatus(NamedTuple):
    site: str
    score: Interval
    baseline: float
    cause: str  # of CAUSES
    words: str
    sign: str = ""  # behind the name of a site of few patients

    @property
    def kind(self) -> str:
        return CAUSES[self.cause]


def has_statuses(page: Page) -> bool:
    return page.verdicts.empty and any(math.isfinite(s.value) for _, scores in page.table.rows for s in scores)


def contents(page: Page) -> Contents:
    table = page.table
    method = lead_method(page, table.methods)
    assert method is not None, "the section needs a score"
    statuses = site_statuses(page, table, method)
    words = metric_words(table.metric)
    return {
        "answer": answer(page, statuses, method),
        "figure": status_figure(statuses[:ROWS], words, table.lower),
        "more": status_figure(statuses[ROWS:], words, table.lower),
        "others": len(statuses) - ROWS,
        "next": next_steps(page, statuses),
        "interval": interval_words(page, statuses),
    }


def site_statuses(page: Page, table: ScoreTable, method: str) -> list[ScoreStatus]:
    """Those that need attention first, and of these the one served worst."""
    served = table.standings_of(method)
    statuses = [_status(page, table, method, site) for site in table.scores_of(method)]
    order = list(CAUSES)
    return sorted(statuses, key=lambda s: (order.index(s.cause), served.get(s.site, math.inf)))


def _status(page: Page, table: ScoreTable, method: str, site: str) -> ScoreStatus:
    score, baseline = score_interval(page, table, method, site), table.chance.get(site, math.nan)
    cause, words = _cause(page, table, method, site, score, baseline)
    return ScoreStatus(site, score, baseline, cause, words, FEW_MARK if site in page.few else "")


def _cause(page: Page, table: ScoreTable, method: str, site: str, score: Interval, baseline: float) -> tuple[str, str]:
    """The most urgent one, in words."""
    if columns := wrong_columns(page).get(site):
        return BAD_DATA, f"data likely wrong: {', '.join(columns)}"
    if not math.isfinite(score.value):
        return NO_SCORE, "no score"
    if not math.isfinite(baseline):
        return UNCLEAR, "no baseline to compare with"
    beaten = score.low > baseline if table.lower else score.high < baseline
    if score.known and beaten:
        return WORSE, "worse than baseline"
    if no_better(score.value, baseline, table.lower):
        return NO_BETTER, "no better than baseline"
    for metric in bad_risks(page, method, site):
        return BAD_RISKS, f"{METRICS[metric][0]} no better than baseline"
    if direction := risks_off(page, site):
        return OFF, f"better, but risks {direction}"
    if score.known and not (score.high < baseline if table.lower else score.low > baseline):
        return UNCLEAR, "perhaps no better than baseline"
    if site in page.few:
        return FEW, f"better, but few {page.unit_word}s"
    return CLEAR, "better than baseline"


def score_interval(page: Page, table: ScoreTable, method: str, site: str) -> Interval:
    """Over seeds or folds where there are enough; else over the hold-out rows of the one run."""
    cell = dict(table.rows)[site][table.methods.index(method)]
    if math.isfinite(cell.half):
        return Interval(cell.value, cell.value - cell.half, cell.value + cell.half)
    if page.run is None or not math.isfinite(cell.value):
        return Interval(cell.value)
    if summary := summaries_of(page.run).get(site):
        drawn = summary.scores.get(table.metric)
        return Interval(cell.value, drawn.low, drawn.high) if drawn else Interval(cell.value)
    rows = next(r for r in page.sites.to_dict("records") if r["site"] == site)
    rare = rows.get("test_rarest", math.nan)
    rare = float(rare) if page.classes and len(page.run.study.target.levels) == 2 else math.nan
    more = 0.0
    if page.rounded and rare == rare:
        own = [m for m in page.run.study.metrics if can_leave(m) and m not in OF_HITS]
        more = rounding_variance(table.metric, float(rows["test_rows"]), rare, len(own) or 1)
    return Interval(*interval_of_counts(table.metric, cell.value, float(rows["test_rows"]), rare, more))


def wrong_columns(page: Page) -> dict[str, list[str]]:
    """Site -> its columns that screening calls likely wrong; of those that published under their own name."""
    out = dict[str, list[str]]()
    for finding in page.screening.wrong if page.screening else ():
        out.setdefault(finding.site, []).append("outcome" if finding.feature == LABEL else finding.feature)
    return out


def bad_risks(page: Page, method: str, site: str) -> list[str]:
    """Scores of the risks themselves in which the model is no better than its baseline at this site."""
    out = []
    summary = summaries_of(page.run).get(site) if page.run else None
    for metric in RISKS:
        if summary and metric in summary.scores:
            value, baseline = summary.scores[metric].value, summary.scores[metric].baseline
        elif metric != page.metric and metric in set(page.scores["metric"]):
            table = score_table(page, metric)
            value, baseline = table.scores_of(method).get(site, math.nan), table.chance.get(site, math.nan)
        else:
            continue
        if no_better(value, baseline, lower=True):
            out.append(metric)
    return out


def risks_off(page: Page, site: str) -> str:
    """In which direction the risks of the event are off; "" where there is no sign of it. All sites are looked at: the
    level is shared among them, so that of federations whose risks come true 1 in 20 has such a site."""
    every = risk_counts_of(page.run) if page.run else {}
    counts = every.get(site)
    if counts is None or counts_test(counts) >= LEVEL / len(every):
        return ""
    ratio = observed_expected(counts)
    return "too high" if ratio.high < 1 else "too low" if ratio.low > 1 else "off"


def answer(page: Page, statuses: Sequence[ScoreStatus], method: str) -> Markup:
    """What was found, and which site is served worst."""
    if not was_trained(page):
        return Markup("Nothing was trained: these are the scores of the model that every site started from.")
    title, many = name(page.titles[method]), len(statuses)
    if many == 1:
        return Markup("{} at {}: {}.").format(title, name(statuses[0].site), statuses[0].words)
    clear = sum(s.kind == GAIN for s in statuses)
    beaten = sum(s.cause not in (WORSE, NO_BETTER) and _beats(s, page.table.lower) for s in statuses)
    where = f"all {many}" if beaten == many else f"{beaten or 'none'} of {many}"
    sure = "" if clear == beaten else f", and without a reservation at {clear or 'none'}"
    text = Markup("{} beats the baseline at {} sites{}.").format(title, where, sure)
    if not any(math.isfinite(s.baseline) for s in statuses):
        text = Markup("{} is scored at {} sites, without a baseline to compare with.").format(title, many)
    worst = page.table.worsts[page.table.methods.index(method)][0]
    of_worst = next((s for s in statuses if s.site == worst), None)
    return text if of_worst is None else text + _worst_words(of_worst, page.metric)


def _worst_words(worst: ScoreStatus, metric: str) -> Markup:
    """Its score with interval and baseline in one bracket."""
    baseline = f"baseline {number(worst.baseline)}" if math.isfinite(worst.baseline) else ""
    score = spoken(worst.score)
    if baseline:
        score = f"{score.removesuffix(')')}; {baseline})" if worst.score.known else f"{score} ({baseline})"
    return Markup(" {} is served worst: {} in {}.").format(opening(worst.site), score, metric_name(metric))


def _beats(status: ScoreStatus, lower: bool) -> bool:
    known = math.isfinite(status.score.value) and math.isfinite(status.baseline)
    return known and not no_better(status.score.value, status.baseline, lower)


def next_steps(page: Page, statuses: Sequence[ScoreStatus]) -> list[Markup]:
    """What to do about the sites that need attention; at most two steps."""
    sites = {cause: [name(s.site) for s in statuses if s.cause == cause] for cause in CAUSES}
    out = []
    if sites[BAD_DATA]:
        out.append(
            Markup("Ask {} to look at the columns named above: <code>vitrail look</code> shows a site its own rows.")
            .format(listed(sites[BAD_DATA]))
        )  # fmt: skip
    if useless := sites[WORSE] + sites[NO_BETTER]:
        out.append(Markup("Do not use this model at {}.").format(listed(useless)))
    if off := sites[BAD_RISKS] + sites[OFF]:
        out.append(Markup("Do not act on the risks at {} before their calibration is understood.").format(listed(off)))
    if few := sites[UNCLEAR] + sites[FEW] + sites[NO_SCORE]:
        out.append(Markup("Test on more {}s at {}.").format(page.unit_word, listed(few)))
    if len(statuses) > 1 and len(out) < 2:
        out.append(Markup("Run <code>vitrail compare</code>: it tells each site whether joining is worth it."))
    return out[:2]


def interval_words(page: Page, statuses: Sequence[ScoreStatus]) -> str:
    """What the intervals are about."""
    if not any(s.score.known for s in statuses):
        return ""
    return "over seeds" if page.has_intervals else f"over these {page.unit_word}s"


def status_figure(statuses: Sequence[ScoreStatus], axis: str, lower: bool) -> Markup:
    return svg.twice(lambda width: _figure(statuses, axis, lower, width)) if statuses else Markup()


def _figure(statuses: Sequence[ScoreStatus], axis: str, lower: bool, width: int) -> Markup:
    """Sites of few patients do not stretch the axis, as long as there are others."""
    rows = [_row(s) for s in statuses]
    sure = [row.interval for s, row in zip(statuses, rows, strict=True) if not s.sign]
    bases = [s.baseline for s in statuses if math.isfinite(s.baseline)]
    low, high = axes.interval_domain(sure or [row.interval for row in rows], bases)
    head: Head = (low, "← better", "start") if lower else (high, "better →", "end")
    interval = " and 95 % interval" if any(s.score.known for s in statuses) else ""
    key = [Mark(0, "dot", "dot", 5, f"score{interval}"), Mark(0, "tick", "level short", 8, "baseline")]
    figure = IntervalRows(f"How each site is served: {axis}", rows, axis, low, high, heads=[head], key=key, rail=True,
                          step=(30.0, 48.0), letters=22)  # fmt: skip
    return interval_rows(figure, width)


def _row(status: ScoreStatus) -> IntervalRow:
    shape: Shape = "diamond" if status.kind in (LOSS, WARN) else "dot"
    mark = Mark(status.score.value, shape, "dot", 8 if shape == "diamond" else 6)
    baseline = f", baseline {number(status.baseline)}" if math.isfinite(status.baseline) else ""
    return IntervalRow(
        status.site,
        f"{status.site}: {spoken(status.score)}{baseline}; {status.words}",
        status.score,
        [Mark(status.baseline, "tick", "level short", 8), mark],
        kind=f"verdict {status.kind}",
        sign=status.sign,
        right=[Label(status.words, "answer", "start"), Label(number(status.score.value), "value")],
    )


SECTION = Section(contents, has_statuses)

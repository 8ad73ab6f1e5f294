"""Is joining worth it? A row for each site: what it gains, the interval, and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from vitrail.core.text import signed
from vitrail.report.charts import axes, svg
from vitrail.report.charts.interval_rows import Head, IntervalRow, IntervalRows, Label, Mark, interval_rows
from vitrail.report.sections.scores.findings import alone_title
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import ANSWERS, FEW_MARK, VERDICT_CLASS, Interval, metric_words, spoken

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


class SiteGain(NamedTuple):
    """One site's row. A positive gain is always an improvement."""

    site: str
    method: str
    gain: Interval
    verdict: str  # yes, no, no harm, cannot tell
    harm: float = 0.0  # what may be lost without harm


def is_asked(page: Page) -> bool:
    return page.kind == "compare" or len(page.verdicts) > 0


def contents(page: Page) -> Contents:
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
        "figure": verdict_figure(gains, f"{saved}{metric_words(page.yardstick)}", page.few),
        "answers": ANSWERS,
        "verdict_class": VERDICT_CLASS,
        "brier": any(math.isfinite(r.get("brier_alone", math.nan)) for r in rows),
        "alone": alone_title(),
    }


def verdict_figure(gains: Sequence[SiteGain], axis: str, few: Container[str] = (), widest: int = svg.WIDE) -> Markup:
    """Marked: those of `few`, which stand on few rows."""
    return svg.twice(lambda width: _figure(gains, axis, few, min(width, widest))) if gains else Markup()


def _figure(gains: Sequence[SiteGain], axis: str, few: Container[str], width: int) -> Markup:
    """The zero line stands in the middle."""
    rows = [_row(gain, FEW_MARK if gain.site in few else "") for gain in gains]
    low, high = axes.interval_domain((row.interval for row in rows), (-gain.harm for gain in gains))
    far = max(-low, high)
    heads: list[Head] = [(0.0, "← better alone", "end"), (0.0, "better together →", "start")]
    title = f"Is joining worth it? {axis}"
    return interval_rows(IntervalRows(title, rows, axis, -far, far, signed, heads=heads), width)


def _row(gain: SiteGain, sign: str) -> IntervalRow:
    answer, kind = ANSWERS.get(gain.verdict, gain.verdict), VERDICT_CLASS.get(gain.verdict, "unsure")
    harm = [Mark(-gain.harm, "tick", "harm", 9)] if gain.harm else []
    return IntervalRow(
        gain.site,
        f"{gain.site}: {spoken(gain.gain, signed)}, {answer}, together with {gain.method}",
        gain.gain,
        [*harm, Mark(gain.gain.value)],
        kind=f"verdict {kind}",
        sign=sign,
        right=[Label(answer, "answer", "start"), Label(signed(gain.gain.value), "value")],
    )


SECTION = Section(contents, is_asked)

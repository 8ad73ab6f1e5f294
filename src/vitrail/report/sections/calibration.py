"""What a model is worth at the bedside: whether its risks come true, and what acting on them gains. For the
federation's page of what sites told, and for a site's own card of all its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.analysis.calibration import Benefit, judge, net_benefit, observed_expected, wilson
from vitrail.core.text import number, shorten
from vitrail.metrics.calibration import RiskCounts, read_counts
from vitrail.metrics.scores import FEWEST
from vitrail.report.charts import svg
from vitrail.runs.result import Run
from vitrail.runs.setup import AT_BEDSIDE

PANELS = 9  # so many sites are drawn, those farthest off first


def read_risk_counts(run: Run) -> dict[str, RiskCounts]:
    """Site -> its hold-out rows by risk, where it told enough."""
    told = run.scores(AT_BEDSIDE) if (run.history.split == AT_BEDSIDE).any() else None
    if told is None:
        return {}
    found = {
        s: read_counts(dict(zip(r["metric"], r["value"], strict=True))) for s, r in told.groupby("site", sort=False)
    }
    each = dict.fromkeys(found, 1.0)  # persons for each row
    if "test_persons" in run.sizes:
        each |= dict(zip(run.sizes.site, run.sizes.test_persons / run.sizes.test_rows, strict=True))
    return {str(site): counts.of_persons(each[site]) for site, counts in found.items() if counts is not None}


def has_risk_counts(run: Run | None) -> bool:
    return run is not None and bool(read_risk_counts(run))


def contents(run: Run) -> dict[str, Any]:
    """What the template is given."""
    told, target = read_risk_counts(run), run.study.target
    far = {site: abs(math.log(max(observed_expected(c).value, 1e-3))) for site, c in told.items()}
    order = sorted(told, key=lambda site: -far[site])
    benefits = {site: net_benefit(c) for site, c in told.items()}
    two = len(target.levels) == 2
    drawn = [(site, told[site]) for site in order[:PANELS]]
    return {
        "event": event_words(target.levels),
        "two": two,
        "calibration": svg.twice(lambda width: calibration_figure(drawn, width)),
        "benefit": svg.twice(lambda width: benefit_figure([(s, benefits[s]) for s, _ in drawn], width)) if two else "",
        "rows": [bedside_row(site, told[site], benefits[site] if two else None) for site in order],
        "off": [site for site in order if judge(told[site]) != judge_fine()],
        "more": len(order) - len(drawn),
        "silent": [s for s in run.sites if s not in told],
        "fewest": FEWEST,
    }


def judge_fine() -> str:
    """What is said of a model whose risks come true."""
    one = np.array([10.0])
    return judge(RiskCounts(np.array([0.0]), 2 * one, one, one))


def event_words(levels: Sequence[str]) -> str:
    return f"“{levels[1]}”" if len(levels) == 2 else "its answer is right"


def bedside_row(site: str, counts: RiskCounts, benefit: Benefit | None) -> list[str]:
    """A line of the table."""
    ratio = observed_expected(counts)
    told = [
        site,
        f"{counts.total:.0f}",
        f"{100 * counts.share:.0f} %",
        f"{100 * counts.expected.sum() / counts.total:.0f} %",
        f"{number(ratio.value, 2)} ({number(ratio.low, 2)} to {number(ratio.high, 2)})",
        judge(counts),
    ]
    return told + ([useful_words(benefit)] if benefit else [])


def useful_words(benefit: Benefit) -> str:
    """At which thresholds acting on the model clearly beats acting on all and on none."""
    if (found := benefit.useful) is None:
        return "at none for sure"
    return f"{100 * found[0]:.0f} %" if found[0] == found[1] else f"{100 * found[0]:.0f} to {100 * found[1]:.0f} %"


def _grid(count: int, width: int, high: float) -> tuple[list[tuple[float, float]], float, float]:
    """Left upper corners of panels, how wide each is, and the height of all."""
    across = 1 if svg.is_narrow(width) else min(3, max(2, count))
    wide, step = width / across, high + 66.0
    return [(i % across * wide, i // across * step + 22) for i in range(count)], wide, -(-count // across) * step + 4


def calibration_figure(sites: Sequence[tuple[str, RiskCounts]], width: int) -> Markup:
    """A panel a site: what came over what was said; on the diagonal both are the same."""
    high = 200.0
    corners, wide, total = _grid(len(sites), width, high)
    parts, said = list[Markup](), []
    for (left, top), (site, counts) in zip(corners, sites, strict=True):
        x = svg.AxisScale(0.0, 1.0, left + 34, left + min(wide - 14, high + 70))
        y = svg.AxisScale(0.0, 1.0, top + high, top)
        parts.append(svg.text(left + 34, top - 8, shorten(site, 26), "name", full=site))
        parts += _percent_axes(x, y, "risk that the model says")
        parts.append(svg.line(x(0), y(0), x(1), y(1), "zero"))
        same = svg.tip(f"always the same answer: {100 * counts.share:.0f} % came")
        parts.append(svg.tag("g", same, svg.line(x.start, y(counts.share), x.end, y(counts.share), "level")))
        points = []
        for k in range(len(counts.low)):
            rows, events = float(counts.rows[k]), float(counts.events[k])
            came, mean = wilson(events, rows), float(counts.expected[k] / rows)
            tip = svg.tip(f"{site}: {rows:.0f} rows, said {100 * mean:.0f} %, came {100 * came.value:.0f} % "
                           f"({100 * came.low:.0f} to {100 * came.high:.0f} %)")  # fmt: skip
            at = x(mean)
            parts.append(svg.line(at, y(max(came.low, 0.0)), at, y(min(came.high, 1.0)), "median"))
            points.append(svg.tag("circle", tip, cx=at, cy=y(came.value), r=4, class_="told"))
            said.append(f"{site}: said {100 * mean:.0f} %, came {100 * came.value:.0f} % of {rows:.0f}")
        parts += points
    return svg.plot(width, total, "How often it came, over the risk that the model says", "; ".join(said) + ".", parts)


def benefit_figure(sites: Sequence[tuple[str, Benefit]], width: int) -> Markup:
    """A panel a site: net benefit of acting by the model, on all, on none."""
    high = 170.0
    corners, wide, total = _grid(len(sites), width, high)
    parts, said = list[Markup](), []
    for (left, top), (site, told) in zip(corners, sites, strict=True):
        parts.append(svg.text(left + 40, top - 8, shorten(site, 26), "name", full=site))
        if not len(told.at):
            parts.append(svg.text(left + 40, top + 20, "too few rows to cut by risk", "axis"))
            continue
        share = float(told.all[0] * (1 - told.at[0]) + told.at[0])  # at a threshold of 0 all who have it are gained
        most = max(float(told.high.max()), share, 0.02)
        least = min(float(told.low.min()), -most / 4)
        x = svg.AxisScale(0.0, 1.0, left + 40, left + min(wide - 14, high + 110))
        y = svg.AxisScale(max(least, -most), most * 1.05, top + high, top)
        marks = svg.written(svg.ticks(y.low, y.high, 4), number)
        parts += svg.axis_left(x, y, marks)
        parts += _below(x, y, "risk from which one acts")
        parts.append(svg.tag("g", svg.tip("treat none: 0"), svg.line(x.start, y(0), x.end, y(0), "zero")))
        everyone = [(k / 100, share - (1 - share) * k / (100 - k)) for k in range(100)]
        points = [(x(t), y(v)) for t, v in everyone if v >= y.low]
        parts.append(svg.path(points, svg.tip("treat all"), kind="treat-all"))
        clipped = [[max(float(v), y.low) for v in values] for values in (told.model, told.low, told.high)]
        series = svg.Series(site, "", "series strong m0", told.at.tolist(), clipped[0], band=(clipped[1], clipped[2]),
                             said=f"{site}: acting by the model")  # fmt: skip
        parts += svg.lines([series], x, y)
        parts += [svg.tag("circle", cx=x(t), cy=y(v), r=2.5, class_="series m0 end")
                  for t, v in zip(told.at.tolist(), clipped[0], strict=True) if len(told.at) < 20]  # fmt: skip
        middle = len(told.at) // 2
        said.append(f"{site}: at {100 * told.at[middle]:.0f} % {number(float(told.model[middle]), 3)}, "
                    f"treating all {number(float(told.all[middle]), 3)}, none 0")  # fmt: skip
    return svg.plot(
        width, total, "Net benefit of acting by the model, on all and on none", "; ".join(said) + ".", parts
    )


def _percent_axes(x: svg.AxisScale, y: svg.AxisScale, axis: str) -> list[Markup]:
    marks = [(v, f"{100 * v:.0f}") for v in (0.0, 0.5, 1.0)]
    return [*svg.axis_left(x, y, marks), *_below(x, y, f"{axis} (%)")]


def _below(x: svg.AxisScale, y: svg.AxisScale, axis: str) -> list[Markup]:
    words = [svg.text(x(v), y.start + 15, f"{100 * v:.0f} %", "tick", "middle") for v in (0.0, 0.5, 1.0)]
    return [*words, svg.text(x.middle, y.start + 31, axis.removesuffix(" (%)"), "axis", "middle")]

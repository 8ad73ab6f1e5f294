"""The figures of a comparison: learning curves, the spread over sites, who gains by joining."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, shorten, shorten_all, signed
from vitrail.report.charts import svg as draw
from vitrail.report.text import ANSWERS, FEW_MARK, SAME, VERDICT_CLASS, Interval, spoken

PANELS = 12  # learning curves are drawn for so many sites


class MethodSpread(NamedTuple):
    """One method's row of the spread figure."""

    title: str
    yardstick: bool
    dots: list[tuple[str, float]]  # site, mean over seeds; NaN left out
    worst: str | None  # the site, None with fewer than two
    interval: Interval  # of the worst site


class SiteGain(NamedTuple):
    """One site's row of the verdict figure. A positive gain is always an improvement."""

    site: str
    method: str
    gain: Interval
    verdict: str  # yes, no, no harm, cannot tell
    harm: float = 0.0  # what may be lost without harm


# figure 1: learning curves


def curves_figure(
    curves: pd.DataFrame,
    sites: Sequence[str],
    titles: dict[str, str],
    yardsticks: Sequence[str],
    axis: str,
    banded: Sequence[str],
    chance: Mapping[str, float] = MappingProxyType({}),
    few: Mapping[str, str] = MappingProxyType({}),
) -> Markup:
    """One panel per site, in the order given; a line per method, labelled where it ends; axes are shared.
    Dashed: what always giving the same answer comes to at the site. Those of `few` stand on few rows.

    `curves`: method, seed, round, site, value. The methods in `banded` get a stronger line and the spread
    over seeds; nine bands over one another would show nothing.
    """
    curves = curves[np.isfinite(curves["value"].astype(float)) & curves["site"].isin(list(sites))]
    if curves.empty:
        return Markup()
    values = curves.groupby(["site", "method", "round"], sort=True)["value"].agg(["mean", "min", "max"])
    classes = method_classes(titles, yardsticks)
    bands = values[values.index.get_level_values("method").isin(list(banded))]
    levels = {site: chance[site] for site in sites if math.isfinite(chance.get(site, math.nan))}
    low, high = draw.domain([*values["mean"], *bands["min"], *bands["max"], *levels.values()])
    ends = float(curves["round"].min()), float(curves["round"].max())
    panels = []
    for site in (s for s in sites if s in values.index.get_level_values("site")):
        here = values.loc[site]
        there = here.index.get_level_values("method")
        series = [
            _series(site, titles[m], pd.DataFrame(here.loc[m]), classes[m], m in banded) for m in titles if m in there
        ]
        level = (SAME, levels[site]) if site in levels else None
        svg = _curves(site, draw.Panel(axis, series, low, high, level), ends)
        panels.append(draw.tag("div", draw.tag("h3", marked(site, few), *_few_note(site, few)), svg, class_="panel"))
    return draw.tag("div", *panels, class_="panels")


def marked(site: str, few: Container[str], short: str = "") -> str:
    """The name, or its short form, with the mark of those that stand on few rows."""
    return f"{short or site}{f' {FEW_MARK}' if site in few else ''}"


def _few_note(site: str, few: Mapping[str, str]) -> list[Markup]:
    return [draw.tag("small", f"few held out: {few[site]}")] if site in few else []


def method_classes(titles: dict[str, str], yardsticks: Sequence[str]) -> dict[str, str]:
    """The style of each method's line."""
    coloured = {m: draw.colour(i) for i, m in enumerate(m for m in titles if m not in yardsticks)}
    yard = {m: "yard" if i == 0 else "yard again" for i, m in enumerate(y for y in titles if y in yardsticks)}
    return coloured | yard


def _series(site: str, title: str, frame: pd.DataFrame, kind: str, banded: bool) -> draw.Series:
    """`frame`: mean, min and max over seeds, by round."""
    mean, low, high = (frame[side].tolist() for side in ("mean", "min", "max"))
    spread = f"; seeds from {number(low[-1])} to {number(high[-1])}" if low != high else ""
    kind = f"{'series strong' if banded else 'series'} {kind}"
    rounds = [float(r) for r in frame.index]
    return draw.Series(
        f"{title}, {site}", shorten(title, 20), kind, rounds, mean, spread, (low, high) if banded else None
    )


def _curves(site: str, panel: draw.Panel, ends: tuple[float, float]) -> Markup:
    width = 350.0
    right = width - 24 - 6.5 * max(len(s.label) for s in panel.series)
    bottom = panel.head + max(150.0, 13.0 * len(panel.series))
    x = draw.AxisScale(*(ends if ends[1] > ends[0] else (ends[0] - 1, ends[0] + 1)), 34.0, right)
    parts = draw.panel_parts(panel, x, panel.head, bottom, ends, 2)
    parts.append(draw.text(x.middle, bottom + 31, "round", "axis", "middle"))
    named = [s._replace(name=s.name.removesuffix(f", {site}")) for s in panel.series]
    desc = f"{panel.axis} at {site} after the last round: {draw.last_values(named)}."
    desc += f" {panel.level[0]}: {number(panel.level[1])}." if panel.level else ""
    return draw.plot(width, bottom + 38, f"Learning curves at {site}", desc, parts, "plot")


# figure 2: spread over sites


def spread_figure(
    rows: Sequence[MethodSpread], axis: str, lower_is_better: bool, few: Mapping[str, str] = MappingProxyType({})
) -> Markup:
    """One row per method, a dot per site, the worst site named; rows in the order given. Hollow dots: sites of `few`,
    which stand on few rows."""
    rows = [r for r in rows if r.dots]
    return draw.twice(lambda width: _spread(rows, axis, lower_is_better, few, width)) if rows else Markup()


def _spread(
    rows: Sequence[MethodSpread], axis: str, lower_is_better: bool, few: Mapping[str, str], width: int
) -> Markup:
    narrow, radius = draw.is_narrow(width), 4.5
    height, top = (54.0, 20.0) if narrow else (40.0, 20.0)
    left = 8.0 if narrow else 20 + 7.0 * max(len(shorten(r.title, 22)) for r in rows)
    right = width - 8.0
    short = shorten_all([site for site, _ in rows[0].dots] + [r.worst for r in rows if r.worst], 18 if narrow else 22)
    short = {site: marked(site, few, said) for site, said in short.items()}
    room = 0.0 if narrow else 14 + 7.0 * max(len(short.get(r.worst or "", "")) for r in rows)
    ends = [e for r in rows for e in (r.interval.low, r.interval.high)]
    low, high = draw.domain([v for r in rows for _, v in r.dots] + ends)
    start, end = (left, right - room) if lower_is_better else (left + room, right)
    x = draw.AxisScale(low, high, start + 8, end - 8)
    bottom = top + height * len(rows)
    marks = draw.ticks(low, high, 4 if narrow else 6)
    better = "← better" if lower_is_better else "better →"
    parts = [draw.text(start if lower_is_better else end, 11, better, "axis", "start" if lower_is_better else "end")]
    parts += draw.axis_below(x, marks, top, bottom, axis, number)
    said = []
    for i, row in enumerate(rows):
        base = top + i * height + height * (0.66 if narrow else 0.5)
        kind = "name yard" if row.yardstick else "name"
        parts.append(draw.text(0, base - (20 if narrow else -4), shorten(row.title, 22), kind, full=row.title))
        parts.append(draw.line(start, base, end, base, "rail"))
        mid = float(np.median([v for _, v in row.dots]))
        worst = dict(row.dots).get(row.worst or "", math.nan)
        if row.worst is not None and row.interval.known:
            parts.append(draw.line(x(row.interval.low), base, x(row.interval.high), base, "whisker"))
        xs = [x(v) for _, v in row.dots]
        for (site, value), cx, off in zip(row.dots, xs, draw.swarm(xs, 2 * radius, height * 0.3), strict=True):
            said_here = f"{row.title}, {site}: {number(value)}"
            said_here += f" (few held out: {few[site]})" if site in few else ""
            hollow = " few" if site in few else ""
            if site == row.worst:
                worst_words = f"worst: {spoken(row.interval)}" if row.interval.known else "the worst site"
                diamond = [(cx + a, base + off + b) for a, b in ((0, -7), (7, 0), (0, 7), (-7, 0))]
                parts.append(
                    draw.path(diamond, draw.tip(f"{said_here}; {worst_words}"), kind=f"worst{hollow}", close=True)
                )
            else:
                parts.append(
                    draw.tag("circle", draw.tip(said_here), cx=cx, cy=base + off, r=radius, class_=f"dot{hollow}")
                )
        tip = draw.tip(f"{row.title}, median site: {number(mid)}")
        parts.append(draw.tag("g", tip, draw.line(x(mid), base - 12, x(mid), base + 12, "median")))
        if row.worst is not None:
            said.append(f"{row.title}: median {number(mid)}, worst {row.worst} {spoken(row.interval)}")
            full = f"{row.worst} {number(worst)}"
            if narrow:
                parts.append(draw.text(right, base - 20, short[row.worst], "worst-name", "end", full))
            else:
                reach = [x(v) for v in (worst, row.interval.low, row.interval.high) if math.isfinite(v)]
                at, anchor = (max(reach) + 11, "start") if lower_is_better else (min(reach) - 11, "end")
                parts.append(draw.text(at, base + 4, short[row.worst], "worst-name", anchor, full))
        else:
            said.append(f"{row.title}: {number(mid)}")
    return draw.plot(width, bottom + 40, f"Spread over sites: {axis}", "; ".join(said) + ".", parts)


# figure 3: verdicts


def verdict_figure(rows: Sequence[SiteGain], axis: str, few: Container[str] = ()) -> Markup:
    """One row per site: what it gains by joining, its interval, the zero line and the verdict in words. Marked: those
    of `few`, which stand on few rows."""
    return draw.twice(lambda width: _verdicts(rows, axis, few, width)) if rows else Markup()


def _verdicts(rows: Sequence[SiteGain], axis: str, few: Container[str], width: int) -> Markup:
    narrow = draw.is_narrow(width)
    height, top = (48.0, 24.0) if narrow else (32.0, 24.0)
    short = shorten_all([r.site for r in rows], 20 if narrow else 26)
    short = {site: marked(site, few, said) for site, said in short.items()}
    left = 6.0 if narrow else 20 + 7.0 * max(map(len, short.values()))
    right = width - (6.0 if narrow else 190.0)
    far = max((abs(v) for r in rows for v in (*r.gain, r.harm) if math.isfinite(v)), default=0.0) * 1.06 or 0.1
    x = draw.AxisScale(-far, far, left, right)
    bottom = top + height * len(rows)
    marks = [t for t in draw.ticks(-far, far, 4 if narrow else 6) if left + 8 < x(t) < right - 8]
    parts = draw.axis_below(x, marks, top, bottom, axis, signed)
    parts += [
        draw.text(x(0) - 10, 13, "← better alone", "axis", "end"),
        draw.text(x(0) + 10, 13, "better together →", "axis"),
    ]
    said = []
    for i, row in enumerate(rows):
        base = top + i * height + height * (0.72 if narrow else 0.5)
        words = f"{row.site}: {spoken(row.gain, signed)}, {ANSWERS.get(row.verdict, row.verdict)}"
        said.append(words)
        label = base - 17 if narrow else base + 4
        parts.append(draw.text(0, label, short[row.site], "name", full=row.site))
        mark = [draw.tip(f"{words}; together with {row.method}")]
        if row.harm:
            mark.append(draw.line(x(-row.harm), base - 9, x(-row.harm), base + 9, "harm"))
        if row.gain.known:
            mark.append(draw.line(x(row.gain.low), base, x(row.gain.high), base, "interval"))
        if math.isfinite(row.gain.value):
            mark.append(draw.tag("circle", cx=x(row.gain.value), cy=base, r=6, class_="dot"))
        answer = ANSWERS.get(row.verdict, row.verdict)
        if narrow:
            mark.append(draw.text(width, label, f"{answer} {signed(row.gain.value)}", "answer", "end"))
        else:
            mark.append(draw.text(right + 22, label, answer, "answer"))
            mark.append(draw.text(width, label, signed(row.gain.value), "value", "end"))
        parts.append(draw.tag("g", *mark, class_=f"verdict {VERDICT_CLASS.get(row.verdict, 'unsure')}"))
    return draw.plot(width, bottom + 40, f"Is joining worth it? {axis}", "; ".join(said) + ".", parts)

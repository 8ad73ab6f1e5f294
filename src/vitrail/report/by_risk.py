"""How hold-out cases fared whom the model held to be at low, middle and high risk: Kaplan-Meier, site by site."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from vitrail.core.metrics import FEWEST
from vitrail.core.times import GROUPS, end_words
from vitrail.report import draw
from vitrail.report.figures import PANELS, marked
from vitrail.report.words import listed, number, percent
from vitrail.runs.run import Run
from vitrail.runs.setup import RISK

Curves = dict[str, list[tuple[float, float]]]  # group -> points: until when, and the share still free of the event


def is_told(run: Run) -> bool:
    """Whether at some site there are enough rows."""
    return bool(run.history[run.history.split == RISK]["value"].notna().any())


def contents(run: Run, few: Mapping[str, str]) -> dict[str, Any]:
    """What the template is given. Sites of `few` stand on few rows."""
    target, found = run.study.target, {site: _read(run, site) for site in run.sites}
    shown = [site for site, curves in found.items() if any(len(points) > 1 for points in curves.values())]
    panels = [_panel(site, found[site], run, few) for site in shown[:PANELS]]
    order = {site: in_order(found[site]) for site in shown}
    return {
        "figure": draw.tag("div", *panels, class_="panels"),
        "event": target.column,
        "horizon": end_words(target.ends, target.unit)[-1],
        "fewest": FEWEST,
        "yes": listed([site for site, known in order.items() if known]),
        "no": listed([site for site, known in order.items() if known is False]),
        "unclear": listed([site for site, known in order.items() if known is None]),
        "out": listed([site for site in run.sites if site not in shown]),
        "more": max(0, len(shown) - PANELS),
    }


def _read(run: Run, site: str) -> Curves:
    told = run.scores(RISK)
    value = dict(zip(told[told.site == site]["metric"], told[told.site == site]["value"], strict=True))
    out = {}
    for group in GROUPS:
        named = ((end, value.get(f"free@{group}@{k + 1}", math.nan)) for k, end in enumerate(run.study.target.ends))
        out[group] = [(0.0, 1.0), *((end, share) for end, share in named if math.isfinite(share))]
    return out


def in_order(curves: Curves) -> bool | None:
    """Whether those at high risk had more events than those at low, when the former are last told of; None where no
    point of the latter is near enough to say. A share only falls.

    >>> high = [(0.0, 1.0), (2.0, 0.5)]
    >>> [in_order({"low": [(0.0, 1.0), *low], "high": high}) for low in ([(3.0, 0.9)], [(1.0, 0.4)], [(1.0, 0.9)])]
    [True, False, None]
    """
    low, (end, share) = curves[GROUPS[0]], curves[GROUPS[-1]][-1]
    least = next((known for at, known in low if at >= end), 0.0)
    most = next(known for at, known in reversed(low) if at <= end)
    if end and least > share:
        return True
    return False if end and most <= share else None


def _panel(site: str, curves: Curves, run: Run, few: Mapping[str, str]) -> Markup:
    width, target = 350.0, run.study.target
    series = [
        draw.Series(
            f"{group} risk",
            group,
            f"series {'strong ' * (group == GROUPS[-1])}{draw.colour(i)}",
            [end for end, _ in points],
            [100 * share for _, share in points],
            said=f"{group} risk: {percent(points[-1][1])} free of {target.column} at {points[-1][0]:g} {target.unit}",
        )
        for i, (group, points) in enumerate(curves.items())
    ]
    top, bottom, horizon = draw.ABOVE, draw.ABOVE + 160.0, target.ends[-1]
    x, y = draw.Scale(0.0, horizon, 34.0, width - 24 - 6.5 * 6), draw.Scale(0.0, 100.0, bottom, top)
    parts = [draw.text(0, 12, f"free of {target.column} (%)", "axis")]
    parts += draw.axis_left(x, y, draw.written(draw.ticks(0.0, 100.0, 5)))
    axis = f"time{f' ({target.unit})' if target.unit else ''}"
    parts += draw.axis_below(x, draw.ticks(0.0, horizon, 4), top, bottom, axis, number)
    parts += draw.lines(series, x, y)
    said = "; ".join(s.said for s in series if len(s.x) > 1)
    title = f"How cases of low, middle and high risk fared at {site}"
    svg = draw.plot(width, bottom + 40, title, f"{said}.", parts, "plot")
    return draw.tag("div", draw.tag("h3", marked(site, few)), svg, class_="panel")

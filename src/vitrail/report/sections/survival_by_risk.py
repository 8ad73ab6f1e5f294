"""How hold-out cases fared whom the model held to be at low, middle and high risk: Kaplan-Meier, site by site, with
95 % intervals and the numbers at risk, as far as sites tell them (metrics/survival.py, `by_risk`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.core.text import number, percent, signed
from vitrail.metrics.scores import FEWEST
from vitrail.metrics.survival import GROUPS, difference, end_words, limits, thirds
from vitrail.report.charts import svg as draw
from vitrail.report.charts.comparison import PANELS, marked
from vitrail.report.text import listed
from vitrail.runs.result import Run
from vitrail.runs.setup import RISK

VERDICTS = MORE, LESS, CHANCE, UNTOLD = "more", "less", "chance", "untold"  # names in the template
NOT_TOLD = ("No intervals: this site tells no numbers at risk, which", "leave a site only where scores are exact.")
WEIGHED = ("No intervals: rows stand for several, for which", "Greenwood’s variance does not hold.")
ROW = 15.0  # pixels of a line of numbers at risk
DIGIT = 6.6  # pixels


class Curve(NamedTuple):
    """One group at one site, at the ends of intervals that the site tells of."""

    rows: int  # in the beginning
    ends: list[float]
    free: list[float]  # share without the event
    left: list[float]  # rows still followed; NaN where it is not told
    low: list[float]  # 95 % interval of `free`; NaN where it cannot be computed
    high: list[float]

    def at(self, i: int) -> tuple[float, float, float]:
        """Share and interval."""
        return self.free[i], self.low[i], self.high[i]


class Gap(NamedTuple):
    """How much more often those at high risk had the event than those at low, by some time."""

    end: float
    low: float  # share of the low group with the event
    high: float
    gap: tuple[float, float, float]  # with its 95 % interval; NaN where there is none
    same: bool = (
        True  # both are told of at that time; else `low` is what it is at most, and the gap what it is at least
    )

    @property
    def verdict(self) -> str:
        _, least, most = self.gap
        if math.isnan(least):
            return UNTOLD
        return MORE if least > 0 else LESS if most < 0 else CHANCE


Curves = dict[str, Curve]


def has_groups(run: Run) -> bool:
    """Whether at some site there are enough rows."""
    return bool(run.history[run.history.split == RISK]["value"].notna().any())


def contents(run: Run, few: Mapping[str, str]) -> dict[str, Any]:
    """What the template is given. Sites of `few` stand on few rows."""
    target, found = run.study.target, {site: _read(run, site) for site in run.sites}
    shown = [site for site, curves in found.items() if any(curve.ends for curve in curves.values())]
    panels = [_panel(site, found[site], run, few) for site in shown[:PANELS]]
    gaps = {site: compare_groups(found[site]) for site in shown}
    verdicts = {site: gap.verdict if gap else UNTOLD for site, gap in gaps.items()}
    return {
        "figure": draw.tag("div", *panels, class_="panels"),
        "event": target.column,
        "horizon": end_words(target.ends, target.unit)[-1],
        "fewest": FEWEST,
        "banded": any(math.isfinite(v) for site in shown for curve in found[site].values() for v in curve.low),
        "out": listed([site for site in run.sites if site not in shown]),
        "beyond": max(0, len(shown) - PANELS),
        **{kind: listed([s for s, v in verdicts.items() if v == kind]) for kind in VERDICTS},
    }


def _read(run: Run, site: str) -> Curves:
    told, ends = run.scores(RISK), run.study.target.ends
    value = dict(zip(told[told.site == site]["metric"], told[told.site == site]["value"], strict=True))
    sizes = run.sizes.set_index("site")["test_rows"]
    rows = np.bincount(thirds(int(sizes[site])), minlength=len(GROUPS)) if site in sizes else np.zeros(len(GROUPS), int)
    weighed = bool(run.study.weight_column)  # rows that stand for several: Greenwood's variance does not hold
    out = {}
    for group, size in zip(GROUPS, rows, strict=True):
        numbers = {k: [value.get(f"{k}@{group}@{i + 1}", math.nan) for i in range(len(ends))] for k in ("free", "left")}
        at = [i for i, share in enumerate(numbers["free"]) if math.isfinite(share)]
        free, left = ([numbers[k][i] for i in at] for k in ("free", "left"))
        low, high = (np.full(len(at), np.nan),) * 2
        if not weighed and np.isfinite(left).all():
            low, high = limits(np.array(free), np.array(left), int(size))
        out[group] = Curve(int(size), [ends[i] for i in at], free, left, low.tolist(), high.tolist())
    return out


def compare_groups(curves: Curves) -> Gap | None:
    """At the last time at which those at high risk are told of while those at low still are; None where there is none.
    A share only falls: where the low group is not told of at that very time, the next one told bounds it from below and
    the one before from above, and the interval is as wide as the two make it."""
    low, high = curves[GROUPS[0]], curves[GROUPS[-1]]
    at = [i for i, end in enumerate(high.ends) if low.ends and end <= low.ends[-1]]
    if not at:
        return None
    end, worse = high.ends[at[-1]], high.at(at[-1])
    later = next(j for j, other in enumerate(low.ends) if other >= end)
    earlier = [low.at(j) for j, other in enumerate(low.ends) if other <= end]
    gap, least, _ = difference(low.at(later), worse)
    _, _, most = difference(earlier[-1] if earlier else (1.0, 1.0, 1.0), worse)
    return Gap(end, 1 - low.free[later], 1 - worse[0], (gap, least, most), low.ends[later] == end)


def _panel(site: str, curves: Curves, run: Run, few: Mapping[str, str]) -> Markup:
    width, target = 350.0, run.study.target
    top, bottom = draw.ABOVE + 18.0, draw.ABOVE + 178.0
    x = draw.AxisScale(0.0, target.ends[-1], 72.0, width - 14.0)
    y = draw.AxisScale(0.0, 100.0, bottom, top)
    parts = [draw.text(0, 12, "event-free (%)", "axis"), *_legend()]
    parts += draw.axis_left(x, y, draw.written(draw.ticks(0.0, 100.0, 5)))
    axis = f"time{f' ({target.unit})' if target.unit else ''}"
    parts += draw.axis_below(x, draw.ticks(0.0, target.ends[-1], 4), top, bottom, axis, number)
    drawn = [(i, group, curve) for i, (group, curve) in enumerate(curves.items()) if curve.ends]
    parts += [_band(curve, x, y, i) for i, _, curve in drawn if math.isfinite(curve.low[-1])]
    parts += [_steps(group, curve, x, y, i, target.unit) for i, group, curve in drawn]
    under = bottom + 54
    below = _at_risk(curves, x, under)
    lost = [curve for _, _, curve in drawn if not math.isfinite(curve.low[-1])]
    reason = WEIGHED if run.study.weight_column else NOT_TOLD
    foot = under + (len(GROUPS) * ROW + 4 if below else -14.0)
    parts += below + [draw.text(0, foot + ROW * (i + 1), line, "tick") for i, line in enumerate(reason * bool(lost))]
    said = "; ".join(_words(group, curve, target.unit) for _, group, curve in drawn)
    title = f"How cases of low, middle and high risk fared at {site}"
    svg = draw.plot(width, foot + ROW * len(reason * bool(lost)) + 6, title, f"{said}.", parts, "plot")
    words = draw.tag("p", _gap_words(compare_groups(curves), target.unit), class_="foot")
    return draw.tag("div", draw.tag("h3", marked(site, few)), svg, words, class_="panel")


def _legend() -> list[Markup]:
    """Above the plot: squares, which no curve is made of."""
    parts, left = list[Markup](), 72.0
    for i, group in enumerate(GROUPS):
        box = {"x": left, "y": 21.0, "width": 10.0, "height": 10.0}
        parts += [
            draw.tag("rect", **box, class_=f"end {draw.colour(i)}"),
            draw.text(left + 15, 30, f"{group} risk", "tick"),
        ]
        left += 30 + DIGIT * len(f"{group} risk")
    return parts


def _band(curve: Curve, x: draw.AxisScale, y: draw.AxisScale, i: int) -> Markup:
    """Between two ends the curve lies between what is told at them: the band goes from the lower limit at the later one
    to the upper limit at the earlier one."""
    high, low, start, limit = [], [], 0.0, 1.0
    for end, down, up in zip(curve.ends, curve.low, curve.high, strict=True):
        high += [(x(start), y(100 * limit)), (x(end), y(100 * limit))]
        low += [(x(start), y(100 * down)), (x(end), y(100 * down))]
        start, limit = end, up
    return draw.path([*high, *low[::-1]], kind=f"band {draw.colour(i)}", close=True)


def _steps(group: str, curve: Curve, x: draw.AxisScale, y: draw.AxisScale, i: int, unit: str) -> Markup:
    """A step at each end that is told, with a dot at its foot, where the estimate is known. Groups are a few pixels
    apart, so that no step hides another."""
    points, dots, before = [(x(0.0), y(100.0))], list[Markup](), 1.0
    for end, share in zip(curve.ends, curve.free, strict=True):
        at = x(end) + 3.0 * (i - 1)
        points += [(at, y(100 * before)), (at, y(100 * share))]
        dots.append(draw.tag("circle", cx=at, cy=y(100 * share), r=2.5, class_="end"))
        before = share
    kind = f"series {'strong ' * (group == GROUPS[-1])}{draw.colour(i)}"
    return draw.tag("g", draw.tip(_words(group, curve, unit)), draw.path(points, kind="line"), *dots, class_=kind)


def _words(group: str, curve: Curve, unit: str) -> str:
    share, low, high = curve.at(-1)
    around = f" (95 % CI {percent(low)} to {percent(high)})" if math.isfinite(low) else ""
    return f"{group} risk: {percent(share)} event-free{around} at {curve.ends[-1]:g} {unit}".rstrip()


def _at_risk(curves: Curves, x: draw.AxisScale, top: float) -> list[Markup]:
    """Under the axis, below each end that is told."""
    if not any(math.isfinite(v) for curve in curves.values() for v in curve.left):
        return []
    parts = [draw.text(0, top - 2, "at risk", "axis")]
    for i, (group, curve) in enumerate(curves.items()):
        y = top + ROW * (i + 1)
        box = {"x": 0.0, "y": y - 9, "width": 8.0, "height": 8.0}
        parts += [draw.tag("rect", **box, class_=f"end {draw.colour(i)}"), draw.text(12, y, group, "tick")]
        places = zip([0.0, *curve.ends], [float(curve.rows), *curve.left], strict=True)
        parts += [draw.text(place, y, words, "tick", "middle") for place, words in _spaced(list(places), x)]
    return parts


def _spaced(numbers: Sequence[tuple[float, float]], x: draw.AxisScale) -> list[tuple[float, str]]:
    """Places and words of as many numbers as there is room for, the first and the last among them."""
    found = [(x(end), f"{left:.0f}") for end, left in numbers if math.isfinite(left)]
    out = list[tuple[float, str]]()
    for place, words in found:
        room = DIGIT * len(words) + 5
        last = found[-1][0]
        if (not out or place - out[-1][0] >= room) and (place == last or last - place >= room):
            out.append((place, words))
    return out


def _gap_words(gap: Gap | None, unit: str) -> str:
    if gap is None:
        return "There is no time at which both high and low risk are told of, so they are not compared."
    by = f"With the event by {gap.end:g} {unit}".rstrip()
    shares = f"{by}: high risk {percent(gap.high)}, low risk {'' if gap.same else 'at most '}{percent(gap.low)}"
    if gap.verdict == UNTOLD:
        return f"{shares}. Without an interval the difference is not judged."
    middle, low, high = (signed(100 * v, 0) for v in gap.gap)
    judged = "within chance" if gap.verdict == CHANCE else "beyond chance"
    least = "" if gap.same else "at least "
    return f"{shares}; difference {least}{middle} percentage points (95 % CI {low} to {high}), {judged}."

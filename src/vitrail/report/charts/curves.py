"""Curves: lines, steps or points over rounds or anything else, with bands, each named where it ends.

A line's label stands in the margin. What leads to it stays in the margin, too: across the plot it would be read as a
part of the curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from markupsafe import Markup

from vitrail.core.text import number, shorten
from vitrail.report.charts import axes, svg
from vitrail.report.charts.axes import AxisScale

POINTS = 1200  # of all lines of a panel
ROW = 15.0  # pixels of a line of numbers below the axis


class Series(NamedTuple):
    """One curve of a panel."""

    name: str  # in full, for those who listen
    label: str  # in the margin; empty: none
    kind: str  # classes of page.css
    x: Sequence[float]
    y: Sequence[float]  # not a number where nothing is known
    words: str = ""  # under the pointer, instead of the name and its last value
    more: str = ""  # under the pointer besides
    band: tuple[Sequence[float], Sequence[float]] | None = None  # around it, from and to
    shape: Literal["line", "steps", "points"] = "line"
    dots: bool = False  # at each of its points; steps with dots are known at these alone
    tips: Sequence[str] = ()  # of each point, under the pointer
    shift: float = 0.0  # pixels to the right


class Guide(NamedTuple):
    """A line to compare with."""

    points: Sequence[tuple[float, float]]
    kind: str
    words: str = ""  # under the pointer


class Counts(NamedTuple):
    """A line of numbers below the axis: how many at which place."""

    name: str
    kind: str
    numbers: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    axis: str
    series: Sequence[Series]
    low: float
    high: float
    level: tuple[str, float] | None = None  # a dashed line all along, with words above the plot
    guides: Sequence[Guide] = ()
    ticks: axes.Ticks = ()  # instead of round numbers
    digits: int = 3  # of the level, in words

    @property
    def head(self) -> float:
        """Pixels above it; the words of the level stand where no curve can cross them."""
        return 42.0 if self.level else 24.0


class Curves(NamedTuple):
    """Panels one below the other over the same axis."""

    title: str
    description: str
    panels: Sequence[Panel]
    axis: str  # below the last one
    low: float
    high: float
    ticks: axes.Ticks = ()  # instead of round numbers
    heights: tuple[float, float] = (170.0, 150.0)  # of a panel, wide and narrow
    key: Sequence[tuple[str, str]] = ()  # class and words of squares above the plot
    square: bool = False  # as wide as high
    counts: Sequence[Counts] = ()
    counted: str = ""  # what the counts are
    foot: Sequence[str] = ()  # lines of small words at the end


def curves(figure: Curves, width: int) -> Markup:
    x = _scale(figure, width)
    about = 3 if width < 400 else 7
    ticks = figure.ticks or axes.tick_labels(figure.low, figure.high, about)
    parts, bottom = svg.squares(figure.key, 0.0, 3), 18.0 * bool(figure.key)
    for panel in figure.panels:
        top = bottom + panel.head
        bottom = top + _height(figure, panel, x, width)
        parts += _panel(panel, x, AxisScale(panel.low, panel.high, bottom, top), svg.is_narrow(width))
        parts += [svg.text(x(v), bottom + 16, words, "tick", "middle") for v, words in ticks]
        bottom += 26
    parts.append(svg.text(x.middle, bottom + 7, figure.axis, "axis", "middle"))
    bottom += 14
    if figure.counts:
        parts += _counts(figure, x, bottom + 14)
        bottom += 18 + ROW * len(figure.counts)
    parts += [svg.text(0, bottom + ROW * (i + 0.8), words, "tick") for i, words in enumerate(figure.foot)]
    kind = "plot" if width == svg.PANEL else ""
    height = bottom + ROW * len(figure.foot) + 4
    return svg.plot(width, height, figure.title, figure.description, parts, kind)


def _scale(figure: Curves, width: int) -> AxisScale:
    """Room at the left for numbers, at the right for labels."""
    numbers = [words for panel in figure.panels for _, words in _ticks(panel)]
    names = [28 + 7 * len(count.name) for count in figure.counts]
    left = max([12 + 6.8 * max(map(len, numbers), default=0), *names])
    label = max((len(s.label) for panel in figure.panels for s in panel.series), default=0)
    last = figure.ticks[-1][1] if figure.ticks else ""
    return AxisScale(figure.low, figure.high, left, width - (22 + 6.6 * label if label else max(14, 4 * len(last))))


def _ticks(panel: Panel) -> axes.Ticks:
    return panel.ticks or axes.tick_labels(panel.low, panel.high, 5)


def _height(figure: Curves, panel: Panel, x: AxisScale, width: int) -> float:
    """Enough for the labels of all lines."""
    if figure.square:
        return x.end - x.start
    return max(figure.heights[svg.is_narrow(width)], 13.0 * sum(bool(s.label) for s in panel.series))


def _panel(panel: Panel, x: AxisScale, y: AxisScale, narrow: bool) -> list[Markup]:
    above = y.end - panel.head + 12
    parts = [svg.text(0, above, shorten(panel.axis, 52 if narrow else 110), "axis", full=panel.axis)]
    parts += axes.axis_left(x, y, _ticks(panel))
    for guide in panel.guides:
        hover = [svg.tip(guide.words)] if guide.words else []
        parts.append(svg.path(clip([(x(a), y(b)) for a, b in guide.points], y), *hover, kind=f"guide {guide.kind}"))
    if panel.level is not None:
        words, value = panel.level
        hover = [svg.tip(f"{words}: {number(value, panel.digits)}")]
        parts.append(svg.tag("g", *hover, svg.line(x.start, y(value), x.end, y(value), "level")))
        parts += [svg.line(0, above + 14, 26, above + 14, "level key"), svg.text(32, above + 18, words, "label level")]
    return parts + _lines(panel.series, x, y)


def clip(points: Sequence[tuple[float, float]], y: AxisScale) -> list[tuple[float, float]]:
    """A way of pixels without what lies above or below the plot.

    >>> clip([(0, 5), (10, -5), (20, -10)], AxisScale(0, 1, 10, 0))
    [(0, 5), (5.0, 0)]
    """
    top, bottom = min(y.start, y.end), max(y.start, y.end)
    out = list[tuple[float, float]]()
    for i, (a, b) in enumerate(points):
        inside = top <= b <= bottom
        if i:
            before, level = points[i - 1]
            edges = [edge for edge in (top, bottom) if (level - edge) * (b - edge) < 0]
            crossings = [(before + (edge - level) / (b - level) * (a - before), edge) for edge in edges]
            out += sorted(crossings, key=lambda point: abs(point[0] - before))
        out += [(a, b)] if inside else []
    return out


def _lines(series: Sequence[Series], x: AxisScale, y: AxisScale) -> list[Markup]:
    """Bands first, then the lines, the strong ones on top, each with its label in the margin."""
    finite = [(s, [i for i, v in enumerate(s.y) if math.isfinite(v)]) for s in series]
    shown = [(s, at) for s, at in finite if at]
    most = max(40, POINTS // max(sum(len(at) > 1 for _, at in shown), 1))
    labelled = [i for i, (s, _) in enumerate(shown) if s.label]
    wanted = [y(shown[i][0].y[shown[i][1][-1]]) for i in labelled]
    places = dict(zip(labelled, axes.place_labels(wanted, 13, y.end, y.start), strict=True))
    bands, drawings = [], []
    for n, (one, places_of) in enumerate(shown):
        at = [places_of[i] for i in axes.thin(len(places_of), most)]
        bands += _band(one, at, x, y)
        drawn = _points(one, at, x, y) if one.shape == "points" else _line(one, at, x, y)
        drawn += _label(one, x(one.x[at[-1]]), y(one.y[at[-1]]), places[n], x.end) if n in places else []
        drawings.append((" strong" in one.kind, svg.tag("g", *drawn, class_=one.kind)))
    return bands + [g for _, g in sorted(drawings, key=lambda part: part[0])]


def _band(one: Series, at: Sequence[int], x: AxisScale, y: AxisScale) -> list[Markup]:
    """A curve of steps has the limits of its last step until the next one. Where it is known at its dots alone, it lies
    between what is known at two of them: its band goes from the lower limit at the later one to the upper limit at the
    earlier one."""
    if one.band is None or one.shape == "points" or len(at) < 2 or not math.isfinite(one.band[0][at[-1]]):
        return []
    low, high = ([y.clipped(edge[i]) for i in at] for edge in one.band)
    xs = [x(one.x[i]) for i in at]
    if one.shape == "steps":
        upper = [(xs[k + b], high[k]) for k in range(len(at) - 1) for b in (0, 1)]
        lower = [(xs[k + b], low[k + one.dots]) for k in range(len(at) - 1) for b in (0, 1)]
    else:
        upper, lower = (list(zip(xs, edge, strict=True)) for edge in (high, low))
    return [svg.path([*upper, *lower[::-1]], kind=one.kind.replace("series", "band"), close=True)]


def _line(one: Series, at: Sequence[int], x: AxisScale, y: AxisScale) -> list[Markup]:
    last = at[-1]
    words = one.words or f"{one.name}: {number(one.y[last])} after round {one.x[last]:.0f}{one.more}"
    points = [(x(one.x[i]) + one.shift * bool(i), y(one.y[i])) for i in at]
    way = clip(points, y)
    if one.shape == "steps":
        way = [points[0], *(p for a, b in pairwise(points) for p in ((b[0], a[1]), b))]
    dots = (points[1:] if one.shape == "steps" else way) if one.dots else []
    drawn = [svg.tip(words), *([svg.path(way, kind="line")] if len(points) > 1 else [])]
    return drawn + [svg.tag("circle", cx=a, cy=b, r=2.5, class_="end") for a, b in dots]


def _points(one: Series, at: Sequence[int], x: AxisScale, y: AxisScale) -> list[Markup]:
    """Dots, each with its interval upright."""
    low, high = one.band or (one.y, one.y)
    bars = [svg.line(x(one.x[i]), y.clipped(low[i]), x(one.x[i]), y.clipped(high[i]), "median") for i in at]
    return bars + [
        svg.tag("circle", svg.tip(one.tips[i]), cx=x(one.x[i]), cy=y(one.y[i]), r=4, class_="told") for i in at
    ]


def _label(one: Series, end: float, level: float, place: float, edge: float) -> list[Markup]:
    """The name in the margin; a thin line leads to it there. Of a curve that ends earlier only its last piece."""
    lead = [(edge + 6, place), (edge + 12, place)]
    near = edge - end < 8
    return [
        svg.tag("circle", cx=end, cy=level, r=2.5, class_="end"),
        svg.path([(end + 3, level), *lead] if near else lead, kind="leader"),
        svg.text(edge + 15, place + 4, one.label, "label"),
    ]


def _counts(figure: Curves, x: AxisScale, top: float) -> list[Markup]:
    """Numbers below the axis, as many as there is room for."""
    parts = [svg.text(0, top - 2, figure.counted, "axis")]
    for i, count in enumerate(figure.counts):
        y = top + ROW * (i + 1)
        parts += svg.squares([(count.kind, "")], 0.0, y - 10)
        parts += [svg.text(15, y, count.name, "tick")]
        places = [(x(at), f"{many:.0f}") for at, many in count.numbers if math.isfinite(many)]
        parts += [svg.text(place, y, words, "tick", "middle") for place, words in _spaced(places)]
    return parts


def _spaced(numbers: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The first and the last, and of the others those that collide with none."""
    out = list[tuple[float, str]]()
    for place, words in numbers:
        room, last = 6.6 * len(words) + 5, numbers[-1][0]
        if (not out or place - out[-1][0] >= room) and (place == last or last - place >= room):
            out.append((place, words))
    return out


def last_values(series: Sequence[Series], digits: int = 3) -> str:
    """Where each line ends, in words."""
    ends = [(s.name, next((v for v in reversed(s.y) if math.isfinite(v)), math.nan)) for s in series]
    return ", ".join(f"{name} {number(value, digits)}" for name, value in ends if math.isfinite(value))

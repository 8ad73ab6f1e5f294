"""Rows with intervals: in each row a name, a dot or a bar at a value, a line over its interval, more marks, and words.

Wide, names stand at the left and words at the right of the plot; narrow, both stand above their row. An interval that
goes beyond the axis ends in an arrow at its edge: one row that nobody can be sure of would press all others together.
A dot beyond the axis is an arrow at its edge, too.
The words under the pointer, and those for who listens, have the numbers.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from vitrail.core.text import number, shorten, shorten_all, signed
from vitrail.report.charts import axes, svg
from vitrail.report.text import Interval

Anchor = Literal["start", "middle", "end"]
Shape = Literal["dot", "struck", "diamond", "tick", "block"]
Head = tuple[float, str, Anchor]  # words above the plot at a value
NOTHING = Interval(math.nan)
BOLD = ((" il.,:;'|!’", 4.6), ("rtfj-", 6.6), ("mwMW%", 13.4))  # pixels of letters that are not as wide as others
LINES = 34  # letters of a line of words at the right
ROOM = 0.36  # of the way to the next row: so far marks and violins go off their row


class RowMark(NamedTuple):
    """One value in a row. Shapes are told apart without colour too."""

    value: float
    shape: Shape = "dot"
    kind: str = "dot"  # its class in page.css
    size: float = 6.0
    words: str = ""  # under the pointer; without them those of the row


class Label(NamedTuple):
    words: str
    kind: str
    anchor: Anchor = "end"
    full: str = ""  # under the pointer, where the words are short for it


class IntervalRow(NamedTuple):
    """What is drawn of one thing, from back to front: a violin, a bar, the interval, marks."""

    name: str
    words: str  # for who listens, and under the pointer where marks have none
    interval: Interval = NOTHING
    marks: Sequence[RowMark] = ()
    bar: str = ""  # class of a bar to the value; empty: none
    start: float = 0.0  # where the bar begins
    hatched: bool = False
    kind: str = ""  # class of the whole row
    line: str = "interval"  # class of the line over the interval
    sign: str = ""  # behind the name
    name_kind: str = "name"
    linked: bool = False  # a thin line goes from the row above to where the bar begins
    beside: Label | None = None  # next to the outermost mark, on the side that its anchor leaves
    right: Sequence[Label] = ()
    violin: Sequence[tuple[float, float]] = ()  # value, height up to 1: how closely the marks lie together
    error: Interval = NOTHING  # a second, short one, on feet below the marks; under the pointer: error_words
    error_words: str = ""


class IntervalRows(NamedTuple):
    """A figure of rows in the order given."""

    title: str
    rows: Sequence[IntervalRow]
    axis: str
    low: float
    high: float
    write: axes.Write = number  # numbers of the axis; with signs the zero line stands out
    step: tuple[float, float] = (32.0, 48.0)  # pixels from row to row, wide and narrow
    letters: int = 26  # of a name
    heads: Sequence[Head] = ()
    references: axes.Ticks = ()  # upright lines with their words, instead of ticks
    rail: bool = False  # a thin line along each row
    swarm: Callable[[Sequence[float], float], Sequence[float]] | None = None  # places of marks, room -> off the row
    key: Sequence[RowMark] = ()
    description: str = ""  # for who listens, instead of the words of all rows
    shape: str = ""  # class of the whole; without one it is drawn twice, wide and narrow, and one is shown


class _Places(NamedTuple):
    """Where things stand in a figure of this width."""

    x: axes.AxisScale
    top: float
    step: float
    above: bool  # whether names and words stand above their row
    names: dict[str, str]
    edge: float  # where the room for words at the right begins
    width: float

    def base(self, i: int) -> float:
        return self.top + self.step * (i + (0.7 if self.above else 0.5))


def interval_rows(figure: IntervalRows, width: int) -> Markup:
    at = _places(figure, width)
    bottom = at.top + at.step * len(figure.rows)
    marks = figure.references or _ticks(figure, at)
    parts = axes.axis_below(at.x, marks, at.top, bottom, figure.axis, figure.write is signed)
    for value, words, anchor in figure.heads:
        away = {"start": 10, "middle": 0, "end": -10}[anchor]
        parts.append(svg.text(at.x(value) + away, at.top - 11, words, "axis", anchor))
    left = 6.0
    for mark in figure.key:
        parts += [*draw_mark(mark._replace(words=""), left, 10), svg.text(left + 12, 14, mark.words, "label")]
        left += 30 + 6.8 * len(mark.words)
    for i, row in enumerate(figure.rows):
        parts += _row(figure, row, i, at)
    description = figure.description or "; ".join(row.words for row in figure.rows) + "."
    return svg.plot(width, bottom + 40, figure.title, description, parts, figure.shape)


def _places(figure: IntervalRows, width: int) -> _Places:
    rows, narrow = figure.rows, svg.is_narrow(width)
    short = shorten_all([row.name for row in rows], figure.letters)
    names = {row.name: f"{short[row.name]} {row.sign}".rstrip() for row in rows}
    room = 20 + svg.LETTER * max(map(len, names.values()), default=0)
    above = narrow and (room > 0.4 * width or any(row.right for row in rows))
    left, right = (6.0 if above else room), width - (6.0 if above else 14.0)
    if not above and (labels := [row.right for row in rows if row.right]):
        columns = list(zip(*labels, strict=False))
        right = width - sum(22 + max(_wide(label) for label in column) for column in columns)
    edge = right
    for row in rows:  # room for the words beside the outermost mark
        if row.beside and row.beside.anchor == "end":
            left = max(left, (0.0 if above else room) + 14 + svg.LETTER * len(row.beside.words))
    beside = [len(row.beside.words) for row in rows if row.beside and row.beside.anchor == "start"]
    right -= 8 + svg.LETTER * max(beside) if beside else 0
    top = 8.0 + 16.0 * bool(figure.heads) + 26.0 * bool(figure.key)
    step = figure.step[above]
    return _Places(axes.AxisScale(figure.low, figure.high, left, right), top, step, above, names, edge, width)


def _wide(label: Label) -> float:
    """Pixels of the longest line, as `_right` breaks them; answers are bold."""
    if label.kind != "answer":
        return 6.4 * max(map(len, _lines(label.words)))
    return max(sum(next((w for letters, w in BOLD if c in letters), 9.2) for c in line) for line in _lines(label.words))


def _lines(words: str) -> list[str]:
    lines = textwrap.wrap(words, LINES) or [""]
    return [*lines[:1], shorten(" ".join(lines[1:]), LINES)] if lines[1:] else lines


def _ticks(figure: IntervalRows, at: _Places) -> axes.Ticks:
    """Those whose numbers fit into the figure."""
    about = max(2, min(7, round((at.x.end - at.x.start) / 85)))
    marks = axes.tick_labels(figure.low, figure.high, about, figure.write)
    return [(v, words) for v, words in marks if at.x(v) + 3.4 * len(words) <= at.width]


def _row(figure: IntervalRows, row: IntervalRow, i: int, at: _Places) -> list[Markup]:
    base, x = at.base(i), at.x
    level = base - 17 if at.above else base + 4
    shown = [mark for mark in row.marks if math.isfinite(mark.value)]
    hover = [svg.tip(row.words)] if row.words and not any(mark.words for mark in shown) else []
    parts = [svg.line(x.start, base, x.end, base, "rail")] if figure.rail else []
    if row.linked:
        parts.append(svg.line(x(row.start), base - at.step, x(row.start), base, "rail"))
    if row.violin:
        high = at.step * ROOM
        upper, lower = ([(x.clipped(v), base + side * high * h) for v, h in row.violin] for side in (-1, 1))
        parts.append(svg.path([*upper, *reversed(lower)], kind="violin", close=True))
    if row.bar and math.isfinite(row.interval.value):
        parts += _bar(row, x, base)
    parts += _interval(row, x, base) if row.interval.known else []
    where = [x.clipped(mark.value) for mark in shown]
    away = figure.swarm(where, at.step * ROOM) if figure.swarm else [0.0] * len(shown)
    for mark, place, off in zip(shown, where, away, strict=True):
        parts += draw_mark(mark, place, base + off) if x.low <= mark.value <= x.high else _beyond(mark, row, x, base)
    parts += _error(row, x, base + at.step * ROOM) if row.error.known else []
    parts += _beside(row, where, base, x)
    parts += _right(row, at, level)
    name = svg.text(0, level, at.names[row.name], row.name_kind, full=row.name)
    return [name, svg.tag("g", *hover, *parts, class_=row.kind or "row")]


def _bar(row: IntervalRow, x: axes.AxisScale, base: float) -> list[Markup]:
    a, b = sorted((x.clipped(row.start), x.clipped(row.interval.value)))
    parts = [svg.tag("rect", x=a, y=base - 8, width=max(b - a, 0.8), height=16, class_=row.bar)]
    return [*parts, svg.hatch(a, b, base - 8, 16, 5)] if row.hatched else parts


def _interval(row: IntervalRow, x: axes.AxisScale, base: float) -> list[Markup]:
    """A line; where it leaves the axis, with an arrow in place of its end."""
    low, high = row.interval.low, row.interval.high
    a, b = x.clipped(low), x.clipped(high)
    parts = [svg.line(a, base, b, base, row.line)]
    for place, out, way in ((a, low < x.low, -1), (b, high > x.high, 1)):
        parts += [_arrow(place, base, way, row.line)] if out else []
    return parts


def _error(row: IntervalRow, x: axes.AxisScale, level: float) -> list[Markup]:
    a, b = x.clipped(row.error.low), x.clipped(row.error.high)
    lines = [svg.line(a, level, b, level, "error"), *(svg.line(p, level - 3, p, level + 3, "error") for p in (a, b))]
    return [svg.tag("g", svg.tip(row.error_words), *lines)]


def _beyond(mark: RowMark, row: IntervalRow, x: axes.AxisScale, base: float) -> list[Markup]:
    """A mark that lies outside the axis: an arrow, where the interval has none there already; of a tick nothing."""
    way = 1 if mark.value > x.high else -1
    end = row.interval.high if way > 0 else row.interval.low
    there = row.interval.known and not x.low <= end <= x.high
    if there or mark.shape == "tick":
        return []
    return [_arrow(x.clipped(mark.value), base, way, mark.kind, mark.words)]


def _arrow(place: float, base: float, way: int, kind: str, words: str = "") -> Markup:
    points = [(place + 5 * way, base), (place - 4 * way, base - 5), (place - 4 * way, base + 5)]
    return svg.path(points, *([svg.tip(words)] if words else []), kind=f"arrow {kind}", close=True)


def draw_mark(mark: RowMark, x: float, y: float) -> list[Markup]:
    """With its own words under the pointer, where it has some."""
    size, hover = mark.size, [svg.tip(mark.words)] if mark.words else []
    match mark.shape:
        case "diamond":
            corners = [(x, y - size), (x + size, y), (x, y + size), (x - size, y)]
            return [svg.path(corners, *hover, kind=mark.kind, close=True)]
        case "tick":
            return [svg.tag("g", *hover, svg.line(x, y - size, x, y + size, mark.kind))]
        case "block":
            return [svg.tag("rect", *hover, x=x - 1.7, y=y - size, width=3.4, height=2 * size, class_=mark.kind)]
        case _:
            stroke = [svg.line(x - 1.9, y + 1.9, x + 1.9, y - 1.9, "hid")] if mark.shape == "struck" else []
            return [svg.tag("circle", *hover, cx=x, cy=y, r=size, class_=mark.kind), *stroke]


def _beside(row: IntervalRow, where: Sequence[float], base: float, x: axes.AxisScale) -> list[Markup]:
    if (label := row.beside) is None:
        return []
    ends = [x.clipped(v) for v in (*row.interval, row.start if row.bar else math.nan) if math.isfinite(v)]
    reach = [*where, *ends]
    at = max(reach) + 6 if label.anchor == "start" else min(reach) - 11
    return [svg.text(at, base + 4, label.words, label.kind, label.anchor, label.full or None)]


def _right(row: IntervalRow, at: _Places, level: float) -> list[Markup]:
    """Columns at the right, long words in two lines; narrow, all in one line at the edge."""
    if not row.right:
        return []
    if at.above:
        room = max(8, 46 - len(at.names[row.name]))
        words = " ".join(label.words for label in row.right)
        return [svg.text(at.width, level, shorten(words, room), row.right[0].kind, "end", words)]
    parts = list[Markup]()
    for label in row.right:
        lines = _lines(label.words)
        place = at.width if label.anchor == "end" else at.edge + 22
        top = level if len(lines) == 1 else level - 6
        parts += [
            svg.text(place, top + 13 * k, words, label.kind, label.anchor, label.words) for k, words in enumerate(lines)
        ]
    return parts

"""Scales and axes of figures: which part of the numbers an axis shows, its ticks, and places that do not collide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from vitrail.core.text import number
from vitrail.report.charts.svg import line, text
from vitrail.report.text import Interval

Write = Callable[[float, int], str]  # a number with so many digits
Ticks = Sequence[tuple[float, str]]  # places on an axis, and their words
FAR = 3.0  # times the middle interval's half: so far the axis follows an interval, and then an arrow does


class AxisScale(NamedTuple):
    """Data to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def clipped(self, value: float) -> float:
        """The place of a value; where it lies outside the axis, that of the nearer end."""
        return self(min(max(value, self.low), self.high))


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from low to high, about so many.

    >>> ticks(0.43, 0.88, 5)
    [0.5, 0.6, 0.7, 0.8]
    """
    raw = (high - low) / max(about, 1)
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(m * ten for m in (1, 2, 5, 10) if m * ten >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_labels(low: float, high: float, about: int, write: Write = number) -> Ticks:
    """About so many ticks with their words, all with as many digits as tell them apart."""
    marks = ticks(low, high, about)
    step = min((b - a for a, b in pairwise(marks)), default=1.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(v, write(v, digits)) for v in marks]


def round_ticks(first: float, last: float, about: int) -> Ticks:
    """The first round, the last, and whole ones between that are not too near to them.

    >>> [words for _, words in round_ticks(0, 100, 5)], [words for _, words in round_ticks(1, 21, 4)]
    (['0', '20', '40', '60', '80', '100'], ['1', '5', '10', '15', '21'])
    """
    marks = [t for t in ticks(first, last, about) if t == int(t)] if last > first else []
    apart = 0.6 * min((b - a for a, b in pairwise(marks)), default=0.0)
    between = [t for t in marks if min(t - first, last - t) > apart]
    return [(r, f"{r:.0f}") for r in sorted({first, last, *between})]


def domain(values: Iterable[float]) -> tuple[float, float]:
    """The range of what is finite, with a little air; never empty."""
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    air = (high - low) * 0.04 or max(abs(low) * 0.05, 0.05)
    return low - air, high + air


def interval_domain(intervals: Iterable[Interval], more: Iterable[float] = ()) -> tuple[float, float]:
    """The range that shows every value, all of `more`, and every interval but what one much wider than the others has
    too much: a site of few rows would press all others together.

    >>> low, high = interval_domain([Interval(0.0, -1, 1), Interval(0.0, -1, 1), Interval(0.0, -50, 50)])
    >>> round(low, 2), round(high, 2)
    (-3.24, 3.24)
    """
    shown = [i for i in intervals if math.isfinite(i.value)]
    halves = sorted(max(i.high - i.value, i.value - i.low) for i in shown if i.known)
    most = FAR * halves[(len(halves) - 1) // 2] if halves else 0.0
    ends = [end for i in shown if i.known for end in (max(i.low, i.value - most), min(i.high, i.value + most))]
    return domain([*(i.value for i in shown), *ends, *more])


def place_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near as possible to the wanted ones, at least `gap` apart and inside [low, high].

    Least squares: taking i * gap from the i-th in order leaves "never decreasing", which pooling neighbours
    solves. Where they cannot all fit, they are spread evenly.

    >>> place_labels([5.0, 5.0, 30.0], 10, 0, 100)
    [0.0, 10.0, 30.0]
    """
    if (n := len(wanted)) == 0:
        return []
    gap = min(gap, (high - low) / (n - 1)) if n > 1 else gap
    order = sorted(range(n), key=lambda i: (wanted[i], i))
    blocks: list[tuple[float, int]] = []  # mean, how many
    for rank, i in enumerate(order):
        mean, count = wanted[i] - rank * gap, 1
        while blocks and blocks[-1][0] >= mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    top = max(low, high - (n - 1) * gap)
    level = [min(max(mean, low), top) for mean, count in blocks for _ in range(count)]
    placed = [0.0] * n
    for rank, i in enumerate(order):
        placed[i] = level[rank] + rank * gap
    return placed


def swarm(xs: Sequence[float], apart: float, room: float) -> list[float]:
    """How far above or below the line each dot sits so that dots do not cover one another; at most `room`."""
    offsets = [0.0] * len(xs)
    placed: list[int] = []
    choices = [0.0] + [s * k * apart / 4 for k in range(1, int(4 * room / apart) + 1) for s in (-1, 1)]
    for i in sorted(range(len(xs)), key=lambda j: xs[j]):
        near = [j for j in placed if xs[i] - xs[j] < apart]
        free = (c for c in choices if all(math.hypot(xs[i] - xs[j], c - offsets[j]) >= apart for j in near))
        offsets[i] = next(free, 0.0)
        placed.append(i)
    return offsets


def thin(n: int, most: int = 150) -> list[int]:
    """Which points to draw of a long curve: the last always."""
    step = -(-n // most)
    return sorted({*range(0, n, step), n - 1})


def axis_below(x: AxisScale, marks: Ticks, top: float, bottom: float, axis: str, zero: bool = False) -> list[Markup]:
    """Upright grid lines, their numbers and the name of the axis; `zero` stands out where a sign matters."""
    parts = []
    for value, words in marks:
        kind = "zero" if value == 0 and zero else "grid"
        parts += [line(x(value), top, x(value), bottom, kind), text(x(value), bottom + 16, words, "tick", "middle")]
    return [*parts, text(x.middle, bottom + 33, axis, "axis", "middle")]


def axis_left(x: AxisScale, y: AxisScale, marks: Ticks) -> list[Markup]:
    """Level grid lines and their numbers."""
    parts = []
    for value, words in marks:
        parts += [
            line(x.start, y(value), x.end, y(value), "grid"),
            text(x.start - 5, y(value) + 4, words, "tick", "end"),
        ]
    return parts

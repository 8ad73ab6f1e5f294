"""The parts that all pictures are made of, as SVG text: tags, scales, axes, labels, shades, lines over rounds.

Data in, markup out: no drawing library, no script, colours by page.css. Whatever comes from a file (names of sites,
methods, features) passes through `tag`, which escapes it. A child `title` is what is told under the pointer.
Most pictures are drawn twice, wide and narrow; page.css shows the one whose text is legible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup, escape

from vitrail.core.text import number, shorten, signed

COLOURS = 7  # .m0 to .m6 in page.css; what comes after takes the colours again, dotted
SHADES = 6  # on each side of nothing: .h0 (blue) over .h6 to .h12 (red)
WIDE, NARROW = 832, 340  # pixels: the reading column, and a telephone's
POINTS = 1200  # of all lines of a panel
ABOVE = 24.0  # room for the words over a panel

Write = Callable[[float, int], str]  # a number with so many digits


def colour(i: int) -> str:
    """The class of the i-th of things that are told apart by colour."""
    return f"m{i % COLOURS}" + (" again" if i >= COLOURS else "")


def shade(part: float) -> str:
    """The class of a colour between full blue (-1) and full red (1); 0 is grey."""
    return f"h{SHADES + round(SHADES * part)}"


STRONG = frozenset(shade(end * (SHADES - k) / SHADES) for end in (-1, 1) for k in (0, 1))


def ink_on(kind: str) -> str:
    """The class of words in a cell of this shade: page.css keeps a contrast of 4.5 on each, light and dark."""
    return "in dark" if kind in STRONG else "in"


# markup


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """One element. Children and attribute values are escaped unless they are markup made here.

    >>> tag("text", "a < b", class_="name", text_anchor="end")
    Markup('<text class="name" text-anchor="end">a &lt; b</text>')
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{written}>{''.join(escape(c) for c in children)}</{name}>")


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def tip(words: str) -> Markup:
    """What is told under the pointer; first among the children of a shape."""
    return tag("title", words)


def text(x: float, y: float, words: str, kind: str, anchor: str = "start", full: str | None = None) -> Markup:
    """`full` is told under the pointer where the words were shortened."""
    hover = [] if full is None or full == words else [tip(full)]
    return tag("text", words, *hover, x=x, y=y, class_=kind, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def path(points: Iterable[tuple[float, float]], *children: str, kind: str, close: bool = False) -> Markup:
    d = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("path", *children, d=d + ("Z" if close else ""), class_=kind)


def hatch(begin: float, end: float, y: float, high: float, gap: int = 7) -> str:
    """Slanting lines over a box, as the way of a path."""
    lines = []
    for i in range(math.ceil((end - begin + high) / gap)):
        start = begin - high + i * gap
        a, b = max(begin, start), min(end, start + high)
        lines.append(f"M{a:.1f},{y + high - (a - start):.1f}L{b:.1f},{y + high - (b - start):.1f}")
    return "".join(lines)


def twice(picture: Callable[[int], Markup]) -> Markup:
    """The picture for the reading column and for a telephone."""
    return picture(WIDE) + picture(NARROW)


def is_narrow(width: float) -> bool:
    return width < 500


def plot(width: float, height: float, title: str, said: str, parts: Iterable[str], kind: str = "") -> Markup:
    """A picture as wide as its place; title and `said` are for those who listen."""
    size = f"0 0 {_plain(width)} {_plain(height)}"
    kind = kind or ("plot narrow" if is_narrow(width) else "plot wide")
    return tag("svg", tag("title", title), tag("desc", said), *parts, viewBox=size, role="img", class_=kind)


class Drawing(NamedTuple):
    """Markup and the size it takes."""

    width: float
    height: float
    parts: list[Markup]

    def sized(self, kind: str, *said: str) -> Markup:
        """At its own size. `said` is title and description; without them it is hidden from those who listen."""
        wide, high = f"{self.width:.0f}", f"{self.height:.0f}"
        told = [tag(name, words) for name, words in zip(("title", "desc"), said, strict=False)]
        listen = {"role": "img"} if said else {"aria_hidden": "true"}
        size = {"viewBox": f"0 0 {wide} {high}", "width": wide, "height": high}
        return tag("svg", *told, *self.parts, **size, **listen, class_=kind)


def scrolling_rows(names: Drawing, cells: Drawing, title: str, said: str) -> Markup:
    """Names of rows, which stay in view, and the cells that scroll beside them."""
    return names.sized("names") + cells.sized("cells", title, said)


def names_room(names: Iterable[str], letter: float = 7.2) -> int:
    """Pixels that the longest name of a row takes."""
    return math.ceil(14 + letter * max(map(len, names), default=0))


def turned(x: float, y: float, words: str, kind: str, full: str) -> Markup:
    """The name of a column, slanting up to (x, y)."""
    return tag("g", text(0, 0, words, kind, "end", full), transform=f"translate({x + 3:.1f} {y + 10:.1f}) rotate(-60)")


def turned_room(across: float) -> int:
    """Pixels below the cells that a slanting name takes which is so long."""
    return 16 + math.ceil(across * math.sin(math.pi / 3))


# scales and places


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


def written(marks: Sequence[float], write: Write = number) -> list[tuple[float, str]]:
    """Ticks with their words, all with as many digits as tell them apart."""
    step = min((b - a for a, b in pairwise(marks)), default=1.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(v, write(v, digits)) for v in marks]


def domain(values: Iterable[float]) -> tuple[float, float]:
    """The range of what is finite, with a little air; never empty."""
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    air = (high - low) * 0.04 or max(abs(low) * 0.05, 0.05)
    return low - air, high + air


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


# axes


def axis_below(
    x: AxisScale, marks: Sequence[float], top: float, bottom: float, axis: str, write: Write
) -> list[Markup]:
    """Upright grid lines, their numbers and the name of the axis; with signed numbers zero stands out."""
    parts = []
    for value, words in written(marks, write):
        kind = "zero" if value == 0 and write is signed else "grid"
        parts += [line(x(value), top, x(value), bottom, kind), text(x(value), bottom + 16, words, "tick", "middle")]
    return [*parts, text(x.middle, bottom + 33, axis, "axis", "middle")]


def axis_left(x: AxisScale, y: AxisScale, marks: Sequence[tuple[float, str]]) -> list[Markup]:
    """Level grid lines and their numbers."""
    parts = []
    for value, words in marks:
        parts += [
            line(x.start, y(value), x.end, y(value), "grid"),
            text(x.start - 5, y(value) + 4, words, "tick", "end"),
        ]
    return parts


def _round_axis(x: AxisScale, rounds: Sequence[float], bottom: float, about: int) -> list[Markup]:
    """The numbers of the first round, the last, and some between."""
    first, last = rounds
    between = [t for t in ticks(first, last, about) if t == int(t)] if last > first else []
    between = [t for t in between if min(t - first, last - t) > 0.2 * (last - first)]
    return [text(x(r), bottom + 16, f"{r:.0f}", "tick", "middle") for r in sorted({first, last, *between})]


# lines over rounds, or over anything else


class Series(NamedTuple):
    """One line of a panel, named where it ends."""

    name: str  # in full, for those who listen
    label: str  # beside its end; empty: none
    kind: str  # classes of page.css
    x: Sequence[float]  # the rounds
    y: Sequence[float]  # not a number where nothing is known
    more: str = ""  # told under the pointer besides
    band: tuple[Sequence[float], Sequence[float]] | None = None  # around it, from and to
    said: str = ""  # told under the pointer instead


class Panel(NamedTuple):
    axis: str
    series: Sequence[Series]
    low: float
    high: float
    level: tuple[str, float] | None = None  # a dashed line over all rounds

    @property
    def head(self) -> float:
        """Pixels above it; the words of the level stand where no curve can cross them."""
        return ABOVE + (18 if self.level else 0)


def panel_parts(
    panel: Panel, x: AxisScale, top: float, bottom: float, rounds: Sequence[float], about: int
) -> list[Markup]:
    """Axes and lines between top and bottom; `rounds`: the first and the last, about so many numbers in all."""
    y = AxisScale(panel.low, panel.high, bottom, top)
    above = top - (30 if panel.level else 12)
    parts = [text(0, above, shorten(panel.axis, 52 if x.end < 400 else 110), "axis", full=panel.axis)]
    parts += axis_left(x, y, written(ticks(panel.low, panel.high, 5)))
    parts += _round_axis(x, rounds, bottom, about)
    if panel.level is not None:
        words, value = panel.level
        hover = tip(f"{words}: {number(value)}")
        parts.append(tag("g", hover, line(x.start, y(value), x.end, y(value), "level")))
        parts += [line(0, above + 14, 26, above + 14, "level key"), text(32, above + 18, words, "label level")]
    return parts + lines(panel.series, x, y)


def lines(series: Sequence[Series], x: AxisScale, y: AxisScale) -> list[Markup]:
    """Bands first, then the lines, the strong ones on top, each with its label where it ends."""
    known = [(s, [i for i, v in enumerate(s.y) if math.isfinite(v)]) for s in series]
    known = [(s, at) for s, at in known if at]
    most = max(40, POINTS // max(len(known), 1))
    named = [i for i, (s, _) in enumerate(known) if s.label]
    wanted = [y(known[i][0].y[known[i][1][-1]]) for i in named]
    places = dict(zip(named, place_labels(wanted, 13, y.end, y.start), strict=True))
    bands, drawings = [], []
    for n, (one, all_) in enumerate(known):
        at = [all_[i] for i in thin(len(all_), most)]
        points, last = [(x(one.x[i]), y(one.y[i])) for i in at], at[-1]
        drawn = [tip(one.said or f"{one.name}: {number(one.y[last])} after round {one.x[last]:.0f}{one.more}")]
        drawn += [path(points, kind="line")] if len(points) > 1 else []
        if one.band and len(points) > 1:
            low, high = ([(x(one.x[i]), y(edge[i])) for i in at] for edge in one.band)
            bands.append(path([*high, *low[::-1]], kind=one.kind.replace("series", "band"), close=True))
        if n in places:
            (end, level), place = points[-1], places[n]
            drawn += [
                tag("circle", cx=end, cy=level, r=2.5, class_="end"),
                path([(end + 3, level), (x.end + 6, place), (x.end + 12, place)], kind="leader"),
                text(x.end + 15, place + 4, one.label, "label"),
            ]
        drawings.append((" strong" in one.kind, tag("g", *drawn, class_=one.kind)))
    return bands + [g for _, g in sorted(drawings, key=lambda part: part[0])]


def last_values(series: Sequence[Series], digits: int = 3) -> str:
    """Where each line ends, in words."""
    ends = [(s.name, next((v for v in reversed(s.y) if math.isfinite(v)), math.nan)) for s in series]
    return ", ".join(f"{name} {number(value, digits)}" for name, value in ends if math.isfinite(value))

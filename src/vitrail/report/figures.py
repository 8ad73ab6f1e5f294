"""The figures of a page as SVG text. Data in, markup out: no drawing library, no script, colours by page.css.

Whatever comes from a file (names of sites, methods, features) passes through `tag`, which escapes it. The two
figures made of rows are drawn twice, wide and narrow; page.css shows the one whose text is legible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from vitrail.report.words import (
    ANSWERS,
    VERDICT_CLASS,
    Interval,
    number,
    shorten,
    shorten_all,
    signed,
    spoken,
)

COLOURS = 7  # .m0 to .m6 in page.css; a further method takes the colours again, dotted
PANELS = 12  # learning curves are drawn for so many sites
WIDE, NARROW = 832, 340  # pixels: the reading column, and a telephone's


class Spread(NamedTuple):
    """One method's row of the spread figure."""

    title: str
    yardstick: bool
    dots: list[tuple[str, float]]  # site, mean over seeds; NaN left out
    worst: str | None  # the site, None with fewer than two
    interval: Interval  # of the worst site


class Gain(NamedTuple):
    """One site's row of the verdict figure. A positive gain is always an improvement."""

    site: str
    method: str
    gain: Interval
    verdict: str  # yes, no, cannot tell


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


def _svg(width: float, height: float, title: str, desc: str, parts: Iterable[str], kind: str) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        tag("desc", desc),
        *parts,
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        role="img",
        class_=kind,
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start", full: str | None = None) -> Markup:
    hover = [] if full is None or full == text else [tag("title", full)]
    return tag("text", text, *hover, x=x, y=y, class_=kind, text_anchor=anchor)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _path(points: Iterable[tuple[float, float]], *children: str, kind: str, close: bool = False) -> Markup:
    d = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("path", *children, d=d + ("Z" if close else ""), class_=kind)


# scales and places


class Scale(NamedTuple):
    """Data to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


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


def _tick_texts(values: Sequence[float], write: Callable[[float, int], str] = number) -> list[str]:
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [write(v, digits) for v in values]


def _domain(values: Iterable[float]) -> tuple[float, float]:
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


# figure 1: learning curves


def curves_figure(
    curves: pd.DataFrame,
    sites: Sequence[str],
    titles: dict[str, str],
    yardsticks: Sequence[str],
    axis: str,
    banded: Sequence[str],
) -> Markup:
    """One panel per site, in the order given; a line per method, labelled where it ends; axes are shared.

    `curves`: method, seed, round, site, value. The methods in `banded` get a stronger line and the spread
    over seeds; nine bands over one another would show nothing.
    """
    curves = curves[np.isfinite(curves["value"].astype(float)) & curves["site"].isin(list(sites))]
    if curves.empty:
        return Markup()
    values = curves.groupby(["site", "method", "round"], sort=True)["value"].agg(["mean", "min", "max"])
    classes = method_classes(titles, yardsticks)
    bands = values[values.index.get_level_values("method").isin(list(banded))]
    low, high = _domain([*values["mean"], *bands["min"], *bands["max"]])
    rounds = float(curves["round"].min()), float(curves["round"].max())
    panels = []
    for site in (s for s in sites if s in values.index.get_level_values("site")):
        here = values.loc[site]
        there = here.index.get_level_values("method")
        lines = {m: pd.DataFrame(here.loc[m]) for m in titles if m in there}
        svg = _panel(site, lines, titles, classes, (low, high), rounds, axis, banded)
        panels.append(tag("div", tag("h3", site), svg, class_="panel"))
    return tag("div", *panels, class_="panels")


def method_classes(titles: dict[str, str], yardsticks: Sequence[str]) -> dict[str, str]:
    """The style of each method's line."""
    federated = [m for m in titles if m not in yardsticks]
    colour = {m: f"m{i % COLOURS}" + (" again" if i >= COLOURS else "") for i, m in enumerate(federated)}
    yard = {m: "yard" if i == 0 else "yard again" for i, m in enumerate(y for y in titles if y in yardsticks)}
    return colour | yard


def _panel(
    site: str,
    lines: dict[str, pd.DataFrame],
    titles: dict[str, str],
    classes: dict[str, str],
    domain: tuple[float, float],
    rounds: tuple[float, float],
    axis: str,
    banded: Sequence[str],
) -> Markup:
    width, left, top = 350.0, 34.0, 24.0
    names = {m: shorten(titles[m], 20) for m in lines}
    right = width - 24 - 6.5 * max(len(n) for n in names.values())
    bottom = top + max(150.0, 13.0 * len(lines))
    y = Scale(*domain, bottom, top)
    x = Scale(*(rounds if rounds[1] > rounds[0] else (rounds[0] - 1, rounds[0] + 1)), left, right)
    marks = ticks(*domain, 5)
    parts = [_text(0, 11, axis, "axis")]
    for value, text in zip(marks, _tick_texts(marks), strict=True):
        parts += [
            _line(left, y(value), right, y(value), "grid"),
            _text(left - 5, y(value) + 4, text, "tick", "end"),
        ]
    between = [t for t in ticks(*rounds, 2) if _apart(t, rounds)] if rounds[1] > rounds[0] else []
    parts += [_text(x(r), bottom + 16, f"{r:.0f}", "tick", "middle") for r in sorted({*rounds, *between})]
    parts.append(_text((left + right) / 2, bottom + 31, "round", "axis", "middle"))
    bands, drawn, said = [], [], []
    ends = [y(float(f["mean"].iloc[-1])) for f in lines.values()]
    places = place_labels(ends, 13, top, bottom)
    for (method, frame), end, place in zip(lines.items(), ends, places, strict=True):
        frame = frame.iloc[_thin(len(frame))]
        xs = [x(float(r)) for r in frame.index]
        last = frame.iloc[-1]
        said.append(f"{titles[method]} {number(last['mean'])}")
        hover = f"{titles[method]}, {site}: {number(last['mean'])} after round {frame.index[-1]}"
        if (frame["max"] - frame["min"]).max() > 0:
            hover += f"; seeds from {number(last['min'])} to {number(last['max'])}"
        if method in banded and len(xs) > 1:
            top_, bottom_ = ([y(v) for v in frame[side].tolist()] for side in ("max", "min"))
            edge = [*zip(xs, top_, strict=True), *zip(xs[::-1], bottom_[::-1], strict=True)]
            bands.append(_path(edge, kind=f"band {classes[method]}", close=True))
        parts_ = [tag("title", hover)]
        if len(xs) > 1:
            parts_.append(_path(zip(xs, [y(v) for v in frame["mean"].tolist()], strict=True), kind="line"))
        parts_ += [
            tag("circle", cx=xs[-1], cy=end, r=2.5, class_="end"),
            _path([(xs[-1] + 3, end), (right + 6, place), (right + 12, place)], kind="leader"),
            _text(right + 15, place + 4, names[method], "label"),
        ]
        strong = "series strong" if method in banded else "series"
        drawn.append((method in banded, tag("g", *parts_, class_=f"{strong} {classes[method]}")))
    desc = f"{axis} at {site} after the last round: {', '.join(said)}."
    series = [g for _, g in sorted(drawn, key=lambda d: d[0])]  # the strong ones on top
    return _svg(width, bottom + 38, f"Learning curves at {site}", desc, [*parts, *bands, *series], "plot")


def _apart(tick: float, ends: tuple[float, float]) -> bool:
    return all(abs(tick - e) > (ends[1] - ends[0]) * 0.2 for e in ends)


def _thin(n: int, most: int = 150) -> list[int]:
    """Which points to draw of a long curve: the last always."""
    step = -(-n // most)
    return sorted({*range(0, n, step), n - 1})


# figure 2: spread over sites


def spread_figure(rows: Sequence[Spread], axis: str, lower_is_better: bool) -> Markup:
    """One row per method, a dot per site, the worst site named; rows in the order given."""
    rows = [r for r in rows if r.dots]
    return Markup().join(_spread(rows, axis, lower_is_better, w) for w in (WIDE, NARROW) if rows)


def _spread(rows: Sequence[Spread], axis: str, lower_is_better: bool, width: int) -> Markup:
    narrow, radius = width < 500, 4.5
    height, top = (54.0, 20.0) if narrow else (40.0, 20.0)
    left = 8.0 if narrow else 20 + 7.0 * max(len(shorten(r.title, 22)) for r in rows)
    right = width - 8.0
    short = shorten_all([site for site, _ in rows[0].dots] + [r.worst for r in rows if r.worst], 18 if narrow else 22)
    room = 0.0 if narrow else 14 + 7.0 * max(len(short.get(r.worst or "", "")) for r in rows)
    ends = [e for r in rows for e in (r.interval.low, r.interval.high)]
    low, high = _domain([v for r in rows for _, v in r.dots] + ends)
    start, end = (left, right - room) if lower_is_better else (left + room, right)
    x = Scale(low, high, start + 8, end - 8)
    bottom = top + height * len(rows)
    marks = ticks(low, high, 4 if narrow else 6)
    better = "← better" if lower_is_better else "better →"
    parts = [_text(start if lower_is_better else end, 11, better, "axis", "start" if lower_is_better else "end")]
    for value, text in zip(marks, _tick_texts(marks), strict=True):
        parts += [
            _line(x(value), top, x(value), bottom, "grid"),
            _text(x(value), bottom + 16, text, "tick", "middle"),
        ]
    parts.append(_text((start + end) / 2, bottom + 33, axis, "axis", "middle"))
    said = []
    for i, row in enumerate(rows):
        base = top + i * height + height * (0.66 if narrow else 0.5)
        kind = "name yard" if row.yardstick else "name"
        parts.append(_text(0, base - (20 if narrow else -4), shorten(row.title, 22), kind, full=row.title))
        parts.append(_line(start, base, end, base, "rail"))
        mid = float(np.median([v for _, v in row.dots]))
        worst = dict(row.dots).get(row.worst or "", math.nan)
        if row.worst is not None and row.interval.known:
            parts.append(_line(x(row.interval.low), base, x(row.interval.high), base, "whisker"))
        xs = [x(v) for _, v in row.dots]
        for (site, value), cx, off in zip(row.dots, xs, swarm(xs, 2 * radius, height * 0.3), strict=True):
            said_here = f"{row.title}, {site}: {number(value)}"
            if site == row.worst:
                text = f"worst: {spoken(row.interval)}" if row.interval.known else "the worst site"
                diamond = [(cx + a, base + off + b) for a, b in ((0, -7), (7, 0), (0, 7), (-7, 0))]
                parts.append(_path(diamond, tag("title", f"{said_here}; {text}"), kind="worst", close=True))
            else:
                parts.append(tag("circle", tag("title", said_here), cx=cx, cy=base + off, r=radius, class_="dot"))
        tip = tag("title", f"{row.title}, median site: {number(mid)}")
        parts.append(tag("g", tip, _line(x(mid), base - 12, x(mid), base + 12, "median")))
        if row.worst is not None:
            said.append(f"{row.title}: median {number(mid)}, worst {row.worst} {spoken(row.interval)}")
            full = f"{row.worst} {number(worst)}"
            if narrow:
                parts.append(_text(right, base - 20, short[row.worst], "worst-name", "end", full))
            else:
                reach = [x(v) for v in (worst, row.interval.low, row.interval.high) if math.isfinite(v)]
                at, anchor = (max(reach) + 11, "start") if lower_is_better else (min(reach) - 11, "end")
                parts.append(_text(at, base + 4, short[row.worst], "worst-name", anchor, full))
        else:
            said.append(f"{row.title}: {number(mid)}")
    kind = "plot narrow" if narrow else "plot wide"
    return _svg(width, bottom + 40, f"Spread over sites: {axis}", "; ".join(said) + ".", parts, kind)


# figure 3: verdicts


def verdict_figure(rows: Sequence[Gain], axis: str) -> Markup:
    """One row per site: what it gains by joining, its interval, the zero line and the verdict in words."""
    return Markup().join(_verdicts(rows, axis, w) for w in (WIDE, NARROW) if rows)


def _verdicts(rows: Sequence[Gain], axis: str, width: int) -> Markup:
    narrow = width < 500
    height, top = (48.0, 24.0) if narrow else (32.0, 24.0)
    short = shorten_all([r.site for r in rows], 20 if narrow else 26)
    left = 6.0 if narrow else 20 + 7.0 * max(map(len, short.values()))
    right = width - (6.0 if narrow else 190.0)
    far = max((abs(v) for r in rows for v in r.gain if math.isfinite(v)), default=0.0) * 1.06 or 0.1
    x = Scale(-far, far, left, right)
    bottom = top + height * len(rows)
    marks = [t for t in ticks(-far, far, 4 if narrow else 6) if left + 8 < x(t) < right - 8]
    parts: list[Markup] = []
    for value, text in zip(marks, _tick_texts(marks, signed), strict=True):
        parts += [
            _line(x(value), top, x(value), bottom, "zero" if value == 0 else "grid"),
            _text(x(value), bottom + 16, text, "tick", "middle"),
        ]
    parts += [
        _text(x(0) - 10, 13, "← better alone", "axis", "end"),
        _text(x(0) + 10, 13, "better together →", "axis"),
        _text((left + right) / 2, bottom + 33, axis, "axis", "middle"),
    ]
    said = []
    for i, row in enumerate(rows):
        base = top + i * height + height * (0.72 if narrow else 0.5)
        words = f"{row.site}: {spoken(row.gain, signed)}, {ANSWERS.get(row.verdict, row.verdict)}"
        said.append(words)
        label = base - 17 if narrow else base + 4
        parts.append(_text(0, label, short[row.site], "name", full=row.site))
        mark = [tag("title", f"{words}; together with {row.method}")]
        if row.gain.known:
            mark.append(_line(x(row.gain.low), base, x(row.gain.high), base, "interval"))
        if math.isfinite(row.gain.value):
            mark.append(tag("circle", cx=x(row.gain.value), cy=base, r=6, class_="dot"))
        answer = ANSWERS.get(row.verdict, row.verdict)
        if narrow:
            mark.append(_text(width, label, f"{answer} {signed(row.gain.value)}", "answer", "end"))
        else:
            mark.append(_text(right + 22, label, answer, "answer"))
            mark.append(_text(width, label, signed(row.gain.value), "value", "end"))
        parts.append(tag("g", *mark, class_=f"verdict {VERDICT_CLASS.get(row.verdict, 'unsure')}"))
    kind = "plot narrow" if narrow else "plot wide"
    return _svg(width, bottom + 40, f"Is joining worth it? {axis}", "; ".join(said) + ".", parts, kind)

"""Shapley values of one site's rows, drawn for its own eyes: one row, all rows, their means, one feature."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from scipy.special import expit

from vitrail.analysis.explanations.direction import DOWN, UP
from vitrail.analysis.explanations.rows import Explanation
from vitrail.core.text import decimals, number, percent, several, shorten, signed
from vitrail.report.charts import svg

MOST = 15  # features in a figure
DOTS = {svg.WIDE: 300, svg.NARROW: 150}  # of each feature; more would be one blot
APART = 4.0  # pixels between dots
MISSING = "missing"
UNSEEN = "its columns, unseen here"


class Lanes(NamedTuple):
    """One line for each feature: its name at the left, or above where the picture is narrow."""

    width: int
    names: Sequence[str]

    @property
    def narrow(self) -> bool:
        return svg.is_narrow(self.width)

    @property
    def left(self) -> float:
        return 10.0 if self.narrow else min(250.0, 16 + 7.2 * max(map(len, self.names)))

    @property
    def high(self) -> float:
        return 42.0 if self.narrow else 30.0

    def middle(self, i: int) -> float:
        return 6 + self.high * (i + 0.5) + (8 if self.narrow else 0)

    def name(self, i: int, kind: str = "name") -> Markup:
        short = shorten(self.names[i], 44 if self.narrow else 32)
        return svg.text(0, self.middle(i) - (14 if self.narrow else -4), short, kind, full=self.names[i])

    @property
    def bottom(self) -> float:
        return 12 + self.high * len(self.names) + (4 if self.narrow else 0)


def plain(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def value_words(e: Explanation, feature: int, value: Any) -> str:
    """264 mg/dL; typical angina; missing."""
    if e.feature_names[feature] in e.united:
        return UNSEEN
    if value is None or value != value:
        return MISSING
    return value if isinstance(value, str) else f"{plain(value)} {e.column(feature).unit}".rstrip()


def cell_words(e: Explanation, row: int, feature: int) -> str:
    told, name = value_words(e, feature, e.data[row, feature]), e.feature_names[feature]
    if not e.columns and told == MISSING:  # of several columns, which nobody wrote out
        return name
    return f"{name}: {told}"


def answer_words(e: Explanation, value: float) -> str:
    """60.1 %; 1.24."""
    return percent(float(expit(value))) if e.odds else plain(value)


def written(e: Explanation, value: float, more: int = 0) -> str:
    """A Shapley value, with a sign and as many decimals as the largest needs."""
    return signed(value, decimals(float(np.abs(e.values).max(initial=0.0))) + more)


def says_words(e: Explanation, value: float) -> Markup:
    """60.1 % for sick = yes; 1.24 (stay in days)."""
    return Markup("<b>{}</b> for {}" if e.odds else "<b>{}</b> ({})").format(answer_words(e, value), e.answer)


def row_name(e: Explanation, row: int) -> str:
    return e.rows[row] if e.rows else str(row + 1)


def waterfall(e: Explanation, row: int, width: int) -> Markup:
    """From what the model says of the reference, feature by feature, to what it says of the row."""
    values = e.values[row]
    order = [int(i) for i in np.argsort(-np.abs(values), kind="stable") if values[i]]
    shown, rest = (order, []) if len(order) <= MOST + 1 else (order[:MOST], order[MOST:])
    steps = [(cell_words(e, row, i), float(values[i]), float(e.half[row, i]), i) for i in shown]
    steps += [(several(len(rest), "other"), float(values[rest].sum()), 0.0, -1)] if rest else []
    at = np.cumsum([e.base_values[row], *(s[1] for s in steps)])
    ends = (f"{who}: {answer_words(e, v)}" for who, v in (("reference", at[0]), (f"row {row_name(e, row)}", at[-1])))
    lanes = Lanes(width, [next(ends), *(s[0] for s in steps), next(ends)])
    x = svg.AxisScale(*svg.domain(at), lanes.left, width - (52.0 if lanes.narrow else 64.0))
    parts = svg.axis_below(x, svg.ticks(x.low, x.high, 3 if lanes.narrow else 6), 6, lanes.bottom, e.measure, number)
    for k in (0, len(steps) + 1):
        y, v = lanes.middle(k), x(at[min(k, len(steps))])
        parts += [lanes.name(k, "name strong"), svg.line(v, y - 9, v, y + 9, "median")]
    for k, (words, value, half, i) in enumerate(steps, 1):
        y, a, b = lanes.middle(k), x(at[k - 1]), x(at[k])
        box = {"x": min(a, b), "y": y - 8, "width": max(abs(b - a), 1.0), "height": 16}
        hidden = i >= 0 and e.feature_names[i] in e.united
        tip = svg.tip(f"{words}: {written(e, value, 1)}" + (f" ± {written(e, half, 1)[1:]}" if half else ""))
        parts += [lanes.name(k), svg.line(a, y - lanes.high / 2, a, y + 8, "rail")]
        parts.append(svg.tag("rect", tip, **box, class_="hid" if hidden else "h10" if value > 0 else "h2"))
        if hidden:
            parts.append(svg.tag("path", d=svg.hatch(min(a, b), max(a, b), y - 8, 16, 5), class_="hatch"))
        if half:
            parts.append(svg.line(x(at[k] - half), y, x(at[k] + half), y, "doubt"))
        parts.append(svg.text(max(a, b) + 5, y + 4, written(e, value), "tick"))
    said = "; ".join(f"{words}: {written(e, value)}" for words, value, *_ in steps)
    title = f"Row {row_name(e, row)}: from {answer_words(e, at[0])} to {answer_words(e, at[-1])}"
    return svg.plot(width, lanes.bottom + 40, title, f"{said}.", parts)


def bars(ranked: Sequence[Mapping[str, Any]], measure: str, width: int, united: Sequence[str] = ()) -> Markup:
    """Mean size of each feature's value with its interval over rows, and its direction as colour and in words; `ranked`
    as `Explanation.importance` gives them, the largest first."""
    ranked = ranked[: 2 * MOST]
    lanes = Lanes(width, [r["feature"] for r in ranked])
    top = max(max(r["size"], r["high"] if math.isfinite(r["high"]) else 0.0) for r in ranked) or 1.0
    x = svg.AxisScale(0.0, top, lanes.left, width - (50.0 if lanes.narrow else 250.0))
    axis = f"mean size of the value ({measure})"
    parts = svg.axis_below(x, svg.ticks(0.0, top, 3 if lanes.narrow else 6), 6, lanes.bottom, axis, number)
    said, digits = [], decimals(top)
    for k, r in enumerate(ranked):
        y, hidden, end = lanes.middle(k), r["feature"] in united, r["size"]
        words = f"{r['feature']}: {number(r['size'], digits + 1)}"
        box = {"x": x.start, "y": y - 8, "width": x(r["size"]) - x.start, "height": 16}
        kind = "hid" if hidden else {UP: "h10", DOWN: "h2"}.get(r["sign"], "mixed")
        if math.isfinite(r["low"]):
            words += f" ({number(r['low'], digits + 1)} to {number(r['high'], digits + 1)})"
        words += f", {r['moves']}" if r["moves"] else ""
        parts += [lanes.name(k), svg.tag("rect", svg.tip(words), **box, class_=kind)]
        if hidden:
            parts.append(svg.tag("path", d=svg.hatch(x.start, x(r["size"]), y - 8, 16, 5), class_="hatch"))
        if math.isfinite(r["low"]):
            end = r["high"]
            parts.append(svg.line(x(max(r["low"], 0.0)), y, x(end), y, "doubt"))
        parts.append(svg.text(x(end) + 5, y + 4, number(r["size"], digits), "tick"))
        parts += _moves(lanes, k, r["moves"], x.end + 46)
        said.append(words)
    title = f"How much each feature moves the {measure}, and in which direction"
    return svg.plot(width, lanes.bottom + 40, title, "; ".join(said) + ".", parts)


def _moves(lanes: Lanes, k: int, words: str, left: float) -> list[Markup]:
    """The direction in words: beside a narrow picture's name, else in one or two lines at the right."""
    if lanes.narrow:
        room = max(8, 46 - len(lanes.names[k]))
        return [svg.text(lanes.width, lanes.middle(k) - 14, shorten(words, room), "moves", "end", words)]
    first, *more = textwrap.wrap(words, 34) or [""]
    rows = [first, shorten(" ".join(more), 34)] if more else [first]
    top = lanes.middle(k) + (4 if len(rows) == 1 else -2)
    return [svg.text(left, top + 13 * i, row, "moves", full=words) for i, row in enumerate(rows)]


def colours(e: Explanation, feature: int) -> list[str]:
    """[row]: the class of each dot. Numbers from low (blue) to high (red) by rank; two levels likewise; each of more
    levels has a colour of its own; a ring is what is missing, struck through what a guest hides."""
    column, levels = e.data[:, feature], e.column(feature).levels
    if e.feature_names[feature] in e.united:
        return ["hid"] * len(e)
    lost = np.array([v is None or v != v for v in column])
    if levels:
        at = {level: i for i, level in enumerate(levels)}
        two = [svg.shade(s) for s in (-0.8, 0.8)]
        kinds = two if len(levels) == 2 else [f"by {svg.colour(i)}" for i in range(len(levels))]
        return ["lost" if gone else kinds[at[str(v)]] for v, gone in zip(column, lost, strict=True)]
    known = column[~lost].astype(np.float64)
    part = np.zeros(len(e))
    if len(known) and known.min() < known.max():
        from scipy.stats import rankdata  # takes half a second to load

        part[~lost] = 2 * (rankdata(known) - 0.5) / len(known) - 1
    return ["lost" if gone else svg.shade(p) for p, gone in zip(part, lost, strict=True)]


def swarm_places(x: np.ndarray, room: float) -> np.ndarray:
    """How far each dot lies from its lane's middle: those at one place are stacked, as far as there is room."""
    slot, out = np.round(x / APART).astype(int), np.zeros(len(x))
    for s in np.unique(slot):
        here = np.flatnonzero(slot == s)
        rank = np.arange(len(here))
        step = min(APART, 2 * room / max(len(here) - 1, 1))
        out[here] = (rank + 1) // 2 * np.where(rank % 2, 1, -1) * step
    return out


def dot(x: float, y: float, kind: str, *tip: str) -> list[Markup]:
    """A hidden value is a grey ring with a stroke through it: its colour would say what nobody here knows."""
    circle = svg.tag("circle", *tip, cx=x, cy=y, r=2.6, class_=f"one {kind}")
    return [circle, svg.line(x - 1.9, y + 1.9, x + 1.9, y - 1.9, "hid")] if kind == "hid" else [circle]


def some_rows(e: Explanation, width: int) -> np.ndarray:
    """Places of the rows that are drawn."""
    most = DOTS[width]
    return np.sort(np.random.default_rng(len(e)).permutation(len(e))[:most])


def beeswarm(e: Explanation, width: int) -> Markup:
    """A dot for each row, at its value, coloured by what the row has."""
    ranked = [e.feature_names.index(r["feature"]) for r in e.importance()[:MOST]]
    lanes, rows = Lanes(width, [e.feature_names[i] for i in ranked]), some_rows(e, width)
    x = svg.AxisScale(*svg.domain([0.0, *e.values[:, ranked].ravel()]), lanes.left, width - 12.0)
    marks = svg.ticks(x.low, x.high, 4 if lanes.narrow else 8)
    parts = svg.axis_below(x, marks, 6, lanes.bottom, f"value ({e.measure})", signed)
    for k, i in enumerate(ranked):
        kinds, at = colours(e, i), np.array([x(v) for v in e.values[rows, i]])
        off = swarm_places(at, 11.0)
        parts.append(lanes.name(k))
        for row, px, py in zip(rows, at, off, strict=True):
            said = [] if lanes.narrow else [svg.tip(f"row {row_name(e, row)}, {cell_words(e, row, i)}: "
                                                     f"{written(e, e.values[row, i])}")]  # fmt: skip
            parts += dot(px, lanes.middle(k) + py, kinds[row], *said)
    names = ", ".join(e.feature_names[i] for i in ranked)
    return svg.plot(width, lanes.bottom + 40, f"The values of {len(rows)} rows, feature by feature", f"{names}.", parts)


def dependence(e: Explanation, feature: int, width: int) -> Markup:
    """Value of one feature against its Shapley value, a dot for each row."""
    narrow, column, levels = svg.is_narrow(width), e.column(feature), list(e.column(feature).levels)
    rows, high, left = some_rows(e, width), 220.0 if svg.is_narrow(width) else 280.0, 44.0
    lost = np.array([v is None or v != v for v in e.data[:, feature]])
    y = svg.AxisScale(*svg.domain([0.0, *e.values[:, feature]]), high, 8.0)
    kinds, parts = colours(e, feature), list[Markup]()
    if levels:
        levels += [MISSING] if lost.any() else []
        x = svg.AxisScale(-0.5, len(levels) - 0.5, left, width - 12.0)
        at = {level: i for i, level in enumerate(levels)}
        lot = np.random.default_rng(0).uniform(-0.28, 0.28, len(e))
        place = [at[MISSING if gone else str(v)] + s for v, gone, s in zip(e.data[:, feature], lost, lot, strict=True)]
        room = max(4, int((width - left) / len(levels) / 7))
        marks = [(float(i), shorten(level, room)) for i, level in enumerate(levels)]
        off: float | None = at.get(str(column.off))
    else:
        rows = rows[~lost[rows]]
        place = [float("nan") if gone else float(v) for v, gone in zip(e.data[:, feature], lost, strict=True)]
        x = svg.AxisScale(*svg.domain(place), left, width - 12.0)
        marks = svg.written(svg.ticks(x.low, x.high, 4 if narrow else 8))
        off = float(column.off) if isinstance(column.off, float) and column.off == column.off else None
    parts += svg.axis_left(x, y, svg.written(svg.ticks(y.low, y.high, 5), signed))
    parts.append(svg.line(x.start, y(0.0), x.end, y(0.0), "zero"))
    parts += [svg.text(x(v), high + 18, words, "tick", "middle") for v, words in marks]
    if off is not None and x.low <= off <= x.high:
        parts += [svg.tag("g", svg.tip("the reference"), svg.line(x(off), 8.0, x(off), high, "level"))]
    for row in rows:
        words = f"row {row_name(e, row)}, {cell_words(e, row, feature)}: {written(e, e.values[row, feature])}"
        parts += dot(x(place[row]), y(e.values[row, feature]), kinds[row], *([] if narrow else [svg.tip(words)]))
    unit = f" ({column.unit})" if column.unit else ""
    parts.append(svg.text(x.middle, high + 36, f"{shorten(e.feature_names[feature], 40)}{unit}", "axis", "middle"))
    low, high_ = (written(e, float(v)) for v in (e.values[:, feature].min(), e.values[:, feature].max()))
    return svg.plot(
        width,
        high + 44,
        f"{e.feature_names[feature]} against its value in the {e.measure}",
        f"Values from {low} to {high_}.",
        parts,
    )

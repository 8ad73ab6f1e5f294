"""Shapley values of one site's rows, drawn for its own eyes: one row, all rows, their means, one feature."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from scipy.special import expit
from scipy.stats import rankdata

from vitrail.explain.rows import Explanation
from vitrail.report import draw
from vitrail.report.words import number, percent, several, shorten, signed

MOST = 12  # features in a figure
DOTS = {draw.WIDE: 300, draw.NARROW: 150}  # of each feature; more would be one blot
APART = 4.0  # pixels between dots
MISSING = "missing"
UNSEEN = "its columns, unseen here"


class Lanes(NamedTuple):
    """One line for each feature: its name at the left, or above where the picture is narrow."""

    width: int
    count: int

    @property
    def narrow(self) -> bool:
        return draw.is_narrow(self.width)

    @property
    def left(self) -> float:
        return 10.0 if self.narrow else 236.0

    @property
    def high(self) -> float:
        return 42.0 if self.narrow else 30.0

    def middle(self, i: int) -> float:
        return 6 + self.high * (i + 0.5) + (8 if self.narrow else 0)

    def name(self, i: int, words: str, kind: str = "name") -> Markup:
        short = shorten(words, 44 if self.narrow else 32)
        return draw.text(0, self.middle(i) - (14 if self.narrow else -4), short, kind, full=words)

    @property
    def bottom(self) -> float:
        return 12 + self.high * self.count + (4 if self.narrow else 0)


def value_words(e: Explanation, feature: int, value: Any) -> str:
    """264 mg/dL; typical angina; missing."""
    if e.feature_names[feature] in e.united:
        return UNSEEN
    if value is None or value != value:
        return MISSING
    return value if isinstance(value, str) else f"{value:.4g} {e.column(feature).unit}".rstrip()


def cell_words(e: Explanation, row: int, feature: int) -> str:
    told, name = value_words(e, feature, e.data[row, feature]), e.feature_names[feature]
    if not e.columns and told == MISSING:  # of several columns, which nobody wrote out
        return name
    return f"{name}: {told}"


def answer_words(e: Explanation, value: float) -> str:
    """0.41, which is 60.1 %."""
    return (
        f"{number(value, 2)}, which is {percent(float(expit(value)))}" if e.odds else f"{value:.4g}".replace("-", "−")
    )


def row_name(e: Explanation, row: int) -> str:
    return e.rows[row] if e.rows else str(row + 1)


def waterfall(e: Explanation, row: int, width: int) -> Markup:
    """From what the model says of the reference, feature by feature, to what it says of the row."""
    values = e.values[row]
    order = [int(i) for i in np.argsort(-np.abs(values), kind="stable") if values[i]]
    shown, rest = (order, []) if len(order) <= MOST + 1 else (order[:MOST], order[MOST:])
    steps = [(cell_words(e, row, i), float(values[i]), float(e.half[row, i]), i) for i in shown]
    steps += [(several(len(rest), "other"), float(values[rest].sum()), 0.0, -1)] if rest else []
    lanes = Lanes(width, len(steps) + 2)
    at = np.cumsum([e.base_values[row], *(s[1] for s in steps)])
    x = draw.Scale(*draw.domain(at), lanes.left, width - (52.0 if lanes.narrow else 64.0))
    ends = [("the reference", at[0]), (f"row {row_name(e, row)}", at[-1])]
    parts = draw.axis_below(x, draw.ticks(x.low, x.high, 3 if lanes.narrow else 6), 6, lanes.bottom, e.answer, number)
    for k, (words, value) in zip((0, lanes.count - 1), ends, strict=True):
        y = lanes.middle(k)
        parts += [lanes.name(k, f"{words}: {answer_words(e, value)}", "name strong")]
        parts += [draw.line(x(value), y - 9, x(value), y + 9, "median")]
    for k, (words, value, half, i) in enumerate(steps, 1):
        y, a, b = lanes.middle(k), x(at[k - 1]), x(at[k])
        box = {"x": min(a, b), "y": y - 8, "width": max(abs(b - a), 1.0), "height": 16}
        hidden = i >= 0 and e.feature_names[i] in e.united
        tip = draw.tip(f"{words}: {signed(value)}" + (f" ± {number(half)}" if half else ""))
        parts += [lanes.name(k, words), draw.line(a, y - lanes.high / 2, a, y + 8, "rail")]
        parts.append(draw.tag("rect", tip, **box, class_="hid" if hidden else "h10" if value > 0 else "h2"))
        if hidden:
            parts.append(draw.tag("path", d=draw.hatch(min(a, b), max(a, b), y - 8, 16, 5), class_="hatch"))
        if half:
            parts.append(draw.line(x(at[k] - half), y, x(at[k] + half), y, "doubt"))
        parts.append(draw.text(max(a, b) + 5, y + 4, signed(value, 2), "tick"))
    said = "; ".join(f"{words}: {signed(value, 2)}" for words, value, *_ in steps)
    title = f"Row {row_name(e, row)}: from {number(at[0], 2)} to {number(at[-1], 2)}"
    return draw.plot(width, lanes.bottom + 40, title, f"{said}.", parts)


def bars(e: Explanation, width: int) -> Markup:
    """Mean size of each feature's value, with its interval over rows."""
    ranked = e.importance()[: 2 * MOST]
    lanes = Lanes(width, len(ranked))
    top = max(max(r["size"], r["high"] if math.isfinite(r["high"]) else 0.0) for r in ranked) or 1.0
    x = draw.Scale(0.0, top, lanes.left, width - 50.0)
    axis = f"mean size of the value ({e.answer})"
    parts = draw.axis_below(x, draw.ticks(0.0, top, 3 if lanes.narrow else 6), 6, lanes.bottom, axis, number)
    said = []
    for k, r in enumerate(ranked):
        y, name, hidden = lanes.middle(k), r["feature"], r["feature"] in e.united
        words = f"{name}: {number(r['size'])}"
        words += f" ({number(r['low'])} to {number(r['high'])})" if math.isfinite(r["low"]) else ""
        box = {"x": x.start, "y": y - 8, "width": x(r["size"]) - x.start, "height": 16}
        parts += [lanes.name(k, name), draw.tag("rect", draw.tip(words), **box, class_="hid" if hidden else "size")]
        if hidden:
            parts.append(draw.tag("path", d=draw.hatch(x.start, x(r["size"]), y - 8, 16, 5), class_="hatch"))
        if math.isfinite(r["low"]):
            parts.append(draw.line(x(max(r["low"], 0.0)), y, x(r["high"]), y, "doubt"))
        parts.append(draw.text(x(max(r["size"], r["high"] if r["high"] == r["high"] else 0)) + 5, y + 4,
                               number(r["size"], 2), "tick"))  # fmt: skip
        said.append(words)
    return draw.plot(
        width, lanes.bottom + 40, f"How much each feature moves the {e.answer}", "; ".join(said) + ".", parts
    )


def colours(e: Explanation, feature: int) -> list[str]:
    """[row]: the class of each dot. Numbers from low (blue) to high (red) by rank; two levels likewise; more levels have
    colours of their own; grey what is missing; hatched what a guest hides."""
    column, levels = e.data[:, feature], e.column(feature).levels
    if e.feature_names[feature] in e.united:
        return ["hid"] * len(e)
    lost = np.array([v is None or v != v for v in column])
    if levels:
        at = {level: i for i, level in enumerate(levels)}
        two = [draw.shade(s) for s in (-0.8, 0.8)]
        kinds = two if len(levels) == 2 else [f"by {draw.colour(i)}" for i in range(len(levels))]
        return ["lost" if gone else kinds[at[str(v)]] for v, gone in zip(column, lost, strict=True)]
    known = column[~lost].astype(np.float64)
    part = np.zeros(len(e))
    if len(known) and known.min() < known.max():
        part[~lost] = 2 * (rankdata(known) - 0.5) / len(known) - 1
    return ["lost" if gone else draw.shade(p) for p, gone in zip(part, lost, strict=True)]


def swarm_places(x: np.ndarray, room: float) -> np.ndarray:
    """How far each dot lies from its lane's middle: those that are side by side are stacked, as far as there is room."""
    slot, out = np.round(x / APART).astype(int), np.zeros(len(x))
    for s in np.unique(slot):
        here = np.flatnonzero(slot == s)
        rank = np.arange(len(here))
        step = min(APART, 2 * room / max(len(here) - 1, 1))
        out[here] = (rank + 1) // 2 * np.where(rank % 2, 1, -1) * step
    return out


def dot(x: float, y: float, kind: str, *tip: str) -> list[Markup]:
    """A hidden value is a grey ring with a stroke through it: its colour would say what nobody here knows."""
    circle = draw.tag("circle", *tip, cx=x, cy=y, r=2.6, class_=f"one {kind}")
    return [circle, draw.line(x - 1.9, y + 1.9, x + 1.9, y - 1.9, "hid")] if kind == "hid" else [circle]


def some_rows(e: Explanation, width: int) -> np.ndarray:
    """Places of the rows that are drawn."""
    most = DOTS[width]
    return np.sort(np.random.default_rng(len(e)).permutation(len(e))[:most])


def beeswarm(e: Explanation, width: int) -> Markup:
    """A dot for each row, at its value, coloured by what the row has."""
    ranked = [e.feature_names.index(r["feature"]) for r in e.importance()[:MOST]]
    lanes, rows = Lanes(width, len(ranked)), some_rows(e, width)
    x = draw.Scale(*draw.domain([0.0, *e.values[:, ranked].ravel()]), lanes.left, width - 12.0)
    marks = draw.ticks(x.low, x.high, 4 if lanes.narrow else 8)
    parts = draw.axis_below(x, marks, 6, lanes.bottom, f"value ({e.answer})", signed)
    for k, i in enumerate(ranked):
        kinds, at = colours(e, i), np.array([x(v) for v in e.values[rows, i]])
        off = swarm_places(at, 11.0)
        parts.append(lanes.name(k, e.feature_names[i]))
        for row, px, py in zip(rows, at, off, strict=True):
            said = [] if lanes.narrow else [draw.tip(f"row {row_name(e, row)}, {cell_words(e, row, i)}: "
                                                     f"{signed(e.values[row, i], 2)}")]  # fmt: skip
            parts += dot(px, lanes.middle(k) + py, kinds[row], *said)
    names = ", ".join(e.feature_names[i] for i in ranked)
    return draw.plot(
        width, lanes.bottom + 40, f"The values of {len(rows)} rows, feature by feature", f"{names}.", parts
    )


def dependence(e: Explanation, feature: int, width: int) -> Markup:
    """Value of one feature against its Shapley value, a dot for each row."""
    narrow, column, levels = draw.is_narrow(width), e.column(feature), list(e.column(feature).levels)
    rows, high, left = some_rows(e, width), 220.0 if draw.is_narrow(width) else 280.0, 44.0
    lost = np.array([v is None or v != v for v in e.data[:, feature]])
    y = draw.Scale(*draw.domain([0.0, *e.values[:, feature]]), high, 8.0)
    kinds, parts = colours(e, feature), list[Markup]()
    if levels:
        levels += [MISSING] if lost.any() else []
        x = draw.Scale(-0.5, len(levels) - 0.5, left, width - 12.0)
        at = {level: i for i, level in enumerate(levels)}
        lot = np.random.default_rng(0).uniform(-0.28, 0.28, len(e))
        place = [at[MISSING if gone else str(v)] + s for v, gone, s in zip(e.data[:, feature], lost, lot, strict=True)]
        room = max(4, int((width - left) / len(levels) / 7))
        marks = [(float(i), shorten(level, room)) for i, level in enumerate(levels)]
        off = at.get(str(column.off))
    else:
        rows = rows[~lost[rows]]
        place = [float("nan") if gone else float(v) for v, gone in zip(e.data[:, feature], lost, strict=True)]
        x = draw.Scale(*draw.domain(place), left, width - 12.0)
        marks = draw.written(draw.ticks(x.low, x.high, 4 if narrow else 8))
        off = float(column.off) if isinstance(column.off, float) and column.off == column.off else None
    parts += draw.axis_left(x, y, draw.written(draw.ticks(y.low, y.high, 5), signed))
    parts.append(draw.line(x.start, y(0.0), x.end, y(0.0), "zero"))
    parts += [draw.text(x(v), high + 18, words, "tick", "middle") for v, words in marks]
    if off is not None and x.low <= off <= x.high:
        parts += [draw.tag("g", draw.tip("the reference"), draw.line(x(off), 8.0, x(off), high, "level"))]
    for row in rows:
        words = f"row {row_name(e, row)}, {cell_words(e, row, feature)}: {signed(e.values[row, feature], 2)}"
        parts += dot(x(place[row]), y(e.values[row, feature]), kinds[row], *([] if narrow else [draw.tip(words)]))
    unit = f" ({column.unit})" if column.unit else ""
    parts.append(draw.text(x.middle, high + 36, f"{shorten(e.feature_names[feature], 40)}{unit}", "axis", "middle"))
    said = (
        f"Values from {number(float(e.values[:, feature].min()), 2)} to {number(float(e.values[:, feature].max()), 2)}."
    )
    return draw.plot(width, high + 44, f"{e.feature_names[feature]} against its value in the {e.answer}", said, parts)

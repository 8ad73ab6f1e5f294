"""Shapley values of one site’s rows, for its private page: one row, all rows, their means, one feature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from vitrail.analysis.explanations.direction import DOWN, UP
from vitrail.analysis.explanations.rows import Explanation
from vitrail.core.text import several, shorten, signed
from vitrail.report.charts import svg
from vitrail.report.charts.axes import AxisScale, Ticks, axis_left, domain, tick_labels
from vitrail.report.charts.effect_scale import EffectScale, scale_of
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, RowMark, draw_mark, interval_rows
from vitrail.report.text import Interval

MOST = 15  # features in a figure
DOTS = {svg.WIDE: 300, svg.NARROW: 150}  # of each feature; more would be one blot
DOT, APART = 2.6, 4.0  # pixels: a dot, and between dots
STEP, LETTERS = (30.0, 42.0), 32  # of the rows of a figure
MISSING = "missing"
UNSEEN = "its columns, unseen here"


def plain(value: float) -> str:
    """A value of a file with at most four digits of its own: 79; 1.235; 150000."""
    return f"{float(f'{value:.4g}'):.12g}".replace("-", "−")


def value_words(e: Explanation, feature: int, value: Any) -> str:
    """264 mg/dL; typical angina; missing."""
    if e.feature_names[feature] in e.united:
        return UNSEEN
    if value is None or value != value:
        return MISSING
    return value if isinstance(value, str) else f"{plain(value)} {e.column(feature).unit}".rstrip()


def cell_words(e: Explanation, row: int, feature: int) -> str:
    value, name = value_words(e, feature, e.data[row, feature]), e.feature_names[feature]
    if not e.columns and value == MISSING:  # of several columns, which nobody wrote out
        return name
    return f"{name}: {value}"


def says_words(e: Explanation, value: float) -> Markup:
    """risk of sick = yes: 60 %; stay in days: 12.4."""
    what = e.answer if e.scale == "number" else f"{e.chance} of {e.answer}"
    return Markup("{}: <b>{}</b>").format(what, scale_of(e).answer(value))


def row_name(e: Explanation, row: int) -> str:
    return e.rows[row] if e.rows else str(row + 1)


def waterfall(e: Explanation, row: int, width: int) -> Markup:
    """From what the model says of the reference, feature by feature, to what it says of the row."""
    values, scale = e.values[row], scale_of(e)
    order = [int(i) for i in np.argsort(-np.abs(values), kind="stable") if values[i]]
    shown, rest = (order, []) if len(order) <= MOST + 1 else (order[:MOST], order[MOST:])
    steps = [(cell_words(e, row, i), float(values[i]), float(e.half[row, i]), i) for i in shown]
    steps += [(several(len(rest), "other"), float(values[rest].sum()), 0.0, -1)] if rest else []
    at = [float(v) for v in np.cumsum([e.base_values[row], *(s[1] for s in steps)])]
    first, last = scale.answer(at[0]), scale.answer(at[-1])
    rows = [_end(f"typical {row_word(e)}: {first}", at[0])]
    for k, (words, value, half, i) in enumerate(steps, 1):
        hidden = i >= 0 and e.feature_names[i] in e.united
        ends = f" ({scale.effect(value - half)} to {scale.effect(value + half)})" if half else ""
        full = f"{words}: {scale.effect(value)}{ends}"
        around = (at[k] - half, at[k] + half) if half else (math.nan, math.nan)
        kind = "hid" if hidden else "h10" if value > 0 else "h2"
        rows.append(
            IntervalRow(words, full, Interval(at[k], *around), bar=kind, start=at[k - 1], hatched=hidden, line="reach",
                        linked=True, beside=Label(scale.effect(value), "tick", "start"))
        )  # fmt: skip
    rows.append(_end(f"row {row_name(e, row)}: {last}", at[-1]))
    title = f"Row {row_name(e, row)}: from {first} to {last}"
    words = "; ".join(f"{name}: {scale.effect(value)}" for name, value, *_ in steps)
    low, high = domain(at)
    marks = scale.answer_ticks(low, high, _about(width))
    axis = _axis(e.answer if e.scale == "number" else f"{e.chance} of {e.answer}", width)
    figure = IntervalRows(title, rows, axis, low, high, step=STEP, letters=LETTERS, references=marks,
                          description=f"{words}.")  # fmt: skip
    return interval_rows(figure, width)


def row_word(e: Explanation) -> str:
    return e.each or "row"


def _axis(words: str, width: int) -> str:
    """As much of it as there is room for."""
    return shorten(words, 40 if svg.is_narrow(width) else 90)


def _about(width: int) -> int:
    """Ticks of an axis for which there is room."""
    return 3 if svg.is_narrow(width) else 6


def _end(words: str, value: float) -> IntervalRow:
    """Where a waterfall begins, and where it ends."""
    mark = RowMark(value, "tick", "median", 9)
    return IntervalRow(words, "", Interval(value), [mark], name_kind="name strong")


def bars(
    ranked: Sequence[Mapping[str, Any]],
    moved: str,
    scale: EffectScale,
    width: int,
    united: Sequence[str] = (),
    first: int = 0,
) -> Markup:
    """Mean size of each feature's value with its interval over rows, and its direction as colour and in words; `ranked`
    as `Explanation.importance` gives them, the largest first. `moved`: what features move, in words. `first`: so many
    of them alone."""
    title = f"How much each feature moves the {moved}, and in which direction"
    title = f"The {first} features that move the {moved} most" if first else title
    ranked = ranked[: first or 2 * MOST]
    intervals = [Interval(r["size"], max(r["low"], 0.0), r["high"]) for r in ranked]
    top = max([v for i in intervals for v in (i.value, i.high) if math.isfinite(v)]) or 1.0
    rows = []
    for r, interval in zip(ranked, intervals, strict=True):
        words = f"{r['feature']}: {scale.size(r['size'])}"
        words += f" ({scale.span(r['low'], r['high'])})" if interval.known else ""
        words += f", {r['moves']}" if r["moves"] else ""
        hidden = r["feature"] in united
        kind = "hid" if hidden else {UP: "h10", DOWN: "h2"}.get(r["sign"], "mixed")
        size, moves = Label(scale.size(r["size"]), "tick", "start"), Label(r["moves"], "moves", "start")
        rows.append(
            IntervalRow(r["feature"], words, interval, bar=kind, hatched=hidden, line="reach", beside=size,
                        right=[moves])
        )  # fmt: skip
    axis = _axis(f"mean factor on the {moved}" if scale.factors else f"mean change of {moved}", width)
    marks = scale.size_ticks(0.0, top, _about(width))
    return interval_rows(IntervalRows(title, rows, axis, 0.0, top, step=STEP, letters=LETTERS, references=marks), width)


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
    numbers = column[~lost].astype(np.float64)
    part = np.zeros(len(e))
    if len(numbers) and numbers.min() < numbers.max():
        from scipy.stats import rankdata  # takes half a second to load

        part[~lost] = 2 * (rankdata(numbers) - 0.5) / len(numbers) - 1
    return ["lost" if gone else svg.shade(p) for p, gone in zip(part, lost, strict=True)]


def swarm_places(xs: Sequence[float], room: float) -> list[float]:
    """How far each dot lies from its row's middle: those at one place are stacked, as far as there is room."""
    x = np.asarray(xs)
    slot, out = np.round(x / APART).astype(int), np.zeros(len(x))
    for s in np.unique(slot):
        here = np.flatnonzero(slot == s)
        rank = np.arange(len(here))
        step = min(APART, 2 * room / max(len(here) - 1, 1))
        out[here] = (rank + 1) // 2 * np.where(rank % 2, 1, -1) * step
    return list(out)


def some_rows(e: Explanation, width: int) -> np.ndarray:
    """Places of the rows that are drawn."""
    most = DOTS[width]
    return np.sort(np.random.default_rng(len(e)).permutation(len(e))[:most])


def beeswarm(e: Explanation, width: int) -> Markup:
    """A dot for each row, at its value, coloured by what the row has."""
    ranked = [e.feature_names.index(r["feature"]) for r in e.importance()[:MOST]]
    some, rows, scale = some_rows(e, width), [], scale_of(e)
    for i in ranked:
        kinds = colours(e, i)
        marks = [
            RowMark(
                float(e.values[row, i]),
                *look(kinds[row]),
                DOT,
                "" if svg.is_narrow(width) else dot_words(e, row, i, scale),
            )
            for row in some
        ]
        rows.append(IntervalRow(e.feature_names[i], "", marks=marks))
    title, names = f"The values of {len(some)} rows, feature by feature", ", ".join(row.name for row in rows)
    low, high = domain([0.0, *e.values[:, ranked].ravel()])
    axis = _axis(f"factor on the {e.moved}" if scale.factors else f"change of {e.moved}", width)
    figure = IntervalRows(title, rows, axis, low, high, signed, STEP, LETTERS, swarm=swarm_places,
                          references=scale.effect_ticks(low, high, _about(width)), description=f"{names}.")  # fmt: skip
    return interval_rows(figure, width)


def look(kind: str) -> tuple[Literal["struck", "dot"], str]:
    """Shape and class. A hidden value is a grey ring with a stroke through it: its colour would say what nobody here
    knows."""
    return "struck" if kind == "hid" else "dot", f"one {kind}"


def dot_words(e: Explanation, row: int, feature: int, scale: EffectScale) -> str:
    return f"row {row_name(e, row)}, {cell_words(e, row, feature)}: {scale.effect(float(e.values[row, feature]))}"


def dependence(e: Explanation, feature: int, width: int) -> Markup:
    """Value of one feature against its Shapley value, a dot for each row."""
    narrow, column, levels = svg.is_narrow(width), e.column(feature), list(e.column(feature).levels)
    rows, high, left = some_rows(e, width), 220.0 if svg.is_narrow(width) else 280.0, 54.0
    scale = scale_of(e)
    lost = np.array([v is None or v != v for v in e.data[:, feature]])
    y = AxisScale(*domain([0.0, *e.values[:, feature]]), high, 8.0)
    kinds, parts = colours(e, feature), list[Markup]()
    if levels:
        levels += [MISSING] if lost.any() else []
        x = AxisScale(-0.5, len(levels) - 0.5, left, width - 12.0)
        at = {level: i for i, level in enumerate(levels)}
        lot = np.random.default_rng(0).uniform(-0.28, 0.28, len(e))
        place = [at[MISSING if gone else str(v)] + s for v, gone, s in zip(e.data[:, feature], lost, lot, strict=True)]
        room = max(4, int((width - left) / len(levels) / 7))
        marks: Ticks = [(float(i), shorten(level, room)) for i, level in enumerate(levels)]
        off: float | None = at.get(str(column.off))
    else:
        rows = rows[~lost[rows]]
        place = [float("nan") if gone else float(v) for v, gone in zip(e.data[:, feature], lost, strict=True)]
        x = AxisScale(*domain(place), left, width - 12.0)
        marks = tick_labels(x.low, x.high, 4 if narrow else 8)
        off = float(column.off) if isinstance(column.off, float) and column.off == column.off else None
    parts += axis_left(x, y, scale.effect_ticks(y.low, y.high, 5))
    parts.append(svg.line(x.start, y(0.0), x.end, y(0.0), "zero"))
    parts += [svg.text(x(v), high + 18, words, "tick", "middle") for v, words in marks]
    if off is not None and x.low <= off <= x.high:
        parts += [svg.tag("g", svg.tip(f"the typical {row_word(e)}"), svg.line(x(off), 8.0, x(off), high, "level"))]
    for row in rows:
        mark = RowMark(0.0, *look(kinds[row]), DOT, "" if narrow else dot_words(e, row, feature, scale))
        parts += draw_mark(mark, x(place[row]), y(e.values[row, feature]))
    unit = f" ({column.unit})" if column.unit else ""
    parts.append(svg.text(x.middle, high + 36, f"{shorten(e.feature_names[feature], 40)}{unit}", "axis", "middle"))
    ends = (scale.effect(float(v)) for v in (e.values[:, feature].min(), e.values[:, feature].max()))
    title = f"How {e.feature_names[feature]} moves the {e.moved}, by its value"
    return svg.plot(width, high + 44, title, f"From {' to '.join(ends)}.", parts)

"""A site's private page: its own rows behind the findings (quality/repair/inspection), or its own pictures beside the
model (analysis/images/gallery)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitrail.analysis.calibration import wilson
from vitrail.analysis.images.gallery import Album
from vitrail.analysis.images.occlusion_map import OcclusionMap
from vitrail.analysis.images.picture_evidence import Box
from vitrail.analysis.images.prototype_removal import CANNOT, SHOWN, PrototypeRemoval
from vitrail.core.text import number, shorten
from vitrail.data.readers.images import png
from vitrail.quality.repair.inspection import ClassRows, ColumnView, SiteInspection
from vitrail.quality.screening.result import LABEL
from vitrail.report.charts import svg
from vitrail.report.charts.axes import AxisScale, axis_left, interval_domain, tick_labels, ticks
from vitrail.report.charts.effect_scale import percent
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, RowMark, interval_rows
from vitrail.report.pages.frame import fill, write_page
from vitrail.report.sections.performance.own_performance import own_performance
from vitrail.report.text import Interval, Standing, metric_words, spoken
from vitrail.runs.site.inspection_text import rows_of

HEAT = (150, 20, 60)  # red, green, blue of what decides
LARGEST = 256  # pixels of a picture's longer side on the page
STANDING, CALM_STANDING = 6, 3  # columns of the first screen, and where none is likely wrong


def write_look(
    shown: SiteInspection | Album, path: Path, joining: dict[str, Any] | None = None, beyond: Sequence[Path] = ()
) -> Path:
    """Write the page; only an earlier such page is written over. `joining`: whether it is worth it here, as
    site_benefit.py has it for a page. `beyond`: pages in other folders to link to."""
    return write_page(render_private(shown, joining), path, "look", beyond)


def render_private(shown: SiteInspection | Album, joining: dict[str, Any] | None = None) -> str:
    given: dict[str, Any] = {"header": shown, "joining": joining}
    if isinstance(shown, Album):
        tools: dict[str, Any] = {"embed": _embedded, "near": _is_small, "warm": _warm, "percent": _percent}
        tools |= {"most_changed": SHOWN, "cannot_tell": CANNOT}
        figure = svg.twice(lambda width: _right_answers(shown, width))
        if removal := shown.removal:
            tools["removed_metric"] = metric_words(next(iter(removal.scores)))
            tools["removal_figure"] = svg.twice(lambda width: _before_and_after(removal, width))
        return fill("album.html", album=shown, figure=figure, standings=_album_standings(shown), **given, **tools)
    views = [(view, rows_figure(view)) for view in shown.views]
    order = [view for view in shown.views if not view.brief] or list(shown.views)
    most = STANDING if any(view.wrong for view in shown.views) else CALM_STANDING
    return fill(
        "private.html",
        inspection=shown,
        views=views,
        first=next((entry for entry in views if entry[0] is order[0]), None) if order else None,
        standings=[_standing(view, shown) for view in order[:most]],
        more_standings=[_standing(view, shown) for view in order[most:]],
        next_step=_next_step(shown),
        anchor=_anchor,
        rows_of=rows_of,
        label=LABEL,
        performance=own_performance(shown.site, shown.performance) if shown.performance else None,
        **given,
    )


def _anchor(view: ColumnView, inspection: SiteInspection) -> str:
    """Of the column's section; what may be real has one together."""
    shown = [v for v in inspection.views if not v.brief]
    return "maybe" if view.brief else f"v{shown.index(view) + 1}"


def _standing(view: ColumnView, inspection: SiteInspection) -> Standing:
    """How a column of the site stands, and the likely cause."""
    column = inspection.target if view.name == LABEL else view.name
    repair = "; it can be repaired" if view.causes and view.causes[0].command else ""
    words = f"{view.verdict[:1].upper()}{view.verdict[1:]}{repair}."
    words = words if view.causes or not view.trouble else "The file alone shows no cause."
    anchor = _anchor(view, inspection)
    if not view.trouble:
        return Standing(column, "looked at", "calm", words, anchor)
    if view.wrong:
        return Standing(column, "likely wrong", "loss", words, anchor)
    return Standing(column, "differs, may be real", "unsure", words, anchor)


def _next_step(inspection: SiteInspection) -> str:
    if inspection.repairs:
        return "Ask somebody who knows the data whether each cause is right; then repair it by the command below."
    if any(view.wrong for view in inspection.views):
        return "Ask somebody who knows the data about each column that is likely wrong, before it is used again."
    if any(view.trouble for view in inspection.views):
        return "Nothing has to be corrected. If a difference surprises you, look at that column below."
    return "Nothing has to be corrected."


def _right_answers(album: Album, width: int) -> Markup:
    """Of each part of the pictures, the share that the model gets right, beside the share of the largest class."""
    rows = []
    for part, counts in album.counts.items():
        total = max(1, int(counts.sum()))
        right, largest = wilson(float(counts.diagonal().sum()), total), counts.sum(1).max() / total
        words = f"{part}: {percent(right.value)} right of {total} pictures; baseline {percent(largest)}"
        marks = [RowMark(100 * largest, "tick", "level short", 9.0), RowMark(100 * right.value)]
        interval = Interval(*(100 * share for share in right))
        label = Label(f"{percent(right.value)} of {total}", "value")
        rows.append(IntervalRow(part, words, interval, marks, kind="verdict unsure", right=[label]))
    low, high = interval_domain([row.interval for row in rows], [100.0])
    key = [RowMark(0.0, words="right, with its 95 % interval"), RowMark(0.0, "tick", "level short", 7.0, "baseline")]
    title, axis = f"How often the model is right at {album.site}", "right answers, per cent"
    return interval_rows(IntervalRows(title, rows, axis, low, high, _whole, key=key), width)


def _before_and_after(removal: PrototypeRemoval, width: int) -> Markup:
    """The study's first score with all prototypes and without some."""
    metric, scores = next(iter(removal.scores.items()))
    rows = []
    for name, score in zip(("as it is", "without them"), scores, strict=True):
        interval = Interval(*score)
        words = f"{name}: {spoken(interval)}"
        label = Label(number(score.value), "value")
        rows.append(IntervalRow(name, words, interval, [RowMark(score.value)], kind="verdict unsure", right=[label]))
    ends = [end for row in rows if row.interval.known for end in row.interval[1:]]
    low, high = interval_domain([row.interval for row in rows], ends)
    title = f"{metric_words(metric)} with and without {removal.words}"
    return interval_rows(IntervalRows(title, rows, metric_words(metric), low, high, number), width)


def _whole(value: float, digits: int = 0) -> str:
    return number(value, digits)


def _album_standings(album: Album) -> list[Standing]:
    out = []
    for part, counts in album.counts.items():
        total = max(1, int(counts.sum()))
        right, largest = wilson(float(counts.diagonal().sum()), total), counts.sum(1).max() / total
        words = f"{percent(right.low)} to {percent(right.high)} by its 95 % interval; baseline {percent(largest)}."
        status = f"{percent(right.value)} right"
        if right.low > largest:
            out.append(Standing(part.capitalize(), status, "gain", words))
        else:
            out.append(Standing(part.capitalize(), status, "unsure", f"Not shown to beat the baseline. {words}"))
    return out


def _embedded(picture: NDArray[np.uint8]) -> str:
    """As the address of an image; a large one smaller, by means over squares of pixels."""
    channels, height, width = picture.shape
    by = -(-max(height, width) // LARGEST)
    if by > 1:
        cut = picture[:, : height // by * by, : width // by * by]
        squares = cut.reshape(channels, height // by, by, width // by, by)
        picture = squares.mean((2, 4)).round().astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(picture)).decode()


def _is_small(picture: NDArray[np.uint8]) -> bool:
    """Whether its pixels are to be seen as squares."""
    return bool(max(picture.shape) <= LARGEST // 4)


def _warm(hidden: OcclusionMap, usual: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The mean picture, pale, and over it in colour what matters when it is hidden; faint where that is little."""
    over = hidden.over(*usual.shape[1:])
    strong = over / max(over.max(), hidden.whole / 2, 1e-9)
    pale = 110 + 0.57 * np.broadcast_to(usual, (3, *usual.shape[1:])).astype(np.float64)
    colour = np.array(HEAT, np.float64)[:, None, None]
    return np.asarray((pale * (1 - 0.85 * strong) + colour * 0.85 * strong).round().astype(np.uint8))


def _percent(box: Box, picture: NDArray[np.uint8]) -> str:
    """Where it lies, for a style."""
    (top, left, bottom, right), (height, width) = box, picture.shape[1:]
    sides = {"top": top / height, "left": left / width, "height": (bottom - top) / height}
    return "; ".join(f"{k}: {100 * v:.1f}%" for k, v in (sides | {"width": (right - left) / width}).items())


def rows_figure(view: ColumnView) -> Markup:
    """The site's own rows by class, wide and narrow; nothing where no value is known."""
    if not any(sum(g.counts) for g in view.groups):
        return Markup()
    figure = _histogram if view.edges else _bars
    return svg.twice(lambda width: figure(view, width))


def _missing(group: ClassRows) -> str:
    share = 100 * group.missing / max(1, group.rows)
    return "under 1 %" if 0 < share < 1 else f"{share:.0f} %"


def _histogram(view: ColumnView, width: int) -> Markup:
    """One panel per class on one axis: bars are the site's rows, the outline what the shared model takes them for."""
    unit = f" ({view.unit})" if view.unit else ""
    left, right, high, head = 36.0, width - 58.0, 84.0, 26.0
    x = AxisScale(view.edges[0], view.edges[-1], left, right)
    tallest = max(max(*g.counts, *g.taken, 0) / max(1, sum(g.counts)) for g in view.groups)
    parts: list[Markup] = []
    for k, group in enumerate(view.groups):
        top = k * (high + head + 14) + head
        parts += _panel(view, k, x, AxisScale(0.0, tallest, top + high, top))
        if view.name != LABEL:
            parts += _gauge(group, k, width - 34.0, top, top + high)
    bottom = len(view.groups) * (high + head + 14) - 14
    marks = tick_labels(view.edges[0], view.edges[-1], 4 if svg.is_narrow(width) else 8)
    parts += [svg.text(x(v), bottom + 16, words, "tick", "middle") for v, words in marks]
    axis = f"{shorten(view.about if view.name == LABEL else view.name, 30)}{unit}; bars: share of the class's values"
    parts.append(svg.text(x.middle, bottom + 33, axis, "axis", "middle"))
    text = "; ".join(f"{g.name}: {g.rows} rows, {_missing(g)} missing" for g in view.groups)
    return svg.plot(width, bottom + 40, f"{view.name} at this site, by class", f"{text}.", parts)


def _panel(view: ColumnView, k: int, x: AxisScale, y: AxisScale) -> list[Markup]:
    """One class: agreed range, grid, bars, outline."""
    group, top, bottom = view.groups[k], y.end, y.start
    total = max(1, sum(group.counts))
    parts = [svg.text(0, top - 10, f"{group.name}: {group.rows} rows", "name")]
    if view.agreed:
        low, high = (min(max(x(end), x.start), x.end) for end in view.agreed)
        parts.append(svg.tag("rect", x=low, y=top, width=high - low, height=bottom - top, class_="agreed"))
    parts += axis_left(x, y, [(share / 100, f"{share:g} %") for share in ticks(0, 100 * y.high, 3)])
    outline = [(x.start, bottom)]
    for i, (low, high) in enumerate(pairwise(view.edges)):
        a, b, tall = x(low), x(high), y(group.counts[i] / total)
        if group.counts[i]:
            tip = svg.tip(f"{group.name}, {low:g} to {high:g} {view.unit}: {group.counts[i]} rows")
            size = {"x": a + 0.5, "y": tall, "width": max(b - a - 1, 0.8), "height": bottom - tall}
            parts.append(svg.tag("rect", tip, **size, class_=f"bar m{k}"))
        if group.taken:
            outline += [(a, y(group.taken[i] / total)), (b, y(group.taken[i] / total))]
    if any(group.taken):
        tip = svg.tip("how the shared model reads it")
        parts.append(svg.path([*outline, (x.end, bottom)], tip, kind="taken"))
    if view.pooled and x.low <= view.pooled[0] <= x.high:
        parts.append(svg.line(x(view.pooled[0]), top, x(view.pooled[0]), bottom, "pooled"))
    return parts


def _gauge(group: ClassRows, k: int, at: float, top: float, bottom: float) -> list[Markup]:
    """How much is missing: a bar that fills from below."""
    full = (bottom - top) * group.missing / max(1, group.rows)
    tip = svg.tip(f"{group.name}: {group.missing} of {group.rows} rows have no value")
    return [
        svg.tag("rect", tip, x=at, y=top, width=16, height=bottom - top, class_="empty"),
        svg.tag("rect", x=at, y=bottom - full, width=16, height=full, class_=f"lost m{k}"),
        svg.text(at + 34, top - 10, f"missing {_missing(group)}", "tick", "end"),
    ]


def _bars(view: ColumnView, width: int) -> Markup:
    """Shares of each level, a bar per class; and the share that is missing."""
    label = view.name == LABEL
    levels = [*view.levels] + ([] if label else ["missing"])
    room = min(16, max(len(level) for level in levels))
    left, right, thick = 16 + 7.5 * room, width - 70.0, 16.0
    x = AxisScale(0.0, 1.0, left, right)
    top, step = 4.0, thick * len(view.groups) + 16
    parts: list[Markup] = []
    texts = []
    bottom = top + step * len(levels)
    parts += [svg.line(x(v), top, x(v), bottom - 10, "grid") for v in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for i, level in enumerate(levels):
        start = top + i * step
        lost = not label and i == len(levels) - 1
        short = shorten(level, 16)
        parts.append(
            svg.text(0, start + thick * len(view.groups) / 2 + 4, short, "axis" if lost else "name", full=level)
        )
        for k, group in enumerate(view.groups):
            of = group.rows if lost else max(1, sum(group.counts))
            count = group.missing if lost else group.counts[i]
            share, y = count / max(1, of), start + k * thick
            tip = svg.tip(f"{group.name}, {level}: {count} of {of} rows")
            kind = f"{'lost' if lost else 'bar'} m{(i if label else k) % svg.COLOURS}"
            parts.append(svg.tag("rect", tip, x=left, y=y + 1, width=x(share) - left, height=thick - 3, class_=kind))
            parts.append(svg.text(x(share) + 5, y + thick - 4, f"{100 * share:.0f} %", "tick"))
            texts.append(f"{group.name}, {level}: {100 * share:.0f} %")
    parts += [svg.text(x(v), bottom + 6, f"{100 * v:.0f} %", "tick", "middle") for v in (0.0, 0.5, 1.0)]
    axis = "share of the rows" if label else "share of the class's rows with a value"
    parts.append(svg.text(x.middle, bottom + 23, axis, "axis", "middle"))
    return svg.plot(width, bottom + 30, f"{view.name} at this site, by class", "; ".join(texts) + ".", parts)

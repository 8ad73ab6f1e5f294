"""A grid: cells by row and column, each with a colour, words under the pointer and, where there is room, words in it.

Names of rows are a drawing of their own that stays in view while the cells scroll beside it. What stands out is
outlined and has a dot, so that nothing hangs on colour alone. `timeline` is the same over rounds: as wide as its place,
with a cell for each span of rounds. Colours are classes of page.css.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from vitrail.core.text import shorten_all
from vitrail.report.charts import axes, svg

EDGE = 3.0  # room for the outline of the first cell
GAP = 34.0  # between two grids


class GridCell(NamedTuple):
    words: str  # under the pointer; cells without words, text and marks are drawn as one shape for each colour
    kind: str = "none"  # class of its colour
    text: str = ""
    flagged: bool = False  # outlined, with a dot
    circled: bool = False
    opacity: float = 1.0
    link: str = ""  # to a place on the page: a press on the cell leads there


class Sign(NamedTuple):
    """A mark before the name of a row, with its class."""

    text: str
    kind: str


class Grid(NamedTuple):
    """Rows and columns by their full names, in the order in which they are drawn."""

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[GridCell]]  # [row][column]
    widths: tuple[float, float]  # pixels of a cell, at least and at most
    height: float = 0.0  # of a cell; 0: square, as far as words allow
    room: float = 8.0  # pixels at the right that are left free
    silent: Mapping[str, GridCell] = {}
    bold: Collection[str] = ()  # columns that stand out
    crossed: Collection[str] = ()  # columns with an x above
    tiny: bool = False
    head: str = ""  # above the cells
    above: bool = False  # whether the names of columns stand above the cells
    signs: Mapping[str, Sign] = {}  # before the names of rows


More = Callable[[float, float, float], list[Markup]]  # right end, top, height of a row -> what is drawn beside


def grid(grids: Sequence[Grid], title: str, description: str, more: More | None = None, wide: float = 20.0) -> Markup:
    """Grids of the same rows beside one another; `more` is drawn beside them and takes `wide` pixels."""
    first, tiny = grids[0], grids[0].tiny
    short, heads = shorten_all(first.rows, 18 if tiny else 22), shorten_all(first.columns, 20)
    across = max(map(len, heads.values()), default=0) * (5.4 if tiny else svg.LETTER)  # of the longest name of a column
    slant = max(40, 16 + math.ceil((across + 8) * 0.87))  # room for the names of columns
    left = max(0 if first.above else across / 2, 14 + 7.2 * max(map(len, short.values()), default=0))
    left += 16 * bool(first.signs)
    width, height = cell_size(grids, left)
    top = slant if first.above else 26.0 if first.head else 18.0 if first.crossed else 4.0
    bottom, x = top + height * len(first.rows), EDGE
    names = [
        svg.text(
            left - 8,
            top + height * (i + 0.5) + (3 if tiny else 4),
            short[row],
            ("refused" if row in first.silent else "name") + _small(tiny or height < 13),
            "end",
            row,
        )
        for i, row in enumerate(first.rows)
    ]
    names += [
        svg.text(2, top + height * (i + 0.5) + 4, first.signs[row].text, first.signs[row].kind)
        for i, row in enumerate(first.rows)
        if row in first.signs
    ]
    parts = list[Markup]()
    for one in grids:
        parts += _cells(one, heads, (x, top, width, height))
        x += width * len(one.columns) + GAP
    end = x - GAP
    parts += more(end, top, height) if more else []
    wide = max(wide, across / 2 + 12) if first.above else wide
    size = svg.Drawing(end + wide, bottom + (EDGE if first.above else slant), parts)
    linked = any(cell.link for one in grids for row in one.cells for cell in row)
    whole = size.sized("cells", title, description, role="group" if linked else "img")
    return svg.Drawing(left, bottom, names).sized("names") + whole


def cell_size(grids: Sequence[Grid], left: float) -> tuple[float, float]:
    """Width and height of each cell, beside names of so many pixels."""
    first, columns = grids[0], max(1, sum(len(one.columns) for one in grids))
    free = svg.WIDE - left - first.room - GAP * (len(grids) - 1)
    width = max(first.widths[0], min(first.widths[1], free // columns))
    return width, first.height or min(width, 34.0)


def _cells(one: Grid, heads: Mapping[str, str], box: tuple[float, float, float, float]) -> list[Markup]:
    """Cells, then marks on top of them, then names of columns."""
    x, top, width, height = box
    bottom, end = top + height * len(one.rows), x + width * len(one.columns)
    cells, marks = [svg.text(x, 12, one.head, "axis")] * bool(one.head), list[Markup]()
    quiet: dict[str, list[str]] = {}  # colour -> boxes
    for i, row in enumerate(one.rows):
        y = top + height * i
        if (silent := one.silent.get(row)) is not None:
            rest = {"x": x, "y": y, "width": end - x - 1, "height": height - 1}
            cells.append(svg.tag("rect", svg.tip(silent.words), **rest, class_="none"))
            marks.append(svg.hatch(x, end - 1, y, height - 1))
            marks += [] if one.tiny else [svg.text(x + 8, y + height / 2 + 4, silent.text, "refused")]
            continue
        for j, cell in enumerate(one.cells[i]):
            place = {"x": x + width * j, "y": y, "width": width - 1, "height": height - 1}
            look = {"fill_opacity": f"{cell.opacity:.2f}"} if cell.opacity < 1 else {}
            if cell == GridCell("", cell.kind):
                quiet.setdefault(cell.kind, []).append(svg.box(**place))
                continue
            if cell.link:
                shape = svg.tag("rect", **place, **look, class_=cell.kind)
                cells.append(svg.tag("a", svg.tip(cell.words), shape, href=f"#{cell.link}", tabindex="-1"))
            else:
                cells.append(svg.tag("rect", svg.tip(cell.words), **place, **look, class_=cell.kind))
            cells += _text(cell, place)
            marks += _marks(cell, place, one.tiny)
    for j, column in enumerate(one.columns):
        middle, kind = x + width * (j + 0.5), "feature flagged" if column in one.bold else "feature"
        edge = top - 16 if one.above else bottom
        cells.append(_slanting(middle, edge, heads[column], kind + _small(one.tiny or width < 13), column, one.above))
        if column in one.crossed:
            cells.append(svg.text(middle, top - 6, "x", "crossed", "middle"))
    cells += [svg.tag("path", d="".join(boxes), class_=kind) for kind, boxes in quiet.items()]
    return [*cells, *marks]


def _text(cell: GridCell, place: Mapping[str, float]) -> list[Markup]:
    """Words in a cell where they fit."""
    room = place["width"] - 4 - 6.6 * len(cell.text)
    if not cell.text or room < -1.4 * len(cell.text):
        return []
    kind = svg.ink_on(cell.kind) + _small(room < 0 or place["height"] < 19)
    return [
        svg.text(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2 + 4.5, cell.text, kind, "middle")
    ]


def _marks(cell: GridCell, place: Mapping[str, float], tiny: bool) -> list[Markup]:
    """The outline and the dot of what stands out: in the middle, or at the corner where words stand there."""
    cx, cy = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    flag = [svg.tag("rect", **place, class_=kind) for kind in ("halo", "flag")] if cell.flagged else []
    ring = [svg.text(cx, cy + (3.4 if tiny else 4.7), "O", "circled" + _small(tiny), "middle")] if cell.circled else []
    corner = (place["x"] + place["width"] - 1, place["y"] + 1) if cell.text else (cx, cy)
    size = 4 if cell.text else 2 if tiny else 3
    dot = [svg.tag("circle", cx=corner[0], cy=corner[1], r=size, class_="flag-dot")] if cell.flagged else []
    return [*flag, *ring, *dot]


def _slanting(x: float, y: float, words: str, kind: str, full: str, above: bool) -> Markup:
    """The name of a column, slanting up to (x, y), or from there on."""
    turned = f"translate({x + 3:.1f} {y + 10:.1f}) rotate(-60)"
    return svg.tag("g", svg.text(0, 0, words, kind, "start" if above else "end", full), transform=turned)


def _small(small: bool) -> str:
    return " tiny" if small else ""


class Span(NamedTuple):
    """The same thing over some rounds."""

    first: float
    last: float
    words: str
    ground: str = "h6"  # class of the whole cell
    parts: Sequence[tuple[float, str]] = ()  # on it, shares of the cell from below, and their classes


class TimelineRow(NamedTuple):
    name: str
    spans: Sequence[Span]
    end: str  # words at the right


def timeline(
    rows: Sequence[TimelineRow],
    width: int,
    title: str,
    description: str,
    key: Sequence[tuple[str, str]] = (),
    head: str = "",
) -> Markup:
    """Rows over the same rounds; `head` stands over the words at the right."""
    narrow = svg.is_narrow(width)
    short = shorten_all([row.name for row in rows], 14 if narrow else 26)
    left = 14 + 7.2 * max(map(len, short.values()), default=0)
    right = width - 16 - 6.4 * max(len(head), *(len(row.end) for row in rows))
    first, last = (edge(getattr(s, side) for row in rows for s in row.spans)
                   for edge, side in ((min, "first"), (max, "last")))  # fmt: skip
    top, height = 26.0 * bool(key) + 14.0 * bool(head), 24.0 if len(rows) <= 24 else 16.0
    bottom = top + height * len(rows)
    x = axes.AxisScale(first - 0.5, last + 0.5, left, min(right, left + 60.0 * (last - first + 1)))
    parts = [*svg.squares(key, 0.0, 2.0)]
    parts += [svg.text(x.end + 8, top - 5, head, "tick")] * bool(head)
    marks = axes.round_ticks(first, last, 3 if narrow else 6)
    parts += [svg.text(x(v), bottom + 16, words, "tick", "middle") for v, words in marks]
    parts.append(svg.text(x.middle, bottom + 33, "round", "axis", "middle"))
    for i, row in enumerate(rows):
        y = top + height * i
        parts.append(svg.text(left - 8, y + height / 2 + 4, short[row.name], "name", "end", row.name))
        parts += [_span(span, x, y, height - 2) for span in row.spans]
        parts.append(svg.text(x.end + 8, y + height / 2 + 4, row.end, "label"))
    return svg.plot(width, bottom + 40, title, description, parts)


def _span(span: Span, x: axes.AxisScale, y: float, height: float) -> Markup:
    """A cell that is filled from below."""
    start = x(span.first - 0.5)
    wide = x(span.last + 0.5) - start
    box = {"x": start, "width": max(wide - 1, 1.0) if wide > 3 else wide}
    shapes = [svg.tip(span.words), svg.tag("rect", **box, y=y, height=height, class_=span.ground)]
    base = y + height
    for share, kind in span.parts:
        base -= height * share
        shapes += [svg.tag("rect", **box, y=base, height=height * share, class_=kind)] if share else []
    return svg.tag("g", *shapes)

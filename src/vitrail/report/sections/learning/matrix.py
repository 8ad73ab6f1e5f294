"""The matrix of weights that sites gave each other, and the tree of those that are close."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from vitrail.core.text import number, several, shorten_all
from vitrail.report.charts import svg
from vitrail.report.sections.learning.wording import TRUSTED, TrustWording
from vitrail.stats.linkage import Join


def matrix(
    all_sites: Sequence[str],
    weights: np.ndarray,
    order: Sequence[int],
    joins: Sequence[Join],
    say: TrustWording = TRUSTED,
    full: float = 1.0,
) -> Markup:
    """Row: a user; column: a site; beside them the tree of the sites, in the same order. `full` is drawn darkest."""
    n, sites = len(order), [all_sites[i] for i in order]
    short = shorten_all(sites, 22)
    left, longest = svg.names_room(short.values()), max(map(len, short.values()), default=0)
    cell = max(16.0, min(52.0, (svg.WIDE - left - 130) // max(n, 1)))
    high, top, edge, tree = min(cell, 34.0), 4.0, 3.0, 110.0
    bottom, end = top + high * n, edge + cell * n
    names, cells, said = [], [], []
    for row, user in enumerate(order):
        y = top + high * row
        names.append(svg.text(left - 8, y + high / 2 + 4, short[all_sites[user]], "name", "end", all_sites[user]))
        for column, site in enumerate(order):
            value, x = float(weights[user, site]), edge + cell * column
            box = {"x": x, "y": y, "width": cell - 1, "height": high - 1}
            known, part = math.isfinite(value), value / full
            told = say.own if user == site else say.cell if known else say.unknown
            names_of = [all_sites[user]] if user == site else [all_sites[user], all_sites[site]]
            words = told.format(*names_of, number(value, 2))
            said += [words] if user != site else []
            kind = svg.shade(-part) if known and user != site else "none"
            cells.append(svg.tag("rect", svg.tip(words), **box, class_=kind))
            if cell >= 34 and known and (user != site or say.counts_own):
                ink = svg.ink_on(kind)
                cells.append(svg.text(x + (cell - 1) / 2, y + high / 2 + 4, number(value, 2), ink, "middle"))
    cells += [
        svg.turned(edge + cell * (i + 0.5), bottom, short[label], "feature", label) for i, label in enumerate(sites)
    ]
    cells += _tree(order, joins, all_sites, (top, high, end + 10, tree), say.tree, full) if joins else []
    drawing = svg.Drawing(end + tree + 60, bottom + max(svg.turned_room(7.0 * longest), 40), cells)
    title = say.matrix.format(several(n, "site"))
    return svg.scrolling_rows(svg.Drawing(left, bottom, names), drawing, title, "; ".join(said) + ".")


def _tree(
    order: Sequence[int],
    joins: Sequence[Join],
    sites: Sequence[str],
    box: tuple[float, float, float, float],
    what: str,
    full: float,
) -> list[Markup]:
    """The joins to the right of the rows: full mutual trust at the left, none at the right."""
    top, high, x, wide = box
    place = {frozenset([site]): (x, top + high * (row + 0.5)) for row, site in enumerate(order)}
    where, out = svg.AxisScale(0, 1, x, x + wide), []
    for join in joins:
        here = where(min(max(join.apart, 0.0), 1.0))
        (x1, y1), (x2, y2) = place[frozenset(join.first)], place[frozenset(join.second)]
        here = max(here, x1, x2)
        members = [s for s in order if s in join.first + join.second]
        hover = f"{', '.join(sites[s] for s in members)}: mean {what} {number(full * (1 - join.apart), 2)}"
        d = f"M{x1:.1f},{y1:.1f}H{here:.1f}V{y2:.1f}H{x2:.1f}"
        out.append(svg.tag("path", svg.tip(hover), d=d, class_="branch"))
        place[frozenset(members)] = (here, (y1 + y2) / 2)
    bottom = top + high * len(order)
    ends = [(v, f"{full * (1 - v):.2g}") for v in (0.0, 0.5, 1.0)]
    out += [svg.text(where(v), bottom + 15, words, "tick", "middle") for v, words in ends]
    out.append(svg.text(where(0.5), bottom + 31, what, "axis", "middle"))
    return [svg.line(where(v), top, where(v), bottom, "grid") for v, _ in ends] + out

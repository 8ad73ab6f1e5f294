"""The matrix of weights that sites gave each other, and the tree of those that are close."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from markupsafe import Markup

from vitrail.core.text import number, several
from vitrail.report.charts import svg
from vitrail.report.charts.axes import AxisScale
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.sections.learning.wording import TRUSTED, TrustWording
from vitrail.stats.linkage import Join

TREE = 110.0  # pixels


def matrix(
    all_sites: Sequence[str],
    weights: np.ndarray,
    order: Sequence[int],
    joins: Sequence[Join],
    say: TrustWording = TRUSTED,
    full: float = 1.0,
) -> Markup:
    """Row: a user; column: a site; beside them the tree of the sites, in the same order. `full` is drawn darkest."""

    def cell(user: int, site: int) -> GridCell:
        value, own = float(weights[user, site]), user == site
        finite = math.isfinite(value)
        amount = number(value, 2)
        pattern = say.own if own else say.cell if finite else say.unknown
        words = pattern.format(*([all_sites[user]] if own else [all_sites[user], all_sites[site]]), amount)
        kind = svg.shade(-value / full) if finite and not own else "none"
        return GridCell(words, kind, amount if finite and (not own or say.counts_own) else "")

    sites = [all_sites[i] for i in order]
    drawn = Grid(sites, sites, [[cell(user, site) for site in order] for user in order], (16.0, 52.0), room=130.0)
    text = "; ".join(c.words for i, row in enumerate(drawn.cells) for j, c in enumerate(row) if i != j)
    tree = partial(_tree, order, joins, all_sites, say.tree, full)
    title = say.matrix.format(several(len(order), "site"))
    return grid([drawn], title, f"{text}.", tree if joins else None, TREE + 60)


def _tree(
    order: Sequence[int],
    joins: Sequence[Join],
    sites: Sequence[str],
    what: str,
    full: float,
    end: float,
    top: float,
    high: float,
) -> list[Markup]:
    """The joins to the right of the rows: full mutual trust at the left, none at the right."""
    x, wide = end + 10, TREE
    place = {frozenset([site]): (x, top + high * (row + 0.5)) for row, site in enumerate(order)}
    where, out = AxisScale(0, 1, x, x + wide), []
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

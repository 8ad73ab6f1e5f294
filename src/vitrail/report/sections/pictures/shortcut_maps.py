"""Which site's class stands out: site x class maps of what was told, against what the other cells make one expect.

The number is what was measured; the colour how far it lies from the usual, red where a shortcut would lie. A cell that
the rule flags is outlined and has a dot. No picture is drawn: the facts hold none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.analysis.shortcuts.detector import ShortcutSignals, read_standing
from vitrail.analysis.shortcuts.wording import labels_of, percent
from vitrail.core import facts as means
from vitrail.core.text import number, several
from vitrail.report.charts import svg
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.sections.section import Contents, Section, has_fact, run_of

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

SHOWN, SLACK = 24, 30  # classes in a map; so many are not worth leaving out
LISTED = 5  # cells in the table of the least usual


class Map(NamedTuple):
    key: str
    title: str
    see: str
    drawing: Markup


class _Kind(NamedTuple):
    """How one signal is shown."""

    title: str
    see: str
    full: float  # so far from the usual is full red or blue
    say: str  # value, usual
    shares: bool  # whether it is written in hundredths


KINDS = {
    "travel": _Kind(
        "Travel: right at home less right elsewhere",
        "The number: of a site's pictures of a class, the part that its own model gets right at home, less the part "
        "that it gets right at the other sites, in hundredths. Red: it is better at home than a model that does so "
        "elsewhere usually is in this federation.",
        0.5,
        "{} more right at home than elsewhere; usual: {}",
        True,
    ),
    "margin": _Kind(
        "Surer at home: how much surer a site's model is of its own pictures",
        "The number: how far the site's own model exceeds the other sites' models on the site's hold-out pictures of a "
        "class, less how far it exceeds them at the other sites, in log-odds (each picture at most 4 to either side). "
        "Red: more than usual in this federation.",
        2.0,
        "{} surer at home than elsewhere; usual: {}",
        False,
    ),
    "distance": _Kind(
        "Distance of the site's own prototypes from the shared ones",
        "The number: how far the site's own prototypes of the class are from those that all share. Red: further than "
        "the site's other classes, and other sites in this class, make one expect. It raises no alarm: the largest one "
        "is somewhere in every federation.",
        math.log(2),
        "distance {}; usual: {}",
        False,
    ),
    "piece": _Kind(
        "A piece that convinces its own model only",
        "A site cuts the piece out of its pictures of a class that its model goes by most, and puts it into its own "
        "pictures of other classes. The number: how much further that moves the site's model towards the class, in "
        "log-odds, than the other sites' models. What belongs to the class moves all of them; a mark that only "
        "this site has moves its own model alone. Red: more than usual in this federation.",
        2.0,
        "{} more for its own model than for the others'; usual: {}",
        False,
    ),
    "easy": _Kind(
        "Learned too easily: loss after the warm-up",
        "The number: the mean loss on the site's own pictures of a class after the warm-up. Red: less than the site's "
        "other classes, and other sites in this class, make one expect.",
        math.log(2),
        "loss {}; usual: {}",
        False,
    ),
}


STANDING = (means.TRAVEL, means.MARGIN, means.PIECE, means.EASY, means.PROTOTYPE_DISTANCE)


def read_signals(page: Page) -> ShortcutSignals:
    signals = read_standing(run_of(page).facts)
    assert signals is not None, "the section needs signals"
    return signals


def contents(page: Page) -> Contents:
    return contents_of(read_signals(page), run_of(page).sites, run_of(page).study.target.levels)


def contents_of(standing: ShortcutSignals, sites: Sequence[str], levels: Sequence[str]) -> Contents:
    """The maps, and the least usual cells."""
    labels, shown = labels_of(levels, standing), _columns(standing)
    maps = {kind: _map(standing, sites, labels, shown, kind) for kind in KINDS if kind in standing.usual}
    first = ("piece", "margin" if "margin" in maps else "travel")
    return {
        "maps": [maps[kind] for kind in first if kind in maps],
        "folded": [maps[kind] for kind in ("travel", "distance", "easy") if kind in maps and kind not in first],
        "classes": len(labels),
        "left_out": len(labels) - len(shown),
        "least": _least(standing, sites, labels),
        "cells": standing.cells,
        "level": f"{standing.level:g}",
    }


def _columns(standing: ShortcutSignals) -> list[int]:
    """The classes to draw: all, or those of the least usual cells."""
    many = standing.chance.shape[1]
    if many <= SLACK:
        return list(range(many))
    rarest = np.nanmin(np.where(np.isfinite(standing.chance), standing.chance, 2.0), 0)
    return sorted(np.argsort(rarest, kind="stable")[:SHOWN].tolist())


def _values(standing: ShortcutSignals, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[site, class] each: what is written, what is usual of it, and how far the two lie apart, red above 0."""
    usual = standing.usual[kind]
    if kind == "travel":
        return standing.travel, usual - standing.away, standing.home - usual
    if kind in ("piece", "margin"):
        value = standing.piece if kind == "piece" else standing.margin
        return value, usual, value - usual
    value = standing.easy if kind == "easy" else standing.distance
    return value, usual, np.log(value / usual) * (-1 if kind == "easy" else 1)


def _map(
    standing: ShortcutSignals, sites: Sequence[str], labels: Sequence[str], shown: Sequence[int], kind: str
) -> Map:
    """Row: a site; column: a class."""
    how, (values, usual, apart) = KINDS[kind], _values(standing, kind)
    flagged = {(f.site, f.label) for f in standing.found}
    digits = 0 if how.shares else _digits(values[:, shown])

    def cell(row: int, label: int) -> GridCell:
        value, off = float(values[row, label]), float(apart[row, label])
        where = f"{sites[row]}, {labels[label]}: "
        if not math.isfinite(value):
            return GridCell(f"{where}not told", flagged=(row, label) in flagged)
        write = percent if how.shares else partial(number, digits=digits)
        words = where + how.say.format(write(value), write(float(usual[row, label])))
        tone = svg.shade(max(-1.0, min(1.0, off / how.full)) if math.isfinite(off) else 0.0)
        text = number(100 * value, 0) if how.shares else number(value, digits)
        return GridCell(words, tone, text, (row, label) in flagged)

    cells = [[cell(row, label) for label in shown] for row in range(len(sites))]
    out = "; ".join(f"{c.words}; stands out" for row in cells for c in row if c.flagged)
    bold = {labels[f.label] for f in standing.found}
    height = 26.0 if len(sites) <= 20 else 18.0
    drawn = Grid(sites, [labels[c] for c in shown], cells, (22.0, 52.0), height, 30.0, bold=bold)
    title = f"{how.title}: {several(len(sites), 'site')}, {several(len(shown), 'class', 'classes')}"
    return Map(kind.replace(" ", "-"), how.title, how.see, grid([drawn], title, f"{out or 'No cell stands out'}."))


def _digits(values: np.ndarray) -> int:
    """So many decimals that the largest has two digits that count."""
    sizes = np.abs(values[np.isfinite(values)])
    most = float(sizes.max()) if sizes.size else 1.0
    return min(4, max(0, 1 - math.floor(math.log10(most)))) if most > 0 else 1


def _least(standing: ShortcutSignals, sites: Sequence[str], labels: Sequence[str]) -> list[dict[str, str]]:
    """The cells with the smallest chances."""
    flat = np.argsort(standing.chance, axis=None, kind="stable")[: min(LISTED, standing.cells)]
    flagged, out = {(f.site, f.label) for f in standing.found}, []
    for at in zip(*np.unravel_index(flat, standing.chance.shape), strict=True):
        site, label = int(at[0]), int(at[1])
        each = {name: p[site, label] for name, p in standing.chances.items()}
        row = {"site": sites[site], "class": labels[label], "stands out": "yes" if (site, label) in flagged else "no"}
        row |= {kind: _small(each.get(kind, math.nan)) for kind in ("piece", "margin", "travel", "easy", "distance")}
        out.append({**row, "all": _small(float(standing.chance[site, label]) * standing.cells)})
    return out


def _small(chance: float) -> str:
    if not math.isfinite(chance):
        return "not told"
    return "< 0.0001" if chance < 0.0001 else number(min(chance, 1.0), 4 if chance < 0.01 else 2)


SECTION = Section(contents, has_fact(*STANDING), STANDING, heat=True)

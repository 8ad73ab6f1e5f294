"""The figure of inDISCO's paper (8 and 22) beside our answer: how far local prototypes lie from the shared ones, scaled
from the least to the largest of all cells. What the rule of analysis/shortcuts/detector.py flags is outlined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitrail.analysis.shortcuts.detector import ShortcutSignals, least_to_largest, too_few
from vitrail.analysis.shortcuts.outliers import Floats
from vitrail.analysis.shortcuts.wording import labels_of
from vitrail.core import facts as means
from vitrail.core.text import number, several
from vitrail.report.charts import svg
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.sections.pictures.shortcut_maps import SHOWN, SLACK, read_signals
from vitrail.report.sections.section import Contents, Section, has_fact, run_of

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

FEW = 2  # cells, below which there is nothing to scale


def contents(page: Page) -> Contents:
    return contents_of(read_signals(page), run_of(page).sites, run_of(page).study.target.levels)


def contents_of(signals: ShortcutSignals, sites: Sequence[str], levels: Sequence[str]) -> Contents:
    labels = labels_of(levels, signals)
    if np.isfinite(signals.distance).sum() < FEW:
        return {"drawing": None}
    scaled = least_to_largest(signals.distance)
    most = np.nan_to_num(scaled, nan=-1.0)
    site, label = (int(i) for i in np.unravel_index(int(most.argmax()), most.shape))
    columns, flagged = list(range(len(labels))), [(f.site, f.label) for f in signals.found]
    if len(columns) > SLACK:
        named = {c for _, c in flagged}
        columns = sorted(sorted(columns, key=lambda c: (c not in named, -most[:, c].max()))[:SHOWN])
    return {
        "drawing": _drawing(scaled, flagged, sites, labels, columns),
        "largest": f"{sites[site]}, class {labels[label]}",
        "ours": [f"{sites[s]}, class {labels[c]}" for s, c in flagged],
        "same": (site, label) in flagged,
        "judged": not too_few(signals) and bool(signals.cells),
        "classes": len(labels),
        "left_out": len(labels) - len(columns),
    }


def _drawing(
    scaled: Floats,
    flagged: Sequence[tuple[int, int]],
    sites: Sequence[str],
    labels: Sequence[str],
    columns: Sequence[int],
) -> object:
    def cell(row: int, label: int) -> GridCell:
        value, where = float(scaled[row, label]), f"{sites[row]}, {labels[label]}: "
        if not math.isfinite(value):
            return GridCell(f"{where}not told", flagged=(row, label) in flagged)
        return GridCell(f"{where}{number(value, 2)}", svg.shade(value), number(value, 2), (row, label) in flagged)

    cells = [[cell(row, label) for label in columns] for row in range(len(sites))]
    bold = {labels[c] for _, c in flagged}
    height = 26.0 if len(sites) <= 20 else 18.0
    drawn = Grid(sites, [labels[c] for c in columns], cells, (30.0, 52.0), height, 30.0, bold=bold)
    title = (
        f"Distance of local from shared prototypes, 0 to 1: {several(len(sites), 'site')}, "
        f"{several(len(columns), 'class', 'classes')}"
    )
    out = "; ".join(f"{c.words}; stands out" for row in cells for c in row if c.flagged)
    return grid([drawn], title, f"{out or 'No cell stands out by the rule of this page'}.")


SECTION = Section(contents, has_fact(means.PROTOTYPE_DISTANCE), (means.PROTOTYPE_DISTANCE,), heat=True)

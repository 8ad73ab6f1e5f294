"""Sites x columns of a screening: what is likely wrong in red, what differs and may be real in blue, the rest grey.

Sites and columns with the gravest findings come first. A press on a cell with a finding leads to its sentence. What is
likely wrong is outlined and has a dot, and a sign before the name of each site says how it stands, so that nothing
hangs on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from vitrail.core.text import several
from vitrail.report.charts.grid import Grid, GridCell, Sign, grid

STEPS = (2.0, 4.0)  # times the bar: where a finding gets darker
WRONG, MAYBE, FITS, ABSENT = ("h9", "h10", "h11"), ("h4", "h3", "h2"), "h6", "none"
LOW, TALL = 20.0, 28.0  # pixels of a row, of many sites and of few
FEW_SITES = 12
ROOM = 110.0  # pixels that the edges of the boxes around take, and the last name of a column
MOST = 60  # cells that are named for who listens


class SiteStanding(NamedTuple):
    """How a site stands, in words, with the sign and the class of page.css."""

    words: str
    sign: Sign


STANDINGS = {
    "wrong": SiteStanding("needs attention", Sign("▲", "stands wrong")),
    "maybe": SiteStanding("differs, and may be real", Sign("○", "stands maybe")),
    "fits": SiteStanding("fits the others", Sign("✓", "stands fits")),
    "silent": SiteStanding("not judged", Sign("–", "stands silent")),
}


class MapCell(NamedTuple):
    """A cell with a finding."""

    words: str  # what was found, in a few words
    wrong: bool
    strength: float  # times the bar
    link: str  # to its sentence
    absent: bool = False  # the column is not measured there


class ScreeningMap(NamedTuple):
    """Rows and columns in the order in which they are drawn."""

    standings: Mapping[str, str]  # site -> of STANDINGS
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], MapCell]

    @property
    def title(self) -> str:
        sizes = several(len(self.standings), "site"), several(len(self.columns), "column")
        return f"Whose data does not fit: {' and '.join(sizes)}"

    @property
    def key(self) -> list[tuple[str, Sequence[str]]]:
        """What the colours mean: of those that are drawn."""
        used = {shade_of(cell) for cell in self.cells.values()}
        every = (("likely wrong", WRONG), ("differs, and may be real", MAYBE), ("not measured", (ABSENT,)))
        return [*((words, shades) for words, shades in every if used & {*shades}), ("fits", (FITS,))]


def shade_of(cell: MapCell | None) -> str:
    """The class of its colour."""
    if cell is None or cell.absent:
        return FITS if cell is None else ABSENT
    return (WRONG if cell.wrong else MAYBE)[sum(cell.strength > step for step in STEPS)]


def screening_map(shown: ScreeningMap) -> Markup:
    sites = list(shown.standings)
    cells = [[_cell(shown.cells.get((site, column)), site, column) for column in shown.columns] for site in sites]
    silent = {
        site: GridCell(f"{site}: not judged", text="not judged") for site in sites if shown.standings[site] == "silent"
    }
    drawn = Grid(
        sites,
        shown.columns,
        cells,
        (16.0, 44.0),
        TALL if len(sites) <= FEW_SITES else LOW,
        room=ROOM,
        silent=silent,
        bold={column for (_, column), cell in shown.cells.items() if cell.wrong},
        above=True,
        signs={site: STANDINGS[standing].sign for site, standing in shown.standings.items()},
    )
    return grid([drawn], shown.title, describe(shown))


def _cell(cell: MapCell | None, site: str, column: str) -> GridCell:
    if cell is None:
        return GridCell("", FITS)
    return GridCell(f"{site}, {column}: {cell.words}", shade_of(cell), flagged=cell.wrong, link=cell.link)


def describe(shown: ScreeningMap) -> str:
    """What there is to see, for those who listen."""
    wrong = [f"{site}, {column}" for (site, column), cell in shown.cells.items() if cell.wrong]
    rest = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
    maybe, silent = len(shown.cells) - len(wrong), [s for s, kind in shown.standings.items() if kind == "silent"]
    text = f"Likely wrong: {'; '.join(wrong[:MOST])}{rest}." if wrong else "No cell is likely wrong."
    text += f" {several(maybe, 'cell')} {'differs' if maybe == 1 else 'differ'}, and may be real." if maybe else ""
    return text + (f" Not judged: {', '.join(silent)}." if silent else "")

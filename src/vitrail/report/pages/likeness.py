"""The page of `vitrail alike`: who is like whom by four measures, and how far they agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from markupsafe import Markup

from vitrail.core.text import number, signed
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.charts.svg import shade
from vitrail.report.pages.frame import fill, write_page_folder
from vitrail.report.text import Standing
from vitrail.studies.likeness import MEASURES, Likeness

PAGE = "alike.html"
STANDING = 8  # users of the first screen
CELL = (46.0, 84.0)  # pixels: widths of a cell, at least and at most


def write_likeness(result: Likeness, folder: Path) -> Path:
    """Page and tables; only an earlier one of ours is written over."""
    return write_page_folder(folder, PAGE, "alike", lambda: result.save(folder), render_likeness(result))


def render_likeness(result: Likeness) -> str:
    standings = [_standing(result, user) for user in result.sites]
    measured = [m for m in MEASURES if result.table[m].notna().any()]
    agreement = result.agreement().loc[measured, measured]
    return fill(
        "likeness.html",
        heat=True,
        result=result,
        figures=[(m, MEASURES[m], _figure(result, m)) for m in measured],
        standings=standings[:STANDING],
        more_standings=standings[STANDING:],
        measures=measured,
        agreement=list(zip(measured, agreement.to_numpy().tolist(), strict=True)),
    )


def _standing(result: Likeness, user: str) -> Standing:
    """Whom most measures call the most alike."""
    named = result.first(user)
    site, votes = Counter(named.values()).most_common(1)[0]
    words = f"{', '.join(f'{measure}: {name}' for measure, name in named.items())}."
    if votes == len(named):
        return Standing(user, f"most like {site}", "gain", f"All {votes} measures agree.")
    status = f"{site}, by {votes} of {len(named)}" if votes > 1 else "the measures disagree"
    return Standing(user, status, "unsure", words)


def _figure(result: Likeness, measure: str) -> Markup:
    """User x site: the bluer, the more alike among the sites of that user."""
    matrix = result.matrix(measure)
    places = dict(zip(result.sites, matrix.rank(axis=1, ascending=False).to_numpy().tolist(), strict=True))
    numbers = dict(zip(result.sites, matrix.to_numpy().tolist(), strict=True))
    others = max(len(result.sites) - 1, 2)

    def cell(user: str, site: str) -> GridCell:
        at = result.sites.index(site)
        value, place = numbers[user][at], places[user][at]
        if user == site:
            return GridCell(f"{user}: itself", "none", "itself")
        if value != value:
            return GridCell(f"{user}, {site}: not known", "none", "not known")
        return GridCell(f"{user}, {site}: {number(value)}", shade(2 * (place - 1) / (others - 1) - 1), signed(value, 2))

    cells = [[cell(user, site) for site in result.sites] for user in result.sites]
    text = "; ".join(one.words for row in cells for one in row)
    return grid([Grid(result.sites, result.sites, cells, CELL, 30.0)], f"Likeness by {measure}", f"{text}.")

"""Tables that a person gives in Python: one frame for each site, or one of all sites with a column that names them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.readers.tables import name_rows, pick_rows
from vitrail.data.schema import canon

Sites = Mapping[str, pd.DataFrame] | pd.DataFrame


def as_sites(given: Sites, site: str = "", agreed: str = "") -> Mapping[str, pd.DataFrame]:
    """One frame for each site. `site`: the column of one frame that names them, else the study's (`agreed`)."""
    if isinstance(given, pd.DataFrame):
        return _part(given, site or agreed)
    if not isinstance(given, Mapping):
        what = f"expected a DataFrame for each site, by name, or one DataFrame of all; got {type(given).__name__}."
        raise _refusal(Problem("sites", what, 'Write {"north": frame, ...}, or one frame and site="COLUMN".'))
    if site:
        what = f"site = {site!r} names a column of one frame, but there is already one frame for each site."
        raise _refusal(Problem("site", what, "Leave it out."))
    wrong = [
        Problem(str(name), f"expected a DataFrame, got {type(frame).__name__}.", "Read the file first.")
        for name, frame in given.items()
        if not isinstance(frame, pd.DataFrame)
    ]
    if wrong:
        raise _refusal(*wrong)
    return given


def _part(frame: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    names = [str(name).strip() for name in frame.columns]
    if not column:
        what = "expected the name of the column that holds each row's site."
        raise _refusal(Problem("site", what, f'Write site="COLUMN"; the columns are {_list(names)}.'))
    if names.count(column) != 1:
        many = "more than one" if column in names else "none"
        what = f"expected one column {column!r} that names the site, but there is {many}."
        raise _refusal(Problem("site", what, "Rename one." if column in names else nearest(column, names)))
    whose = frame.iloc[:, names.index(column)]
    empty = whose.isna()
    if empty.any():
        where = f"column {column}, {name_rows(pick_rows(frame.index, empty))}"
        raise _refusal(Problem(where, f"expected a site in every row, but {empty.sum()} have none.", "Fill them in."))
    return {str(name): rows for name, rows in frame.groupby(whose.map(canon), sort=False)}


def _list(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def _refusal(*problems: Problem) -> VitrailError:
    return VitrailError("cannot tell the sites apart", list(problems))

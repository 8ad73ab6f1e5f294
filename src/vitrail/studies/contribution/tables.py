"""The tables that a run's folder does not hold: the user's own, and all sites' where they are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.source import ENDING
from vitrail.data.readers.tables import part_sites, read_table
from vitrail.runs.result import Run
from vitrail.studies.contribution.coalition_loss import no_such_user


def user_table(
    data: Path, run: Run, user: str, beside: Sequence[Problem] = (), title: str = "the contributions cannot be computed"
) -> pd.DataFrame:
    """The user's own table or pictures: the file itself, or what has its name in a folder. All that is wrong is told at
    once: the user's name first, then what was found `beside`, then the data."""
    problems = [] if user in run.sites else [no_such_user(user, run.sites)]
    ours = _holds_sites(data, run)
    try:
        if not problems or not ours:  # what another name would find among the sites says nothing
            frame = read_table(_own(data, run, user, ours), run.study)
    except VitrailError as error:
        if not problems and not beside:
            raise
        beside = [*beside, *error.problems]
    if problems := [*problems, *beside]:
        raise VitrailError(title, problems)
    if run.study.site_column and run.study.site_column in frame.columns:
        frame = frame[frame[run.study.site_column].map(str) == user]
    return frame


def tables_here(data: Path, run: Run) -> dict[str, pd.DataFrame]:
    """Those of the run's sites that are found here, by name; a file of one site is nobody else's."""
    column = run.study.site_column
    if data.is_dir():
        places = sorted(data.iterdir()) if _holds_sites(data, run) else []
        files_of = {site: [p for p in places if _named(p, run) == site] for site in run.sites}
        return {site: read_table(here[0], run.study) for site, here in files_of.items() if len(here) == 1}
    frame = read_table(data, run.study) if column and not run.study.images else pd.DataFrame()
    sites = part_sites(data, frame, column) if column in frame.columns else {}
    return {site: rows for site, rows in sites.items() if site in run.sites}


def _holds_sites(data: Path, run: Run) -> bool:
    others = set(run.sites) - set(run.study.target.levels)  # a folder may be called as a class is
    return data.is_dir() and any(_named(place, run) in others for place in data.iterdir())


def _own(data: Path, run: Run, user: str, ours: bool) -> Path:
    """`ours`: it is a folder that holds what sites of the run are called."""
    if not data.is_dir() or (run.study.images and not ours):  # a folder of pictures may be the user's own
        return data
    own = [place for place in sorted(data.iterdir()) if _named(place, run) == user]
    if not own or (len(own) > 1 and not run.study.images):
        kind, title = "folder or file" if run.study.images else "file", f"cannot read the user's {run.study.row_word}s"
        what = f"expected one {kind} for site {user!r} here, got {len(own)}."
        raise VitrailError(title, [Problem(str(data), what, "Give the file itself.")])
    return own[0]


def _named(place: Path, run: Run) -> str:
    """The site that this would be of; none, where no site's rows are kept in such a place."""
    if run.study.images:
        return place.name if place.is_dir() else place.stem
    return ENDING.sub("", place.name) if ENDING.search(place.name) else ""

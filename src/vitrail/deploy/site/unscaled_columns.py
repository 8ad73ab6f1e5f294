"""Columns without a common scale: an honest report can hold rows of a site almost as they are.

A unit that sees a column of thousands saturates for all rows but a few, and what it reports is then made of those few.
deploy/site/safeguards.py cannot tell such a report from one that crafted weights made, and would stop an honest study
in its first rounds. So a study that standardises nothing is looked at before anybody agrees: the site works out its
first report, which depends on the agreed start and its own rows alone. Under masks nobody reads that report, and the
site does not look for rows in it; the weights it is told are checked all the same.
"""

from __future__ import annotations

import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import flatten, map_tensors
from vitrail.core.text import several
from vitrail.data.encoding import numeric
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.safeguards import rows_disclosed
from vitrail.storage.temporary_folders import TemporaryFolder
from vitrail.study.model import Study

MOST_FIRST = 1  # rows in a first report: with two, one of 14 sites of raw heart and GUSTO stopped in round 2
HINT = (
    'Nothing was sent. Ask the coordinator for standardise = "local" or "global" in the study, or '
    'for sum = "masked" under [protect], with which nobody reads a single report. Or bring the '
    "columns to a common scale, here and at the other sites."
)


def unscaled(study: Study) -> bool:
    """Whether nothing brings the columns of a table to a common scale."""
    return study.standardise == "none" and not study.images and bool(numeric(study))


def looks_at_reports(agreed: Agreement, s: int, place: int) -> bool:
    """Whether the site looks for its rows in what it would report to that exchange."""
    return not (unscaled(agreed.study) and agreed.masked(s, place))


def check_first_report(agreed: Agreement, site: str, frame: pd.DataFrame) -> None:
    """Raises, before anything leaves, where an honest coordinator could read rows in this site's first report."""
    place = agreed.stages[0].stage.turns(0)[0]
    if not unscaled(agreed.study) or not looks_at_reports(agreed, 0, place):
        return
    if (disclosed := rows_in_first_report(agreed, site, frame)) > MOST_FIRST:
        what = (
            f"{several(disclosed, 'row')} of this site could be read almost exactly from its first report, "
            "and more from later ones until the site stops, because the study brings "
            "its columns to no common scale."
        )
        raise VitrailError("this site would stop the run", [Problem("standardise", what, HINT)])


def rows_in_first_report(agreed: Agreement, site: str, frame: pd.DataFrame) -> int:
    """Worked out as in a run, in a folder that is deleted."""
    from vitrail.deploy.site.site import Site

    with TemporaryFolder() as home:
        engine = Site(site, frame, agreed, home.path).rehearsal()
        stage = agreed.stages[0]
        place = stage.stage.turns(0)[0]
        engine.sampler.set(0, 0, place)
        state, down = (map_tensors(lambda t: t[:1].clone(), tree) for tree in (stage.state, stage.turns[place].down))
        given = stage.turns[place].exchange, agreed.contracts[0][place], state, down, [0]
        (reported,) = engine.answers(*given, engine.task_at(0, 0), engine.rule(0, 0))
        return len(rows_disclosed({k: v[0] for k, v in flatten(reported.held)}, engine.sites.x))

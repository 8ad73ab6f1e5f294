"""Groups of sites that the coordinator found: who is in which, since when, and what is told of why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from vitrail.analysis.clusters import ClusterChange, ClusterCourse, read_groups
from vitrail.core import facts as means
from vitrail.core.text import several
from vitrail.report.charts import svg
from vitrail.report.charts.grid import Span, TimelineRow, timeline
from vitrail.report.sections.learning.matrix import matrix
from vitrail.report.sections.learning.wording import TrustWording
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import listed, name

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

LISTED = 8  # changes that are told one by one
ALIKE = TrustWording(
    "How alike the updates of {} are",
    "{} and {}: {}",
    "{}: itself",
    "{} and {} did not both answer",
    "Cosines between the updates of {}",
)


def contents(page: Page) -> Contents:
    course = read_groups(run_of(page).sites, run_of(page).facts)
    assert course is not None, "the section needs groups"
    return contents_of(course)


def contents_of(course: ClusterCourse) -> Contents:
    order = sorted(range(len(course.sites)), key=lambda i: (course.group[-1][i], i))
    alike, at = course.alike[course.compared], course.compared
    changes = course.changes()
    return {
        "sentences": [*_members(course), *_changes(course, changes)],
        "figure": svg.twice(lambda width: _lanes(course, order, width)) if changes or course.many > 1 else None,
        "lengths": _lengths(course),
        "alike": matrix(course.sites, alike, order, [], ALIKE) if np.isfinite(alike).any() else None,
        "round": int(course.rounds[at]),
        "together": at < len(course.rounds) - 1,
    }


def _members(course: ClusterCourse) -> list[Markup]:
    """Who is with whom in the end."""
    first = int(course.rounds[0])
    if course.many == 1 and course.since(int(course.group[-1][0])) == first:
        return [Markup("All {} are in one group, from the first round to the last.").format(_sites(course))]
    out = []
    for group, who in course.members().items():
        since = course.since(group)
        when = "from the start" if since == first else f"since round {since}"
        alone = ", alone" if len(who) == 1 else ""
        names = listed([name(course.sites[i]) for i in who], 12)
        out.append(Markup("Group {}, {}{}: {}.").format(group + 1, when, alone, names))
    return out


def _changes(course: ClusterCourse, changes: Sequence[ClusterChange]) -> list[Markup]:
    if len(changes) > LISTED:
        last = changes[-1].round
        words = f"Sites went from one group to another {len(changes)} times, for the last time in round {last}."
        return [Markup(words)]
    out = []
    for change in changes:
        who = listed([name(course.sites[i]) for i in change.sites], 12)
        words = "In round {0} group {2} was split, and {1} became group {3}" if change.split else ""
        words = Markup(words or "In round {} {} went from group {} to group {}")
        sentence = words.format(change.round, who, change.before + 1, change.after + 1)
        if math.isfinite(change.moved):
            why = Markup(": the updates of its sites were up to {} long, their mean {}")
            sentence += why.format(_long(change.longest), _long(change.moved))
        out.append(sentence + ".")
    return out


def _lengths(course: ClusterCourse) -> Markup | None:
    """How far each group's sites agree at the end."""
    lengths = [
        Markup("group {}: mean {}, longest {}").format(g + 1, _long(course.moved[-1][who[0]]), _long(most))
        for g, who in course.members().items()
        if math.isfinite(most := course.longest[-1][who[0]])
    ]
    return Markup("; ").join(lengths) if lengths else None


def _long(value: float) -> str:
    """Lengths have no scale of their own."""
    return f"{value:.2g}"


def _sites(course: ClusterCourse) -> str:
    return several(len(course.sites), "site")


def _lanes(course: ClusterCourse, order: Sequence[int], width: int) -> Markup:
    """A lane for each site, coloured by its group over the rounds."""
    rows = []
    for site in order:
        lane, who = course.group[:, site], course.sites[site]
        starts = [0, *(np.flatnonzero(np.diff(lane)) + 1).tolist(), len(lane)]
        spans = []
        for begin, end in pairwise(starts):
            first, last = int(course.rounds[begin]), int(course.rounds[end - 1])
            words = f"{who}: group {lane[begin] + 1}, rounds {first} to {last}"
            spans.append(Span(first, last, words, f"lane {svg.colour(int(lane[begin]))}"))
        rows.append(TimelineRow(who, spans, f"group {lane[-1] + 1}"))
    ends = "; ".join(f"{row.name} in {row.end}" for row in rows)
    return timeline(rows, width, f"Groups of {_sites(course)} over the rounds", f"In the end {ends}.")


SECTION = Section(
    contents,
    lambda page: page.run is not None and read_groups(page.run.sites, page.run.facts) is not None,
    (means.ROUND, means.GROUP, means.GROUP_SPLIT, means.GROUP_MOVED, means.GROUP_LONGEST, means.ALIKE),
    heat=True,
)

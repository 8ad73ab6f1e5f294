"""Groups of sites that the coordinator found: who is in which, since when, and what is told of why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.analysis.clusters import ClusterChange, ClusterCourse
from vitrail.core.text import number, several, shorten_all
from vitrail.report.charts import svg
from vitrail.report.sections.learning.matrix import matrix
from vitrail.report.sections.learning.wording import TrustWording
from vitrail.report.text import listed, name

LISTED = 8  # changes that are told one by one
ALIKE = TrustWording(
    "How alike the updates of {} are",
    "{} and {}: {}",
    "{}: itself",
    "{} and {} did not both answer",
    "Cosines between the updates of {}",
)


def contents(found: ClusterCourse) -> dict[str, Any]:
    """What the template is given."""
    order = sorted(range(len(found.sites)), key=lambda i: (found.group[-1][i], i))
    alike, at = found.alike[found.compared], found.compared
    changes = found.changes()
    return {
        "sentences": [*_members(found), *_changes(found, changes)],
        "figure": svg.twice(lambda width: _lanes(found, order, width)) if changes or found.many > 1 else None,
        "lengths": _lengths(found),
        "alike": matrix(found.sites, alike, order, [], ALIKE) if np.isfinite(alike).any() else None,
        "round": int(found.rounds[at]),
        "together": at < len(found.rounds) - 1,
    }


def _members(found: ClusterCourse) -> list[Markup]:
    """Who is with whom in the end."""
    first = int(found.rounds[0])
    if found.many == 1 and found.since(int(found.group[-1][0])) == first:
        return [Markup("All {} are in one group, from the first round to the last.").format(_sites(found))]
    out = []
    for group, who in found.members().items():
        since = found.since(group)
        when = "from the start" if since == first else f"since round {since}"
        alone = ", alone" if len(who) == 1 else ""
        names = listed([name(found.sites[i]) for i in who], 12)
        out.append(Markup("Group {}, {}{}: {}.").format(group + 1, when, alone, names))
    return out


def _changes(found: ClusterCourse, changes: Sequence[ClusterChange]) -> list[Markup]:
    if len(changes) > LISTED:
        last = changes[-1].round
        words = f"Sites went from one group to another {len(changes)} times, for the last time in round {last}."
        return [Markup(words)]
    out = []
    for change in changes:
        who = listed([name(found.sites[i]) for i in change.sites], 12)
        words = "In round {0} group {2} was split, and {1} became group {3}" if change.split else ""
        words = Markup(words or "In round {} {} went from group {} to group {}")
        said = words.format(change.round, who, change.before + 1, change.after + 1)
        if math.isfinite(change.moved):
            why = Markup(": the updates of its sites were up to {} long, their mean {}")
            said += why.format(_long(change.longest), _long(change.moved))
        out.append(said + ".")
    return out


def _lengths(found: ClusterCourse) -> Markup | None:
    """How far each group's sites agree at the end."""
    told = [
        Markup("group {}: mean {}, longest {}").format(g + 1, _long(found.moved[-1][who[0]]), _long(most))
        for g, who in found.members().items()
        if math.isfinite(most := found.longest[-1][who[0]])
    ]
    return Markup("; ").join(told) if told else None


def _long(value: float) -> str:
    """Lengths have no scale of their own."""
    return f"{value:.2g}"


def _sites(found: ClusterCourse) -> str:
    return several(len(found.sites), "site")


def _lanes(found: ClusterCourse, order: Sequence[int], width: int) -> Markup:
    """A lane for each site, coloured by its group over the rounds."""
    narrow = svg.is_narrow(width)
    short = shorten_all(found.sites, 14 if narrow else 26)
    left, right, top = svg.names_room(short.values()), width - 62.0, 6.0
    high = 24.0 if len(order) <= 24 else 16.0
    bottom = top + high * len(order)
    first, last = float(found.rounds[0]), float(found.rounds[-1])
    x = svg.AxisScale(first - 0.5, last + 0.5, left, right)
    marks = [t for t in svg.ticks(first, last, 4 if narrow else 8) if t == int(t)] if last > first else [first]
    parts = svg.axis_below(x, marks, top, bottom, "round", number)
    for row, site in enumerate(order):
        y, lane = top + high * row, found.group[:, site]
        parts.append(svg.text(left - 8, y + high / 2 + 4, short[found.sites[site]], "name", "end", found.sites[site]))
        starts = [0, *(np.flatnonzero(np.diff(lane)) + 1).tolist(), len(lane)]
        for begin, end in pairwise(starts):
            x1, x2 = x(found.rounds[begin] - 0.5), x(found.rounds[end - 1] + 0.5)
            words = f"{found.sites[site]}: group {lane[begin] + 1}"
            words += f", rounds {found.rounds[begin]} to {found.rounds[end - 1]}"
            box = {"x": x1, "y": y + 2, "width": max(x2 - x1, 1.0), "height": high - 4}
            parts.append(svg.tag("rect", svg.tip(words), **box, class_=f"lane {svg.colour(int(lane[begin]))}"))
        parts.append(svg.text(right + 6, y + high / 2 + 4, f"group {lane[-1] + 1}", "label"))
    ends = "; ".join(f"{found.sites[i]} in group {found.group[-1][i] + 1}" for i in order)
    return svg.plot(width, bottom + 38, f"Groups of {_sites(found)} over the rounds", f"In the end {ends}.", parts)

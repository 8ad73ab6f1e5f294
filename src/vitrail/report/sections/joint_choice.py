"""What all sites together chose: how many groups, constants of one's own, how much of one's own model; and what every
alternative would have cost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.core import facts as means
from vitrail.core.text import number, several, signed
from vitrail.report.charts import svg
from vitrail.report.text import listed, name
from vitrail.runs.result import Run

MANY = {1: "one group", 2: "two groups", 3: "three groups"}


class JointChoice(NamedTuple):
    sites: list[str]
    groups: int
    constants: bool
    own: float  # the share of one's own model
    tried: list[float]
    costs: np.ndarray  # [groups, constants, own share]
    group: dict[str, int]  # of the sites that show it
    losses: dict[str, tuple[float, float]]  # likewise: by the choice, and alone

    @property
    def cost(self) -> float:
        return float(self.costs[self.groups - 1, int(self.constants), self.tried.index(self.own)])


def read_choice(run: Run) -> JointChoice | None:
    choice, costs, tried = (run.fact(what) for what in (means.CHOICE, means.COSTS, means.TRIED))
    if choice is None or costs is None or tried is None:
        return None
    many, constants, own = choice[-1].tolist()
    group, by, alone, agreed = (
        run.fact(what) for what in (means.GROUP, means.LEFT_OUT, means.ALONE_LEFT_OUT, means.AGREED)
    )
    shows = [] if group is None or agreed is None or group.dim() != 1 else agreed.tolist()
    who = [i for i, said in enumerate(shows) if said]
    groups = {run.sites[i]: int(group[i]) for i in who} if group is not None else {}
    losses = (
        {run.sites[i]: (float(by[i]), float(alone[i])) for i in who} if by is not None and alone is not None else {}
    )
    return JointChoice(
        run.sites, int(many), bool(constants), own, tried[-1].tolist(), costs[-1].double().numpy(), groups, losses
    )


def many_words(groups: int) -> str:
    return MANY.get(groups, f"{groups} groups")


def share(part: float) -> str:
    return f"{100 * part:.0f} %"


def contents(found: JointChoice) -> dict[str, Any]:
    best = found.costs.min(-1)
    rows = [
        {
            "words": _alternative(k + 1, bool(b)),
            "own": share(found.tried[int(found.costs[k, b].argmin())]),
            "cost": number(float(best[k, b]), 4),
            "more": signed(float(best[k, b]) - found.cost, 4),
            "chosen": (k + 1, bool(b)) == (found.groups, found.constants),
        }
        for k, b in np.ndindex(best.shape)
    ]
    ends = {"everybody with one model, nothing of one's own": (0.0, 0), "everybody alone": (1.0, -1)}
    for words, (own, at) in ends.items():
        if own in found.tried:
            cost = float(found.costs[0, 0, at])
            same = (found.groups, found.constants, found.own) == (1, False, own)
            told = {"cost": number(cost, 4), "more": signed(cost - found.cost, 4)}
            rows.append({"words": words, "own": share(own), **told, "chosen": same})
    return {
        "sentences": [_chosen(found), *_groups(found)],
        "rows": rows,
        "figure": svg.twice(lambda width: _lines(found, width)) if len(found.tried) > 1 else "",
        "sites": [
            {"site": s, "group": found.group[s], "loss": by, "alone": alone, "gain": signed(alone - by, 4)}
            for s, (by, alone) in sorted(found.losses.items(), key=lambda item: (found.group[item[0]], item[0]))
            if math.isfinite(by)
        ],
    }


def _alternative(groups: int, constants: bool) -> str:
    return many_words(groups) + (", constants of one's own" if constants else "")


def _chosen(found: JointChoice) -> Markup:
    together = (
        "one model for all sites" if found.groups == 1 else f"{many_words(found.groups)} of sites, a model for each"
    )
    if found.own == 1:
        how = "every site predicts by its own model alone, so that nobody learns from anybody"
    else:
        whose = "the model of all" if found.groups == 1 else "the model of its group"
        parts = f"{share(found.own)} its own model, {share(1 - found.own)} {whose}"
        how = (
            f"a site's scores are {parts}" if found.own else f"a site predicts by {whose}, and nothing of its own model"
        )
        how += ", to which it adds constants of its own" if found.constants else ""
    told = "All sites together chose {}: {}. This had the lowest loss on cases that were left out, {} per case."
    return Markup(told).format(name(together) if found.own < 1 else name("to stay alone"), how, number(found.cost, 4))


def _groups(found: JointChoice) -> list[Markup]:
    silent = [s for s in found.sites if s not in found.group]
    out = []
    if found.groups > 1 and found.own < 1:
        for g in range(1, found.groups + 1):
            who = [name(s) for s in found.sites if found.group.get(s) == g]
            if who:
                out.append(Markup("Group {}: {}.").format(g, listed(who, 12)))
    if silent:
        out.append(Markup("Not shown, as they wish: {}.").format(listed([name(s) for s in silent], 12)))
    worse = [name(s) for s, (by, alone) in found.losses.items() if by > alone]
    if worse and found.own < 1:
        many = several(len(found.losses), "site")
        told = "Of {} that show it, {} would have done better alone on the cases left out: {}."
        out.append(Markup(told).format(many, len(worse), listed(worse, 12)))
    return out


def _lines(found: JointChoice, width: int) -> Markup:
    """A line for each number of groups, with constants and without."""
    known = [(k, b) for k, b in np.ndindex(found.costs.shape[:2])]
    lines = [
        AlternativeCosts(
            _alternative(k + 1, bool(b)),
            found.costs[k, b],
            f"{svg.colour(k)}{' again' if b else ''}",
            (k + 1, bool(b)) == (found.groups, found.constants),
        )
        for k, b in known
    ]
    return cost_lines(width, found.tried, lines, (found.own, found.cost), "the model of the group")


class AlternativeCosts(NamedTuple):
    """What an alternative costs, for each share of one's own model."""

    words: str
    costs: np.ndarray
    kind: str
    chosen: bool


def cost_lines(
    width: int, tried: list[float], lines: list[AlternativeCosts], choice: tuple[float, float], shared: str
) -> Markup:
    """Loss per row over the share of what is `shared`, from alone to that only; a dot at the choice."""
    narrow = svg.is_narrow(width)
    low, high = svg.domain([float(c) for line in lines for c in line.costs if np.isfinite(c)])
    left, right = 46.0, width - (8.0 if narrow else 230.0)
    top, bottom = svg.ABOVE, svg.ABOVE + 220.0
    x, y = svg.AxisScale(0.0, 1.0, left, right), svg.AxisScale(low, high, bottom, top)
    parts = [svg.text(0, top - 10, "loss per case on cases left out", "axis")]
    parts += svg.axis_left(x, y, svg.written(svg.ticks(low, high, 5)))
    for part in (0.0, 0.5, 1.0):
        parts.append(svg.text(x(part), bottom + 16, share(part), "tick", "middle"))
    parts.append(svg.text(x.middle, bottom + 33, f"share of {shared} (the rest: one's own)", "axis", "middle"))
    known = [line for line in lines if np.isfinite(line.costs).all()]
    places = svg.place_labels([y(line.costs[0]) for line in known], 14, top, bottom)
    said = []
    for line, place in zip(known, places, strict=True):
        points = [(x(1 - a), y(v)) for a, v in zip(tried, line.costs, strict=True)]
        said.append(f"{line.words}: lowest {number(float(line.costs.min()), 4)}")
        drawn = [svg.tip(said[-1]), svg.path(points, kind="line")]
        if not narrow:
            leader = [points[0], (right + 8, place), (right + 14, place)]
            drawn += [svg.path(leader, kind="leader"), svg.text(right + 17, place + 4, line.words, "label")]
        parts.append(svg.tag("g", *drawn, class_=f"series {'strong ' if line.chosen else ''}{line.kind}"))
    own, cost = choice
    mark = svg.tag("circle", svg.tip(f"the choice: {number(cost, 4)}"), cx=x(1 - own), cy=y(cost), r=6, class_="dot")
    parts.append(svg.tag("g", mark, class_="verdict gain"))
    return svg.plot(width, bottom + 40, "What each alternative would have cost", "; ".join(said) + ".", parts)

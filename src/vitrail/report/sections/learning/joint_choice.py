"""What all sites together chose: how many groups, constants of one's own, how much of one's own model; and what every
alternative would have cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.core import facts as means
from vitrail.core.text import number, several, signed
from vitrail.report.charts import axes, svg
from vitrail.report.charts.curves import Curves, Panel, Series, curves
from vitrail.report.sections.section import Contents, Section, has_fact, run_of
from vitrail.report.text import listed, name
from vitrail.runs.result import Run

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

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
    who = [i for i, agrees in enumerate(shows) if agrees]
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


def contents(page: Page) -> Contents:
    choice = read_choice(run_of(page))
    assert choice is not None, "the section needs a choice"
    return contents_of(choice)


def contents_of(choice: JointChoice) -> Contents:
    best = choice.costs.min(-1)
    rows = [
        {
            "words": _alternative(k + 1, bool(b)),
            "own": share(choice.tried[int(choice.costs[k, b].argmin())]),
            "cost": number(float(best[k, b]), 4),
            "more": signed(float(best[k, b]) - choice.cost, 4),
            "chosen": (k + 1, bool(b)) == (choice.groups, choice.constants),
        }
        for k, b in np.ndindex(best.shape)
    ]
    ends = {"everybody with one model, nothing of one's own": (0.0, 0), "everybody alone": (1.0, -1)}
    for words, (own, at) in ends.items():
        if own in choice.tried:
            cost = float(choice.costs[0, 0, at])
            same = (choice.groups, choice.constants, choice.own) == (1, False, own)
            losses = {"cost": number(cost, 4), "more": signed(cost - choice.cost, 4)}
            rows.append({"words": words, "own": share(own), **losses, "chosen": same})
    return {
        "sentences": [_chosen(choice), *_groups(choice)],
        "rows": rows,
        "figure": svg.twice(lambda width: _figure(choice, width)) if len(choice.tried) > 1 else "",
        "sites": [
            {"site": s, "group": choice.group[s], "loss": by, "alone": alone, "gain": signed(alone - by, 4)}
            for s, (by, alone) in sorted(choice.losses.items(), key=lambda item: (choice.group[item[0]], item[0]))
            if math.isfinite(by)
        ],
    }


def _alternative(groups: int, constants: bool) -> str:
    return many_words(groups) + (", constants of one's own" if constants else "")


def _chosen(choice: JointChoice) -> Markup:
    together = (
        "one model for all sites" if choice.groups == 1 else f"{many_words(choice.groups)} of sites, a model for each"
    )
    if choice.own == 1:
        how = "every site predicts by its own model alone, so that nobody learns from anybody"
    else:
        whose = "the model of all" if choice.groups == 1 else "the model of its group"
        parts = f"{share(choice.own)} its own model, {share(1 - choice.own)} {whose}"
        how = (
            f"a site's scores are {parts}"
            if choice.own
            else f"a site predicts by {whose}, and nothing of its own model"
        )
        how += ", to which it adds constants of its own" if choice.constants else ""
    text = "All sites together chose {}: {}. This had the lowest loss on cases that were left out, {} per case."
    return Markup(text).format(name(together) if choice.own < 1 else name("to stay alone"), how, number(choice.cost, 4))


def _groups(choice: JointChoice) -> list[Markup]:
    silent = [s for s in choice.sites if s not in choice.group]
    out = []
    if choice.groups > 1 and choice.own < 1:
        for g in range(1, choice.groups + 1):
            who = [name(s) for s in choice.sites if choice.group.get(s) == g]
            if who:
                out.append(Markup("Group {}: {}.").format(g, listed(who, 12)))
    if silent:
        out.append(Markup("Not shown, as they wish: {}.").format(listed([name(s) for s in silent], 12)))
    worse = [name(s) for s, (by, alone) in choice.losses.items() if by > alone]
    if worse and choice.own < 1:
        many = several(len(choice.losses), "site")
        text = "Of {} that show it, {} would have done better alone on the cases left out: {}."
        out.append(Markup(text).format(many, len(worse), listed(worse, 12)))
    return out


def _figure(choice: JointChoice, width: int) -> Markup:
    """A line for each number of groups, with constants and without."""
    alternatives = [
        AlternativeCosts(
            _alternative(k + 1, bool(b)),
            choice.costs[k, b],
            f"{svg.colour(k)}{' again' if b else ''}",
            (k + 1, bool(b)) == (choice.groups, choice.constants),
        )
        for k, b in np.ndindex(choice.costs.shape[:2])
    ]
    return cost_figure(width, choice.tried, alternatives, (choice.own, choice.cost), "the model of the group")


class AlternativeCosts(NamedTuple):
    """What an alternative costs, for each share of one's own model."""

    words: str
    costs: np.ndarray
    kind: str
    chosen: bool


def cost_figure(
    width: int, tried: list[float], lines: list[AlternativeCosts], choice: tuple[float, float], shared: str
) -> Markup:
    """Loss per row over the share of what is `shared`, from alone to that only; a dot at the choice."""
    series = []
    for line in lines:
        if np.isfinite(line.costs).all():
            words = f"{line.words}: lowest {number(float(line.costs.min()), 4)}"
            order = sorted(range(len(tried)), key=lambda i: -tried[i])  # from alone on
            x, y = [1 - tried[i] for i in order], [float(line.costs[i]) for i in order]
            kind, label = f"series {'strong ' * line.chosen}{line.kind}", "" if svg.is_narrow(width) else line.words
            series.append(Series(line.words, label, kind, x, y, words))
    low, high = axes.domain(v for one in series for v in one.y)
    own, cost = choice
    dot = Series("", "", "verdict gain", [1 - own], [cost], shape="points", tips=[f"the choice: {number(cost, 4)}"])
    panel = Panel("loss per case on cases left out", [*series, dot], low, high)
    axis = f"share of {shared} (the rest: one's own)"
    marks = [(v, share(v)) for v in (0.0, 0.5, 1.0)]
    text = "; ".join(one.words for one in series)
    title = "What each alternative would have cost"
    return curves(Curves(title, f"{text}.", [panel], axis, 0.0, 1.0, marks, (220.0, 220.0)), width)


SECTION = Section(
    contents,
    has_fact(means.CHOICE),
    (
        means.ROUND,
        means.CHOICE,
        means.COSTS,
        means.TRIED,
        means.GROUP,
        means.LEFT_OUT,
        means.ALONE_LEFT_OUT,
        means.AGREED,
    ),
)

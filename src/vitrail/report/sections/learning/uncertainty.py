"""How unsure the sites' models are: what a page shows where the facts of a run mean that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.analysis.uncertainty import Correlation, UncertaintyCourse, rank_correlation, read_uncertainty
from vitrail.core import facts as means
from vitrail.core.text import number, several, shorten_all
from vitrail.report.charts import svg
from vitrail.report.charts.axes import AxisScale, axis_below, axis_left, domain, round_ticks, tick_labels
from vitrail.report.charts.curves import Curves, Panel, Series, curves, last_values
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import SAME, Interval, metric_name, metric_words, name, spoken

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

NONE: Mapping[str, float] = MappingProxyType({})
NAMED = 12  # sites whose names a figure has room for; of more, those at the ends


# how unsure, against how good


class Both(NamedTuple):
    """In the rounds in which sites were scored; not a number where one of the two is not known."""

    sites: list[str]
    rounds: np.ndarray  # [round]
    unsure: np.ndarray  # [round, site]
    score: np.ndarray  # [round, site]

    def correlation(self, at: int) -> Correlation:
        return rank_correlation(self.unsure[at], self.score[at])

    def dots(self) -> list[tuple[str, float, float]]:
        """Site, uncertainty and score at the end."""
        three = zip(self.sites, self.unsure[-1].tolist(), self.score[-1].tolist(), strict=True)
        return [dot for dot in three if math.isfinite(dot[1]) and math.isfinite(dot[2])]


def pair_with_scores(doubt: UncertaintyCourse, curve: pd.DataFrame) -> Both:
    """`curve`: round, site, value. While a site is away its model, and what was said of it, stays as it was."""
    unsure = pd.DataFrame(doubt.unsure, index=doubt.rounds, columns=doubt.sites).ffill()
    score = curve.pivot(index="round", columns="site", values="value").reindex(columns=doubt.sites)
    at = [r for r in doubt.rounds if r in score.index]
    return Both(doubt.sites, np.array(at), unsure.loc[at].to_numpy(float), score.loc[at].to_numpy(float))


def contents(page: Page) -> Contents:
    run = run_of(page)
    doubt, curve = read_uncertainty(run.sites, run.facts), run.curve()
    assert doubt is not None, "the section needs uncertainty"
    curve = curve[curve["metric"] == page.metric]
    return contents_of(doubt, curve, page.metric, page.lower_is_better, page.chance_in(page.metric))


def contents_of(
    doubt: UncertaintyCourse, curve: pd.DataFrame, metric: str, lower: bool, chance: Mapping[str, float] = NONE
) -> Contents:
    """Of the metric less is better where `lower`. `chance`: site -> of always the same answer."""
    both, words = pair_with_scores(doubt, curve), metric_words(metric)
    scored = len(both.rounds) > 0 and bool(both.dots())
    return {
        "said": _correlation_sentences(both, metric_name(metric), lower) if scored else [],
        "scatter": svg.twice(partial(_scatter, both, words, chance)) if scored else Markup(),
        "rounds": svg.twice(partial(_rounds, doubt, both, metric_name(metric))),
        "last": int(both.rounds[-1]) if scored else 0,
        "words": words,
        "several": _has_correlations(both),
        "metric": metric_name(metric),
    }


def _correlation_sentences(both: Both, metric: str, lower: bool) -> list[Markup]:
    """What the rank correlation at the end says, and what it does not."""
    last, dots = both.correlation(-1), sorted(both.dots(), key=lambda dot: dot[1])
    if not math.isfinite(last.value):
        return [Markup("With {} no correlation is defined.").format(several(last.pairs, "site"))]
    wide = Interval(last.value, last.low, last.high)
    head = Markup("Over {} the rank correlation of uncertainty with {} after round {} is {}.").format(
        several(last.pairs, "site"),
        metric,
        int(both.rounds[-1]),
        spoken(wide, partial(number, digits=2)),
    )
    worse = last.value if lower else -last.value  # above 0: the unsure are worse
    if not wide.known:
        rest = "So few sites allow no interval." if last.pairs < 4 else "No interval is known for ranks in full order."
    elif wide.low <= 0 <= wide.high:
        rest = "The interval reaches both sides of 0: whether uncertainty tells good sites from bad cannot be said."
    elif worse > 0:
        rest = "Sites that are less sure of their own cases do worse on cases they have not seen."
    else:
        rest = "Sites that are less sure of their own cases do better on cases they have not seen: it misleads here."
    ends = [part for site, unsure, _ in (dots[0], dots[-1]) for part in (name(site), number(unsure, 2))]
    return [Markup("{} {}").format(head, rest), Markup("Surest is {} ({}), least sure {} ({}).").format(*ends)]


def _scatter(both: Both, words: str, chance: Mapping[str, float], width: int) -> Markup:
    """A dot for each site: uncertainty across, score up; level with it, dashed, always the same answer."""
    narrow, top, dots = svg.is_narrow(width), 24.0, both.dots()
    short = shorten_all([site for site, *_ in dots], 14 if narrow else 24)
    shown = set(short) if len(dots) <= NAMED else _ends(dots)
    room = 14 + 6.6 * max(len(short[site]) for site in shown)
    low, high = domain(unsure for _, unsure, _ in dots)
    bottom = top + (230.0 if narrow else 290.0)
    x = AxisScale(low, high, 36, width - room)
    same = {site: chance.get(site, math.nan) for site, *_ in dots}
    y = AxisScale(*domain([*(score for *_, score in dots), *same.values()]), bottom, top)
    parts = [svg.text(0, top - 12, words, "axis")]
    parts += axis_below(x, tick_labels(low, high, 4 if narrow else 7), top, bottom, "uncertainty")
    parts += axis_left(x, y, tick_labels(y.low, y.high, 5))
    for site, unsure, score in dots:
        tip = f"{site}: uncertainty {number(unsure)}, {words} {number(score)}"
        if math.isfinite(same[site]):
            level = svg.line(x(unsure) - 7, y(same[site]), x(unsure) + 7, y(same[site]), "level short")
            parts.append(svg.tag("g", svg.tip(f"{site}, {SAME}: {number(same[site])}"), level))
        parts.append(svg.tag("circle", svg.tip(tip), cx=x(unsure), cy=y(score), r=5, class_="of-own"))
    places = {site: (x(unsure), y(score)) for site, unsure, score in dots}
    parts += [
        svg.text(tx, ty, short[site], "label", anchor, site)
        for site, tx, ty, anchor in _labels(shown, places, short, (x.start, top, width, bottom))
    ]
    text = "; ".join(f"{site} {number(unsure, 2)}, {number(score, 2)}" for site, unsure, score in dots)
    return svg.plot(width, bottom + 40, f"Uncertainty and {words} of each site", text + ".", parts)


def _ends(dots: Sequence[tuple[str, float, float]]) -> set[str]:
    """The sites at the ends of either axis."""
    ordered = [sorted(dots, key=lambda dot: dot[axis]) for axis in (1, 2)]
    return {site for order in ordered for site, *_ in (*order[:2], *order[-2:])}


def _labels(
    shown: set[str],
    places: dict[str, tuple[float, float]],
    short: dict[str, str],
    inside: tuple[float, float, float, float],
) -> list[tuple[str, float, float, str]]:
    """Site, place and anchor of its label: beside its dot, right or left, level with it, above or below, where it
    covers neither a dot nor another label. Where all is taken there is none: the pointer tells."""
    left, top, right, bottom = inside
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in places.values()]
    out = []
    for site in sorted(shown, key=lambda s: places[s][::-1]):
        (x, y), wide = places[site], 6.4 * len(short[site])
        ways = [(x + 9, dy, "start") for dy in (4, -5, 13)] + [(x - 9, dy, "end") for dy in (4, -5, 13)]
        boxes = [(tx - (wide if anchor == "end" else 0), y + dy - 9, wide) for tx, dy, anchor in ways]
        free = (
            k
            for k, (x0, y0, w) in enumerate(boxes)
            if x0 >= left and x0 + w <= right and y0 >= top - 6 and y0 + 11 <= bottom
            if all(x0 >= b[2] or x0 + w <= b[0] or y0 >= b[3] or y0 + 11 <= b[1] for b in taken)
        )
        if (k := next(free, None)) is None:
            continue
        x0, y0, w = boxes[k]
        taken.append((x0, y0, x0 + w, y0 + 11))
        out.append((site, ways[k][0], y + ways[k][1], ways[k][2]))
    return out


def _has_correlations(both: Both) -> bool:
    return len(both.rounds) > 1 and len(both.sites) > 3


def _rounds(doubt: UncertaintyCourse, both: Both, words: str, width: int) -> Markup:
    """Every site's uncertainty, and below it the correlation, over the same rounds."""
    many, rounds = len(doubt.sites) > NAMED, doubt.rounds.astype(float).tolist()
    short = shorten_all(doubt.sites, 14 if svg.is_narrow(width) else 24)
    final = np.array([next((v for v in column[::-1] if math.isfinite(v)), np.nan) for column in doubt.unsure.T])
    named = set(np.argsort(final)[[0, 1, -2, -1]]) if many else set(range(len(doubt.sites)))
    series = []
    for i, site in enumerate(doubt.sites):
        kind = "series calm" if many and i not in named else f"series {svg.colour(sorted(named).index(i))}"
        label = short[site] if i in named else ""
        series.append(Series(site, label, kind, rounds, doubt.unsure[:, i].tolist()))
    panels = [Panel("uncertainty of each site", series, *domain([0.0, *doubt.unsure.ravel()]))]
    panels += [_correlations(both, words)] if _has_correlations(both) else []
    first, last = rounds[0], max(rounds[-1], rounds[0] + 1)
    text, title = f"Uncertainty at the end: {last_values(series, 2)}.", "Uncertainty round by round"
    return curves(Curves(title, text, panels, "round", first, last, round_ticks(first, last, 4)), width)


def _correlations(both: Both, metric: str) -> Panel:
    course, rounds = [both.correlation(at) for at in range(len(both.rounds))], both.rounds.astype(float).tolist()
    low, high = (
        [end if math.isfinite(end) else c.value for c, end in ((c, c[side]) for c in course)] for side in (1, 2)
    )
    values = [c.value for c in course]
    line = Series("rank correlation", "", "series strong m6", rounds, values, band=(low, high))
    return Panel(f"rank correlation with {metric}, 95 % interval", [line], -1.05, 1.05)


SECTION = Section(
    contents,
    lambda page: page.run is not None and read_uncertainty(page.run.sites, page.run.facts) is not None,
    (means.ROUND, means.UNCERTAINTY),
    heat=True,
)

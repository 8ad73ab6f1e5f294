"""How unsure the sites' models are, and who was chosen: what a page shows where the facts of a run mean that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.analysis.uncertainty import ConfidenceChoice, Correlation, UncertaintyCourse, rank_correlation
from vitrail.core.text import number, several, shorten_all
from vitrail.report.charts import svg
from vitrail.report.text import SAME, Interval, listed, name, spoken

NONE: Mapping[str, float] = MappingProxyType({})
NAMED = 12  # sites whose names a figure has room for; of more, those at the ends
SPANS = {True: 30, False: 75}  # of rounds in the strip, on a telephone and else


# how unsure, against how good


class Both(NamedTuple):
    """In the rounds in which sites were scored; not a number where one of the two is not known."""

    sites: list[str]
    rounds: np.ndarray  # [round]
    unsure: np.ndarray  # [round, site]
    score: np.ndarray  # [round, site]

    def found(self, at: int) -> Correlation:
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


def contents(
    doubt: UncertaintyCourse, curve: pd.DataFrame, words: str, lower: bool, chance: Mapping[str, float] = NONE
) -> dict[str, Any]:
    """What the template is given; `words` of the metric, of which less is better where `lower`. `chance`: site -> of
    always the same answer."""
    both = pair_with_scores(doubt, curve)
    scored = len(both.rounds) > 0 and bool(both.dots())
    return {
        "said": _correlation_sentences(both, words, lower) if scored else [],
        "scatter": svg.twice(partial(_scatter, both, words, chance)) if scored else Markup(),
        "rounds": svg.twice(partial(_rounds, doubt, both, words)),
        "last": int(both.rounds[-1]) if scored else 0,
        "words": words,
        "several": _has_correlations(both),
        "metric": words.partition(" (")[0],
    }


def _correlation_sentences(both: Both, words: str, lower: bool) -> list[Markup]:
    """What the rank correlation at the end says, and what it does not."""
    found, dots = both.found(-1), sorted(both.dots(), key=lambda dot: dot[1])
    if not math.isfinite(found.value):
        return [Markup("With {} no correlation is defined.").format(several(found.pairs, "site"))]
    wide = Interval(found.value, found.low, found.high)
    head = Markup("Over {} the rank correlation of uncertainty with {} after round {} is {}.").format(
        several(found.pairs, "site"),
        words.partition(" (")[0],
        int(both.rounds[-1]),
        spoken(wide, partial(number, digits=2)),
    )
    worse = found.value if lower else -found.value  # above 0: the unsure are worse
    if not wide.known:
        rest = "So few sites allow no interval." if found.pairs < 4 else "No interval is known for ranks in full order."
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
    narrow, top, dots = svg.is_narrow(width), svg.ABOVE, both.dots()
    short = shorten_all([site for site, *_ in dots], 14 if narrow else 24)
    shown = set(short) if len(dots) <= NAMED else _ends(dots)
    room = 14 + 6.6 * max(len(short[site]) for site in shown)
    low, high = svg.domain(unsure for _, unsure, _ in dots)
    bottom = top + (230.0 if narrow else 290.0)
    x = svg.AxisScale(low, high, 36, width - room)
    same = {site: chance.get(site, math.nan) for site, *_ in dots}
    y = svg.AxisScale(*svg.domain([*(score for *_, score in dots), *same.values()]), bottom, top)
    parts = [svg.text(0, top - 12, words, "axis")]
    parts += svg.axis_below(x, svg.ticks(low, high, 4 if narrow else 7), top, bottom, "uncertainty", number)
    parts += svg.axis_left(x, y, svg.written(svg.ticks(y.low, y.high, 5)))
    for site, unsure, score in dots:
        told = f"{site}: uncertainty {number(unsure)}, {words} {number(score)}"
        if math.isfinite(same[site]):
            level = svg.line(x(unsure) - 7, y(same[site]), x(unsure) + 7, y(same[site]), "level short")
            parts.append(svg.tag("g", svg.tip(f"{site}, {SAME}: {number(same[site])}"), level))
        parts.append(svg.tag("circle", svg.tip(told), cx=x(unsure), cy=y(score), r=5, class_="of-own"))
    places = {site: (x(unsure), y(score)) for site, unsure, score in dots}
    parts += [
        svg.text(tx, ty, short[site], "label", anchor, site)
        for site, tx, ty, anchor in _labels(shown, places, short, (x.start, top, width, bottom))
    ]
    said = "; ".join(f"{site} {number(unsure, 2)}, {number(score, 2)}" for site, unsure, score in dots)
    return svg.plot(width, bottom + 40, f"Uncertainty and {words} of each site", said + ".", parts)


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
    narrow, many = svg.is_narrow(width), len(doubt.sites) > NAMED
    short = shorten_all(doubt.sites, 14 if narrow else 24)
    final = np.array([next((v for v in column[::-1] if math.isfinite(v)), np.nan) for column in doubt.unsure.T])
    named = set(np.argsort(final)[[0, 1, -2, -1]]) if many else set(range(len(doubt.sites)))
    series = []
    for i, site in enumerate(doubt.sites):
        kind = "series calm" if many and i not in named else f"series {svg.colour(sorted(named).index(i))}"
        label = short[site] if i in named else ""
        series.append(svg.Series(site, label, kind, doubt.rounds.astype(float).tolist(), doubt.unsure[:, i].tolist()))
    panels = [svg.Panel("uncertainty of each site", series, *svg.domain([0.0, *doubt.unsure.ravel()]))]
    if _has_correlations(both):
        panels.append(_correlations(both, words))
    first, last = float(doubt.rounds[0]), float(doubt.rounds[-1])
    x = svg.AxisScale(first, max(last, first + 1), 36.0, width - 22 - 6.6 * max(len(s.label) for s in series))
    parts, top = [], 0.0
    for panel in panels:
        top += panel.head
        bottom = top + max(150.0 if narrow else 170.0, 13.0 * len(named))
        parts += svg.panel_parts(panel, x, top, bottom, (first, max(last, first + 1)), 4)
        top = bottom + 50 - svg.ABOVE
    parts.append(svg.text(x.middle, top + svg.ABOVE - 19, "round", "axis", "middle"))
    said = f"Uncertainty at the end: {svg.last_values(series, 2)}."
    return svg.plot(width, top + svg.ABOVE - 10, "Uncertainty round by round", said, parts)


def _correlations(both: Both, words: str) -> svg.Panel:
    found = [both.found(at) for at in range(len(both.rounds))]
    low, high = ([v if math.isfinite(v) else c.value for c in found for v in (c[side],)] for side in (1, 2))
    values, rounds = [c.value for c in found], both.rounds.astype(float).tolist()
    line = svg.Series("rank correlation", "", "series strong m6", rounds, values, "", (low, high))
    axis = f"rank correlation with {words.partition(' (')[0]}, 95 % interval"
    return svg.Panel(axis, [line], -1.05, 1.05)


# who was chosen


def chosen_contents(choice: ConfidenceChoice) -> dict[str, Any]:
    """What the template is given; sites that were chosen most often first."""
    often = choice.often()
    order = sorted(range(len(choice.sites)), key=lambda i: (-often[i], i))
    return {
        "said": _chosen_said(choice, often, order),
        "strip": svg.twice(partial(_strip, choice, order)),
        "why": choice.sure is not None,
        "span": -(-len(choice.rounds) // SPANS[False]),
    }


def _chosen_said(choice: ConfidenceChoice, often: np.ndarray, order: Sequence[int]) -> Markup:
    always = [choice.sites[i] for i in order if often[i] == 1]
    never = [choice.sites[i] for i in order if often[i] == 0]
    if len(always) == len(order):
        return Markup("Everybody was chosen in every round in which it took part.")
    if always or never:
        ends = (("Always chosen when there: {}.", always), ("Never chosen: {}.", never))
        return Markup(" ").join(Markup(words).format(listed(sites)) for words, sites in ends if sites)
    ends_of = [v for i in (order[0], order[-1]) for v in (name(choice.sites[i]), f"{100 * often[i]:.0f}")]
    return Markup("Chosen most often: {} ({} % of its rounds); least often: {} ({} %).").format(*ends_of)


def _strip(choice: ConfidenceChoice, order: Sequence[int], width: int) -> Markup:
    """Sites down, rounds across. A cell is filled from below by the share of its rounds in which the site was chosen as
    one of the sure, then by the share in which it was drawn; of one round it is full or not."""
    narrow, rounds = svg.is_narrow(width), len(choice.rounds)
    span = -(-rounds // SPANS[narrow])
    short = shorten_all([choice.sites[i] for i in order], 14 if narrow else 24)
    left, right, high, top = svg.names_room(short.values()), 46.0, 20.0 if len(order) <= 30 else 14.0, 34.0
    cells = -(-rounds // span)
    cell = min((width - left - right) / cells, 30.0)
    sure = choice.chosen if choice.sure is None else choice.chosen & choice.sure
    parts = _key(choice)
    end, bottom = left + cell * cells, top + high * len(order)
    parts.append(svg.text(end + right - 4, top - 6, "chosen", "tick", "end"))
    said = []
    for row, i in enumerate(order):
        site, y = choice.sites[i], top + high * row
        parts.append(svg.text(left - 8, y + high / 2 + 4, short[site], "name", "end", site))
        for k in range(cells):
            at = slice(k * span, min((k + 1) * span, rounds))
            here = int(choice.here[at, i].sum())
            part = [int(of[at, i].sum()) for of in (sure, choice.chosen & ~sure)]
            words = f"{site}, {_which(choice.rounds[at])}: {_reason(choice, part, here, at.stop - at.start)}"
            parts.append(_cell(left + cell * k, y, cell, high, part, here, words))
        share = choice.often()[i]
        parts.append(svg.text(end + right - 4, y + high / 2 + 4, f"{100 * share:.0f} %", "tick", "end"))
        said.append(f"{site} {100 * share:.0f} %")
    for k in sorted({0, cells // 2 if cells > 8 else 0, cells - 1}):
        which = choice.rounds[-1 if k == cells - 1 else k * span]
        parts.append(svg.text(left + cell * (k + 0.5), bottom + 16, f"{which:.0f}", "tick", "middle"))
    parts.append(svg.text((left + end) / 2, bottom + 32, "round", "axis", "middle"))
    return svg.plot(width, bottom + 40, "Who was chosen in each round", "Chosen in " + ", ".join(said) + ".", parts)


def _cell(x: float, y: float, wide: float, high: float, part: Sequence[int], here: int, words: str) -> Markup:
    gap = 1.0 if wide > 3 else 0.0
    box = {"x": x, "width": wide - gap}
    if not here:
        return svg.tag("rect", svg.tip(words), **box, y=y, height=high - 1, class_="none")
    shapes = [svg.tip(words), svg.tag("rect", **box, y=y, height=high - 1, class_="h6")]
    base = y + high - 1
    for count, kind in zip(part, ("h1", "h9"), strict=True):
        tall = (high - 1) * count / here
        base -= tall
        if count:
            shapes.append(svg.tag("rect", **box, y=base, height=tall, class_=kind))
    return svg.tag("g", *shapes)


def _which(rounds: np.ndarray) -> str:
    first, last = int(rounds[0]), int(rounds[-1])
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def _reason(choice: ConfidenceChoice, part: Sequence[int], here: int, of: int) -> str:
    if not here:
        return "away"
    words = ["chosen"] if choice.sure is None else ["chosen: of the surer half", "chosen by lot"]
    if of == 1:
        return next((w for w, count in zip(words, part, strict=False) if count), "not chosen")
    told = [f"{w} {count} times" for w, count in zip(words, part, strict=False) if count]
    return ", ".join(told or ["not chosen"]) + (f"; away {of - here} times" if here < of else "")


def _key(choice: ConfidenceChoice) -> list[Markup]:
    """What the colours mean, above the strip."""
    sorts = [("h1", "chosen")] if choice.sure is None else [("h1", "surer half"), ("h9", "by lot")]
    sorts += [("h6", "not chosen")] + ([] if choice.here.all() else [("none", "away")])
    out, x = [], 0.0
    for kind, words in sorts:
        out += [svg.tag("rect", x=x, y=2, width=12, height=12, class_=kind), svg.text(x + 17, 12, words, "label")]
        x += 36 + 6.4 * len(words)
    return out

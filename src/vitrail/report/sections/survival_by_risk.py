"""How hold-out cases fared whom the model held to be at low, middle and high risk: Kaplan-Meier, site by site, with
95 % intervals and the numbers at risk; and their risk until the horizon in per cent, predicted and observed.

Between machines these are points that sites tell (metrics/survival.py, `by_risk`). A simulation has the rows, and draws
every step (`curves_by_risk`); the page says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.core.text import percent, signed
from vitrail.metrics.holdout_summary import HoldOutSummary
from vitrail.metrics.scores import FEWEST
from vitrail.metrics.survival import GROUPS, KaplanMeier, difference, end_words, limits, thirds
from vitrail.report.charts import axes, svg
from vitrail.report.charts.curves import Counts, Curves, Panel, Series, curves
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import listed, marked
from vitrail.runs.result import Run
from vitrail.runs.setup import RISK
from vitrail.runs.site.holdout import summaries_of
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

PANELS = 12  # so many sites are drawn
VERDICTS = MORE, LESS, CHANCE, UNTOLD = "more", "less", "chance", "untold"  # names in the template
NOT_TOLD = ("No intervals: this site tells no numbers at risk, which", "leave a site only where scores are exact.")
WEIGHED = ("No intervals: rows stand for several, for which", "Greenwood’s variance does not hold.")
SHIFT = 3.0  # pixels between groups


class Curve(NamedTuple):
    """One group at one site, at the ends of intervals that the site tells of."""

    rows: int  # in the beginning
    ends: list[float]
    free: list[float]  # share without the event
    left: list[float]  # rows still followed; NaN where it is not told
    low: list[float]  # 95 % interval of `free`; NaN where it cannot be computed
    high: list[float]
    exact: KaplanMeier | None = None  # of a simulation: all steps

    def at(self, i: int) -> tuple[float, float, float]:
        """Share and interval."""
        return self.free[i], self.low[i], self.high[i]

    @property
    def drawn(self) -> bool:
        return bool(self.ends) or self.exact is not None


class Gap(NamedTuple):
    """How much more often those at high risk had the event than those at low, by some time."""

    end: float
    low: float  # share of the low group with the event
    high: float
    gap: tuple[float, float, float]  # with its 95 % interval; NaN where there is none
    same: bool = (
        True  # both are told of at that time; else `low` is what it is at most, and the gap what it is at least
    )

    @property
    def verdict(self) -> str:
        _, least, most = self.gap
        if math.isnan(least):
            return UNTOLD
        return MORE if least > 0 else LESS if most < 0 else CHANCE


Groups = dict[str, Curve]


def has_groups(run: Run) -> bool:
    """Whether at some site there are enough rows."""
    told = run.history[run.history.split == RISK]["value"].notna().any()
    return bool(told) or any(map(exact_groups, summaries_of(run).values()))


def contents(page: Page) -> Contents:
    return contents_of(run_of(page), page.few)


def contents_of(run: Run, few: Mapping[str, str]) -> Contents:
    """Sites of `few` stand on few rows."""
    target, by_site = run.study.target, {site: groups_at(run, site) for site in run.sites}
    shown = [site for site, groups in by_site.items() if any(curve.drawn for curve in groups.values())]
    gaps = {site: compare_groups(by_site[site]) for site in shown}
    verdicts = {site: gap.verdict if gap else UNTOLD for site, gap in gaps.items()}
    return {
        "figure": svg.panels(site_panel(site, by_site[site], run.study, few) for site in shown[:PANELS]),
        "simulated": any(curve.exact for groups in by_site.values() for curve in groups.values()),
        "risks": [(site, risk_rows(run.study, summaries_of(run).get(site), by_site[site])) for site in shown],
        "event": target.column,
        "horizon": end_words(target.ends, target.unit)[-1],
        "fewest": FEWEST,
        "banded": any(math.isfinite(v) for site in shown for curve in by_site[site].values() for v in curve.low),
        "out": listed([site for site in run.sites if site not in shown]),
        "beyond": max(0, len(shown) - PANELS),
        **{kind: listed([s for s, v in verdicts.items() if v == kind]) for kind in VERDICTS},
    }


def groups_at(run: Run, site: str) -> Groups:
    """As the rows have it, where they are here; else as the site told it."""
    return exact_groups(summaries_of(run).get(site)) or _read(run, site)


def exact_groups(summary: HoldOutSummary | None) -> Groups:
    """Of a simulation: every step, and the comparison at the last tenth of the time at which FEWEST are at risk in the
    groups of lowest and highest risk. Nothing of a site with fewer rows in a group."""
    if summary is None or not summary.curves or min(c.rows for c in summary.curves) < FEWEST:
        return {}
    first, *_, last = summary.curves
    sure = first.at[(first.left >= FEWEST) & (last.left >= FEWEST) & (first.at > 0)]
    ends = sure[-1:].tolist()
    out = {}
    for group, curve in zip(GROUPS, summary.curves, strict=True):
        points = [curve.at_time(end) for end in ends]
        free, low, high = ([point[k] for point in points] for k in range(3))
        left = [float(curve.left[curve.at == end][0]) for end in ends]
        out[group] = Curve(curve.rows, ends, free, left, low, high, curve)
    return out


def risk_rows(study: Study, summary: HoldOutSummary | None, groups: Groups) -> list[tuple[str, str, str]]:
    """By group: the mean risk until the horizon that the model predicted, and what was observed."""
    target = study.target
    expected = summary.expected if summary and summary.expected else [math.nan] * len(GROUPS)
    out = []
    for risk, (group, curve) in zip(expected, groups.items(), strict=True):
        predicted = f"{100 * risk:.0f} %" if math.isfinite(risk) else "not told"
        out.append((group, predicted, _observed(curve, target.ends[-1], target.unit)))
    return out


def _observed(curve: Curve, horizon: float, unit: str) -> str:
    """The risk until the horizon; or until the last time that is known, with that time."""
    if (exact := curve.exact) is not None:
        end = float(exact.times[-1])
        free, low, high = exact.at_time(end)
    elif curve.ends:
        end, (free, low, high) = curve.ends[-1], curve.at(-1)
    else:
        return "not told"
    between = f" ({100 * (1 - high):.0f} to {100 * (1 - low):.0f})" if math.isfinite(low) else ""
    when = "" if end >= horizon else f" by {end:.4g} {unit}".rstrip()
    return f"{100 * (1 - free):.0f} %{between}{when}"


def _read(run: Run, site: str) -> Groups:
    scores, ends = run.scores(RISK), run.study.target.ends
    value = dict(zip(scores[scores.site == site]["metric"], scores[scores.site == site]["value"], strict=True))
    sizes = run.sizes.set_index("site")["test_rows"]
    rows = np.bincount(thirds(int(sizes[site])), minlength=len(GROUPS)) if site in sizes else np.zeros(len(GROUPS), int)
    weighed = bool(run.study.weight_column)  # rows that stand for several: Greenwood's variance does not hold
    out = {}
    for group, size in zip(GROUPS, rows, strict=True):
        numbers = {k: [value.get(f"{k}@{group}@{i + 1}", math.nan) for i in range(len(ends))] for k in ("free", "left")}
        at = [i for i, share in enumerate(numbers["free"]) if math.isfinite(share)]
        free, left = ([numbers[k][i] for i in at] for k in ("free", "left"))
        low, high = (np.full(len(at), np.nan),) * 2
        if not weighed and np.isfinite(left).all():
            low, high = limits(np.array(free), np.array(left), int(size))
        out[group] = Curve(int(size), [ends[i] for i in at], free, left, low.tolist(), high.tolist())
    return out


def compare_groups(groups: Groups) -> Gap | None:
    """At the last time at which those at high risk are told of while those at low still are; None where there is none.
    A share only falls: where the low group is not told of at that very time, the next one told bounds it from below and
    the one before from above, and the interval is as wide as the two make it."""
    low, high = groups[GROUPS[0]], groups[GROUPS[-1]]
    at = [i for i, end in enumerate(high.ends) if low.ends and end <= low.ends[-1]]
    if not at:
        return None
    end, worse = high.ends[at[-1]], high.at(at[-1])
    later = next(j for j, other in enumerate(low.ends) if other >= end)
    earlier = [low.at(j) for j, other in enumerate(low.ends) if other <= end]
    gap, least, _ = difference(low.at(later), worse)
    _, _, most = difference(earlier[-1] if earlier else (1.0, 1.0, 1.0), worse)
    return Gap(end, 1 - low.free[later], 1 - worse[0], (gap, least, most), low.ends[later] == end)


def site_panel(site: str, groups: Groups, study: Study, few: Mapping[str, str]) -> list[Markup]:
    target, shown = study.target, {group: curve for group, curve in groups.items() if curve.drawn}
    classes = {group: svg.colour(i) for i, group in enumerate(GROUPS)}
    series = [_series(group, curve, classes[group], SHIFT * (i - 1), target.unit)
              for i, (group, curve) in enumerate(shown.items())]  # fmt: skip
    at_risk = any(math.isfinite(v) for curve in groups.values() for _, v in _numbers(curve)[1:])
    numbers = {group: _numbers(curve) for group, curve in groups.items()}
    lost = any(not math.isfinite((curve.exact.low if curve.exact else curve.low)[-1]) for curve in shown.values())
    reason = WEIGHED if study.weight_column else NOT_TOLD
    figure = Curves(
        f"How cases of low, middle and high risk fared at {site}",
        "; ".join(s.words for s in series) + ".",
        [Panel("event-free (%)", series, 0.0, 100.0)],
        f"time{f' ({target.unit})' if target.unit else ''}",
        0.0,
        target.ends[-1],
        axes.tick_labels(0.0, target.ends[-1], 4),
        key=[(f"end {classes[group]}", f"{group} risk") for group in GROUPS],
        counts=[Counts(group, f"end {classes[group]}", numbers[group]) for group in GROUPS] if at_risk else (),
        counted="at risk",
        foot=reason if lost else (),
    )
    words = svg.tag("p", _gap_words(compare_groups(groups), target.unit), class_="foot")
    return [svg.tag("h3", marked(site, few)), curves(figure, svg.PANEL), words]


def _series(group: str, curve: Curve, kind: str, shift: float, unit: str) -> Series:
    """What is told is known at its dots alone; groups are then a few pixels apart, so that no step hides another."""
    exact = curve.exact
    ends = exact.times.tolist() if exact else curve.ends
    columns = [v.tolist() for v in exact[2:5]] if exact else [curve.free, curve.low, curve.high]
    free, low, high = ([100.0, *(100 * v for v in column)] for column in columns)
    return Series(
        f"{group} risk",
        "",
        f"series {'strong ' * (group == GROUPS[-1])}{kind}",
        [0.0, *ends],
        free,
        _words(group, curve, unit),
        band=(low, high),
        shape="steps",
        dots=exact is None,
        shift=0.0 if exact else shift,
    )


def _numbers(curve: Curve) -> list[tuple[float, float]]:
    """Times and numbers at risk."""
    if curve.exact:
        return list(zip(curve.exact.at.tolist(), curve.exact.left.tolist(), strict=True))[::2]
    return list(zip([0.0, *curve.ends], [float(curve.rows), *curve.left], strict=True))


def _words(group: str, curve: Curve, unit: str) -> str:
    end = float(curve.exact.times[-1]) if curve.exact else curve.ends[-1]
    share, low, high = curve.exact.at_time(end) if curve.exact else curve.at(-1)
    around = f" (95 % CI {percent(low)} to {percent(high)})" if math.isfinite(low) else ""
    return f"{group} risk: {percent(share)} event-free{around} at {end:.4g} {unit}".rstrip()


def _gap_words(gap: Gap | None, unit: str) -> str:
    if gap is None:
        return "There is no time at which enough of both high and low risk are followed, so they are not compared."
    by = f"With the event by {gap.end:g} {unit}".rstrip()
    shares = f"{by}: high risk {percent(gap.high)}, low risk {'' if gap.same else 'at most '}{percent(gap.low)}"
    if gap.verdict == UNTOLD:
        return f"{shares}. Without an interval the difference is not judged."
    middle, low, high = (signed(100 * v, 0) for v in gap.gap)
    judged = "within chance" if gap.verdict == CHANCE else "beyond chance"
    least = "" if gap.same else "at least "
    return f"{shares}; difference {least}{middle} percentage points (95 % CI {low} to {high}), {judged}."


SECTION = Section(contents, lambda page: page.run is not None and has_groups(page.run))

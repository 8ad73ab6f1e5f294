"""In which direction, and how far, each feature moves the answer of the sites' own models (analysis/effects.py): a row
for each feature, a dot for each site. Of a simulation, which has the rows that it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from vitrail.analysis.effects import change, size
from vitrail.core.text import decimals, signed
from vitrail.metrics.holdout_summary import FeatureEffect
from vitrail.metrics.survival import end_words
from vitrail.report.charts import axes, svg
from vitrail.report.charts.interval_rows import Head, IntervalRow, IntervalRows, Label, RowMark, interval_rows
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.runs.result import Run
from vitrail.runs.site.holdout import summaries_of

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

ROWS = 12  # features in the figure; the others are folded
SMALL = 0.1  # of the largest effect at any site: less has no direction
RISES, FALLS, BENDS, FLAT = "rises", "falls", "rises and falls", "hardly moves"


class EffectUnit(NamedTuple):
    """In what the changes of predictions are written."""

    name: str
    scale: float
    digits: int

    def write(self, value: float) -> str:
        return signed(self.scale * value, self.digits)


class EffectRow(NamedTuple):
    """One feature, at every site at which it varies."""

    feature: str
    sites: dict[str, FeatureEffect]

    @property
    def size(self) -> float:
        return sum(map(size, self.sites.values())) / len(self.sites)


def effect_rows(run: Run) -> list[EffectRow]:
    """The features that move answers most first."""
    by_feature: dict[str, dict[str, FeatureEffect]] = {}
    for site, summary in summaries_of(run).items():
        for effect in summary.effects:
            if all(map(math.isfinite, effect.answers)):
                by_feature.setdefault(effect.feature, {})[site] = effect
    rows = [EffectRow(name, sites) for name, sites in by_feature.items()]
    return sorted(rows, key=lambda row: -row.size)


def has_effects(page: Page) -> bool:
    return page.run is not None and bool(effect_rows(page.run))


def contents(page: Page) -> Contents:
    run = run_of(page)
    target, rows = run.study.target, effect_rows(run)
    number = target.kind == "number"
    largest = max(size(effect) for row in rows for effect in row.sites.values())
    unit = EffectUnit(target.unit, 1.0, decimals(largest)) if number else EffectUnit("percentage points", 100.0, 1)
    until = f" by {end_words(target.ends, target.unit)[-1]}" if target.kind == "time" else ""
    return {
        "figure": svg.twice(lambda width: _figure(rows[:ROWS], unit, width)),
        "rows": [table_row(row, unit) for row in rows],
        "unit": unit.name,
        "what": target.column if number else f"the risk of the event{until}",
        "categories": any(len(e.values) > 2 and not e.ordered for row in rows for e in row.sites.values()),
    }


def _figure(rows: Sequence[EffectRow], unit: EffectUnit, width: int) -> Markup:
    axis = f"change of the mean prediction{f' ({unit.name})' if unit.name else ''}"
    largest = max(size(e) for row in rows for e in row.sites.values())
    lines = [_row(row, unit, SMALL * largest) for row in rows]
    low, high = axes.domain([0.0, *(mark.value for line in lines for mark in line.marks)])
    far = max(-low, high)
    heads: list[Head] = [(0.0, "← lower", "end"), (0.0, "higher →", "start")]
    figure = IntervalRows(f"Effects of the features: {axis}", lines, axis, -far, far, signed, (28.0, 46.0), 22, heads,
                          rail=True, swarm=lambda places, room: axes.swarm(places, 9, room))  # fmt: skip
    return interval_rows(figure, width)


def _row(row: EffectRow, unit: EffectUnit, least: float) -> IntervalRow:
    """A dot for each site. Of levels without an order, the one with the highest mean prediction against the lowest."""
    marks = []
    for site, effect in row.sites.items():
        start, end = ends_of(effect)
        words = f"{site}, {row.feature} from {effect.values[start]} to {effect.values[end]}: "
        value = effect.answers[end] - effect.answers[start]
        marks.append(RowMark(unit.scale * value, "dot", "dot", 4.5, words + unit.write(value)))
    direction = direction_words(row.sites, least)
    text = f"{row.feature}: {direction}; " + "; ".join(mark.words for mark in marks)
    return IntervalRow(row.feature, text, marks=marks, kind="verdict gain", right=[Label(direction, "answer", "start")])


def ends_of(effect: FeatureEffect) -> tuple[int, int]:
    """From which value to which: the first and the last; of several levels, those farthest apart."""
    if effect.ordered or len(effect.values) == 2:
        return 0, len(effect.values) - 1
    answers = effect.answers
    return min(range(len(answers)), key=answers.__getitem__), max(range(len(answers)), key=answers.__getitem__)


def direction_words(effects: Mapping[str, FeatureEffect], least: float) -> str:
    """rises; rises at 3 of 4; falls at va; higher for yes; highest for b at 2 of 3."""
    one = next(iter(effects.values()))
    if not one.ordered and len(one.values) > 2:
        tops = {site: effect.values[ends_of(effect)[1]] for site, effect in effects.items()}
        common = max(set(tops.values()), key=list(tops.values()).count)
        return f"highest for {common}" + _where([s for s, top in tops.items() if top == common], effects)
    ways: dict[str, list[str]] = {RISES: [], FALLS: [], BENDS: [], FLAT: []}
    for site, effect in effects.items():
        ways[direction_of(effect, least)].append(site)
    said = [(way, sites) for way, sites in ways.items() if sites]
    ordered = sorted(said, key=lambda pair: -len(pair[1]))
    levels = {} if one.ordered else {RISES: f"higher for {one.values[-1]}", FALLS: f"lower for {one.values[-1]}"}
    return "; ".join(f"{levels.get(way, way)}{_where(sites, effects)}" for way, sites in ordered)


def _where(sites: Sequence[str], every: Mapping[str, FeatureEffect]) -> str:
    if len(sites) == len(every):
        return ""
    return f" at {sites[0]}" if len(sites) == 1 else f" at {len(sites)} of {len(every)}"


def direction_of(effect: FeatureEffect, least: float) -> str:
    """Which way the answer goes as the value rises."""
    if size(effect) < least:
        return FLAT
    steps = [b - a for a, b in zip(effect.answers, effect.answers[1:], strict=False)]
    if max(steps) > least / 2 and min(steps) < -least / 2:
        return BENDS
    return RISES if change(effect) > 0 else FALLS


def table_row(row: EffectRow, unit: EffectUnit) -> tuple[str, list[str]]:
    """The feature, and what was computed at each site: the change over which values."""
    cells = []
    for site, effect in row.sites.items():
        start, end = ends_of(effect)
        value = effect.answers[end] - effect.answers[start]
        cells.append(f"{site}: {effect.values[start]} to {effect.values[end]}, {unit.write(value)}")
    return row.feature, cells


SECTION = Section(contents, has_effects)

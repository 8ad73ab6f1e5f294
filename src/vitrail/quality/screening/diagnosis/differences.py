"""What differs at a cell that may be real: one statistic, with its value here and at the other sites."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitrail.quality.screening.diagnosis.cell import Diagnosis, tell
from vitrail.quality.screening.result import MISSING as SHARE_MISSING
from vitrail.quality.screening.row_evidence.tests import misplaced
from vitrail.quality.screening.schema import Places
from vitrail.quality.screening.site_summaries import (
    BELOW,
    BEYOND,
    KEPT,
    LOCATION,
    MISSING,
    PREDICTED,
    RATIO,
    SHARE,
    SIZE,
    VALUE,
)
from vitrail.quality.screening.statistics import GATE, GATE_OF_SHARES, SiteTests
from vitrail.quality.screening.text import correlation, measured, percent, two, written
from vitrail.stats.tests import median_known

MIDDLE, MEDIAN = 1e-9, 9  # of a cut at the median; and where the median lies in QUANTILES
# why a difference beyond chance is not called wrong
REASONS = {
    "small": "the difference is small",
    "usual": "sites differ as much in {many} of {of} other columns",
    "rare": "no other column differs as much between sites, so ask how and on whom it is measured",
    "unexplained": "no usual fault explains it: ask how and on whom it is measured",
}


class Statistic(NamedTuple):
    """One number of a column, at a site and at the others."""

    name: str
    scale: str  # share, value or correlation: how it is written and drawn
    here: float
    elsewhere: float
    text: str


def differs(weighed: SiteTests, site: int, column: int, tests: Places) -> Diagnosis:
    """What is said where nothing is held to be wrong; `tests`: those by which it differs."""
    test, shown = plainest(weighed, site, column, tests)
    why, many, of = reason(weighed, site, column, test)
    because = f"; {REASONS[why].format(many=many, of=of)}" if why else ""
    return tell("differs", f"{shown.text}{because}.", **numbers_of(shown), reason=why)


def numbers_of(shown: Statistic) -> dict[str, float | str]:
    return compared(shown.name, shown.scale, shown.here, shown.elsewhere)


def compared(name: str, scale: str, here: float, elsewhere: float) -> dict[str, float | str]:
    """As a finding keeps a statistic, and a figure draws it."""
    if not (np.isfinite(here) and np.isfinite(elsewhere)):
        return {}
    return {"statistic": name, "scale": scale, "here": float(here), "elsewhere": float(elsewhere)}


def clearest(weighed: SiteTests, site: int, tests: Places) -> int:
    """The loudest of what a column itself shows, if that is beyond chance; else the loudest relation. Of tests that are
    equally loud the last one: a median says more than a count below a cut."""
    over = (weighed.z[site] / weighed.bar)[tests]
    counts = weighed.marginal[tests] & (over > 1)
    over = np.where(counts, over, 0.0) if counts.any() else over
    return int(tests[len(tests) - 1 - int(over[::-1].argmax())])


def plainest(weighed: SiteTests, site: int, column: int, tests: Places) -> tuple[int, Statistic]:
    """What is clearest of those whose two numbers, as they are written, are not the same: equal medians tell
    nothing."""
    first, rest = None, tests
    while len(rest):
        test = clearest(weighed, site, rest)
        shown = statistic(weighed, site, column, test)
        first = first or (test, shown)
        if np.isfinite([shown.here, shown.elsewhere]).all() and len({*written(shown._asdict())}) > 1:
            return test, shown
        rest = rest[rest != test]
    assert first is not None
    return first


def reason(weighed: SiteTests, site: int, column: int, test: int) -> tuple[str, int, int]:
    """Of REASONS, empty where none was worked out (how well outcomes are predicted is not compared between columns);
    and in how many other columns some site differs as much by the same kind of statistic, of how many."""
    family = str(weighed.family[test])
    if weighed.beyond[site, test] > weighed.bar[test]:
        return "unexplained", 0, 0
    if weighed.effect[site, test] < GATE.get(family, GATE_OF_SHARES):
        return "small", 0, 0
    if family == PREDICTED:
        return "", 0, 0
    alike = np.flatnonzero((weighed.family == family) & (weighed.first != column) & (weighed.second != column))
    fair = ~weighed.accused[:, weighed.first[alike]] & ~weighed.silent[:, alike]  # a fault is no measure
    as_much = alike[((weighed.effect[:, alike] >= weighed.effect[site, test]) & fair).any(0)]
    many, of = (len(np.unique(weighed.first[which])) for which in (as_much, alike))
    return ("usual" if many else "rare" if of else ""), many, of


def statistic(weighed: SiteTests, site: int, column: int, test: int) -> Statistic:
    """What a test compares, in words."""
    p, family = weighed.published, str(weighed.family[test])
    here, elsewhere = float(weighed.mine[site, test]), float(weighed.theirs[site, test])
    if family in (LOCATION, SIZE):
        return _shape(weighed, site, column, family)
    if family == KEPT:
        return Statistic(
            "correlations with related columns, as a share of those at the other sites",
            "share",
            here,
            elsewhere,
            f"Its correlations with related columns have {percent(here, 0)} of the strength that they have at the "
            "other sites",
        )
    if family == RATIO:
        share = misplaced(weighed, site, column)
        text = f"Its values fit the rest of their rows as if about {percent(share)} of them were other rows' values"
        return Statistic("share of values as if of other rows", "share", share, 0.0, text)
    if family == PREDICTED:
        a, b = two(here, elsewhere, correlation)
        text = f"The outcomes here have a correlation of {a} with what the other sites' rows predict; there it is {b}"
        return Statistic("correlation with what the other sites predict", "correlation", here, elsewhere, text)
    if test >= len(p.margins.family):
        return _tie(weighed, column, test - len(p.margins.family), here, elsewhere)
    a, b = two(here, elsewhere, percent)
    name, counted = _counted(weighed, column, test, family)
    if family == BELOW and test in _at_median(weighed, column):
        shape = _shape(weighed, site, column, LOCATION)
        if (shape.here - shape.elsewhere) * (here - elsewhere) < 0:  # more rows below the cut: a lower median
            return shape
    few = "at most " if family == VALUE else ""  # fewer rows than three are published as two
    return Statistic(name, "share", here, elsewhere, f"{a} {counted} here, {few}{b} at the other sites")


def _counted(weighed: SiteTests, column: int, test: int, family: str) -> tuple[str, str]:
    """What is counted: as the name of a share, and behind the share."""
    p = weighed.published
    at, unit, variable = float(p.margins.at[test]), unit_of(weighed, column), int(p.margins.variable[test])
    if family == MISSING:
        return SHARE_MISSING, "of the values are missing"
    if family == SHARE:
        level = level_name(weighed, variable)
        return f"share with {level}", f"have {level}"
    if family == VALUE:
        return f"share with {measured(at, unit)}", f"of the values are exactly {measured(at, unit)}"
    if family == BEYOND:
        low, high = (p.cuts[p.layout.numbers == variable][0][end] for end in (0, -1))
        reach = f"{measured(low)} to {measured(high, unit)}"
        return f"share of values outside {reach}", f"of the values lie outside {reach}"
    return f"share of values up to {measured(at, unit)}", f"of the values are at most {measured(at, unit)}"


def _at_median(weighed: SiteTests, column: int) -> Places:
    """The tests that count rows below the sites' median."""
    p = weighed.published
    i = int(np.searchsorted(p.layout.column[p.layout.numbers], column))
    own = (p.margins.family == BELOW) & (p.margins.column == column)
    return np.flatnonzero(own & (np.abs(p.margins.at - p.cuts[i, 1 + 2]) <= MIDDLE * np.abs(p.cuts[i, 1 + 2])))


def _shape(weighed: SiteTests, site: int, column: int, family: str) -> Statistic:
    """The median, or how wide the middle half is."""
    p, unit = weighed.published, unit_of(weighed, column)
    i = int(np.searchsorted(p.layout.column[p.layout.numbers], column))
    fair = ~weighed.accused[:, column]
    fair[site] = False
    x = p.quantiles[:, i, MEDIAN] if family == LOCATION else p.widths[:, i]
    here, elsewhere = float(x[site]), float(median_known(x[fair])) if fair.any() else float("nan")
    a, b = two(here, elsewhere, lambda value, digits: measured(value, unit, digits + 3))
    if family == LOCATION:
        return Statistic("median", "value", here, elsewhere, f"Its median is {a} here, {b} at the other sites")
    text = f"The middle half of its values spans {a} here, {b} at the other sites"
    return Statistic("width of the middle half", "value", here, elsewhere, text)


def _tie(weighed: SiteTests, column: int, tie: int, here: float, elsewhere: float) -> Statistic:
    """How a column goes with another, or with the outcome."""
    p, at = weighed.published, weighed.published.layout
    own, other = int(p.ties.first[tie]), int(p.ties.second[tie])
    if at.column[own] != column:
        own, other = other, own
    name = f"correlation with {variable_name(weighed, other)}"
    if at.kinds[int(at.column[own])] == "categorical":
        name = f"correlation of {level_name(weighed, own)} with {variable_name(weighed, other)}"
    a, b = two(here, elsewhere, correlation)
    whose = "The" if " of " in name else "Its"
    return Statistic(name, "correlation", here, elsewhere, f"{whose} {name} is {a} here, {b} at the other sites")


def level_name(weighed: SiteTests, variable: int) -> str:
    """A level with the name of its column: disease = 1."""
    at = weighed.published.layout
    column = int(at.column[variable])
    name = at.target if column == weighed.outcome else at.columns[column]
    return f"{name} = {at.levels[column][int(at.level[variable])]}"


def variable_name(weighed: SiteTests, variable: int) -> str:
    """A number or a yes-or-no by its column, one of several levels with the level."""
    at = weighed.published.layout
    column = int(at.column[variable])
    if at.kinds[column] == "categorical":
        return level_name(weighed, variable)
    return "the outcome" if column == weighed.outcome else at.columns[column]


def unit_of(weighed: SiteTests, column: int) -> str:
    table = weighed.published.layout.table
    feature = table.features.get(weighed.published.layout.columns[column])
    return feature.unit if feature else table.target.unit if column == weighed.outcome else ""

"""The survival figure: steps, intervals, numbers at risk; and a sentence that claims no difference within chance."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import vitrail as vt
from tests.support.survival import made, study_of
from vitrail.metrics.survival import difference, limits, survival_curve, thirds
from vitrail.privacy.score_rounding import ScoredRows, can_leave, patients
from vitrail.report.pages.builder import write_report
from vitrail.report.sections.survival_by_risk import CHANCE, LESS, MORE, UNTOLD, Curve, compare_groups, contents
from vitrail.runs.setup import RISK

Floats = NDArray[np.float64]
LOW_EVENTS, HIGH_EVENTS, ROWS = 1, 2, 23  # what was once called "more often"


def drawn(rng: np.random.Generator, rows: int, hazard: float, until: float) -> Floats:
    """Outcomes as metrics/survival.py writes them."""
    event, leave = rng.exponential(1 / hazard, rows), rng.uniform(0, until, rows)
    return np.where(event <= leave, event, -leave)


def curve_of(y: Floats, fewest: int = 10, intervals: int = 10) -> Curve:
    """What a site tells of a group."""
    (at, share), left, told = survival_curve(y), [float(len(y))], list[int]()
    for end in range(1, intervals + 1):
        still = float((np.abs(y) > end).sum())
        if still >= fewest and left[-1] - still >= fewest:
            told.append(end)
            left.append(still)
    free = np.array([np.append(1.0, share)[np.searchsorted(at, end, "right")] for end in told])
    low, high = limits(free, np.array(left[1:]), len(y))
    return Curve(len(y), [float(t) for t in told], free.tolist(), left[1:], low.tolist(), high.tolist())


def greenwood(y: Floats, end: float) -> tuple[float, float, float]:
    """Kaplan-Meier at a time with its log-log interval, from every single row."""
    free, total = 1.0, 0.0
    for time in sorted(set(y[(y > 0) & (y <= end)])):
        risk, events = int((np.abs(y) >= time).sum()), int((y == time).sum())
        free *= 1 - events / risk
        total += events / (risk * (risk - events))
    half = 1.96 * math.sqrt(total) / abs(math.log(free))
    return free, free ** math.exp(half), free ** math.exp(-half)


def judged(rng: np.random.Generator, rows: int, low: float, high: float) -> str:
    """Two groups with these hazards."""
    groups = {"low": low, "middle": low, "high": high}
    gap = compare_groups({name: curve_of(drawn(rng, rows, hazard, 12.0)) for name, hazard in groups.items()})
    return gap.verdict if gap else "none"


def test_a_point_with_its_interval_is_that_of_single_rows() -> None:
    """Share to the last digit; the interval, which knows rows only at the ends of intervals, to 12 % of its half."""
    rng, off = np.random.default_rng(1), []
    for rows in (60, 150, 400):
        for hazard in (0.05, 0.15, 0.4):
            y = drawn(rng, rows, hazard, 9.0)
            curve = curve_of(y)
            for i, end in enumerate(curve.ends):
                free, low, high = greenwood(y, end)
                assert curve.free[i] == pytest.approx(free, abs=1e-12)
                off += [(curve.low[i] - low) / (free - low), (curve.high[i] - high) / (high - free)]
    assert len(off) > 40
    assert np.abs(off).max() < 0.12
    assert np.abs(np.mean(off)) < 0.03


@pytest.mark.parametrize(("rows", "hazard"), [(23, 0.1), (60, 0.1), (200, 0.05)])
def test_an_interval_covers_as_often_as_it_says(rows: int, hazard: float) -> None:
    rng, hit = np.random.default_rng(rows), []
    for _ in range(1000):
        curve = curve_of(drawn(rng, rows, hazard, 12.0))
        if curve.ends:
            hit.append(curve.low[-1] <= math.exp(-hazard * curve.ends[-1]) <= curve.high[-1])
    assert 0.93 <= np.mean(hit) <= 0.975


def test_where_nobody_had_the_event_the_interval_is_not_empty() -> None:
    low, high = limits(np.array([1.0, 0.9]), np.array([30.0, 15.0]), 45)
    assert low[0] == pytest.approx(0.025 ** (1 / 30))
    assert high[0] == 1
    assert 0 < low[1] < 0.9 < high[1] < 1


@pytest.mark.parametrize("rows", [40, 100, 300])
def test_no_difference_is_claimed_where_there_is_none(rows: int) -> None:
    """Named as more often in at most 4 of 100, asked 2.5; whichever share is larger would be named in about half."""
    rng = np.random.default_rng(rows)
    found = [judged(rng, rows, 0.1, 0.1) for _ in range(600)]
    assert found.count(MORE) / len(found) <= 0.04
    assert found.count(LESS) / len(found) <= 0.04


def test_a_difference_that_is_there_is_claimed() -> None:
    """Positive control: three times the hazard, and the other way round."""
    rng = np.random.default_rng(2)
    assert np.mean([judged(rng, 100, 0.1, 0.3) == MORE for _ in range(100)]) > 0.9
    assert np.mean([judged(rng, 100, 0.3, 0.1) == LESS for _ in range(100)]) > 0.9


def test_two_of_23_against_one_is_within_chance() -> None:
    """The case that was met: all others of both groups are followed to the end of the first interval, or half of it."""
    groups = {}
    for name, events in (("low", LOW_EVENTS), ("middle", LOW_EVENTS), ("high", HIGH_EVENTS)):
        y = -np.repeat([0.9, 1.5], [ROWS - 11, 11])
        y[:events] = 0.5
        groups[name] = curve_of(y, intervals=1)
    gap = compare_groups(groups)
    assert gap is not None
    assert gap.high > gap.low
    assert gap.verdict == CHANCE


def test_ends_that_only_one_group_is_told_at_widen_the_interval() -> None:
    low = Curve(90, [1.0, 3.0], [0.9, 0.8], [60.0, 40.0], [0.8, 0.7], [0.95, 0.87])
    high = Curve(90, [2.0], [0.5], [40.0], [0.4], [0.6])
    gap = compare_groups({"low": low, "middle": low, "high": high})
    assert gap is not None
    assert not gap.same
    assert (gap.end, gap.low) == (2.0, pytest.approx(0.2))
    assert gap.gap[1] == difference(low.at(1), high.at(0))[1]
    assert gap.gap[2] == difference(low.at(0), high.at(0))[2]
    later = high._replace(ends=[4.0])
    assert compare_groups({"low": low, "middle": low, "high": later}) is None


@pytest.fixture(scope="module")
def run() -> vt.Run:
    sites = {"north": made(600, 1), "south": made(240, 2, 500.0), "few": made(40, 3)}
    return vt.federate(study_of(), sites, method="fedavg")


def test_curves_are_steps_and_labels_no_lines(run: vt.Run) -> None:
    figure = str(contents(run, {})["figure"])
    assert "leader" not in figure
    assert figure.count('class="panel"') == 2
    paths = re.findall(r'<path d="M([^"]+)" class="line"', figure)
    assert len(paths) >= 4
    for path in paths:
        points = [tuple(map(float, p.split(","))) for p in path.split("L")]
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points)), "level or upright"
    assert figure.count('class="band') == len(paths)
    for group in ("low", "middle", "high"):
        assert f">{group} risk</text>" in figure


def test_numbers_at_risk_stand_below_and_none_is_small(run: vt.Run) -> None:
    figure = str(contents(run, {})["figure"])
    (panel,) = re.findall(r"fared at north</title>.*?</svg>", figure, re.S)
    below = panel[panel.index(">at risk</text>") :]
    numbers = [int(n) for n in re.findall(r'text-anchor="middle">(\d+)</text>', below)]
    rows = np.bincount(thirds(int(run.sizes.set_index("site").test_rows["north"])))
    assert [n for n in numbers if n in rows]
    told = run.scores(RISK).query("site == 'north' and metric.str.startswith('left@')", engine="python").value.dropna()
    assert set(numbers) == {*rows.tolist(), *told.astype(int)}
    assert min(numbers) >= 10


def test_without_numbers_at_risk_nothing_is_claimed(run: vt.Run, tmp_path: Path) -> None:
    """As between machines, where scores are rounded, and in runs of earlier versions."""
    old = replace(run, history=run.history[~run.history.metric.str.startswith("left@")])
    told = contents(old, {})
    assert told[UNTOLD] == "north and south"
    assert not any(told[kind] for kind in (MORE, LESS, CHANCE))
    assert 'class="band' not in told["figure"]
    assert "No intervals: this site tells no numbers at risk" in told["figure"]
    page = write_report(old, tmp_path / "page.html").read_text()
    assert "At north and south what the site tells is not enough to judge it." in page
    assert "beyond chance. " not in page


def test_numbers_at_risk_do_not_leave_rounded_and_cost_the_others_nothing() -> None:
    assert math.isnan(patients("left@low@1", ScoredRows(9000, 900)))
    assert not can_leave("left@low@1")
    assert can_leave("free@low@1")

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
from vitrail.report.pages.builder import page_of, write_report
from vitrail.report.pages.run import render
from vitrail.report.sections.survival_by_risk import CHANCE, LESS, MORE, UNTOLD, Curve, compare_groups, contents_of
from vitrail.runs.setup import RISK
from vitrail.runs.site.holdout import summaries_of

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


@pytest.fixture
def told(run: vt.Run) -> vt.Run:
    """As between machines: no row is at hand."""
    return replace(run, answers={}, summaries={})


def test_curves_are_steps_and_labels_no_lines(told: vt.Run) -> None:
    figure = str(contents_of(told, {})["figure"])
    assert "leader" not in figure
    assert figure.count('class="panel"') == 2
    assert "Simulation" not in render(page_of(told)).partition('id="by-risk"')[2].partition("</section>")[0]
    paths = re.findall(r'<path d="M([^"]+)" class="line"', figure)
    assert len(paths) >= 4
    for path in paths:
        points = [tuple(map(float, p.split(","))) for p in path.split("L")]
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points)), "level or upright"
    assert figure.count('class="band') == len(paths)
    for group in ("low", "middle", "high"):
        assert f">{group} risk</text>" in figure


def test_numbers_at_risk_stand_below_and_none_is_small(told: vt.Run) -> None:
    run, figure = told, str(contents_of(told, {})["figure"])
    (panel,) = re.findall(r"fared at north</title>.*?</svg>", figure, re.S)
    below = panel[panel.index(">at risk</text>") :]
    numbers = [int(n) for n in re.findall(r'text-anchor="middle">(\d+)</text>', below)]
    rows = np.bincount(thirds(int(run.sizes.set_index("site").test_rows["north"])))
    assert [n for n in numbers if n in rows]
    told = run.scores(RISK).query("site == 'north' and metric.str.startswith('left@')", engine="python").value.dropna()
    assert set(numbers) == {*rows.tolist(), *told.astype(int)}
    assert min(numbers) >= 10


def test_without_numbers_at_risk_nothing_is_claimed(told: vt.Run, tmp_path: Path) -> None:
    """As between machines, where scores are rounded, and in runs of earlier versions."""
    old = replace(told, history=told.history[~told.history.metric.str.startswith("left@")])
    shown = contents_of(old, {})
    assert shown[UNTOLD] == "north and south"
    assert not any(shown[kind] for kind in (MORE, LESS, CHANCE))
    assert 'class="band' not in shown["figure"]
    assert "No intervals: this site tells no numbers at risk" in shown["figure"]
    page = write_report(old, tmp_path / "page.html").read_text()
    assert "At north and south too little is known to judge it." in page
    assert "beyond chance. " not in page


def rows_by_hand(run: vt.Run, site: str) -> list[tuple[Floats, NDArray[np.bool_]]]:
    """Days and events of the thirds by risk, low first, of the rows that the run held out."""
    tables = {"north": made(600, 1), "south": made(240, 2, 500.0), "few": made(40, 3)}
    held = run.held_out()
    rows = tables[site].loc[held[held.site == site].row]
    risk = run.predict(site, rows).iloc[:, 0].to_numpy()
    order = np.argsort(risk, kind="stable")
    parts = [order[thirds(len(rows)) == g] for g in range(3)]
    return [(rows.days.to_numpy(float)[p], rows.died.to_numpy(bool)[p]) for p in parts]


def test_a_simulation_draws_every_step_with_greenwoods_interval(run: vt.Run) -> None:
    """By hand, time by time: share, interval and numbers at risk of each third at each event until the horizon."""
    horizon = run.study.target.ends[-1]
    for site in ("north", "south", "few"):
        for curve, (days, died) in zip(summaries_of(run)[site].curves, rows_by_hand(run, site), strict=True):
            y = np.where(died & (days <= horizon), days, -days)
            times = sorted(set(days[died & (days <= horizon)]))
            assert curve.rows == len(days)
            assert list(curve.times)[: len(times)] == pytest.approx(times, rel=1e-6)
            for time, *point in zip(curve.times, curve.free, curve.low, curve.high, strict=True):
                if 0 < point[0] < 1:
                    assert point == pytest.approx(greenwood(y, time + 1e-6), abs=2e-5)
            assert curve.left.tolist() == [float((days >= t - 1e-6).sum()) for t in curve.at]


def test_what_a_simulation_draws_are_these_steps(run: vt.Run) -> None:
    shown = contents_of(run, {})
    figure, (low, middle, high) = str(shown["figure"]), summaries_of(run)["north"].curves
    paths = [
        [tuple(map(float, p.split(","))) for p in d.split("L")]
        for d in re.findall(r'<path d="M([^"]+)" class="line"', figure)
    ][:3]
    for points, curve in zip(paths[:2] + paths[2:], (low, middle, high), strict=True):
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points)), "level or upright"
        top, bottom = points[0][1], points[0][1] + 150.0
        shares = [1 - (y - top) / (bottom - top) for _, y in points[2::2]]
        assert shares == pytest.approx(curve.free.tolist(), abs=0.001)
    assert 'class="end"' not in figure.replace('class="end m', ""), "no dots: the curve is known everywhere"
    below = figure.partition(">at risk</text>")[2].partition("</svg>")[0]
    numbers = [int(n) for n in re.findall(r'text-anchor="middle">(\d+)</text>', below)]
    assert numbers == [int(n) for curve in (low, middle, high) for n in curve.left[::2]]


def test_the_risk_at_the_horizon_is_told_in_per_cent(run: vt.Run) -> None:
    risks = dict(contents_of(run, {})["risks"])
    (group, predicted, observed), *_ = risks["north"]
    curve, expected = summaries_of(run)["north"].curves[0], summaries_of(run)["north"].expected[0]
    free, low, high = curve.at_time(run.study.target.ends[-1])
    assert (group, predicted) == ("low", f"{100 * expected:.0f} %")
    assert observed == f"{100 * (1 - free):.0f} % ({100 * (1 - high):.0f} to {100 * (1 - low):.0f})"
    page = render(page_of(run)).partition('id="by-risk"')[2].partition("</section>")[0]
    assert "<b>Simulation.</b>" in page
    assert predicted in page
    assert observed in page


def test_numbers_at_risk_do_not_leave_rounded_and_cost_the_others_nothing() -> None:
    assert math.isnan(patients("left@low@1", ScoredRows(9000, 900)))
    assert not can_leave("left@low@1")
    assert can_leave("free@low@1")

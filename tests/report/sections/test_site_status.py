"""The first screen of a run: what is drawn and said of each site is what its numbers are."""

from __future__ import annotations

import dataclasses
import math
import re
from html import unescape
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.report.pages import HEART, SEEDS, make, run_of, screened
from vitrail.metrics.calibration import RiskCounts
from vitrail.metrics.holdout_summary import HoldOutSummary, SummaryScore
from vitrail.quality.screening.result import Finding
from vitrail.report import Page, render
from vitrail.report.pages.builder import page_of
from vitrail.report.sections.scores import site_status
from vitrail.report.sections.scores.site_status import (
    BAD_DATA,
    BAD_RISKS,
    CLEAR,
    FEW,
    NO_BETTER,
    NO_SCORE,
    OFF,
    UNCLEAR,
    WORSE,
    has_statuses,
    site_statuses,
)


def words(html: str) -> str:
    inline = re.sub(r"</?(b|code|strong)\b[^>]*>", "", html)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", inline)))


def page(
    values: dict[str, float],
    intervals: dict[str, tuple[float, float]] | None = None,
    briers: dict[str, tuple[float, float]] | None = None,
    risks: dict[str, RiskCounts] | None = None,
    **more: Any,
) -> Page:
    """A run of one seed with these scores, intervals over hold-out rows, and Brier scores beside their baselines."""
    metric = "balanced_accuracy"
    rows = [("fedavg", SEEDS[0], site, "test", metric, v) for site, v in values.items()]
    scores = pd.DataFrame(rows, columns=["method", "seed", "site", "split", "metric", "value"])
    chance = pd.DataFrame({"site": list(values), "metric": metric, "value": 0.5})
    summaries = {}
    for site, value in values.items():
        low, high = (intervals or {}).get(site, (value - 0.05, value + 0.05))
        told = {metric: SummaryScore(value, low, high, 0.5)}
        if site in (briers or {}):
            told["brier"] = SummaryScore((briers or {})[site][0], math.nan, math.nan, (briers or {})[site][1])
        summaries[site] = HoldOutSummary(60, told, (risks or {}).get(site))
    run = run_of(list(values), summaries=summaries)
    shown = make(list(values), ["fedavg"], SEEDS[:1], 3, "run", summary=pd.DataFrame())
    return dataclasses.replace(shown, **{"scores": scores, "chance": chance, "run": run, **more})


def causes(shown: Page) -> dict[str, str]:
    return {s.site: s.cause for s in site_statuses(shown, shown.table, "fedavg")}


def counts(observed: float, rows: float = 400.0) -> RiskCounts:
    """Two groups whose risks are 20 and 60 %, and so many times that comes."""
    many = np.array([rows, rows])
    return RiskCounts(np.array([0.0, 0.5]), many, many * [0.2, 0.6] * np.array(observed), many * [0.2, 0.6])


def test_each_cause_is_told() -> None:
    values = {"clear": 0.7, "unclear": 0.55, "worse": 0.4, "level": 0.5, "none": math.nan, "risky": 0.7, "off": 0.7}
    intervals = {"unclear": (0.45, 0.65), "worse": (0.3, 0.45), "level": (0.4, 0.6)}
    sites = make(sites=[*values, "few", "faulty"]).sites.assign(few_rows=["", "", "", "", "", "", "", "12 rows", ""])
    found = Finding("faulty", "chol", "unit", True, 3.0, "text")
    shown = page(
        values | {"few": 0.7, "faulty": 0.7},
        intervals,
        {"risky": (0.26, 0.25), "clear": (0.2, 0.25)},
        {"off": counts(0.5), "clear": counts(1.0)},
        sites=sites,
        screening=screened([found], sites=[*values, "few", "faulty"]),
    )
    assert causes(shown) == {
        "clear": CLEAR,
        "unclear": UNCLEAR,
        "worse": WORSE,
        "level": NO_BETTER,
        "none": NO_SCORE,
        "risky": BAD_RISKS,
        "off": OFF,
        "few": FEW,
        "faulty": BAD_DATA,
    }
    order = [s.kind for s in site_statuses(shown, shown.table, "fedavg")]
    assert order == sorted(order, key=["loss", "warn", "unsure", "gain"].index), "the most urgent first"
    text = words(render(shown))
    assert "data likely wrong: chol" in text
    assert "better, but risks too high" in text
    assert "Brier score no better than baseline" in text
    assert "Ask faulty to look at the columns named above" in text
    assert "Do not use this model at worse and level." in text


def test_what_is_drawn_is_score_interval_and_baseline() -> None:
    shown = page({"cleveland": 0.7, "va": 0.6}, {"cleveland": (0.61, 0.78), "va": (0.52, 0.69)})
    section = render(shown).partition('id="sites"')[2].partition("</section>")[0]
    wide = section.partition('class="plot wide"')[2].partition("</svg>")[0]
    assert "va: 0.600 (95 % interval 0.520 to 0.690), baseline 0.500; better than baseline" in wide
    ticks = {float(w): float(x) for x, w in re.findall(r'<text x="([\d.]+)"[^>]*class="tick"[^>]*>(0\.\d+)<', wide)}
    (a, xa), (b, xb) = sorted(ticks.items())[:: len(ticks) - 1]
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"[^>]*r="6"', wide)]
    scores = [a + (x - xa) * (b - a) / (xb - xa) for x in places]
    assert scores == pytest.approx([0.6, 0.7], abs=0.002), "the one served worst first"
    lines = [
        (float(p), float(q)) for p, q in re.findall(r'<line x1="([\d.]+)"[^>]*x2="([\d.]+)"[^>]*class="interval"', wide)
    ]
    ends = [tuple(a + (x - xa) * (b - a) / (xb - xa) for x in line) for line in lines]
    assert ends == [pytest.approx((0.52, 0.69), abs=0.002), pytest.approx((0.61, 0.78), abs=0.002)]
    bases = [float(x) for x in re.findall(r'<line x1="([\d.]+)"[^>]*class="level short"', wide)][-2:]
    assert [a + (x - xa) * (b - a) / (xb - xa) for x in bases] == pytest.approx([0.5, 0.5], abs=0.002)


def test_the_worst_site_is_that_of_least_skill() -> None:
    """The smaller score is the better served site, where its baseline is smaller still."""
    shown = page({"easy": 0.70, "hard": 0.66})
    chance = pd.DataFrame({"site": ["easy", "hard"], "metric": "balanced_accuracy", "value": [0.65, 0.33]})
    text = words(render(dataclasses.replace(shown, chance=chance)))
    assert (
        "Site easy is served worst: 0.700 (95 % interval 0.650 to 0.750; baseline 0.650) in balanced accuracy." in text
    )


def test_sites_of_few_rows_do_not_stretch_the_axis() -> None:
    names = ["a", "b", "c", "tiny"]
    sites = make(sites=names).sites.assign(few_rows=["", "", "", "4 rows"])
    intervals = {"a": (0.68, 0.72), "b": (0.68, 0.72), "c": (0.67, 0.73), "tiny": (0.1, 0.99)}
    shown = page({"a": 0.7, "b": 0.7, "c": 0.7, "tiny": 0.2}, intervals, sites=sites)
    html = render(shown).partition('id="sites"')[2].partition("</section>")[0]
    wide = html.partition('class="plot wide"')[2].partition("</svg>")[0]
    ticks = [float(w) for w in re.findall(r'class="tick"[^>]*>(0\.\d+)<', wide)]
    assert min(ticks) >= 0.45
    rows = wide.split('<g class="verdict')[1:]
    arrows = {re.search(r"(\w+): 0\.", row)[1]: row.count('class="arrow') for row in rows}  # type: ignore[index]
    assert arrows == {"a": 0, "b": 0, "c": 0, "tiny": 2}
    assert 'r="6"' not in next(row for row in rows if "tiny:" in row), "its dot lies beyond the axis"


def test_the_direction_in_which_risks_are_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"a": counts(0.5), "b": counts(1.0), "c": counts(1.6)}
    monkeypatch.setattr(site_status, "risk_counts_of", lambda run: told)
    shown: Any = SimpleNamespace(run=object())
    assert [site_status.risks_off(shown, s) for s in "abc"] == ["too high", "", "too low"]


def test_more_sites_than_a_screen_holds_are_folded() -> None:
    shown = page({f"s{k:02d}": 0.6 + k / 100 for k in range(25)})
    html = render(shown).partition('id="sites"')[2].partition("</section>")[0]
    assert "<summary>The other 15 sites</summary>" in html
    first = html.partition("<details>")[0]
    assert "s00: 0.600" in first
    assert "s24: 0.840" not in first


def test_a_comparison_with_verdicts_has_another_first_figure() -> None:
    assert not has_statuses(make(rounds=3))
    html = render(make(rounds=3))
    assert html.index('id="joining"') < html.index('id="short"') < html.index('id="scores"')
    assert has_statuses(make(rounds=3, verdicts=pd.DataFrame()))


@pytest.mark.parametrize("kind", ["classes", "number"])
def test_intervals_on_the_page_are_those_over_hold_out_rows(kind: str) -> None:
    rng = np.random.default_rng(2)
    tables = {}
    for name, rows in (("north", 160), ("south", 120)):
        x = rng.normal(size=rows)
        y = (
            (x + rng.normal(size=rows) > 0).astype(int)
            if kind == "classes"
            else (3 * x + rng.normal(size=rows)).round(2)
        )
        tables[name] = pd.DataFrame({"x": x, "y": y})
    study = vt.Study.infer(tables, target="y").with_changes(training={"rounds": 5}, screen={"ask": False})
    run = vt.federate(study, tables)
    shown = page_of(run)
    for status in site_statuses(shown, shown.table, next(iter(shown.titles))):
        p, y = run.answers[status.site].p, run.answers[status.site].y
        assert status.score.low < status.score.value < status.score.high
        if kind == "number":
            assert status.score.value == pytest.approx(np.sqrt(((p[:, 0] - y) ** 2).mean()))
            assert status.baseline == pytest.approx(y.std())


def test_heart_sites_are_all_there() -> None:
    shown = page(dict.fromkeys(HEART, 0.7))
    assert set(causes(shown)) == set(HEART)

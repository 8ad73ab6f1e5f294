"""The forest plot of joining: drawn first, with arrows for what is beyond its axis, and the baseline's Brier score."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
import pytest

from tests.support.report.pages import HEART, make
from vitrail.report import Page, render
from vitrail.report.charts.interval_rows import Interval, IntervalRow, IntervalRows, RowMark, interval_rows
from vitrail.report.sections.scores.joining import BRIER, SiteGain, contents, verdict_figure


def ticks_of(figure: str) -> tuple[float, float, float, float]:
    """Two numbers of the axis and their places."""
    found = re.findall(r'<text x="([\d.]+)"[^>]*class="tick"[^>]*>([−+]?[\d.]+)<', figure)
    values = sorted((float(w.replace("−", "-")), float(x)) for x, w in found)
    (a, xa), (b, xb) = values[0], values[-1]
    return a, xa, b, xb


def wide(figure: object) -> str:
    return str(figure).partition('class="plot wide"')[2].partition("</svg>")[0]


def rows(figure: str) -> dict[str, str]:
    return {m[1]: part for part in figure.split('<g class="verdict')[1:] if (m := re.search(r"<title>([^:<]+):", part))}


@pytest.mark.parametrize("few", [(), ("tiny",)])
def test_an_arrow_stands_where_an_interval_goes_beyond_the_axis_and_nowhere_else(few: tuple[str, ...]) -> None:
    gains = [
        SiteGain("a", "FedAvg", Interval(0.02, -0.01, 0.05), "cannot tell"),
        SiteGain("b", "FedAvg", Interval(0.04, 0.01, 0.07), "yes"),
        SiteGain("c", "FedAvg", Interval(-0.03, -0.06, -0.01), "no"),
        SiteGain("tiny", "FedAvg", Interval(0.3, -0.9, 1.5), "cannot tell"),
    ]
    figure = wide(verdict_figure(gains, "gain", few))
    a, xa, b, xb = ticks_of(figure)
    low, high = (a + (x - xa) * (b - a) / (xb - xa) for x in rail_of(figure))
    assert high == pytest.approx(-low, abs=0.003), "zero in the middle"
    for gain in gains:
        expected = (gain.gain.low < low) + (gain.gain.high > high)
        assert rows(figure)[gain.site].count('class="arrow') == expected
    assert (high < 0.15) == bool(few), "a site of few rows does not stretch it, whatever its value"
    assert ("<circle" in rows(figure)["tiny"]) != bool(few), "its dot would stand where its gain is not"
    assert "0.300" in figure, "the number is told all the same"


def rail_of(figure: str) -> tuple[float, float]:
    """As far as an interval is drawn to either side; one that is cut reaches the end of the axis."""
    ends = [
        float(x)
        for pair in re.findall(r'<line x1="([\d.]+)"[^>]*x2="([\d.]+)"[^>]*class="interval"', figure)
        for x in pair
    ]
    a, xa, b, xb = ticks_of(figure)
    middle = xa + (0 - a) * (xb - xa) / (b - a)
    far = max(abs(x - middle) for x in ends)
    return middle - far, middle + far


def test_a_dot_beyond_the_axis_is_an_arrow() -> None:
    row = IntervalRow(
        "x", "x: 9", Interval(9.0), [RowMark(9.0), RowMark(0.5, words="inside"), RowMark(-4.0, "tick", "level")]
    )
    figure = str(interval_rows(IntervalRows("t", [row], "axis", 0.0, 1.0), 832))
    assert figure.count('class="arrow dot"') == 1
    assert figure.count("<circle") == 1
    assert 'class="level"' not in figure


def crossed(page: Page) -> Page:
    """The verdicts of a comparison in folds: with Brier scores."""
    more = {
        "brier_alone": [0.2, 0.18, 0.15, 0.21],
        "brier_joined": [0.19, 0.17, 0.16, 0.2],
        "brier_same": [0.25, 0.22, 0.1, 0.24],
    }
    page.verdicts[list(more)] = pd.DataFrame(more)
    return page


def test_the_baselines_brier_score_stands_beside_the_models() -> None:
    page = crossed(make(rounds=3))
    shown = contents(page)
    figure = wide(shown["brier_figure"])
    a, xa, b, xb = ticks_of(figure)
    for v in page.verdicts.to_dict("records"):
        words = ", ".join(
            f"{what} {v[k]:.3f}" for what, k in zip(BRIER, ("brier_same", "brier_alone", "brier_joined"), strict=True)
        )
        assert f"{v['site']}: {words}" in figure
        assert f"{v['brier_joined']:.3f}, baseline {v['brier_same']:.3f}" in figure
    drawn = sorted(
        a + (float(x) - xa) * (b - a) / (xb - xa) for x in re.findall(r'<circle cx="([\d.]+)"[^>]*class="told"', figure)
    )
    assert drawn[-4:] == pytest.approx(sorted(page.verdicts.brier_joined), abs=0.002)
    html = render(page)
    assert html.index('data-figure="joining"') < html.index('data-figure="brier"') < html.index('id="short"')
    assert 'data-figure="brier"' not in render(make(rounds=3)), "nothing without Brier scores"


def test_the_answer_and_the_next_step_name_the_sites() -> None:
    page = make(rounds=3)
    page.verdicts["verdict"] = ["yes", "no", "cannot tell", "no harm"]
    shown = contents(page)
    site = dict(zip(page.verdicts.verdict, page.verdicts.site, strict=True))
    text = re.sub(r"<[^>]+>", "", str(shown["answer"]))
    assert text.startswith(f"Joining is worth it at {site['yes']}; makes the model worse at {site['no']}")
    steps = [re.sub(r"<[^>]+>", "", str(step)) for step in shown["next"]]
    assert site["no"] in steps[0]
    assert site["yes"] in steps[1]
    assert set(site.values()) == set(HEART)


def test_what_cannot_be_answered_comes_after_the_scores() -> None:
    html = render(make(rounds=3, verdicts=pd.DataFrame()))
    assert html.index('id="sites"') < html.index('id="scores"') < html.index("Not answered here")


def test_learning_curves_are_folded() -> None:
    html = render(make(rounds=3))
    section = html[html.index('id="curves"') :].partition("</section>")[0]
    opening: Any = re.search(r"<details>\s*<summary>", section)
    assert opening is not None
    assert opening.start() < section.index("<figure")
    assert "<details open" not in section


def test_gains_that_are_not_known_draw_nothing() -> None:
    assert not verdict_figure([], "gain")
    assert math.isnan(Interval(math.nan).low)

"""What figures show of hold-out rows is kept beside the models of a simulation, is the same at a site of its own rows,
and is nowhere where the rows are elsewhere."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

import vitrail as vt
from tests.support.report.holdout_runs import TABLES, small_run
from vitrail.metrics.holdout_summary import FeatureEffect
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.pages.site import render_private
from vitrail.report.sections.performance import effects, predicted_values
from vitrail.runs.site.holdout import summaries_of
from vitrail.runs.site.inspection import look_behind


@pytest.fixture(scope="module", params=list(TABLES))
def run(request: pytest.FixtureRequest) -> vt.Run:
    return small_run(request.param)


def plain(run: vt.Run) -> str:
    return json.dumps({site: summary.plain for site, summary in summaries_of(run).items()})


def sections(html: str) -> str:
    """Without the appendix, which says when it was made."""
    return html.partition('id="cost"')[0]


def test_it_is_kept_and_read_again(run: vt.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    again = vt.Run.load(tmp_path / "run")
    assert not again.answers, "no row of any site is kept"
    assert set(summaries_of(run)) == {"north", "va"}
    assert plain(again) == plain(run)
    assert sections(render(page_of(again))) == sections(render(page_of(run)))
    for place in (tmp_path / "run").rglob("held_out_summary.json"):
        place.unlink()
    old = vt.Run.load(tmp_path / "run")
    assert summaries_of(old) == {}
    assert "<b>Simulation.</b>" not in render(page_of(old)), "a run of an earlier version still has a page"


def test_a_site_sees_the_same_of_its_own_rows_and_on_its_private_page(run: vt.Run) -> None:
    kind = run.study.target.kind
    seen = look_behind(run, "va", TABLES[kind]["va"])
    assert seen.performance is not None
    mine, other = seen.performance.summary, summaries_of(run)["va"]
    assert mine.rows == other.rows
    for metric, score in mine.scores.items():
        assert score == pytest.approx(other.scores[metric], abs=1e-6, nan_ok=True)
    assert mine.confusion == other.confusion
    assert mine.expected == pytest.approx(other.expected, abs=1e-6)
    html = render_private(seen)
    section = html.partition('id="performance"')[2].partition("</section>")[0]
    assert "This stays at va" in html
    assert "Nothing of this section leaves the site." in section
    marks = {"classes": "ROC curve at va", "number": "What was true at va", "time": "high risk fared at va"}
    assert marks[kind] in unescape(section)
    assert [marks[k] in unescape(section) for k in marks].count(True) == 1


def test_of_other_rows_the_private_page_says_nothing(run: vt.Run) -> None:
    table = TABLES[run.study.target.kind]["va"]
    seen = look_behind(run, "va", table.iloc[5:])
    assert seen.performance is None
    assert 'id="performance"' not in render_private(seen)


def test_groups_that_are_drawn_are_those_of_the_rows() -> None:
    run = small_run("number")
    shown = predicted_values.contents(page_of(run))
    panel = str(shown["figure"]).partition("What was true at va")[2].partition("</svg>")[0]
    ticks = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="tick" text-anchor="(end|middle)">(\d+)<', panel)
    across = sorted((float(w), float(x)) for x, _, anchor, w in ticks if anchor == "middle")
    up = sorted((float(w), float(y) - 4) for _, y, anchor, w in ticks if anchor == "end")

    def value(at: float, marks: list[tuple[float, float]]) -> float:
        (a, xa), (b, xb) = marks[0], marks[-1]
        return a + (at - xa) * (b - a) / (xb - xa)

    points = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"[^>]*class="told"', panel)
    groups = summaries_of(run)["va"].groups
    assert groups is not None
    low, high = predicted_values.domain([g for s in summaries_of(run).values() if (g := s.groups) is not None])
    near = (high - low) / 300
    assert [value(float(x), across) for x, _ in points] == pytest.approx(groups.expected.tolist(), abs=near)
    assert [value(float(y), up) for _, y in points] == pytest.approx(groups.observed.tolist(), abs=near)


def test_dots_of_effects_are_the_changes_and_words_their_direction() -> None:
    run = small_run("number", 20)
    shown = effects.contents(page_of(run))
    figure = str(shown["figure"]).partition('class="plot wide"')[2].partition("</svg>")[0]
    rows = {row.feature: row for row in effects.effect_rows(run)}
    assert next(iter(rows)) == "age", "what moves most comes first"
    largest = max(effects.size(e) for row in rows.values() for e in row.sites.values())
    for name, words in (("age", "rises"), ("dose", "falls"), ("ward", "highest for b")):
        assert effects.direction_words(rows[name].sites, effects.SMALL * largest) == words
        for site, effect in rows[name].sites.items():
            start, end = effects.ends_of(effect)
            change = effect.answers[end] - effect.answers[start]
            assert f"{site}, {name} from {effect.values[start]} to {effect.values[end]}: " in figure
            assert f"{abs(change):.1f}</title>" in figure


def test_directions_that_differ_are_told_by_site() -> None:
    def effect(*answers: float) -> FeatureEffect:
        return FeatureEffect("x", ("1", "2", "3")[: len(answers)], answers, True)

    told = {"a": effect(0.1, 0.2, 0.3), "b": effect(0.1, 0.2, 0.3), "c": effect(0.3, 0.2, 0.1)}
    assert effects.direction_words(told, 0.05) == "rises at 2 of 3; falls at c"
    assert effects.direction_words({"a": effect(0.1, 0.3, 0.1)}, 0.05) == "rises and falls"
    assert effects.direction_words({"a": effect(0.10, 0.11, 0.12)}, 0.05) == "hardly moves"
    two = FeatureEffect("smoker", ("no", "yes"), (0.1, 0.3), False)
    assert effects.direction_words({"a": two}, 0.05) == "higher for yes"

"""Whose class stands out: what the page of a run says and draws of it, and that no picture is on it."""

from __future__ import annotations

import itertools
import os
import re
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import vitrail as vt
from tests.support.report.browser import BROWSER, Browser
from tests.support.report.pages import HOSTILE
from tests.support.report.shortcuts import bench, facts_of, page
from tests.support.small import opposed_tables
from vitrail.analysis.shortcuts.detector import read_standing
from vitrail.cli import runs as cli_runs
from vitrail.core import facts as means
from vitrail.report import render
from vitrail.report.sections.pictures.shortcut_maps import contents_of
from vitrail.report.sections.registry import undrawn

TITLE, MAPS = "Whose class stands out", "Each site and class against what is usual here"


def words(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", html)))


def section(html: str, title: str) -> str:
    return html.partition(f">{title}</h2>")[2].partition("</section>")[0]


def test_who_stands_out_by_what_and_what_to_ask() -> None:
    html = render(page(facts_of(4, 2, 40), 4))
    said = words(section(html, TITLE))
    assert re.search(
        r"site 0, class 1: compared with the other sites' models on the same pictures, its model gives the right class "
        r"odds [\d,.]+ times higher at its own site than elsewhere \(usual: [\d.]+ times",
        said,
    )
    assert "Probability that a federation without any shortcut shows as much at any site: " in said
    assert "look at your pictures of class 1 for a mark, a tube, a text or a device that your other" in said
    assert "This is a question to the site, not a verdict: at most 5 in 100 federations" in said
    assert "vitrail look RUN --site NAME --data PICTURES" in said
    assert "site 2, class" not in said
    assert "What this cannot tell." in words(section(html, MAPS))
    far = render(page(facts_of(4, 2, 40), 4, engine="deployed"))
    assert "vitrail look --kit KIT --data PICTURES" in words(section(far, TITLE))


def test_nothing_stands_out() -> None:
    html = render(page(facts_of(4, 2, 40, marked=False), 4))
    assert "No class at any site stands out: nothing in 8 cells" in words(section(html, TITLE))
    assert 'class="flag"' not in html
    assert "To ask" not in section(html, TITLE)
    few = render(page(facts_of(2, 2, 40), 2))
    assert "nobody can say which of them is unusual" in words(section(few, TITLE))
    assert "<svg" not in section(few, MAPS)


def test_pages_of_other_runs_know_nothing_of_it() -> None:
    html = render(page({}, 4))
    assert TITLE not in html
    assert MAPS not in html


def test_each_fact_alone_is_drawn_and_none_is_listed() -> None:
    whole = facts_of(4, 3, 40)
    assert undrawn(page(whole, 4)) == []
    titles = (
        "Travel: right at home",
        "Surer at home: how",
        "A piece that convinces",
        "Learned too easily",
        "Distance of the site",
    )
    for (name, fact), title in zip(whole.items(), titles, strict=True):
        shown = page({name: fact}, 4)
        assert undrawn(shown) == []
        html = section(render(shown), MAPS)
        assert [t for t in titles if t in html] == [title]


def test_there_is_no_picture_on_the_page() -> None:
    """Nor anything that could hold one: no image, no data address, no numbers that are not in a table or a drawing."""
    html = render(page(facts_of(8, 20, 12), 8))
    for title in (TITLE, MAPS):
        part = section(html, title)
        assert part
        for trace in (
            "<img",
            "<image",
            "<canvas",
            "<picture",
            "<video",
            "data:",
            "base64",
            "url(",
            "<script",
            "feImage",
        ):
            assert trace not in part.lower(), trace
    shapes = {
        el.tag for svg in re.findall(r"<svg.*?</svg>", section(html, MAPS)) for el in ElementTree.fromstring(svg).iter()
    }
    assert shapes <= {"svg", "title", "desc", "rect", "text", "g", "circle"}


def test_cells_say_what_was_measured_and_what_is_usual() -> None:
    facts = facts_of(4, 3, 40)
    told = read_standing(facts)
    assert told is not None
    assert (0, 1) in [(f.site, f.label) for f in told.found]
    maps = {m.key: m for m in contents_of(told, ["a", "b", "c", "d"], ["cat", "dog", "emu"])["maps"]}
    assert list(maps) == ["piece", "margin"]
    told = read_standing({k: f for k, f in facts.items() if f.means != means.MARGIN})  # as before it was told
    assert told is not None
    maps = {m.key: m for m in contents_of(told, ["a", "b", "c", "d"], ["cat", "dog", "emu"])["maps"]}
    assert list(maps) == ["piece", "travel"]
    names, cells = (ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", maps["travel"].drawing))
    assert [el.text for el in names.iter("text")] == ["a", "b", "c", "d"]
    said = {el[0].text: el.get("class") for el in cells.iter("rect") if len(el)}
    assert len(said) == 12
    travel, usual = (round(100 * v) for v in (told.travel[0, 1], told.usual["travel"][0, 1] - told.away[0, 1]))
    red = said[f"a, dog: {travel} % more right at home than elsewhere; usual: {usual} %"]
    assert red is not None
    assert int(red[1:]) > 9
    flags = [el for el in cells.iter("rect") if el.get("class") == "flag"]
    assert len(flags) == len(told.found)
    assert len(list(cells.iter("circle"))) == len(told.found)


def test_red_is_where_a_shortcut_would_lie() -> None:
    """Convinced by a piece as no other, further away, less loss than usual."""
    facts = facts_of(5, 4, 40, marked=False)
    for fact, factor in zip(facts.values(), (1, 1, 9, 0.3, 3), strict=True):
        at = (3, 3, 2) if fact.means == means.PIECE else (3, 2)
        fact.value[at] = fact.value[at] * factor
        if fact.means == means.MARGIN:
            fact.value[3, :, 2, 0] *= 0.4
            fact.value[3, 3, 2, 0] *= 2.5
    told = read_standing(facts)
    assert told is not None
    given = contents_of(told, list("abcde"), list("wxyz"))
    for one in (*given["maps"], *given["folded"]):
        cells = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", one.drawing)[1])
        kind = next(el.get("class") for el in cells.iter("rect") if len(el) and str(el[0].text).startswith("d, y: "))
        assert kind is not None
        assert one.key == "travel" or int(kind[1:]) >= 8, one.key


def test_what_is_not_told_is_left_empty() -> None:
    travel = bench.simulate(np.random.default_rng(1), 4, 3, 40, bench.WORLDS["alike"])["travel"]
    travel[:, 2, 1] = np.nan
    told = read_standing(facts_of(4, 3, 40, travel=travel))
    assert told is not None
    (drawing,) = [m.drawing for m in contents_of(told, list("abcd"), list("xyz"))["folded"] if m.key == "travel"]
    assert drawing.count('class="none"><title>c, y: not told') == 1


def test_many_classes_are_thinned_and_the_odd_one_kept() -> None:
    told = read_standing(facts_of(6, 60, 20))
    assert told is not None
    assert (0, 1) in [(f.site, f.label) for f in told.found]
    given = contents_of(told, [f"s{i}" for i in range(6)], [])
    assert (given["classes"], given["left_out"]) == (60, 36)
    drawing = given["maps"][0].drawing
    assert drawing.count("<rect") == 6 * 24 + 2 * sum(f.label == 1 for f in told.found)
    assert 'class="feature flagged" text-anchor="end">2</text>' in drawing


def test_the_least_usual_cells_are_listed_with_their_chances() -> None:
    told = read_standing(facts_of(4, 3, 40))
    assert told is not None
    least = contents_of(told, list("abcd"), ["cat", "dog", "emu"])["least"]
    assert len(least) == 5
    assert (least[0]["site"], least[0]["class"], least[0]["stands out"]) == ("a", "dog", "yes")
    assert [row["stands out"] for row in least[1:]] == ["no"] * 4


def test_the_terminal_tells_it_when_a_run_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the facts' meaning, whatever method told them: here a plain one, with facts of our own put beside."""
    tables = opposed_tables({"a": 40, "b": 40, "c": 40, "d": 40})
    (tmp_path / "data").mkdir()
    for name, table in tables.items():
        table.to_csv(tmp_path / "data" / f"{name}.csv", index=False)
    vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 1}).save(tmp_path / "study.toml")

    real = vt.federate

    def federate(*given: Any, **more: Any) -> vt.Run:
        run = real(*given, **more)
        run.facts |= facts_of(4, 2, 40)
        return run

    monkeypatch.setattr("vitrail.runs.federate", federate)
    cli_runs.run(tmp_path / "study.toml", tmp_path / "data", tmp_path / "out")
    said = capsys.readouterr().out
    assert re.search(
        r"Whose class stands out\?\n  - Site a, class \S+: .*its model gives the right class odds [\d,.]+ times", said
    )
    assert "To ask a: look at your pictures of class" in said


def test_hostile_names_are_text() -> None:
    html = render(page(facts_of(4, 2, 40), 4, HOSTILE))
    for name in HOSTILE[:2]:
        assert name not in html.partition("<main")[2]


@pytest.mark.skipif(BROWSER is None and not os.environ.get("CI"), reason="no Chromium here")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_in_a_browser(width: int, dark: bool, tmp_path: Path) -> None:
    """20 classes at 8 sites: the page is no wider than the window, maps scroll in their place, numbers do not touch."""
    place = tmp_path / "page.html"
    place.write_text(render(page(facts_of(8, 20, 12), 8)), encoding="utf-8")
    with Browser(tmp_path) as browser:
        browser.open(place, width=width, dark=dark)
        assert browser.ask("document.documentElement.scrollWidth") <= width
        inside = "[...document.querySelectorAll('[data-figure=standing-travel] .cells .in')]"
        boxes = browser.ask(
            f"{inside}.map(e => e.getBoundingClientRect()).map(r => [r.left, r.right, r.top, r.bottom])"
        )
        assert len(boxes) > 140
        rows: dict[int, list[tuple[float, float]]] = {}
        for left, right, top, _ in boxes:
            rows.setdefault(round(top), []).append((left, right))
        for row in rows.values():
            row.sort()
            assert all(a[1] < b[0] for a, b in itertools.pairwise(row))
        room = "document.querySelector('[data-figure=standing-travel] .scroll')"
        wide, seen = browser.ask(f"[{room}.scrollWidth, {room}.clientWidth]")
        assert (wide > seen) == (width < 800)
        assert browser.says == []


SCALED = "Distance between local and shared prototypes"


def drawn_distances(html: str) -> list[float]:
    """As they stand in the cells' words."""
    return [float(v) for v in re.findall(r"<title>site \d+, \d+: ([\d.]+)</title>", section(html, SCALED))]


def test_the_papers_figure_is_drawn_beside_our_answer() -> None:
    """Min-max of what sites told, cell by cell; one cell is at 1, also in a federation without any mark, and the page
    says that this is no reason."""
    facts = facts_of(5, 3, 40)
    far = next(fact.value for fact in facts.values() if fact.means == means.PROTOTYPE_DISTANCE).numpy()
    html = render(page(facts, 5))
    want = (far - far.min()) / (far.max() - far.min())
    assert drawn_distances(html) == pytest.approx(want.ravel().tolist(), abs=0.0051)
    part = words(section(html, SCALED))
    assert "Shortcut detector site 0, class 2" in part
    assert "some cell is at 1 in every federation, also where no picture has a mark" in part
    clean = render(page(facts_of(5, 3, 40, marked=False), 5))
    assert drawn_distances(clean).count(1.0) == 1
    assert "Shortcut detector names none The largest distance is no reason for suspicion." in words(
        section(clean, SCALED)
    )
    assert 'class="flag"' not in clean


def test_whether_the_largest_distance_is_where_the_detector_points() -> None:
    facts = facts_of(5, 3, 40)
    name = next(name for name, fact in facts.items() if fact.means == means.PROTOTYPE_DISTANCE)
    far = facts[name].value.clone()
    far[0, 1] = 2 * far.max()
    assert "The largest distance is at a cell that it names." in render(
        page({**facts, name: facts[name]._replace(value=far)}, 5)
    )
    far[4, 0] = 2 * far.max()
    html = render(page({**facts, name: facts[name]._replace(value=far)}, 5))
    assert "Largest distance site 4, class 1" in words(section(html, SCALED))
    assert "The largest distance is elsewhere." in html


def test_two_sites_and_none_have_no_answer_but_what_they_told() -> None:
    two = words(section(render(page(facts_of(2, 2, 40), 2)), SCALED))
    assert "Shortcut detector cannot tell The sites reported too little." in two
    none = facts_of(4, 2, 40, distance=np.full((4, 2), np.nan))
    assert "Too few sites told how far their prototypes lie" in section(render(page(none, 4)), SCALED)


def test_of_many_classes_those_that_are_named_are_drawn() -> None:
    facts = facts_of(6, 40, 12)
    name = next(name for name, fact in facts.items() if fact.means == means.PROTOTYPE_DISTANCE)
    far = facts[name].value.clone()
    far[:, 1] = far.min()  # the marked class has the smallest distances
    html = section(render(page({**facts, name: facts[name]._replace(value=far)}, 6)), SCALED)
    assert "Of 40 classes the 24 with the largest distances are drawn." in words(html)
    assert "; stands out" in html

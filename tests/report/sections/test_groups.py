"""Groups that a coordinator found, and what models are mixed from: what the page of a run says and draws."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import vitrail as vt
from tests.support.report.browser import BROWSER, Browser
from tests.support.report.groups import facts_of, page
from tests.support.report.pages import HEART, HOSTILE
from tests.support.small import opposed_tables
from vitrail.analysis.clusters import read_groups
from vitrail.core import facts as means
from vitrail.core.facts import Fact
from vitrail.report import render
from vitrail.report.pages.builder import page_of
from vitrail.report.sections.learning.groups import contents_of
from vitrail.report.sections.registry import undrawn

# four sites; the third leaves after round 2, the fourth follows after round 4: three groups with numbers of any kind
PATH = [[7, 7, 7, 7], [7, 7, 7, 7], [7, 7, 3, 7], [7, 7, 3, 7], [7, 7, 3, 9], [7, 7, 3, 9]]
TITLE = "Groups the coordinator found"


def words(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", html)))


def section(html: str, title: str) -> str:
    return html.partition(f">{title}</h2>")[2].partition("</section>")[0]


def test_who_is_in_which_group_since_when() -> None:
    said = words(section(render(page(facts_of(PATH))), TITLE))
    assert "Group 1, since round 5: cleveland and hungarian." in said
    assert "Group 2, since round 3, alone: switzerland." in said
    assert "Group 3, since round 5, alone: va." in said
    assert "In round 3 switzerland went from group 1 to group 2." in said
    assert "In round 5 va went from group 1 to group 3." in said
    assert "split" not in said
    assert "cosine" not in said


def test_a_split_is_told_with_its_reason() -> None:
    said = words(section(render(page(facts_of(PATH, lengths=True))), TITLE))
    why = "the updates of its sites were up to 2 long, their mean 0.4"
    assert f"In round 3 group 1 was split, and switzerland became group 2: {why}." in said
    assert "In round 5 group 1 was split, and va became group 3" in said
    assert "Length of the updates in the last round: group 1: mean 0.1, longest 0.5" in said


def test_angles_are_of_the_last_round_with_one_model() -> None:
    shown = render(page(facts_of(PATH, alike=True)))
    said = words(section(shown, TITLE))
    assert "updates are (cosine), round 3" in said
    assert "last round in which all sites trained the same model" in said
    assert "cleveland and va: −0.30" in unescape(shown)
    one = words(section(render(page(facts_of([[1] * 4] * 3, alike=True))), TITLE))
    assert "updates are (cosine), round 3" in one
    assert "All sites trained the same model to the end" in one


def test_one_group_to_the_end_needs_no_picture() -> None:
    html = section(render(page(facts_of([[0] * 4] * 5))), TITLE)
    assert "All 4 sites are in one group, from the first round to the last." in words(html)
    assert "<svg" not in html


def test_many_changes_are_counted() -> None:
    path = [[r % 2, 0, 1, 1] for r in range(12)]
    said = words(section(render(page(facts_of(path))), TITLE))
    assert "Sites went from one group to another 11 times, for the last time in round 12." in said
    assert "went from group 1 to" not in said


def test_lanes_change_colour_with_the_group() -> None:
    found = read_groups(list(HEART), facts_of(PATH))
    assert found is not None
    wide, _ = re.findall(r"<svg.*?</svg>", contents_of(found)["figure"])
    spans = [g for g in ElementTree.fromstring(wide).iter("g") if [el.tag for el in g] == ["title", "rect"]]
    lanes = [g[1] for g in spans]
    told = [(g[1].get("class"), g[0].text) for g in spans]
    assert told == [
        ("lane m0", "cleveland: group 1, rounds 1 to 6"),
        ("lane m0", "hungarian: group 1, rounds 1 to 6"),
        ("lane m0", "switzerland: group 1, rounds 1 to 2"),
        ("lane m1", "switzerland: group 2, rounds 3 to 6"),
        ("lane m0", "va: group 1, rounds 1 to 4"),
        ("lane m2", "va: group 3, rounds 5 to 6"),
    ]
    ends = {(float(el.get("x", 0)), float(el.get("width", 0))) for el in lanes[:2]}
    assert len(ends) == 1
    (x, wide_one), first, second = ends.pop(), lanes[2], lanes[3]
    assert float(first.get("width", 0)) == pytest.approx(wide_one / 3, abs=1)
    assert float(second.get("x", 0)) == pytest.approx(x + wide_one / 3, abs=1)


def test_what_is_drawn_is_not_listed_and_the_rest_is() -> None:
    assert undrawn(page(facts_of(PATH, True, True))) == []
    last = {"once": Fact(torch.tensor([0, 0, 1, 1]), ("site",), means.GROUP)}
    assert [f["name"] for f in undrawn(page(last))] == ["once"], "of one round no lanes can be drawn"
    assert TITLE not in render(page(last))


def test_hostile_names_are_text() -> None:
    html = render(page(facts_of(PATH, True, True), HOSTILE))
    for name in HOSTILE[:2]:
        assert name not in html.partition("<main")[2]


def test_a_run_of_opposed_sites() -> None:
    """The real thing: the one whose relation is the other way round is set apart, whatever its facts are called."""
    tables = opposed_tables({"small": 40, "large": 60, "middle": 50, "other": 45})
    study = vt.Study.infer(tables, target="sick").with_changes(
        training={"rounds": 12, "lr": 0.02, "decays": 0}, network={"kind": "linear"}
    )
    run = vt.federate(study, tables, vt.methods.build("cfl", {"eps1": 0.2, "eps2": 0.2, "after": 3}))
    html = render(page_of(run))
    said = words(section(html, TITLE))
    assert re.search(r"Group 2, since round \d+, alone: middle\.", said)
    run.facts = {f"f{i}": fact for i, fact in enumerate(run.facts.values())}
    assert section(render(page_of(run)), TITLE) == section(html, TITLE)


def mixed(weights: np.ndarray, agreed: list[bool] | None = None) -> str:
    facts = {"w": Fact(torch.from_numpy(weights), ("user", "site"), means.MIXED)}
    if agreed:
        facts["a"] = Fact(torch.tensor(agreed), ("site",), means.AGREED)
    shown = page(facts)
    assert undrawn(shown) == []
    return section(render(shown), "Whose core models each site mixes into its own")


def test_what_models_are_mixed_from() -> None:
    weights = np.array([[0.9, 0.2, -0.3, 0.0], [0.1, 0.5, 0.2, 0.3], [0.0] * 4, [0.25] * 4])
    html = mixed(weights, [True, True, False, True])
    said = words(html)
    assert (
        "cleveland: 0.90 of its own core, most of hungarian (0.20), least of switzerland (−0.30); all together 0.80."
        in said
    )
    assert "switzerland: 0.00" not in said
    assert "Not shown by switzerland." in said
    assert "cleveland mixes in switzerland: −0.30" in unescape(html)
    assert "switzerland did not show how much of va it mixes in" in unescape(html)
    red, blue = (re.search(rf'class="(\w+)"><title>cleveland mixes in {s}', unescape(html)) for s in ("switz", "hung"))
    assert red is not None
    assert blue is not None
    assert int(red[1][1:]) > 6 > int(blue[1][1:])


def test_where_nobody_showed_it_nothing_is_drawn() -> None:
    html = mixed(np.zeros((4, 4)), [False] * 4)
    assert "<svg" not in html
    assert "Not shown by cleveland, hungarian, switzerland and va." in words(html)


@pytest.mark.skipif(BROWSER is None and not os.environ.get("CI"), reason="no Chromium here")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_in_a_browser(width: int, dark: bool, tmp_path: Path) -> None:
    """Lanes lie inside the page, one picture of the two is seen, and nothing is complained of."""
    facts = facts_of(PATH, True, True) | {"w": Fact(torch.eye(4), ("user", "site"), means.MIXED)}
    place = tmp_path / "page.html"
    place.write_text(render(page(facts)), encoding="utf-8")
    with Browser(tmp_path) as browser:
        browser.open(place, width=width, dark=dark)
        boxes = "[...document.querySelectorAll('.lane')].map(e => e.getBoundingClientRect())"
        seen = browser.ask(f"{boxes}.filter(r => r.width).map(r => [r.left, r.right])")
        assert len(seen) == 6
        assert all(0 <= left < right <= width for left, right in seen)
        colours = browser.ask(
            "[...new Set([...document.querySelectorAll('.lane')].map(e => getComputedStyle(e).fill))].length"
        )
        assert colours == 3
        assert browser.ask("document.documentElement.scrollWidth") <= width
        assert browser.says == []

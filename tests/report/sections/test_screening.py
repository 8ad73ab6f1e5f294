"""Whose data does not fit, on a page: the same order as `findings()`, what may be real apart, who was not judged."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from tests.support.report.heatmaps import FEATURES, box_on_top, found, look, tree
from tests.support.report.pages import HEART, HOSTILE, SEEDS, make, run_of, screened
from vitrail.data.datasets.catalogue import packaged
from vitrail.quality.screening import budget
from vitrail.quality.screening.result import CAUSES, LABEL, Finding, Screening
from vitrail.report import Page, render
from vitrail.report.charts.heatmap import SHOWN
from vitrail.report.sections.screening import write_screen
from vitrail.study.model import Study


def page(told: Screening | None, **given: object) -> Page:
    run = run_of(HEART, screening=told)
    run.info |= given
    return make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=4, run=run, screening=told)


def picture(html: str) -> ElementTree.Element:
    return next(f for f in tree(html).iter("figure") if f.get("data-figure") == "strength")


@pytest.mark.parametrize("count", [1, 10, 11, 30])
@pytest.mark.parametrize("maybe", [0, 12])
def test_the_page_keeps_the_order_of_the_findings(count: int, maybe: int) -> None:
    findings = found(count) + [f._replace(text=f"maybe {f.strength}") for f in found(maybe, wrong=False)]
    shown = page(screened(findings, columns=FEATURES))
    html = render(shown)
    said = box_on_top(html)
    assert shown.run is not None
    order = [f"{f.site}, {f.feature}: {'offset by a constant. ' * f.wrong}{f.text}" for f in shown.run.findings()]
    assert [line for line in said if not line.startswith("What to do")] == order, "all of them, each once"
    section = html[html.index('id="fit"') : html.index("</section>")]
    assert section.count("more, less strong") == (count > 10) + (maybe > 10)
    then = next(line for line in said if line.startswith("What to do"))
    assert ("This is a question" if count == 1 else "These are questions") in then
    assert "vitrail look RUN --site NAME --data FILE" in then
    assert said.index(then) == count, "before what may be real"
    assert section.index('class="maybe"') > section.index("What to do next") if maybe else 'class="maybe"' not in html


def test_on_the_page_of_every_method_and_of_a_comparison() -> None:
    told = screened(found(1), columns=FEATURES)
    for shown in (page(told), make(screening=told)):
        first, second = [s.get("aria-labelledby") for s in tree(render(shown)).iter("section")][:2]
        assert (first, second) == ("fit", "short")
    assert "Whose data" not in render(page(None))


def test_of_machines_each_site_has_its_page() -> None:
    html = render(page(screened(found(1), columns=FEATURES), engine="deployed"))
    assert "vitrail look --kit KIT" in html
    assert "look.html in its home" in html


def test_nothing_likely_wrong_and_nobody_judged() -> None:
    calm, *_ = box_on_top(render(page(screened())))
    assert calm.startswith("Nothing is likely wrong")
    silent = dict.fromkeys(HEART[:2], "only 2 sites publish, and it takes 3") | {"va": "it does not publish"}
    told = screened(sites=HEART, why_not={**silent, "switzerland": "too few rows to publish anything"})
    html = render(page(told))
    calm, *who = box_on_top(html)
    assert calm.startswith("Fewer than three sites could be compared")
    assert who == [
        "Not judged: cleveland and hungarian (only 2 sites publish, and it takes 3).",
        "Not judged: switzerland (too few rows to publish anything).",
        "Not judged: va (it does not publish).",
    ]
    assert 'data-figure="strength"' not in html
    assert "What this rests on" not in html


def test_what_may_be_real_is_not_called_wrong() -> None:
    html = render(page(screened(found(3, wrong=False), columns=FEATURES)))
    assert "<h3>Likely wrong" not in html
    assert "What to do next" not in html
    assert "3 differ, and may be real" in html


def test_the_picture_marks_what_is_likely_wrong() -> None:
    wrong = [Finding("va", "chol", "unit", True, 9.0, "off."), Finding("va", LABEL, "label flip", True, 2.0, "off.")]
    real = Finding("hungarian", "age", "differs", False, 3.0, "older.")
    told = screened([*wrong, real], columns=(*FEATURES, LABEL), why_not={"switzerland": "it does not publish"})
    html = render(page(told))
    (box,) = (d for d in picture(html).iter("div") if d.get("class") == "scroll heat")
    seen = look(*box)
    assert seen.sites == list(HEART), "as they are listed"
    assert seen.flags == seen.dots == {("va", "chol"), ("va", LABEL)}
    assert seen.hatched == ["switzerland"]
    assert seen.cells["va", "chol"].attrib["class"] == "h12", "redder than the bar"
    assert seen.cells["cleveland", "age"].attrib["class"] in ("h6", "h7"), "as chance gives"
    assert "Not judged: switzerland." in seen.desc
    assert "Outlined with a dot: likely wrong." in html


def test_of_hundreds_of_columns_those_farthest_off_are_drawn() -> None:
    columns = [f"f{i}" for i in range(561)]
    told = screened([Finding("va", "f500", "unit", True, 9.0, "off.")], columns=columns)
    (box,) = (d for d in picture(render(page(told))).iter("div") if d.get("class") == "scroll heat")
    seen = look(*box)
    assert len(seen.features) == SHOWN
    assert "f500" in seen.features
    assert "the 24 columns that are farthest off, of 561" in render(page(told))


def test_names_from_files_stay_text() -> None:
    findings = [Finding(s, f, "unit", True, 2.0, f"{f} of {s}") for s in HOSTILE for f in HOSTILE]
    told = screened(findings, sites=HOSTILE, columns=HOSTILE, why_not={HOSTILE[3]: HOSTILE[0]})
    html = render(page(told))
    assert html.count("<script") == 1, "ours"
    assert "<img" not in html
    tree(html)  # well formed
    assert f"{HOSTILE[0]}, {HOSTILE[1]}: in another unit. {HOSTILE[1]} of {HOSTILE[0]}" in box_on_top(html)


def test_a_page_of_its_own(tmp_path: Path) -> None:
    study = Study.load(packaged("heart_disease.toml"))
    told = screened(found(2), columns=FEATURES, why_not={"va": "it does not publish"})
    html = write_screen(study, told, tmp_path / "screen.html").read_text()
    assert "Whose data does not fit" in html
    body = ElementTree.fromstring(html[html.index("<body>") : html.index("</html>")])
    (table,) = body.iter("table")
    rows = [["".join(c.itertext()) for c in tr] for tr in table.iter("tr")][1:]
    for row, (i, site) in zip(rows, enumerate(HEART), strict=True):
        numbers = budget(study, 200 + i).values()
        said = "no: it does not publish" if site == "va" else "yes"
        assert row == [site, str(200 + i), str(sum(numbers)), str(max(numbers)), said]
        assert max(numbers) <= (200 + i) / 2
    assert not re.search(r"\b(client|server|agent|participant)s?\b", re.sub(r"<[^>]*>", " ", html).lower())


def test_a_screening_prints_itself() -> None:
    wrong = Finding("va", LABEL, "label flip", True, 3.0, "it turns round.")
    told = screened([wrong, *found(12, wrong=False)], why_not={"va": "too few rows"})
    lines = repr(told).splitlines()
    assert lines[:2] == [
        "Likely wrong",
        "  - va, outcome: the outcome is coded the other way round. it turns round.",
    ]
    assert lines[3:5] == [
        "Differs, and may be real",
        "  - cleveland, age: 12.0 lower than at the others; ask how it is measured.",
    ]
    assert "  and 2 more, less strong" in lines
    assert lines[-1] == "Not judged: va (too few rows)"
    assert "\x1b" not in repr(screened([wrong._replace(site="a\x1b[2J", text="b\x1b")]))
    assert set(CAUSES) >= {wrong.kind}
    assert isinstance(told.cells, pd.DataFrame)

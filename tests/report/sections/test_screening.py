"""Whose data does not fit, on a page: who needs attention first, what may be real apart and by column, who was not
judged; and a figure whose cells lead to what was found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from tests.support.report.heatmaps import FEATURES, box_on_top, findings_shown, found, read_map, tree
from tests.support.report.pages import HEART, HOSTILE, SEEDS, make, run_of, screened
from vitrail.core.text import several
from vitrail.data.datasets.catalogue import packaged
from vitrail.quality.screening import budget
from vitrail.quality.screening.result import CAUSES, LABEL, Finding, Screening
from vitrail.quality.screening.text import DIFFERS
from vitrail.report import Page, render
from vitrail.report.charts.screening_map import STANDINGS
from vitrail.report.sections.screening import COLUMNS, SHOWN, write_screen
from vitrail.study.model import Study

TWO = {"statistic": "median", "scale": "value", "here": 231.0, "elsewhere": 5.9, "reason": "usual"}


def page(told: Screening | None, **given: object) -> Page:
    run = run_of(HEART, screening=told)
    run.info |= given
    return make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=4, run=run, screening=told)


def own_page(told: Screening, folder: Path) -> str:
    study = Study.load(packaged("heart_disease.toml"))
    return write_screen(study, told, folder / "screen.html").read_text("utf-8")


def maybe(count: int) -> list[Finding]:
    return [f._replace(text=f"Maybe {f.strength}.") for f in found(count, wrong=False)]


def evidence(findings: Sequence[Finding], **of: Any) -> dict[str, Any]:
    """As of numbers, with the same quantiles at all sites but for those in `of`."""
    usual = {"quantiles": [1.0, 2.0, 3.0, 4.0, 5.0], "missing": 0.1}
    out: dict[str, Any] = {}
    for f in findings:
        column = out.setdefault(f.feature, {"unit": "mg/dL", "names": [], "all": usual, "sites": {}})
        column["sites"][f.site] = of.get(f.site, usual)
    return out


@pytest.mark.parametrize("count", [0, 1, 2, 3, 11, 30])
@pytest.mark.parametrize("more", [0, 12])
@pytest.mark.parametrize("own", [False, True])
def test_every_finding_is_on_the_page_once(count: int, more: int, own: bool, tmp_path: Path) -> None:
    """What is likely wrong in the order of `findings()`, the first of it above the figure; what may be real by column,
    the strongest first."""
    findings = found(count) + maybe(more)
    shown = page(screened(findings, columns=FEATURES))
    html = own_page(screened(findings, columns=FEATURES), tmp_path) if own else render(shown)
    places = findings_shown(html)
    assert sorted(places, key=lambda place: int(place.split("-")[1])) == [f"finding-{i}" for i in range(len(findings))]
    said = {
        f"finding-{i}": f"Site {f.site}, {f.feature}: offset by a constant. {f.text}"
        if f.wrong
        else f"Site {f.site}: {f.text}"
        for i, f in enumerate(findings)
    }
    assert places == said
    order = [place for place in places if int(place.split("-")[1]) < count]
    assert order == [f"finding-{i}" for i in range(count)]
    top = [line for line in box_on_top(html) if line.startswith("Site ")]
    assert top == [said[f"finding-{i}"] for i in range(min(count, SHOWN))]
    rest = [line for line in box_on_top(html) if line.endswith("likely wrong") and " more " in line]
    left = count - SHOWN
    assert rest == [f"{left} more {'is' if left == 1 else 'are'} likely wrong"] * (left > 0)
    columns = [d for d in tree(html).iter("details") if d.get("class") == "by-column"]
    assert len(columns) == len({f.feature for f in findings if not f.wrong})
    titles = ["".join(d[0][0].itertext()) for d in columns]
    assert titles == list(dict.fromkeys(f.feature for f in findings if not f.wrong))


def test_more_columns_than_a_screen_holds_are_folded(tmp_path: Path) -> None:
    findings = [Finding("va", f"f{i}", "differs", False, 99.0 - i, "Older.") for i in range(COLUMNS + 5)]
    html = own_page(screened(findings, columns=[f.feature for f in findings]), tmp_path)
    (rest,) = (d for d in tree(html).iter("details") if d.get("class") == "more-columns")
    assert "".join(rest[0].itertext()) == "5 more columns, of less effect"
    assert len([d for d in rest.iter("details") if d.get("class") == "by-column"]) == 5


def test_on_the_page_of_every_method_and_of_a_comparison() -> None:
    told = screened(found(1), columns=FEATURES)
    for shown in (page(told), make(screening=told)):
        sections = [s.get("aria-labelledby") for s in tree(render(shown)).iter("section")]
        assert sections.count("fit") == 1
        assert sections.index("fit") < 3, "on top, or after the scores in short"
    assert "Whose data" not in render(page(None))


def test_on_the_page_of_a_run_the_figure_is_folded(tmp_path: Path) -> None:
    told = screened(found(1), columns=FEATURES)
    for html, folded in ((render(page(told)), True), (own_page(told, tmp_path), False)):
        inside = [f for d in tree(html).iter("details") for f in d.iter("figure") if f.get("data-figure") == "strength"]
        assert bool(inside) == folded


def test_what_to_do_next() -> None:
    one = [Finding("va", "chol", "unit", True, 3.0, "Off.", {})]
    said = " ".join(box_on_top(render(page(screened(one, columns=FEATURES)))))
    assert "What to do next. Ask site va about chol: this is a question, not a verdict." in said
    assert "vitrail look RUN --site NAME --data FILE" in said
    two = [*one, Finding("hungarian", LABEL, "label flip", True, 2.0, "Off.", {})]
    said = " ".join(box_on_top(render(page(screened(two, columns=(*FEATURES, LABEL)), engine="deployed"))))
    assert "Ask site va about chol and site hungarian about outcome: these are questions, not verdicts." in said
    assert "vitrail look --kit KIT" in said
    assert "look.html in its home" in said


def test_before_a_run_the_next_step_is_a_repair_or_the_run(tmp_path: Path) -> None:
    html = own_page(screened(found(1), columns=FEATURES), tmp_path)
    assert "vitrail repair STUDY FILE --from screen.json --site NAME" in html
    calm = own_page(screened(columns=FEATURES), tmp_path)
    assert "vitrail run STUDY --data DATA" in calm
    silent = own_page(screened(why_not=dict.fromkeys(HEART, "it does not publish")), tmp_path)
    assert "What to do next" not in silent


def test_every_site_has_one_standing(tmp_path: Path) -> None:
    findings = [Finding("va", "chol", "unit", True, 9.0, "Off."), Finding("va", "age", "differs", False, 3.0, "Older.")]
    findings += [Finding("hungarian", "age", "differs", False, 2.0, "Younger.")]
    told = screened(findings, columns=FEATURES, why_not={"switzerland": "it does not publish"})
    html = own_page(told, tmp_path)
    said = box_on_top(html)
    assert said[0] == "▲ Data is likely wrong at 1 of 4 sites: va."
    assert "○ Differs, and may be real: hungarian (1 column)" in said
    assert "✓ Fits the others: cleveland" in said
    assert "– Not judged: Site switzerland (it does not publish)" in said
    assert read_map(html).signs == {"va": "▲", "hungarian": "○", "cleveland": "✓", "switzerland": "–"}
    assert list(STANDINGS) == ["wrong", "maybe", "fits", "silent"]


def test_nothing_likely_wrong_and_nobody_judged() -> None:
    calm, *_ = box_on_top(render(page(screened())))
    assert calm == "Nothing is likely wrong."
    silent = dict.fromkeys(HEART[:2], "only 2 sites publish, and 3 are needed") | {"va": "it does not publish"}
    told = screened(sites=HEART, why_not={**silent, "switzerland": "too few rows to publish anything"})
    html = render(page(told))
    calm, who = box_on_top(html)
    assert calm.startswith("Fewer than three sites could be compared")
    assert who == (
        "– Not judged: Sites cleveland and hungarian (only 2 sites publish, and 3 are needed); "
        "Site switzerland (too few rows to publish anything); Site va (it does not publish)"
    )
    assert 'data-figure="strength"' not in html
    assert "What this rests on" not in html


def test_what_may_be_real_is_not_called_wrong(tmp_path: Path) -> None:
    html = own_page(screened(maybe(3), columns=FEATURES), tmp_path)
    assert "<h3" in html
    assert "Likely wrong</h3>" not in html
    assert box_on_top(html)[0] == "Nothing is likely wrong. 3 of 52 cells differ, and may be real."
    assert "Ask site" not in html
    assert read_map(html).flags == set()


def test_sites_that_gave_the_same_rows_need_attention(tmp_path: Path) -> None:
    told = screened(columns=FEATURES)
    twins = told.sites.assign(**{"same rows": ["", "hungarian", "hungarian", ""]})
    html = own_page(told._replace(sites=twins), tmp_path)
    assert box_on_top(html)[0] == "▲ The same rows were given at 2 of 4 sites: hungarian and switzerland."
    assert {s for s, sign in read_map(html).signs.items() if sign == "▲"} == {"hungarian", "switzerland"}


def test_the_figure_marks_what_is_likely_wrong_and_leads_to_it() -> None:
    wrong = [Finding("va", "chol", "unit", True, 9.0, "off."), Finding("va", LABEL, "label flip", True, 2.0, "off.")]
    real = Finding("hungarian", "age", "differs", False, 3.0, "older.")
    absent = Finding("hungarian", "ca", "not here", False, 0.0, "not measured.")
    findings = [*wrong, real, absent]
    told = screened(findings, columns=(*FEATURES, LABEL), why_not={"switzerland": "it does not publish"})
    html = render(page(told))
    seen = read_map(html)
    assert seen.sites == ["va", "hungarian", "cleveland", "switzerland"], "the gravest first"
    assert seen.columns[:4] == ["chol", "outcome", "age", "ca"], "the gravest first"
    assert sorted(seen.columns) == sorted((*FEATURES, "outcome")), "all of them"
    assert seen.flags == {("va", "chol"), ("va", "outcome")}
    assert seen.shades == {
        ("va", "chol"): "h11", ("va", "outcome"): "h9", ("hungarian", "age"): "h3", ("hungarian", "ca"): "none"
    }  # fmt: skip
    assert seen.quiet == 3 * 14 - 4
    assert seen.silent == ["switzerland"]
    assert "Likely wrong: va, chol; va, outcome. 2 cells differ, and may be real." in seen.desc
    assert "Not judged: switzerland." in seen.desc
    places = findings_shown(html)
    for f in findings:
        place = seen.links[f.site, "outcome" if f.feature == LABEL else f.feature]
        assert f.text in places[place], "a cell leads to its sentence"


def test_of_hundreds_of_columns_all_are_drawn_in_a_small_file(tmp_path: Path) -> None:
    sites, columns = [f"ward {i}" for i in range(30)], [f"f{i:03d}" for i in range(100)]
    findings = [Finding("ward 7", "f050", "unit", True, 9.0, "Off.", TWO)]
    cells = [(s, c) for s in sites for c in columns if (s, c) != ("ward 7", "f050")]
    text = "Its median is 12 mg/dL here, 14 mg/dL at the other sites; the sites differ as much in other columns."
    findings += [Finding(s, c, "differs", False, 3.0, text, TWO) for s, c in cells]
    told = screened(findings, sites=sites, columns=columns)._replace(evidence=evidence(findings))
    html = own_page(told, tmp_path)
    seen = read_map(html)
    assert len(seen.columns) == 100
    assert seen.columns[0] == "f050"
    assert seen.sites[0] == "ward 7"
    assert len(seen.links) == 3000
    assert len(html) < 1.5e6
    quiet = own_page(screened(findings[:1], sites=sites, columns=columns), tmp_path)
    assert read_map(quiet).quiet == 2999
    assert len(quiet) < 2e5


def test_a_column_has_a_figure_of_what_was_published(tmp_path: Path) -> None:
    findings = [Finding("va", "chol", "differs", False, 3.0, "Its median is 231 mg/dL here.", TWO)]
    own = {"quantiles": [150.0, 200.0, 231.0, 260.0, 300.0], "missing": 0.0}
    told = screened(findings, columns=FEATURES)._replace(evidence=evidence(findings, va=own))
    (column,) = (d for d in tree(own_page(told, tmp_path)).iter("details") if d.get("class") == "by-column")
    (figure,) = column.iter("svg")
    said = figure.findtext("desc", "")
    assert "va: median 231 mg/dL, middle half 200 to 260 mg/dL" in said
    assert "all sites: median 3 mg/dL, middle half 2 to 4 mg/dL" in said
    hint = next(e for e in column[0] if e.get("class") == "hint")
    assert "".join(hint.itertext()) == "1 site; median: 231 mg/dL at site va, 5.9 mg/dL elsewhere"
    # where single sites' numbers are not kept, the two of the sentence
    bare = told._replace(evidence={"chol": {**told.evidence["chol"], "sites": {}}})
    html = own_page(bare, tmp_path)
    (column,) = (d for d in tree(html).iter("details") if d.get("class") == "by-column")
    (figure,) = column.iter("svg")
    assert figure.findtext("desc") == "va: 231 mg/dL; the other sites: 5.9 mg/dL."
    assert "What single sites published is not kept" in html


def test_levels_and_missing_values_have_bars(tmp_path: Path) -> None:
    numbers = {"statistic": "share missing", "scale": "share", "here": 0.3, "elsewhere": 0.1, "reason": "usual"}
    findings = [Finding("va", "cp", "differs", False, 3.0, "30 % of the values are missing here.", numbers)]
    whole = {"levels": [0.5, 0.25, 0.25], "missing": 0.1}
    own = {"va": {"levels": [0.5, 0.1, 0.35], "missing": 0.3}}
    column = {"unit": "", "names": ["1", "2", "3"], "all": whole, "sites": own}
    told = screened(findings, columns=(*FEATURES, "cp"))._replace(evidence={"cp": column})
    (shown,) = (d for d in tree(own_page(told, tmp_path)).iter("details") if d.get("class") == "by-column")
    titles = [svg.findtext("title") for svg in shown.iter("svg")]
    assert titles == ["cp: share missing", "cp: share with cp = 2"]
    said = [svg.findtext("desc") for svg in shown.iter("svg")]
    assert said == ["va: 30 %; all sites: 10 %.", "va: 10 %; all sites: 25 %."]


def test_names_from_files_stay_text() -> None:
    findings = [Finding(s, f, "unit", True, 2.0, f"{f} of {s}") for s in HOSTILE for f in HOSTILE]
    told = screened(findings, sites=HOSTILE, columns=HOSTILE, why_not={HOSTILE[3]: HOSTILE[0]})
    told = told._replace(evidence=evidence(findings))
    html = render(page(told))
    assert html.count("<script") == 1, "ours"
    assert "<img" not in html
    tree(html)  # well formed
    said = f"Site {HOSTILE[0]}, {HOSTILE[1]}: in another unit. {HOSTILE[1]} of {HOSTILE[0]}"
    assert said in findings_shown(html).values()


def test_a_page_of_its_own(tmp_path: Path) -> None:
    study = Study.load(packaged("heart_disease.toml"))
    told = screened(found(2), columns=FEATURES, why_not={"va": "it does not publish"})
    html = write_screen(study, told, tmp_path / "screen.html").read_text()
    assert "Whose data does not fit?" in html
    body = ElementTree.fromstring(html[html.index("<body>") : html.index("</html>")])
    (table,) = body.iter("table")
    rows = [["".join(c.itertext()) for c in tr] for tr in table.iter("tr")][1:]
    for row, (i, site) in zip(rows, enumerate(HEART), strict=True):
        numbers = budget(study, 200 + i).values()
        said = "no: it does not publish" if site == "va" else "yes"
        assert row == [site, str(200 + i), str(sum(numbers)), str(max(numbers)), said]
        assert max(numbers) <= (200 + i) / 2
    assert not re.search(r"\b(client|server|agent|participant)s?\b", re.sub(r"<[^>]*>", " ", html).lower())
    asked = f"{several(len(HEART), 'site')}, {several(len(study.features), 'column')}, outcome {study.target.column}"
    assert asked in html


def test_a_screening_prints_itself() -> None:
    wrong = Finding("va", LABEL, "label flip", True, 3.0, "it turns round.")
    told = screened([wrong, *found(12, wrong=False)], why_not={"va": "too few rows"})
    lines = repr(told).splitlines()
    assert lines[:2] == [
        "Likely wrong",
        "  - va, outcome: the outcome is coded the other way round. it turns round.",
    ]
    assert lines[3:5] == [
        DIFFERS,
        "  - cleveland, age: 12.0 lower than at the others; ask how it is measured.",
    ]
    assert "  and 2 more columns, of less effect" in lines
    assert lines[-1] == "Not judged: va (too few rows)"
    assert "\x1b" not in repr(screened([wrong._replace(site="a\x1b[2J", text="b\x1b")]))
    assert set(CAUSES) >= {wrong.kind}
    assert isinstance(told.cells, pd.DataFrame)

"""Pages of explanations: a site's own, a host's, a guest's; and the federation's, on which there is no row."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.report.browser import Browser
from tests.support.report.explanations import made
from tests.support.report.pages import HOSTILE, without_script
from tests.support.vertical.talks import people, talk
from vitrail.analysis.explanations.rows import Explanation
from vitrail.analysis.explanations.summary import summarise_sites
from vitrail.core.errors import VitrailError
from vitrail.report.charts.shap import cell_words
from vitrail.report.pages.explanation import render_explained, to_text, typical_rows, write_explained
from vitrail.report.pages.explanation_summary import render_explanation_summary, write_explanation_summary
from vitrail.vertical.shap import explain, split_answer


@pytest.fixture(scope="module")
def html() -> str:
    return render_explained(made(), "St. <b>Mary's</b>", "Heart & Co")


def figures(page: str, title: str) -> list[str]:
    """Wide and narrow."""
    found = [f for f in re.findall(r"<svg.*?</svg>", page, re.S) if re.search(f"<title>{title}", f)]
    assert len(found) == 2, title
    return found


def test_it_says_that_it_stays_and_needs_nothing_else(html: str) -> None:
    assert "This stays at St. &lt;b&gt;Mary" in html
    assert "<b>Mary" not in html
    html = without_script(html)
    assert "<script" not in html
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)|url\(|@import""", html)
    assert "the median" in html
    assert "The factors of a row multiply from the answer for the typical row to that for the row." in html
    assert "not what would happen to the person" in html


def test_the_waterfall_goes_from_the_reference_to_the_row() -> None:
    e = made()
    page = render_explained(e, "here", shown=e[5])
    for figure in figures(page, "Row line5: from 40 % to"):
        bars = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*class="(h10|h2|hid)"', figure)
        order = np.argsort(-np.abs(e.values[5]))
        assert [k for *_, k in bars] == ["hid" if i == 3 else "h10" if e.values[5, i] > 0 else "h2" for i in order]
        long = np.array([float(w) for _, w, _ in bars])
        assert np.allclose(long / long[0], np.abs(e.values[5][order] / e.values[5][order[0]]), atol=0.02)
    risk = f"{100 / (1 + np.exp(-e.total[5])):.0f} %"
    assert f"Probability of sick = yes: <b>{risk}</b>; a typical row here 40 %." in page
    assert f"{name_of_largest(e, 5)}</b> (× {np.exp(np.abs(e.values[5]).max() * sign_of_largest(e, 5)):.3g}" in page
    assert "Row line6" not in page


def largest(e: Explanation, row: int) -> int:
    return int(np.abs(e.values[row]).argmax())


def name_of_largest(e: Explanation, row: int) -> str:
    return str(cell_words(e, row, largest(e, row)))


def sign_of_largest(e: Explanation, row: int) -> float:
    return float(np.sign(e.values[row, largest(e, row)]))


def test_an_axis_of_risks_is_in_per_cent() -> None:
    """Ticks lie where the odds of that risk do."""
    e = made()
    figure, _ = figures(render_explained(e, "here", shown=e[5]), "Row line5: from 40 % to")
    ticks = re.findall(r'<text x="([\d.]+)"[^>]*class="tick" text-anchor="middle">([\d.]+) %<', figure)
    assert len(ticks) >= 3
    at = np.array([float(x) for x, _ in ticks])
    odds = np.array([np.log(float(p) / (100 - float(p))) for _, p in ticks])
    assert np.corrcoef(at, odds)[0, 1] > 0.9999
    assert "log odds" not in figure


def test_without_a_choice_the_typical_and_the_extreme_are_taken(html: str) -> None:
    e = made()
    assert typical_rows(e)[1] == np.abs(e.total + 0.4).argmax()
    first, second = typical_rows(e)
    assert f"<h3>Row {e.rows[first]}, an ordinary one</h3>" in html
    assert f"<h3>Row {e.rows[second]}, the most extreme</h3>" in html


def test_a_guests_dots_have_no_colour(html: str) -> None:
    wide, narrow = figures(html, "The values of")
    for figure, count in ((wide, 140), (narrow, 140)):
        kinds = re.findall(r'class="one ([^"]+)"', figure)
        assert len(kinds) == 4 * count
        assert kinds.count("hid") == count
        assert kinds.count("lost") == sum(v != v for v in made().data[:, 0])
    assert "their values are not known at" in html
    assert "lab: its columns, unseen here" in html
    with pytest.raises(VitrailError, match="its values are a guest’s"):
        render_explained(made(), "here", feature="lab")


def test_colour_is_the_rank_of_the_value() -> None:
    e = made()
    (figure, _) = figures(render_explained(e, "here"), "The values of")
    dots = re.findall(r"<circle[^>]*class=\"one h(\d+)\"><title>row (\w+), chol: (\d+) mg/dL", figure)
    assert len(dots) > 100
    by_value = sorted((float(v), int(shade)) for shade, _, v in dots)
    assert [s for _, s in by_value] == sorted(s for _, s in by_value)
    assert by_value[0][1] == 0
    assert by_value[-1][1] == 12


def test_the_dependence_of_a_chosen_feature(html: str) -> None:
    assert "One feature: chol" in html, "the largest whose values are known"
    page = render_explained(made(), "here", feature="ward")
    for figure in figures(page, "How ward moves the odds of sick = yes"):
        assert [t for t in re.findall(r'class="tick" text-anchor="middle">([^<]+)', figure) if t in "abc"] == [*"abc"]
    with pytest.raises(VitrailError, match="Did you mean 'ward'"):
        render_explained(made(), "here", feature="wart")


def test_one_row_alone_has_no_swarm() -> None:
    page = render_explained(made()[[3]], "here")
    assert "Row line3" in page
    assert "Every row a dot" not in page
    assert "nan" not in page
    with pytest.raises(VitrailError, match="no row was explained"):
        render_explained(made()[[]], "here")


def test_hostile_names_are_told_as_they_are() -> None:
    page = without_script(render_explained(made(names=list(HOSTILE)), HOSTILE[0], HOSTILE[1]))
    page += without_script(
        render_explanation_summary(
            summarise_sites({n: made(names=list(HOSTILE)) for n in HOSTILE}), HOSTILE[0], HOSTILE[:2]
        )
    )
    assert "<script" not in page
    assert "<img" not in page


def test_nothing_is_written_as_a_logarithm() -> None:
    """Risks in per cent and factors, at most three digits, on both pages and in a terminal."""
    e = made(answer="“died” by 2000 days", scale="hazard", chance="risk")
    both = render_explained(e, "here") + render_explanation_summary(summarise_sites({"a": e}))
    text = " ".join(re.findall(r">([^<]+)<", without_script(both[: both.index("</html>") + 7]) + both))
    assert "Risk of “died” by 2000 days" in both
    assert not re.search(r"log.?(hazard|odds)", text + to_text(e, "here", e[:2]), re.I)
    for factor in re.findall(r"× ([\d.]+)", text + to_text(e, "here", e[:2])):
        assert len(factor.lstrip("0.").replace(".", "")) <= 3 or float(factor) >= 1000, factor
    for share in re.findall(r"([\d.]+) %", to_text(e, "here", e[:2])):
        assert len(share.replace(".", "")) <= 3, share


def test_a_feature_that_goes_the_other_way_at_one_site_is_named() -> None:
    sites = {name: made(300) for name in ("a", "b", "c")}
    for name, e in sites.items():
        e.values[:, 1] = np.where(e.data[:, 1] == "yes", 0.4, 0.0) * (-1 if name == "c" else 1)
    page = render_explanation_summary(summarise_sites(sites))
    standing = dict(re.findall(r'<li><b>(\w)</b> <span class="answer \w+">([^<]+)</span>', page))
    assert standing == {"a": "directions as elsewhere", "b": "directions as elsewhere", "c": "differs in smokes"}


def test_the_first_screen_has_the_five_features_that_count_most() -> None:
    names = [f"f{i}" for i in range(12)]
    rng = np.random.default_rng(0)
    values, data = rng.normal(0, 1, (150, 12)) * np.arange(1, 13), rng.normal(0, 1, (150, 12))
    e = Explanation(values, np.zeros(150), data, names, np.zeros((150, 12)), "the median", scale="odds")
    page = render_explained(e, "here")
    figures(page, "The 5 features that move the odds of answer most")
    figures(page, "How much each feature moves the odds of answer, and in which direction")
    short = page[page.index('class="short"') : page.index('id="rows"')]
    assert [r["feature"] for r in e.importance()[:3]] == re.findall(r'<li><b>(f\d+)</b> <span class="answer', short)


def test_many_rows_make_no_huge_page() -> None:
    assert len(render_explained(made(4000), "here")) < 900_000


def test_only_an_earlier_page_is_written_over(tmp_path: Path) -> None:
    page = write_explained(made(), tmp_path / "e.html", site="here")
    write_explained(made(), page, site="here")
    with pytest.raises(VitrailError, match="it exists already"):
        write_explanation_summary(summarise_sites({"a": made()}), page)
    page.write_text("mine")
    with pytest.raises(VitrailError, match="it exists already"):
        write_explained(made(), page, site="here")


def test_pages_of_a_host_and_a_guest(tmp_path: Path) -> None:
    d = talk("logistic", epochs=2)
    d.train()
    e = replace(explain(d, d.terms.test[:30], ["age", "sex", "weight", "pulse"]), answer="sick")
    page = render_explained(e, "clinic")
    assert "odds of sick" in page
    assert "log odds" not in page
    assert "<b>lab</b> and <b>insurer</b>: the columns of a guest together" in page
    g = d.guests[0]
    own = render_explained(split_answer(g, people()[0][1][:30], g.reference, ["iron", "zinc", "lead"]), "lab")
    assert "This stays at lab" in own
    assert "move the own answer to the host, before rounding" in own
    assert "iron" in own
    assert "united" not in own
    assert "hatched" not in own


# the federation's page


def test_there_is_no_row_on_the_federations_page(tmp_path: Path) -> None:
    told = {"north": made(), "south": made(100, 2), "west": made(99, 3)}
    page = write_explanation_summary(summarise_sites(told), tmp_path / "explain.html", "Heart", ["east"])
    text, table = page.read_text(), (tmp_path / "explain.csv").read_text()
    assert "<circle" not in text
    for e in told.values():
        assert not any(name in text + table for name in e.rows)
    assert "mg/dL" not in text + table
    assert text.count("<rect") == 3 * 2 * 4, "a cell, and a bar in a wide and a narrow figure"
    assert "Left out, fewer than 100 rows: <b>west</b>." in text
    assert "Left out, refused: <b>east</b>." in text
    assert table.splitlines()[0] == "site,feature,size,low,high,sign,moves"
    assert len(table.splitlines()) == 1 + 2 * 4
    assert "west" not in table


def test_sizes_and_directions() -> None:
    """The mean value is above 0 where the effect falls, since the column is skewed."""
    e = made(400)
    chol = 999 - np.exp(np.random.default_rng(4).normal(5, 0.5, 400))
    e.data[:, 0], e.values[:, 0] = chol, -0.01 * (chol - np.median(chol))
    assert e.values[:, 0].mean() > 0
    e.values[:, 1] = np.where(e.data[:, 1] == "yes", 0.4, 0.0)
    e.values[:, 2] = [{"a": -0.3, "b": 0.0, "c": 0.2}[v] for v in e.data[:, 2]]
    rows = summarise_sites({"north": e}).table.set_index("feature")
    assert np.allclose(rows["size"], np.abs(e.values).mean(0))
    assert (rows.low < rows["size"]).all()
    assert rows.sign.to_dict() == {"chol": "-", "smokes": "+", "ward": "≠", "lab": ""}
    assert rows.moves["ward"] == "up for c, down for a, against b"
    page = render_explanation_summary(summarise_sites({"north": e}))
    assert ", up for c, down for a, against b</title>" in page
    assert f"north, lab: × {np.exp(np.abs(e.values[:, 3]).mean()):.3g}" in page
    assert "direction not known" in page


def test_the_federations_figure_is_that_of_the_sites_own_page() -> None:
    e = made(200)
    title = "How much each feature moves the odds of sick = yes, and in which direction"
    own, shared = (
        figures(page, title)
        for page in (render_explained(e, "x"), render_explanation_summary(summarise_sites({"x": e})))
    )
    hidden = re.compile(r'class="(hid|mixed)"|<path[^>]*class="hatch"></path>')  # whose columns they are
    assert [hidden.sub("", f) for f in own] == [hidden.sub("", f) for f in shared]
    assert to_text(e, "x").count("no clear direction") >= 1


def test_a_table_of_an_earlier_version_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("site,feature,size,low,high,sign\n")
    write_explanation_summary(summarise_sites({"a": made()}), tmp_path / "e.html")
    assert "moves" in (tmp_path / "e.csv").read_text()


def test_few_rows_that_differ_are_not_told() -> None:
    e = made(200)
    e.values[:, 1] = 0
    e.values[:9, 1] = 3.0
    told = summarise_sites({"north": e})
    assert np.isnan(told.table.set_index("feature").loc["smokes", "size"])
    assert "not shown" in render_explanation_summary(told)
    e.values[9, 1] = 3.0
    assert summarise_sites({"north": e}).table.set_index("feature").loc["smokes", "size"] == pytest.approx(0.15)


def test_where_nobody_has_enough_rows() -> None:
    page = render_explanation_summary(summarise_sites({"a": made(20), "b": made(30)}))
    assert "<b>a</b> and <b>b</b>" in page
    assert "<svg" not in page


def test_a_browser_has_nothing_to_complain_of(html: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(html, encoding="utf-8")
    with Browser(tmp_path) as b:
        b.open(page, 390, 900, dark=True)
        assert b.says == []
        lit = b.ask("getComputedStyle(document.querySelector('.narrow circle.h12')).fill")
        assert lit == "rgb(245, 146, 132)", "the dark page's red"

"""What the page says is what the tables hold, and no name from a file becomes markup."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.report.pages import HEART, HOSTILE, MORE, SEEDS, TITLES, long_names, make, summarise, without_script
from vitrail.core.text import shorten_all, size
from vitrail.report import Page, render
from vitrail.report.charts.axes import place_labels, swarm, ticks
from vitrail.report.sections.scores.findings import headline
from vitrail.report.text import METRICS

VOID = {"meta", "br", "img", "link", "input", "hr"}
ELEMENTS = """html head meta title style body a header main footer section nav ol p h1 h2 h3 ul li b strong small
span code div table thead tbody tfoot tr th td figure figcaption details summary dl dt dd svg desc text line
path circle g fieldset legend input label"""
ATTRIBUTES = """lang charset http-equiv content name class id href aria-labelledby aria-hidden role tabindex
scope colspan open aria-label viewbox x y x1 y1 x2 y2 cx cy r d text-anchor data-figure data-title data-note type for
checked"""


class Reader(HTMLParser):
    """Checks that tags balance and are those the page is made of; collects text by what one may ask for."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tables: list[list[list[tuple[str, str, str]]]] = []  # rows of (tag, class, text)
        self.findings: list[str] = []
        self.text: list[str] = []
        self.titles: list[str] = []
        self.short = self.cell = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given_ = dict(attrs)
        assert tag in ELEMENTS.split(), f"unexpected element {tag}"
        assert given_.keys() <= set(ATTRIBUTES.split()), f"unexpected attribute of {tag}: {given_}"
        if tag == "svg":
            assert given_["role"] == "img"
        if tag == "a":
            assert (given_["href"] or "").startswith("#")
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.short = given_.get("class") == "short"
        if tag == "li" and self.short:
            self.findings.append("")
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append((tag, given_.get("class") or "", ""))
        if tag == "title":
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"closes {tag}, nothing is open"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text.append(data)
        if self.short and "li" in self.open:
            self.findings[-1] += data
        if self.open and ("td" in self.open or "th" in self.open):
            tag, kind, text = self.tables[-1][-1][-1]
            self.tables[-1][-1][-1] = (tag, kind, text + data)
        if self.open and self.open[-1] == "title":
            self.titles[-1] += data


def read(page: Page) -> Reader:
    html = without_script(render(page))
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert not re.search(r"https?://|@import|url\(|<script|<link|<img|srcset", html)
    assert " nan" not in " ".join(reader.text).lower(), "a bare NaN is shown"
    assert reader.findings
    return reader


def scores_of(seen: Reader) -> list[list[tuple[str, str, str]]]:
    """The table of the page's own metric; that of verdicts may stand before it."""
    heads = [[text for _, _, text in table[0]] for table in seen.tables]
    return next(t for t, head in zip(seen.tables, heads, strict=True) if "worth it?" not in head)


def verdicts_of(seen: Reader) -> list[list[tuple[str, str, str]]]:
    return next(t for t in seen.tables if "worth it?" in [text for _, _, text in t[0]])


def primary(page: Page) -> pd.DataFrame:
    """Site x method means, worked out here and apart from the page."""
    s = page.scores
    s = s[(s["split"] == "test") & (s["metric"] == page.metric)]
    return s.pivot_table(index="site", columns="method", values="value", aggfunc="mean", sort=False)


def without_one(page: Page, site: str) -> Page:
    """The site has one class only: its metric is not defined."""
    scores = page.scores.copy()
    scores.loc[scores["site"] == site, "value"] = np.nan
    curves = page.curves.copy()
    curves.loc[curves["site"] == site, "value"] = np.nan
    return dataclasses.replace(page, scores=scores, curves=curves, summary=summarise(scores, len(SEEDS)))


@pytest.fixture(scope="module")
def compare() -> Page:
    return make(rounds=20)


@pytest.fixture(scope="module")
def seen(compare: Page) -> Reader:
    return read(compare)


def test_table_holds_the_means_and_marks_the_true_worst(compare: Page, seen: Reader) -> None:
    means, (head, *rows) = primary(compare), scores_of(seen)
    assert [text for _, _, text in head] == ["site", *TITLES.values()]
    for row, site in zip(rows, HEART, strict=False):
        assert row[0][2] == site
        for (_, kind, text), method in zip(row[1:], TITLES, strict=True):
            shown = re.search(r"-?\d+\.\d{3}", text)
            assert shown is not None
            assert shown[0] == f"{means.loc[site, method]:.3f}"
            assert ("worst" in kind) == (means[method].idxmin() == site)
            assert ("▼" in text and "worst site" in text) == (means[method].idxmin() == site)
    assert [r[0][2] for r in rows[4:]] == ["mean of sites", "worst site"]
    for k, method in enumerate(TITLES, start=1):
        assert rows[4][k][2].startswith(f"{means[method].mean():.3f}")
        assert rows[5][k][2].startswith(f"{means[method].min():.3f}")


def test_with_more_methods_than_a_page_is_wide_for_they_go_down() -> None:
    methods = [*TITLES, *MORE]
    page = make(methods=methods, rounds=3)
    means, (head, *rows) = primary(page), scores_of(read(page))
    assert [text for _, _, text in head] == ["method", *HEART, "mean of sites", "worst site"]
    assert [row[0][2] for row in rows] == [*TITLES.values(), *MORE]
    for row, method in zip(rows, methods, strict=True):
        shown = [text[text.index("0.") :][:5] for _, _, text in row[1:]]
        of = means[method]
        assert shown == [f"{v:.3f}" for v in (*of[list(HEART)], of.mean(), of.min())]
        assert ["worst" in kind for _, kind, _ in row[1:5]] == [site == of.idxmin() for site in HEART]
    many = scores_of(read(make(sites=[f"ward {i}" for i in range(20)], methods=methods, seeds=SEEDS[:2], rounds=3)))
    assert [text for _, _, text in many[0]][:2] == ["site", "Local"], "turned, it would be wider still"


def test_half_interval_is_nadeau_and_bengio(compare: Page, seen: Reader) -> None:
    s = compare.scores.query("split == 'test' and metric == 'balanced_accuracy' and site == 'va' and method == 'apfl'")
    row = compare.sites.set_index("site").loc["va"]
    half = 2.776 * s["value"].std(ddof=1) * math.sqrt(1 / 5 + row["test_rows"] / row["train_rows"])
    cell = scores_of(seen)[1 + HEART.index("va")][1 + list(TITLES).index("apfl")][2]
    assert cell.endswith(f"{half:.3f}")


def test_findings_name_the_right_sites(compare: Page, seen: Reader) -> None:
    means = primary(compare)
    federated = [m for m in TITLES if m not in compare.yardsticks]
    best = means[federated].min().idxmax()
    first, joining, worst, sent, loud = seen.findings
    assert first.startswith(f"Best for the site served worst: {TITLES[best]}.")
    assert f"{means[best].idxmin()}, reaches {means[best].min():.3f} (95 % interval" in first
    assert worst.startswith(f"Site {means['fedavg'].idxmin()} does worst under FedAvg: {means['fedavg'].min():.3f}")
    assert f"Alone it reaches {means.loc[means['fedavg'].idxmin(), 'local']:.3f}" in worst
    verdicts = compare.verdicts.set_index("site")["verdict"]
    assert set(verdicts) == {"yes", "no", "cannot tell"}
    gains, loses, unsure = joining.removeprefix("By joining, ").split(";")
    for site, verdict in verdicts.items():
        assert [f"{site} (" in part for part in (gains, loses, unsure)] == [
            verdict == v for v in ("yes", "no", "cannot tell")
        ]
    assert "gain" in gains
    assert "loses" in loses
    assert "unclear" in unsure
    out = compare.ledger.query("method == 'fedavg' and direction == 'from site' and site == 'va'")["bytes"].sum()
    assert size(out) in sent
    assert "No rows left any site" in sent
    assert loud.startswith("Centralized moves the training rows of every site")


def test_verdict_words_in_table_and_figure(compare: Page, seen: Reader) -> None:
    words = {"yes": "yes: gains", "no": "no: loses", "cannot tell": "cannot tell"}
    shown = {row[0][2]: [c[2] for c in row[1:]] for row in verdicts_of(seen)[1:]}
    for v in compare.verdicts.to_dict("records"):
        assert shown[v["site"]][0] == words[v["verdict"]]
        assert shown[v["site"]][1:3] == [f"{v['alone']:.3f}", f"{v['joined']:.3f}"]
        assert shown[v["site"]][-1] == v["why"]
        assert any(t.startswith(f"{v['site']}: ") and words[v["verdict"]] in t for t in seen.titles)


def test_nobody_can_tell(compare: Page) -> None:
    verdicts = compare.verdicts.assign(verdict="cannot tell")
    joining = read(dataclasses.replace(compare, verdicts=verdicts)).findings[1]
    assert joining.startswith("Whether joining is worth it is unclear for ")
    assert all(f"{site} (" in joining for site in HEART)


def test_traffic_adds_up(compare: Page, seen: Reader) -> None:
    rows = {row[0][2]: [c[2] for c in row[1:]] for row in seen.tables[2][1:]}
    total = compare.ledger.query("site == 'va'").groupby(["method", "direction"])[["messages", "bytes"]].sum()
    for method in ("fedavg", "scaffold", "fedper"):
        out, into = total.loc[(method, "from site")], total.loc[(method, "to site")]
        expected = [
            "every site",
            str(out["messages"]),
            size(out["bytes"]),
            str(into["messages"]),
            size(into["bytes"]),
        ]
        assert rows[TITLES[method]] == expected
    assert rows["Local"] == ["every site", "0", "nothing", "0", "nothing"]
    assert "the rows themselves" in rows["Centralized"][1]


def test_sites_that_sent_differently_are_told_apart(compare: Page) -> None:
    ledger = compare.ledger.copy()
    away = (ledger["site"] == "va") & (ledger["method"] == "fedavg")
    ledger.loc[away, ["messages", "bytes"]] //= 2
    rows = [[c[2] for c in row] for row in read(dataclasses.replace(compare, ledger=ledger)).tables[2]]
    assert [r[1] for r in rows if r[0] == "FedAvg"] == ["cleveland, hungarian, switzerland", "va"]


def test_run_of_one_method_and_seed() -> None:
    page = make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=20)
    seen, means = read(page), primary(page)["fedavg"]
    assert "4 sites trained together with FedAvg: 1 seed, 20 rounds." in seen.text
    joining, sent = seen.findings
    assert all(any(t.startswith(f"{site}: {means[site]:.3f}") for t in seen.titles) for site in HEART)
    assert f"Site {means.idxmin()} is served worst: {means.min():.3f} in balanced accuracy." in "".join(seen.text)
    assert joining.startswith("One seed cannot tell whether joining is worth it. vitrail compare can")
    assert "No rows left any site" in sent
    assert "±" not in "".join(c[2] for row in scores_of(seen) for c in row)


def test_who_came_later_did_not_train_together() -> None:
    late = make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", newcomers=["va"])
    assert headline(late) == "3 sites trained together with FedAvg: 1 seed, 60 rounds. va came after training."
    assert headline(dataclasses.replace(late, newcomers=())).startswith("4 sites trained together")
    hostile = make(sites=HOSTILE, methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, newcomers=HOSTILE[:3])
    assert headline(hostile).startswith("1 site trained with FedAvg")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, &#34;&gt;" in render(hostile)


def test_thirty_sites_with_long_names() -> None:
    sites = long_names()
    assert {len(s) for s in sites} == {40}
    page = make(sites=sites, rounds=5)
    seen = read(page)
    text = "".join(seen.text)
    assert text.count("Learning curves at ") == 12
    assert "The 12 worst sites are drawn; 18 more are not" in text
    worst = primary(page)["fedavg"].idxmin()
    assert f"Learning curves at {worst}" in seen.titles[[t.startswith("Learning") for t in seen.titles].index(True)]
    assert len(set(shorten_all(sites, 20).values())) == 30


def test_undefined_scores_are_said_and_not_counted(compare: Page) -> None:
    seen = read(without_one(compare, "switzerland"))
    rows = {row[0][2]: row for row in scores_of(seen)}
    assert {c[2] for c in rows["switzerland"][1:]} == {"not defined"}
    assert primary(compare).drop("switzerland")["fedavg"].idxmin() == "va"
    assert all("▼" in c[2] for c in rows["va"][1:])
    assert any("Not defined: " in t for t in seen.text)


def test_some_seeds_undefined(compare: Page) -> None:
    scores = compare.scores.copy()
    scores.loc[(scores["site"] == "va") & (scores["seed"] == SEEDS[0]), "value"] = np.nan
    page = dataclasses.replace(compare, scores=scores)
    seen = read(page)
    shown = next(row for row in scores_of(seen) if row[0][2] == "va")[1][2]
    assert shown.startswith(f"{primary(page).loc['va', 'local']:.3f}")
    assert any("not defined in some seeds" in t for t in seen.text)


def test_one_site() -> None:
    seen = read(make(sites=["cleveland"], methods=["local", "fedavg"], rounds=5))
    assert "one site only" in seen.findings[1]
    assert [row[0][2] for row in scores_of(seen)] == ["site", "cleveland"]
    assert not any("▼" in t for t in seen.text)


@pytest.mark.parametrize("kind", ["run", "compare"])
def test_nothing_yet(kind: str) -> None:
    no = pd.DataFrame()
    seen = read(
        make(
            kind=kind,
            scores=no,
            curves=no,
            summary=no,
            verdicts=no,
            ledger=no,
            wire=no,
            sites=no,
            about=[],
            rounds=0,
            notes=[],
        )
    )
    assert "Nothing has been scored yet." in seen.text


def test_lower_is_better(compare: Page) -> None:
    scores = compare.scores.assign(value=10 * (1 - compare.scores["value"]))
    scores["metric"] = scores["metric"].replace("balanced_accuracy", "rmse")
    page = dataclasses.replace(compare, scores=scores, metric="rmse", lower_is_better=True, verdicts=pd.DataFrame())
    seen, means = read(page), primary(page)
    federated = [m for m in TITLES if m not in page.yardsticks]
    assert f": {TITLES[means[federated].max().idxmin()]}. " in seen.findings[0]
    rows = {row[0][2]: row for row in scores_of(seen)}
    assert "▼" in rows[means["fedavg"].idxmax()][1 + list(TITLES).index("fedavg")][2]
    assert "← better" in seen.text


def test_hostile_names_stay_text() -> None:
    bad = HOSTILE[1]
    page = make(sites=HOSTILE, rounds=5)
    wire = page.wire.assign(name=HOSTILE[0], shape=bad, dtype=bad, stage=bad)
    verdicts = page.verdicts.assign(why=bad)
    page = dataclasses.replace(
        page,
        title=HOSTILE[0],
        description=HOSTILE[2],
        about=[(bad, bad)],
        notes=[HOSTILE[0]],
        wire=wire,
        verdicts=verdicts,
        titles={m: f"{t} {HOSTILE[2]}" for m, t in page.titles.items()},
        sites=page.sites.assign(classes=HOSTILE[0]),
    )
    seen = read(page)  # any element or attribute that is not ours fails there
    html = render(page)
    assert html.count("<script") == 1, "ours"
    assert "<img" not in html
    assert "{{ 7*7 }}" in html, "a name is data, not a template"
    assert html.count("</svg>") == html.count("<svg ")
    assert all(any(name in t for t in seen.text) for name in HOSTILE)


def test_every_figure_has_title_and_description(compare: Page) -> None:
    html = render(compare)
    figures = re.findall(r"<svg [^>]*>(.{0,20000}?)</svg>", html, flags=re.S)
    assert len(figures) == 2 + 2 + 4  # two figures in two widths, one panel per site
    for figure in figures:
        assert re.match(r"<title>[^<]+</title><desc>[^<]*\d\.\d{3}[^<]*</desc>", figure)
    for words in ("What to see.", "What it cannot tell."):
        assert html.count(words) == html.count("<figure ") == html.count("data-figure=") == 3


def test_the_page_speaks_our_words(seen: Reader) -> None:
    text = " ".join(seen.text).lower()
    assert not re.search(r"\b(client|server|agent|participant)s?\b", text)
    assert METRICS["balanced_accuracy"] == ("balanced accuracy", "share")
    assert "balanced accuracy (share)" in text
    assert "balanced_accuracy" not in text


def test_same_page_twice(compare: Page) -> None:
    assert render(compare) == render(compare)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "nothing"), (950, "0.9 KB"), (1e6, "1.0 MB"), (999_960, "1.0 MB"), (2.34e9, "2.3 GB")],
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


places = st.lists(st.floats(-50, 250), max_size=15)


@given(places, st.floats(1, 20))
def test_labels_do_not_overlap(wanted: list[float], gap: float) -> None:
    placed = place_labels(wanted, gap, 0, 300)
    assert len(placed) == len(wanted)
    assert all(-1e-6 <= p <= 300 + 1e-6 for p in placed)
    ordered = sorted(placed)
    assert all(b - a >= gap - 1e-6 for a, b in pairwise(ordered))
    for i, a in enumerate(wanted):
        assert all(placed[i] < placed[j] for j, b in enumerate(wanted) if a < b), "labels keep the order of their lines"


@given(places, st.floats(1, 20))
def test_labels_with_room_stay_where_they_are(wanted: list[float], gap: float) -> None:
    spread = [gap * 1.01 * i + 3 for i in range(len(wanted))]
    assert place_labels(spread, gap, 0, 400) == pytest.approx(spread)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=40))
def test_labels_without_room_are_spread_evenly(wanted: list[float]) -> None:
    placed = sorted(place_labels(wanted, 100, 0, 100))
    assert placed == pytest.approx(np.linspace(0, 100, len(wanted)).tolist(), abs=1e-6)


@given(st.lists(st.floats(0, 300), max_size=12))
def test_dots_do_not_cover_one_another(xs: list[float]) -> None:
    ys = swarm(xs, 9, 60)
    dots = list(zip(xs, ys, strict=True))
    assert all(math.dist(a, b) >= 9 - 1e-9 for i, a in enumerate(dots) for b in dots[:i])


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e4), st.integers(2, 8))
def test_ticks_lie_inside_and_are_few(low: float, length: float, about: int) -> None:
    marks = ticks(low, low + length, about)
    assert all(low - 1e-6 * length <= m <= low + length * (1 + 1e-6) for m in marks)
    assert len(marks) <= about + 1

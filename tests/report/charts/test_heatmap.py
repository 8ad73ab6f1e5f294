"""Heatmaps of published layers: every mark lies on its cell, and no name from a file becomes markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.report.heatmaps import FEATURES, Seen, box_on_top, found, look, page, shifted, tree
from tests.support.report.pages import HEART, HOSTILE, SEEDS, make
from vitrail.report import render
from vitrail.report.charts.heatmap import BLOCK, SHOWN, heatmaps, read_layers, seriate


def drawings(html: str) -> list[Seen]:
    figures = [f for f in tree(html).iter("figure") if f.get("data-figure") != "strength"]
    boxes = [d for f in figures for d in f.iter("div") if d.get("class") == "scroll heat"]
    assert all(d.get("tabindex") == "0" and len(d) == 2 for d in boxes)
    return [look(*d) for d in boxes]


def pairs(frame: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(frame["site"], frame["feature"], strict=True))


def check_marks(seen: Seen, here: pd.DataFrame) -> None:
    """All that the table holds of these features is drawn at its place."""
    here = here[here["feature"].isin(seen.features)]
    assert seen.flags == seen.dots == pairs(here[here["flagged"]])
    assert seen.circled == pairs(here[here["flagged_paper"].str.contains("O") & here["value"].notna()])
    assert seen.crossed == set(here[here["flagged_paper"].str.contains("x")]["feature"])
    assert seen.cells.keys() == pairs(here[here["value"].notna()])
    for row in here[here["value"].notna()].itertuples():
        hover = seen.cells[str(row.site), str(row.feature)].findtext("title", "")
        assert hover.startswith(f"{row.site}, {row.feature}: ")
        assert f"{abs(row.value):.3f}" in hover  # type: ignore[arg-type]
        assert ("likely wrong" in hover) == row.flagged
    for site, feature in seen.flags:
        assert f"{site}, {feature}: " in seen.desc


def test_page_without_shifts_is_as_before() -> None:
    html = render(page())
    for word in ("Whose data", "heat", "--h0", 'class="shifts"', "stands out", "publish"):
        assert word not in html, word
    assert html == render(make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=4))


def test_four_hospitals() -> None:
    shifts = shifted()
    html = render(page(shifts))
    shift, stretch = drawings(html)
    for seen, layer in ((shift, "b_in"), (stretch, "w_in")):
        check_marks(seen, shifts[shifts["layer"] == layer])
        assert len(seen.cells) == 4 * 13
        marked = [any(f == feature for _, f in seen.flags) for feature in seen.features]
        assert marked == sorted(marked, reverse=True), "flagged features come first"
    assert shift.sites == stretch.sites, "a site has the same row in all figures"
    assert shift.flags == stretch.flags == {("switzerland", "chol"), ("va", "oldpeak")}
    assert shift.crossed == {"chol"}
    assert shift.cells["switzerland", "chol"].attrib["class"] == "h0", "bluest"
    assert shift.cells["va", "oldpeak"].attrib["class"] in ("h11", "h12"), "red"
    headings = ["".join(h.itertext()) for h in tree(html).iter("h3")]
    assert headings[:3] == ["Likely wrong", "Shift of each feature (b_in)", "Stretch of each feature (w_in)"]
    sections = [s.get("aria-labelledby") for s in tree(html).iter("section")]
    assert sections[:5] == ["sites", "short", "fit", "shifts", "scores"], "the figure of the sites comes first"
    section = html[html.index('class="shifts"') : html.index('id="scores"')]
    assert section.count("What to see.") == section.count("What it cannot tell.") == section.count("<figure ") == 2
    assert not re.search(r"\b(client|server|agent|participant)s?\b", re.sub(r"<[^>]*>", " ", section).lower())


def test_many_sites_and_features() -> None:
    sites, features = [f"person {i:02d}" for i in range(30)], [f"tBodyAccJerk-energy()-{i:03d}" for i in range(561)]
    shifts = shifted(sites, features, layers=("b_in",), odd=((4, 500, 2.0), (9, 17, -1.5), (4, 17, -1.2)))
    html = render(page(shifts))
    main, *folded = drawings(html)
    assert len(main.features) == SHOWN
    assert len(main.cells) == 30 * SHOWN
    assert set(main.features[:2]) == {features[500], features[17]}
    assert [len(f.features) for f in folded] == [BLOCK] * 8 + [561 - SHOWN - 8 * BLOCK]
    assert sorted(f for seen in (main, *folded) for f in seen.features) == features, "each once, none left out"
    spread = shifts.groupby("feature")["value"].std()
    rest = [f for f in main.features if f not in (features[500], features[17])]
    assert min(spread[f] for f in rest) >= max(spread[f] for f in folded[0].features)
    for seen in (main, *folded):
        check_marks(seen, shifts)
    labels = [t for t in tree(html).iter("text") if (t.get("class") or "").startswith("feature")]
    assert all(len(t.text or "") <= 20 and t.findtext("title") in features for t in labels)
    assert len(html) < 4e6


def test_more_flags_than_columns() -> None:
    features = [f"f{i}" for i in range(70)]
    shifts = shifted(features=features, layers=("b_in",), odd=[(0, j, 1.0 + j) for j in range(40)])
    html = render(page(shifts))
    main, folded = drawings(html)
    assert set(main.features) == {f"f{j}" for j in range(40 - SHOWN, 40)}, "of the marked those that differ most"
    assert ">Features 25 to 70 of 70, 16 of them marked" in html
    check_marks(folded, shifts)


def test_one_did_not_publish() -> None:
    shifts = shifted(["a", "b", "c"], refused=["b"], odd=())
    html = render(page(shifts))
    for seen in drawings(html):
        assert seen.hatched == ["b"]
        assert seen.sites[-1] == "b"
        assert len(seen.cells) == 2 * 13
        assert "No cell is marked as likely wrong. Did not publish: b." in seen.desc
    assert html.count(">did not publish</text>") == 2
    assert "<p><b>b</b> did not publish its own layers.</p>" in html


def test_some_layers_not_published() -> None:
    shifts = shifted(["a", "b", "c"], odd=())
    shifts.loc[(shifts["site"] != "a") & (shifts["layer"] == "w_in"), "value"] = np.nan
    html = render(page(shifts))
    assert [seen.hatched for seen in drawings(html)] == [[], [s for s in drawings(html)[0].sites if s != "a"]]
    assert "<p><b>b</b> and <b>c</b> did not publish the stretch of each feature (w_in).</p>" in html
    shifts["value"] = np.nan
    assert "<p><b>a</b>, <b>b</b> and <b>c</b> did not publish their own layers.</p>" in render(page(shifts))
    assert "<figure " in render(page(shifts.head(0)))


@pytest.mark.parametrize(("known", "said"), [((), ""), (("va",), "by elimination"), (("va", "m"), "may still guess")])
def test_pseudonyms_are_explained(known: Sequence[str], said: str) -> None:
    for findings in ([], found(1)):
        lines = [
            line for line in box_on_top(render(page(shifted(), findings, pseudonyms=known))) if "pseudonym" in line
        ]
        assert len(lines) == bool(known)
        for line in lines:
            assert line.startswith(f"{len(known)} of 4 sites published")
            assert said in line


def test_hostile_names_stay_text() -> None:
    features = [*HOSTILE, 'x" class="flag', "</title></svg>", "&amp;", "<b>"]
    shifts = shifted(HOSTILE, features, odd=((0, 1, 2.0), (1, 0, -2.0)), refused=[HOSTILE[2]])
    html = render(page(shifts, sites=HOSTILE))
    assert html.count("<script") == 1, "ours"
    assert "<img" not in html
    for seen in drawings(html):
        assert sorted(seen.features) == sorted(features)
        assert set(seen.sites) == set(HOSTILE)
    for seen, layer in zip(drawings(html), ("b_in", "w_in"), strict=True):
        check_marks(seen, shifts[shifts["layer"] == layer])


FRAME = """<!doctype html><title>-</title><iframe style="width:360px;height:900px" srcdoc="PAGE"></iframe>
<script>addEventListener("load", () => {
  const places = [...document.querySelector("iframe").contentDocument.querySelectorAll(".heat")].map(box => {
    box.scrollLeft = 200;
    const [outer, names, cells] = [box, ...box.children].map(e => e.getBoundingClientRect());
    return [names.top - cells.top, names.left - outer.left, outer.left - cells.left];
  });
  document.title = places.flat().map(Math.round).join(" ");
})</script>"""


def test_names_stay_beside_their_cells(tmp_path: Path) -> None:
    """In folded figures too, on a telephone that scrolls them and on paper, where they are unfolded."""
    from tests.support.report.screenshots import browse

    html = render(page(shifted(features=[f"feature {i}" for i in range(80)])))
    screen = html.replace("<details>", "<details open>")
    for text, scrolls in ((screen, True), (html.replace("@media print", "@media all"), False)):
        dom = browse(tmp_path, FRAME.replace("PAGE", escape(text)), "--dump-dom", "--window-size=1300,1000")
        found_ = re.search(r"<title>([-\d ]+)</title>", dom)
        assert found_ is not None
        places = np.array(found_[1].split(), int).reshape(-1, 3)
        assert len(places) == 5
        assert (places[:, :2] == 0).all()
        assert (places[:, 2] > 0).all() == scrolls, "the cells move, the names do not"


def test_scale_is_centred_and_stated() -> None:
    shifts = shifted()
    for layer in read_layers(shifts):
        inside = np.abs(layer.values - layer.neutral) <= layer.clip
        assert inside.mean() > 0.95
    shift, stretch = heatmaps(shifts)
    text = re.sub(r"<[^>]*>", "|", shift.legend)
    assert re.search(r"\|−[\d.]+ or less\|+0, no shift\|+\+[\d.]+ or more\|", text), text
    assert "|1, no stretch|" in re.sub(r"<[^>]*>", "|", stretch.legend)


def test_infinite_values_are_drawn_at_the_end_of_the_scale() -> None:
    shifts = shifted(layers=("b_in",), odd=())
    shifts.loc[0, "value"] = np.inf
    (seen,) = drawings(render(page(shifts)))
    cell = seen.cells[HEART[0], FEATURES[0]]
    assert cell.attrib["class"] == "h12"
    assert "not defined" in cell.findtext("title", "")


@given(st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=4), max_size=12))
def test_seriation_is_an_order(rows: list[list[float]]) -> None:
    order = seriate(np.array(rows).reshape(-1, 4))
    assert sorted(order) == list(range(len(rows)))


def test_seriation_puts_kinds_together() -> None:
    rng = np.random.default_rng(0)
    kind = rng.permutation(np.arange(30) % 3)
    order = seriate(rng.normal(0, 1, (3, 50))[kind] + rng.normal(0, 0.1, (30, 50)))
    assert (np.diff(kind[order]) != 0).sum() == 2

"""The page in a real browser: it paints, light and dark, a telephone never scrolls sideways, figures can be kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.support.report.browser import BROWSER, Browser
from tests.support.report.heatmaps import found, page, shifted
from tests.support.report.pages import HOSTILE, MORE, SEEDS, TITLES, long_names, make
from tests.support.report.screenshots import browse, pixels
from vitrail.report import render

if BROWSER is None and not os.environ.get("CI"):
    pytest.skip("no Chromium found: install it to test the pages in a browser", allow_module_level=True)

WIDE = [f"{'wide_name' * 4}{i}" for i in range(40)]
PAGES = {
    "compare": lambda: make(rounds=20),
    "run": lambda: make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=20),
    "many": lambda: make(sites=long_names(), rounds=3),
    "unbroken": lambda: make(sites=["x" * 40 + str(i) for i in range(3)], rounds=3),
    "hostile": lambda: make(sites=HOSTILE, rounds=3),
    "methods": lambda: make(methods=[*TITLES, *MORE], rounds=3),
    "wide": lambda: page(shifted(["x" * 40, "b" * 30, "c"], WIDE, odd=((0, 39, 1.0),), refused=["c"]), found(2)),
}


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1200, False), (1200, True)])
def test_it_paints(tmp_path: Path, width: int, dark: bool) -> None:
    shot = tmp_path / "shot.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    browse(tmp_path, render(PAGES["run"]()), *scheme, f"--screenshot={shot}", f"--window-size={width},500")
    image = pixels(shot).astype(int)
    assert image.shape[1] == width
    paper = image[2, 2].mean()
    assert (paper < 60) if dark else (paper > 240)
    ink = np.abs(image - image[2, 2]).sum(2) > 200
    assert 0.005 < ink.mean() < 0.4, "blank, or not a page of text"


def test_scripts_from_names_do_not_run(tmp_path: Path) -> None:
    """Even if escaping failed, the page's policy forbids all scripts but one."""
    html = render(make(sites=HOSTILE, rounds=3)).replace("<main", "<script>document.title = 'ran'</script><main", 1)
    assert "<title>ran</title>" not in browse(tmp_path, html, "--dump-dom")


def test_printing_opens_what_is_folded(tmp_path: Path) -> None:
    """As many sheets as with everything unfolded, and more than the folded page has without print styles."""

    def sheets(html: str) -> int:
        out = tmp_path / "page.pdf"
        browse(tmp_path, html, f"--print-to-pdf={out}")
        return len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))

    html = render(make(rounds=5))
    opened, folded = (
        html.replace("<details>", "<details open>"),
        html.replace("@media print", "@media not all"),
    )
    assert sheets(html) == sheets(opened) > sheets(folded)


def run_page(folder: Path, **given: Any) -> Path:
    """The page of an iFedAvg run with 40 features, 16 of them folded."""
    sites, features = [f"ward {i}" for i in range(6)], [f"feature {i:02d}" for i in range(40)]
    shifts = shifted(sites, features, odd=((2, 5, -1.4), (3, 9, 0.9)), refused=["ward 4"])
    path = folder / "run.html"
    path.write_text(render(page(shifts, sites=sites, **given)), encoding="utf-8")
    return path


CELL = "[...document.querySelectorAll('.cells rect')].find(r => r.checkVisibility() && r.textContent.startsWith('{}'))"
SAVE = "document.querySelector('[data-figure=\"{}\"] > .keep button:nth-child({})')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as driven:
        yield driven


@pytest.mark.parametrize("name", PAGES)
def test_no_sideways_scrolling(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(render(PAGES[name]()), encoding="utf-8")
    for width in (360, 1200):
        browser.open(path, width=width)
        assert browser.ask("document.documentElement.scrollWidth") == width


def test_a_cell_tells_its_value_under_the_pointer(browser: Browser, tmp_path: Path) -> None:
    browser.open(run_page(tmp_path))
    assert not browser.ask("document.querySelector('.tip').checkVisibility()")
    browser.hover(CELL.format("ward 2, feature 05"))
    told = browser.ask("document.querySelector('.tip').checkVisibility() && document.querySelector('.tip').textContent")
    assert re.fullmatch(r"ward 2, feature 05: −1\.\d{3}, likely wrong, O of the paper", told)
    left, right, width = browser.ask(
        "(r => [r.left, r.right, innerWidth])(document.querySelector('.tip').getBoundingClientRect())"
    )
    assert 0 <= left < right <= width
    browser.hover("document.querySelector('h1')")
    assert not browser.ask("document.querySelector('.tip').checkVisibility()")
    assert browser.ask(f"{CELL.format('ward 2, feature 05')} !== undefined"), "its title is back"
    assert browser.says == []


def test_folded_features_unfold(browser: Browser, tmp_path: Path) -> None:
    browser.open(run_page(tmp_path))
    block = "document.querySelector('[data-figure=\"b_in-2\"]')"
    fold = f"{block}.closest('details').querySelector('summary')"
    assert browser.ask(f"{fold}.textContent") == "The other 16 features, the sites differing less and less"
    for shown in (True, False):
        browser.click(fold)
        assert browser.ask(f"{block}.checkVisibility({{contentVisibilityAuto: true}})") == shown
    browser.click(fold)
    folded = browser.ask(f"{block}.querySelector('.cells rect').textContent")
    browser.hover(f"{block}.querySelector('.cells rect')")
    assert browser.ask("document.querySelector('.tip').textContent") == folded


@pytest.mark.parametrize("width", [390, 1280])
def test_many_methods_can_be_read(browser: Browser, tmp_path: Path, width: int) -> None:
    """On a wide page all columns are in sight; on a narrow one the names stay while the numbers move."""
    path = tmp_path / "methods.html"
    path.write_text(render(PAGES["methods"]()), encoding="utf-8")
    browser.open(path, width=width)
    box = "document.querySelector('#t-primary + .scroll')"
    inside, outside = browser.ask(f"[{box}.scrollWidth, {box}.clientWidth]")
    assert (inside > outside) == (width == 390)
    browser.ask(f"{box}.scrollTo(10000, 0)")
    left = browser.ask(f"{box}.getBoundingClientRect().left")
    names = browser.ask(f"[...{box}.querySelectorAll('tbody th')].map(h => h.getBoundingClientRect().left)")
    assert len(names) == 14
    assert max(abs(x - left) for x in names) < 1
    last = browser.ask(f"{box}.querySelector('tbody td:last-child').getBoundingClientRect().right")
    assert last <= left + outside + 1


def painted(browser: Browser, path: Path) -> tuple[list[int], np.ndarray]:
    """The size of a picture that the browser can read, and how it looks at the size of the window."""
    browser.open(path, width=500, height=400)
    size = browser.ask("(i => [i.naturalHeight, i.naturalWidth])(document.images[0])")
    box = browser.ask("(r => [r.x, r.y, r.width, r.height])(document.images[0].getBoundingClientRect())")
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True))
    return size, pixels(browser.picture(path.with_suffix(".shot"), clip)).astype(int)


# on a telephone the wide drawing of the sites is kept, though the narrow one is shown
@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [("b_in", 1280, False), ("w_in-2", 390, True), ("sites", 390, True), ("curves", 1280, True)],
)
def test_a_figure_is_kept_as_svg_and_png(browser: Browser, tmp_path: Path, name: str, width: int, dark: bool) -> None:
    for old in browser.downloads.iterdir():
        old.unlink()
    browser.open(run_page(tmp_path), width=width, dark=dark)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for i, kind in enumerate(("svg", "png"), start=1):
        browser.click(SAVE.format(name, i))
        browser.downloaded(f"{name}.{kind}")
    svg = ElementTree.fromstring((browser.downloads / f"{name}.svg").read_bytes())
    drawn, text = list(svg.iter()), " ".join(svg.itertext())
    assert not any(e.get("class") or e.tag.endswith("button") for e in drawn), "it needs no styles of the page"
    assert all("var(" not in value for e in drawn for value in e.attrib.values())
    for wanted in {
        "curves": ["Learning curves", "ward 3", "round"],
        "sites": ["How well each site is served", "better →"],
    }.get(name, ["of each feature", "no s", "or less", "ward 3", "feature "]):
        assert wanted in text
    if name == "b_in":
        assert sum(e.get("r") == "3" for e in drawn) == 2, "the marks"
        assert "Outlined with a dot: likely wrong. O and x: marks of the iFedAvg paper." in text
        assert sum(e.tag.endswith("rect") for e in drawn) > 5 * 24 + 13
    assert browser.says == []
    png = browser.downloads / f"{name}.png"
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    size, image = painted(browser, png)
    assert size == [3 * int(svg.attrib["height"]), 3 * int(svg.attrib["width"])]
    assert (image[1:5, 1:-1] == 255).all(), "white paper"
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20
    assert np.median(image) > 230, "no dark colours, whatever the screen shows"
    assert (image.max(2) - image.min(2)).max() > 60, "in colour"


def test_what_is_kept_is_the_same_in_the_dark(browser: Browser, tmp_path: Path) -> None:
    kept = []
    for dark in (False, True):
        browser.open(run_page(tmp_path), dark=dark)
        browser.click(SAVE.format("b_in", 1))
        path = browser.downloaded("b_in.svg")
        kept.append(path.read_text())
        path.unlink()
    assert kept[0] == kept[1]


def test_names_from_files_stay_text_in_what_is_kept(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(render(page(shifted(HOSTILE), sites=HOSTILE)), encoding="utf-8")
    browser.open(path)
    browser.click(SAVE.format("b_in", 1))
    file = browser.downloaded("b_in.svg")
    svg = ElementTree.fromstring(file.read_bytes())
    file.unlink()
    tags = {e.tag.rpartition("}")[2] for e in svg.iter()}
    assert tags <= {"svg", "g", "rect", "text", "circle", "path", "title", "desc"}
    assert browser.says == []

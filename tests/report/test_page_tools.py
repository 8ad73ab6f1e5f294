"""What the script of every page adds, in a real browser: figures to save, a button to print, contents in view; and
that nothing is lost without it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.report.browser import BROWSER, Browser

if BROWSER is None and not os.environ.get("CI"):
    pytest.skip("no Chromium found: install it to test the pages in a browser", allow_module_level=True)

from tests.support.report.gallery import PAGES, write_all

EVERY = pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("follow")])
# pages whose first screen has a figure, a status each and what to do next, at the size of a small laptop
FIRST_SCREENS = (
    "carded",
    "contributed",
    "explained_all",
    "transferred",
    "alike",
    "columns_missing",
    "parties",
    "explained",
)
HIGH = 800


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as driven:
        yield driven


@EVERY
def test_every_figure_can_be_saved(browser: Browser, files: dict[str, Path], name: str) -> None:
    """As often as there are figures with a drawing, and under a name of its own."""
    browser.open(files[name])
    around = "s => s.closest('[data-figure]') ?? s.closest('figure') ?? s.closest('.panels')"
    drawings = f"[...document.querySelectorAll('svg:is([role=img], [role=group])')].map({around})"
    assert browser.ask(f"{drawings}.every(f => f !== null)"), "a drawing outside of any figure"
    figures = f"[...new Set({drawings})]"
    assert browser.ask(f"{figures}.every(f => f.querySelectorAll(':scope > .keep button').length === 2)")
    labels = browser.ask("[...document.querySelectorAll('.keep button')].map(b => b.getAttribute('aria-label'))")
    assert len(labels) == 2 * browser.ask(f"{figures}.length") + 1
    assert len(set(labels)) == len(labels), "two figures of one title on a page cannot be told apart by ear"


@EVERY
def test_one_button_prints(browser: Browser, files: dict[str, Path], name: str) -> None:
    browser.open(files[name])
    browser.ask("window.print = () => { window.printed = (window.printed ?? 0) + 1; }")
    browser.click("document.querySelector('header .kind .keep button')")
    assert browser.ask("window.printed") == 1
    assert browser.says == []


def test_a_saved_figure_has_its_key(browser: Browser, files: dict[str, Path]) -> None:
    """Colours would mean nothing without the words that stand beside the drawing."""
    browser.open(files["explained"])
    browser.click("document.querySelector('#swarm ~ figure .keep button')")
    (file,) = (browser.downloaded(name) for name in ("the-values-of-140-rows-feature-by-feature.svg",))
    svg = ElementTree.fromstring(file.read_bytes())
    text = [e.text for e in svg.iter() if e.tag.endswith("text")]
    for words in ("high, or the second", "missing", "not known here", "ward: b"):
        assert words in text
    colours = {e.get("fill") for e in svg.iter() if e.tag.endswith("rect") and e.get("height") == "11"}
    assert len(colours) >= 5, "as many as things that are told apart by colour"
    browser.click("document.querySelector('#swarm ~ figure .keep button:last-child')")
    png = browser.downloaded("the-values-of-140-rows-feature-by-feature.png")
    assert png.read_bytes().startswith(b"\x89PNG\r\n")


def test_contents_stay_in_view_beside_the_text(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["carded"], width=1280, height=HIGH)
    box = "document.querySelector('nav.contents').getBoundingClientRect()"
    main = browser.ask("document.querySelector('main').getBoundingClientRect().left")
    assert browser.ask(f"{box}.right") <= main
    browser.ask("scrollTo(0, 2000)")
    assert 0 <= browser.ask(f"{box}.top") < 100
    browser.ask("[...document.querySelectorAll('nav.contents a')].at(-1).click()")
    browser.wait("location.hash === '#tripod'")
    assert browser.ask("document.getElementById('tripod').getBoundingClientRect().top") < HIGH
    browser.open(files["carded"], width=360)
    assert browser.ask(f"{box}.height") < 60, "one line on a telephone"


@pytest.mark.parametrize("name", FIRST_SCREENS)
def test_the_first_screen_answers(browser: Browser, files: dict[str, Path], name: str) -> None:
    """A figure, the statuses, and at least the beginning of what to do next, without scrolling."""
    browser.open(files[name], width=1280, height=HIGH)
    inside = "e => e.getBoundingClientRect().top < {} && e.getBoundingClientRect().height > 0"
    first = "document.querySelector('.short')"
    assert browser.ask(f"({inside.format(HIGH)})({first}.querySelector('svg.wide, svg.cells'))")
    assert browser.ask(f"[...{first}.querySelectorAll('.statuses li')].length") > 0
    place = browser.ask(f"{first}.querySelector('.next').getBoundingClientRect().top")
    assert place < HIGH + 60, f"what to do next is {place:.0f} pixels down"


@EVERY
def test_without_the_script_nothing_is_hidden(
    browser: Browser, files: dict[str, Path], name: str, tmp_path: Path
) -> None:
    """No button that does nothing, and every section can be read."""
    browser.open(files[name])
    texts = (
        "[...document.querySelectorAll('main h2, main h3')].filter(h => h.checkVisibility()).map(h => h.textContent)"
    )
    choices = browser.ask("document.querySelectorAll('[data-choose]').length")
    with_script = browser.ask(texts)
    page = tmp_path / "page.html"
    page.write_text(re.sub(r"<script>.*?</script>", "", files[name].read_text("utf-8"), flags=re.S), encoding="utf-8")
    browser.open(page)
    without = browser.ask(texts)
    assert set(with_script) <= set(without)
    assert choices or with_script == without, "where a part is chosen, all are shown"
    assert browser.ask("document.querySelectorAll('button, .keep, .tip').length") == 0

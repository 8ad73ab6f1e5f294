"""Every kind of page for everybody: axe finds nothing, all can be reached and worked by keyboard, a telephone shows the
whole of every table, and paper is white. Real keys, in a real browser."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.report.browser import BROWSER, Browser

if BROWSER is None and not os.environ.get("CI"):
    pytest.skip("no Chromium found: install it to test the pages in a browser", allow_module_level=True)

from tests.support.report.gallery import PAGES, write_all
from tests.support.report.screenshots import pixels
from vitrail.report.pages.frame import templates

HERE = Path(__file__).parent
AXE, LOOK = HERE / "axe.min.js", HERE / "look.js"
EVERY = pytest.mark.parametrize("name", PAGES)
UNFOLD = "document.querySelectorAll('details').forEach(d => { d.open = true; })"
# axe needs long for shapes and has no rule for them: their names stay, and pale() looks at the words in drawings
STRIP = "document.querySelectorAll('svg > :not(title, desc)').forEach(e => e.remove())"
FOUND = """axe.run(document, {resultTypes: ['violations'], RULES}).then(r => r.violations.map(
  v => `${v.impact}: ${v.id}, ${v.nodes.length} times: ${v.nodes[0].html.slice(0, 200)}`))"""
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "Escape": 27, "Home": 36, "End": 35}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


FILLED: set[str] = set()  # templates of the pages that were made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    env = templates()
    take = env.get_template

    def noted(name: Any, *more: Any, **given: Any) -> Any:
        FILLED.add(str(name))
        return take(name, *more, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env, "get_template", noted)
        return write_all(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as driven:
        yield driven


def show(browser: Browser, file: Path, **given: Any) -> None:
    browser.open(file, **given)
    browser.ask(f"{LOOK.read_text('utf-8')}; 0")


def press(browser: Browser, key: str) -> None:
    text = {"Enter": "\r", " ": " "}.get(key, "")
    for kind in ("keyDown", "keyUp"):
        typed = {"text": text} if text and kind == "keyDown" else {}
        code = "Space" if key == " " else key
        browser.tell("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=KEYS[key], **typed)


def set_media(browser: Browser, dark: bool, media: str = "") -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.tell("Emulation.setEmulatedMedia", media=media, features=[scheme])


def judge(browser: Browser, only: str = "") -> list[str]:
    rules = f"runOnly: {json.dumps([only])}" if only else ""
    found: list[str] = browser.ask(FOUND.replace("RULES", rules))
    return found


def test_axe_is_the_file_that_we_say_it_is() -> None:
    said = (HERE / "README.md").read_text("utf-8")
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() in said
    assert AXE.read_text("utf-8").startswith("/*! axe v4.14.0")
    assert "4.14.0" in said


def test_no_kind_of_page_is_left_out(files: dict[str, Path]) -> None:
    parts = [f for f in (resources.files("vitrail.report") / "templates").iterdir() if f.name.endswith(".html")]
    whole = {f.name for f in parts if "{% extends" in f.read_text("utf-8")}
    assert {"page.html", "live.html"} <= whole <= FILLED


@EVERY
def test_axe_finds_nothing(browser: Browser, files: dict[str, Path], name: str) -> None:
    """Of any impact; in the dark only the colours are others. Everything unfolded."""
    browser.says.clear()
    show(browser, files[name])
    browser.ask(UNFOLD)
    assert browser.ask("cut()") == []
    for dark in (False, True):
        set_media(browser, dark)
        assert browser.ask("pale()") == []
    browser.ask(STRIP)
    browser.ask(AXE.read_text("utf-8") + "; 0")
    assert judge(browser, "color-contrast") == []
    set_media(browser, dark=False)
    assert judge(browser) == []
    assert browser.says == []


def test_axe_would_find_it(browser: Browser, files: dict[str, Path]) -> None:
    """The control: each defect planted on a page is found, of words in drawings too."""
    show(browser, files["trusted"])
    assert browser.ask("pale()") == []
    browser.ask("document.documentElement.style.setProperty('--soft', '#999')")
    browser.ask("[2, 3, 4, 5].forEach(k => document.documentElement.style.setProperty(`--h${k}`, '#333'))")
    told = " ".join(browser.ask("pale()"))
    assert "tick" in told
    assert " in 0." in told
    browser.ask(STRIP)
    browser.ask(AXE.read_text("utf-8") + "; 0")
    browser.ask(
        "document.querySelector('main').insertAdjacentHTML('beforeend', `<button></button><input>"
        "<p style='color: #999'>pale</p><ul><p>no item</p></ul><svg role='img'></svg>`)"
    )
    found = " ".join(judge(browser))
    for rule in ("button-name", "label", "color-contrast", "list", "svg-img-alt"):
        assert f": {rule}," in found


@EVERY
def test_all_can_be_reached_and_unfolded_by_keyboard(browser: Browser, files: dict[str, Path], name: str) -> None:
    """Tab goes through whatever there is to work, in the order of reading, and shows where it is."""
    show(browser, files[name])
    first = browser.ask("controls().length")
    for _ in range(400):
        press(browser, "Tab")
        if browser.ask("over()"):
            break
        if browser.ask("document.activeElement.matches('details:not([open]) > summary')"):
            press(browser, "Enter")
            assert browser.ask("document.activeElement.parentElement.open"), "Enter unfolds"
    went = browser.ask("(all => went.map(w => [all.indexOf(w.e), w.e.localName, w.seen, w.marked]))(controls())")
    assert len(went) >= first > 0
    assert [w[0] for w in went] == list(range(browser.ask("controls().length"))), went
    assert [w for w in went if not (w[2] and w[3])] == [], "out of sight, or nothing shows where one is"


def test_the_first_stop_leads_to_the_findings(browser: Browser, files: dict[str, Path]) -> None:
    show(browser, files["compared"])
    press(browser, "Tab")
    assert browser.ask("document.activeElement.textContent") == "Skip to the findings"
    press(browser, "Enter")
    assert browser.ask("location.hash") == "#main"


def test_figures_are_kept_and_read_by_keyboard(browser: Browser, files: dict[str, Path]) -> None:
    """A figure is one stop: arrows go from cell to cell and tell each, Escape and leaving put the words away."""
    show(browser, files["shifts"], width=700)
    browser.ask("document.querySelector('[data-figure=b_in] button').focus()")
    press(browser, " ")
    assert browser.downloaded("b_in.svg").stat().st_size > 1000
    figure = "document.querySelector('[data-figure=b_in] svg.cells')"
    shown = "(t => t.checkVisibility() ? t.textContent : '')(document.querySelector('.tip'))"
    titles = browser.ask(f"[...{figure}.querySelectorAll(':not(svg) > title')].map(t => t.textContent)")
    browser.ask(f"{figure}.focus()")
    assert browser.ask(shown) == ""
    for key, at in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowDown", 25), ("ArrowLeft", 24), ("ArrowUp", 0)):
        press(browser, key)
        assert browser.ask(shown) == titles[at]
    press(browser, "ArrowLeft")
    assert browser.ask(shown) == titles[0], "there is nothing before the first"
    for _ in range(23):
        press(browser, "ArrowRight")
    browser.wait(f"{shown} === {json.dumps(titles[23])}")
    inside = "(r => r.left >= 0 && r.right <= innerWidth)(document.querySelector('.{}').getBoundingClientRect())"
    browser.wait(f"{inside.format('ring')} && {inside.format('tip')}")
    press(browser, "Escape")
    assert browser.ask(shown) == ""
    press(browser, "Home")
    assert browser.ask(shown) == titles[0]
    press(browser, "Tab")
    assert browser.ask(shown) == ""
    assert browser.ask(f"{figure}.querySelectorAll(':not(svg) > title').length") == len(titles)


@EVERY
def test_a_telephone_and_paper_show_all(browser: Browser, files: dict[str, Path], name: str) -> None:
    show(browser, files[name], width=360, height=800, dark=True)
    browser.ask(UNFOLD)
    assert browser.ask("cut()") == []
    browser.tell("Emulation.setDeviceMetricsOverride", width=680, height=960, deviceScaleFactor=1, mobile=False)  # A4
    set_media(browser, dark=True, media="print")
    assert browser.ask("cut()") == []
    assert browser.ask("scrolled()") == []
    assert [c for c in browser.ask("grounds()") if min(c[:3]) < 200] == [], "no dark ground"
    assert max(browser.ask("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")) < 60


def test_what_is_cut_off_would_be_seen(browser: Browser, files: dict[str, Path]) -> None:
    show(browser, files["compared"], width=360)
    assert browser.ask("cut()") == []
    for spoil in (".scroll { overflow: visible !important }", ".scroll { overflow: hidden !important }"):
        browser.ask(f"document.body.insertAdjacentHTML('beforeend', '<style class=\"spoil\">{spoil}</style>')")
        assert browser.ask("cut()") != []
        browser.ask("document.querySelector('.spoil').remove()")


@pytest.mark.parametrize("dark", [False, True])
def test_a_shade_tells_that_there_is_more_to_the_right(
    browser: Browser, files: dict[str, Path], tmp_path: Path, dark: bool
) -> None:
    show(browser, files["compared"], width=360, dark=dark)
    box = "document.querySelector('#t-primary + .scroll')"
    browser.place(box)
    x, y, wide, high = browser.ask(f"(r => [r.x, r.y, r.width, r.height])({box}.getBoundingClientRect())")
    clip = {"x": x + wide - 4, "y": y + high - 40 + browser.ask("scrollY"), "width": 4, "height": 8}
    edges = []
    for at in (0, 10_000):
        browser.ask(f"{box}.scrollTo({at}, 0)")
        browser.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        edges.append(pixels(browser.picture(tmp_path / "edge.png", clip)).astype(int).mean((0, 1)))
    assert np.abs(edges[0] - edges[1]).mean() > 12

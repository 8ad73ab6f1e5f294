"""The page of a screening in a real browser: what the first screen says, and that a cell opens what was found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.report.browser import BROWSER, Browser

if BROWSER is None and not os.environ.get("CI"):
    pytest.skip("no Chromium found: install it to test the pages in a browser", allow_module_level=True)

import vitrail as vt
from vitrail.data.datasets import catalogue
from vitrail.report.sections.screening import write_screen
from vitrail.runs.screening import screen_sites
from vitrail.study.model import Study

WIDTH, HEIGHT = 1280, 800
END = "(e => e.getBoundingClientRect().bottom)({})"


def hospitals() -> tuple[Study, dict[str, pd.DataFrame]]:
    """The four of the heart data, one with its cholesterol in another unit, one with a code for a missing age."""
    study, sites = Study.load(catalogue.packaged("heart_disease.toml")), dict(catalogue.heart_disease())
    sites["hungarian"] = sites["hungarian"].assign(chol=(sites["hungarian"]["chol"] / 38.67).round(2))
    sites["va"] = sites["va"].assign(age=sites["va"]["age"].where(np.arange(len(sites["va"])) % 4 > 0, 999))
    return study, sites


def wide() -> tuple[Study, dict[str, pd.DataFrame]]:
    """30 sites and 60 columns, three of them wrong somewhere."""
    sites = {}
    for i in range(30):
        rng = np.random.default_rng(i)
        x = rng.normal(size=(120, 60)) + 0.5 * rng.normal(size=(120, 1))
        table = pd.DataFrame(np.round(50 + 10 * x, 1), columns=[f"marker_{j:02d}" for j in range(60)])
        sites[f"hospital-{i:02d}"] = table.assign(sick=(x[:, :5].sum(1) + rng.normal(size=120) > 0).astype(int))
    for site, column in (("hospital-07", "marker_10"), ("hospital-12", "marker_31"), ("hospital-21", "marker_40")):
        sites[site][column] /= 38.67
    return vt.Study.infer(sites, "sick"), sites


@pytest.fixture(scope="module", params=[hospitals, wide])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    study, sites = request.param()
    return write_screen(study, screen_sites(study, sites), tmp_path_factory.mktemp("page") / "screen.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as driven:
        yield driven


def ends(browser: Browser, selector: str) -> float:
    value: float = browser.ask(END.format(f"document.querySelector({selector!r})"))
    return value


def test_the_first_screen_answers(browser: Browser, page: Path) -> None:
    """What was asked, what was found and where, what to do next; and the rows of those who need attention."""
    browser.open(page, WIDTH, HEIGHT)
    for selector in (".lead", ".answer-first", ".likely-wrong"):
        assert ends(browser, selector) < HEIGHT, selector
    step = "[...document.querySelectorAll('.fit > p')].find(p => p.textContent.startsWith('What to do next'))"
    assert browser.ask(END.format(step)) < HEIGHT
    rows = "[...document.querySelectorAll('.heat .names text.wrong')].map(t => t.getBoundingClientRect().bottom)"
    marks = browser.ask(rows)
    assert len(marks) >= 2
    assert max(marks) < HEIGHT, "all rows that need attention"
    assert not browser.ask("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def shown(browser: Browser, place: str) -> Any:
    return browser.ask(
        f"(e => e.checkVisibility() && (r => r.top >= 0 && r.top < innerHeight)(e.getBoundingClientRect()))"
        f"(document.querySelector('{place}'))"
    )


def test_a_cell_opens_its_sentence_and_figure(browser: Browser, page: Path) -> None:
    """By a press, and by keys: arrows in the figure, then Enter."""
    cells = "[...document.querySelectorAll('.heat .cells a')]"
    for at in ("0", f"{cells}.length - 1"):
        browser.open(page, WIDTH, HEIGHT)
        place = browser.ask(f"{cells}[{at}].getAttribute('href')")
        x, y = browser.place(f"{cells}[{at}]")
        for kind in ("mousePressed", "mouseReleased"):
            browser.tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        browser.wait(f"location.hash === '{place}'")
        assert shown(browser, place)
        figures = (
            "document.querySelector('{}').closest('.finding.panel, details').querySelectorAll('svg.published').length"
        )
        assert browser.ask(figures.format(place)) >= 1
    browser.open(page, WIDTH, HEIGHT)
    browser.ask("document.querySelector('.heat .cells').focus()")
    for key, code, text in (("ArrowRight", 39, ""), ("ArrowRight", 39, ""), ("Enter", 13, "\r")):
        browser.tell("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text=text)
    second = browser.ask(f"{cells}[1].getAttribute('href')")
    assert browser.ask("location.hash") == second
    assert shown(browser, second)
    assert browser.ask("'#' + document.activeElement.id") == second


def test_names_of_sites_stay_beside_their_cells_on_a_telephone(browser: Browser, page: Path) -> None:
    browser.open(page, 360, HEIGHT)
    left = "document.querySelector('.heat .names').getBoundingClientRect().left"
    before = browser.ask(left)
    browser.ask("document.querySelector('.heat').scrollTo(200, 0)")
    assert browser.ask("document.querySelector('.heat').scrollLeft") > 100
    assert browser.ask(left) == before

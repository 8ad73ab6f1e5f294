"""What the frame gives every kind of page: contents and the one script."""

from __future__ import annotations

import re

import pytest

from tests.support.report.gallery import PAGES, write_all
from vitrail.report.pages.frame import LISTED, SCRIPT, part


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    files = write_all(tmp_path_factory.mktemp("gallery"))
    return {name: file.read_text("utf-8") for name, file in files.items()}


@pytest.mark.parametrize("name", PAGES)
def test_contents_lead_to_every_section(gallery: dict[str, str], name: str) -> None:
    html = gallery[name]
    headings = re.findall(r'<h2 id="([^"]+)">', html)
    assert len(headings) == len(set(headings))
    listed = [
        a for nav in re.findall(r'<nav class="contents.*?</nav>', html, re.S) for a in re.findall('href="#(.*?)"', nav)
    ]
    assert listed == (headings if len(headings) >= LISTED else [])


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("follow")])
def test_every_page_has_one_script_that_asks_nobody(gallery: dict[str, str], name: str) -> None:
    html = gallery[name]
    assert html.count("<script") == 1
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert script == part(SCRIPT)
    assert "fetch(" not in script
    assert "XMLHttpRequest" not in script

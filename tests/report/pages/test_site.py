"""A site's private page: in a real browser, without the network, and without a trace of single rows."""

from __future__ import annotations

import re
import subprocess
from html import escape
from pathlib import Path

import pandas as pd
import pytest

import vitrail as vt
from tests.support.report.browser import BROWSER, FLAGS
from tests.support.report.pages import without_script
from tests.support.report.site_pages import NAME, told
from vitrail.report.pages.site import render_private


@pytest.fixture(scope="module")
def html() -> str:
    return render_private(told())


def test_it_says_that_it_stays(html: str) -> None:
    assert f"<title>This stays at {escape(NAME).replace('&#x27;', '&#39;')}" in html
    assert html.index('class="stays"') < html.index("<header>")
    assert "<b>Mary" not in html
    assert "It is not other sites’ data" in html
    assert "not the rows that the run saw" in html


def test_commands_to_copy_are_there_and_escaped() -> None:
    seen = told()._replace(command="vitrail repair 'a <b>' ours.csv", together="vitrail repair 'a <b>' --from x")
    page = render_private(seen)
    assert (
        "<code>vitrail repair &#39;a &lt;b&gt;&#39; ours.csv --feature oldpeak --cause unit --factor 0.5</code>" in page
    )
    assert "<code>vitrail repair &#39;a &lt;b&gt;&#39; --from x</code>" in page
    assert "<details" in page, "what may be real is folded"
    assert "--from" not in render_private(seen._replace(views=seen.views[:1])), "one needs no such command"


def test_it_needs_nothing_else(html: str) -> None:
    html = without_script(html)
    assert "<script" not in html
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", html)
    assert not re.search(r"url\(|@import", html)


def test_no_row_can_be_told_apart() -> None:
    """By whom it concerns: no identifier, no column that the study does not know. Lines of the site's own file are
    told, as examples, and say nothing without the file."""
    frame = vt.datasets.heart_disease()["switzerland"]
    frame.insert(0, "ward_no", [f"PAT{i:05d}" for i in range(len(frame))])
    frame.index = pd.RangeIndex(7_000_000, 7_000_000 + len(frame))
    frame.loc[frame.index[:12], "oldpeak"] = 99.0  # `check` names the rows of such a heap
    page = render_private(told("here", frame))
    assert "values are 99" in page
    assert "PAT0" not in page
    assert "ward_no" not in page
    assert len(set(re.findall(r"\b7000\d{3}\b", page))) <= 10


def test_it_opens_without_a_complaint(html: str, tmp_path: Path) -> None:
    def complaints(text: str) -> list[str]:
        assert BROWSER is not None, "CI is set, so that Chromium must be installed"
        page = tmp_path / "page.html"
        page.write_text(text, encoding="utf-8")
        command = [BROWSER, *FLAGS, "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0
        return [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    assert complaints(html) == []
    assert complaints(html.replace("<main", "<script>1</script><main", 1)), "or nothing would ever be heard"

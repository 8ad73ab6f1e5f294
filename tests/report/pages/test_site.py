"""A site's private page: in a real browser, without the network, and without a trace of single rows."""

from __future__ import annotations

import re
import subprocess
from html import escape
from pathlib import Path
from typing import Any

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
    assert f"<title>Own data of {escape(NAME).replace('&#x27;', '&#39;')}" in html
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


def first_screen(page: str) -> str:
    return page[page.index('class="short"') : page.index("</section>", page.index('class="short"'))]


def test_the_first_screen_has_a_figure_and_a_status_for_each_column() -> None:
    inspection = told("here")
    short = first_screen(render_private(inspection))
    statuses = re.findall(r'<li><b><a href="#(\w+)">([^<]+)</a></b> <span class="answer \w+">([^<]+)</span>', short)
    assert [(name, status) for _, name, status in statuses] == [
        ("oldpeak", "likely wrong"),
        ("cp", "likely wrong"),
        ("disease", "likely wrong"),
        ("chol", "looked at"),
        ("exang", "looked at"),
    ]
    assert short.index("<svg") < short.index('class="statuses"') < short.index("What to do next")
    page = render_private(inspection)
    for anchor, name, _ in statuses:
        section = page[page.index(f'id="{anchor}"') :]
        assert name in section[:200]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v, "then repair it by the command below"),
        (lambda v: v._replace(causes=()), "Ask somebody who knows the data about each column"),
        (lambda v: v._replace(wrong=False, causes=()), "Nothing has to be corrected. If a difference surprises you"),
        (lambda v: v._replace(wrong=False, trouble="", causes=()), "Nothing has to be corrected.</p>"),
    ],
)
def test_what_to_do_next_is_about_the_worst_column(change: Any, words: str) -> None:
    inspection = told("here")
    changed = inspection._replace(views=tuple(change(view) for view in inspection.views))
    assert words in first_screen(render_private(changed))


def test_where_nothing_is_likely_wrong_three_columns_are_shown() -> None:
    inspection = told("here")
    maybe = [v._replace(wrong=False, trouble="differs", brief=True, causes=()) for v in inspection.views]
    page = render_private(inspection._replace(views=tuple(maybe)))
    short = first_screen(page)
    before, _, folded = short.partition("<details>")
    assert before.count("differs, may be real") == 3
    assert f"{len(maybe) - 3} more columns" in folded
    assert "The file alone shows no cause." in short

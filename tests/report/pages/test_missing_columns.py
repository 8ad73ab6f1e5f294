"""The page of `vitrail columns`: a status for each column that a site lacks, and what it cannot tell."""

from __future__ import annotations

import re
from html import unescape

from tests.support.report.missing_columns import LINES, NASTY, make_missing
from tests.support.report.pages import without_script
from vitrail.report.pages.missing_columns import render_missing_columns


def text(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", page.split("<body>")[1])))


def test_each_column_has_a_status_and_its_sentence() -> None:
    page = render_missing_columns(make_missing())
    statuses = re.findall(r'<li><b>([^<]+)</b> <span class="answer (\w+)">([^<]+)</span>', page)
    assert [(unescape(name), kind, status) for name, kind, status in statuses] == [
        (f"{NASTY} at a & b", "gain", "record it"),
        ("ward at c", "unsure", "cannot tell"),
        (f"{NASTY} at c", "loss", "would not help"),
        ("ward at d", "unsure", "cannot tell"),
    ]
    assert page.index("<svg") < page.index('class="statuses"') < page.index("What to do next")
    assert "would save 0.031 nats per case, 95 % interval 0.010 to 0.052" in text(page)
    assert f"Begin with {NASTY} at a & b." in text(page)


def test_names_are_escaped_and_nothing_is_fetched() -> None:
    page = render_missing_columns(make_missing())
    assert NASTY not in page
    assert not re.search(r"(src|href)=.(?!#)", page)
    assert "<script" not in without_script(page)


def test_without_an_estimate_there_is_no_figure() -> None:
    page = render_missing_columns(make_missing(LINES[3:]))
    assert "<svg" not in page
    assert "No column clearly helps." in text(page)
    assert "nobody else records it" in text(page)


def test_where_no_site_lacks_a_column_it_says_so() -> None:
    page = text(render_missing_columns(make_missing(())))
    assert "No site lacks a column of the study" in page
    assert "All numbers" not in page

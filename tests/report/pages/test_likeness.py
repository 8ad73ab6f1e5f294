"""The page of `vitrail alike`: who is most like whom, where measures disagree, and how far."""

from __future__ import annotations

import re
from html import unescape

import numpy as np

from tests.support.report.likeness import NASTY, make_likeness
from tests.support.report.pages import without_script
from vitrail.report.pages.likeness import render_likeness


def text(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", page.split("<body>")[1])))


def test_each_user_has_a_status() -> None:
    page = render_likeness(make_likeness())
    statuses = re.findall(r'<li><b>([^<]+)</b> <span class="answer (\w+)">([^<]+)</span>', page)
    assert [(unescape(user), kind, unescape(status)) for user, kind, status in statuses] == [
        ("a & b", "unsure", f"{NASTY}, by 3 of 4"),
        (NASTY, "unsure", "a & b, by 3 of 4"),
        ("c", "gain", "most like a & b"),
        ("d", "unsure", "a & b, by 3 of 4"),
    ]
    assert page.index("<svg") < page.index('class="statuses"') < page.index("What to do next")


def test_the_agreement_is_a_table() -> None:
    page = render_likeness(make_likeness())
    part = text(page[: page.index('id="measures"')])
    assert "discrepancy+1.00−0.50+1.00+1.00" in part


def test_colours_are_ranks_within_a_row() -> None:
    page = render_likeness(make_likeness())
    cells = re.findall(r'class="(h\d+)"><title>c, [^<]*: ([^<]+)</title>', page)
    assert [shade for shade, _ in cells[:3]] == ["h0", "h6", "h12"]


def test_names_are_text_and_an_unknown_measure_is_left_out() -> None:
    page = render_likeness(make_likeness())
    assert NASTY not in page
    assert "<script" not in without_script(page)
    assert "alike-trust" in page
    result = make_likeness()
    result.table["trust"] = np.nan
    assert "alike-trust" not in render_likeness(result)

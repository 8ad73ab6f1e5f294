"""The page of `vitrail transfer`: what it says is in the tables, and names are only names."""

from __future__ import annotations

import re
from html import unescape

import pandas as pd
import pytest

import vitrail as vt
from tests.support.report.pages import without_script
from tests.support.report.transfers import NASTY, make_found
from vitrail.report.pages.transfer import render_transfer, write_transfer
from vitrail.studies.transfer import Transfer, on_trust


@pytest.fixture(scope="module")
def found() -> Transfer:
    return make_found([0.4, -0.1, 0.0, 0.2, -0.4, -0.395], [0.9, 0.3, 0.5, 0.6, 0.7, 0.2])


def text(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", page.split("<body>")[1])))


def test_findings_say_who_ranks_first_and_where_to_doubt(found) -> None:
    page = text(render_transfer(found))
    assert "For a & b, c ranks first: transfer loss −0.100. " in page
    assert f"For {NASTY}, a & b ranks first: transfer loss 0.000." in page
    assert f"For c, a & b ranks first: transfer loss −0.400; {NASTY} is as good, within the error." in page
    assert f"By the loss on c’s rows alone {NASTY} would rank first (0.200 against 0.700)" in page
    assert on_trust("row") in page
    assert f"{NASTY} -0.75" in page


def test_names_are_escaped_and_nothing_is_fetched(found) -> None:
    page = render_transfer(found)
    assert NASTY not in page
    assert not re.search(r"(src|href)=.(?!#)", page)
    assert "<script" not in without_script(page)


def test_colours_are_centred_on_nothing(found) -> None:
    page = render_transfer(found)
    cells = re.findall(r'class="(h\d+)"><title>[^<]*, model of [^<]*: ([^<]+)</title>', page)
    assert len(cells) == 6
    shades = {value: shade for shade, value in cells}
    assert shades["−0.400"] == "h0"
    assert shades["+0.400"] == "h12"
    assert shades["0.000"] == "h6"
    assert page.count(">itself<") == 3


def test_each_user_has_a_status(found: Transfer) -> None:
    """A model that does not beat the user's baseline is named with doubt."""
    found.same.update({"a & b": 0.9, NASTY: 0.4, "c": 0.9})
    page = render_transfer(found)
    statuses = re.findall(r'<li><b>([^<]+)</b> <span class="answer (\w+)">([^<]+)</span>', page)
    assert [(unescape(user), kind, unescape(status)) for user, kind, status in statuses] == [
        ("a & b", "gain", "learn from c"),
        (NASTY, "warn", "a & b, with doubt"),
        ("c", "gain", "learn from a & b"),
    ]
    assert page.index("<svg") < page.index('class="statuses"') < page.index("What to do next")
    assert "No better there than the baseline (loss 0.500 against 0.400)." in text(page)


def test_scores_beside_alone_and_all(found, tmp_path) -> None:
    rows = [
        ("c", t, s, m, v) for t, s, v in (("alone", "", 0.6), ("chosen", "a & b", 0.7)) for m in found.study.metrics
    ]
    scores = pd.DataFrame(rows, columns=["user", "trained", "sites", "metric", "value"])
    page = write_transfer(found, tmp_path / "t", scores)
    said = text(page.read_text("utf-8"))
    assert "0.600" in said
    assert "nobody" in said
    assert "One seed has no spread" in said
    assert "Trained with the chosen sites" not in text(render_transfer(found))
    write_transfer(found, tmp_path / "t")  # over our own
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(vt.VitrailError, match="did not write"):
        write_transfer(found, tmp_path / "other")


def test_a_model_that_diverged_is_named(found) -> None:
    nan = float("nan")
    broken = make_found([nan, nan, 0.0, 0.2, -0.4, 0.1], [nan, nan, 0.5, 0.6, 0.7, 0.2])
    page = text(render_transfer(broken))
    assert "a & b: no other site’s model can be judged" in page
    assert page.count("diverged") >= 3
    assert "a & b nobody All other models diverged." in page

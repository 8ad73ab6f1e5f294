"""The private page of a site with pictures, in a real browser: it shows them, and needs nothing from anywhere."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
from html import escape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail as vt
from tests.support.album import NAME, album
from tests.support.report.browser import BROWSER, FLAGS
from tests.support.report.pages import without_script
from vitrail.analysis.images.gallery import SHOWN, TYPICAL
from vitrail.data.readers.images import png
from vitrail.report.pages.site import LARGEST, render_private, write_look


@pytest.fixture(scope="module")
def html() -> str:
    draw = np.random.default_rng(0)
    labels, towards = draw.integers(0, 2, 80).tolist(), draw.random(80).tolist()
    return render_private(album(labels, towards, (draw.random(80) < 0.4).tolist()))


def test_it_says_that_it_stays_and_needs_nothing_else(html: str) -> None:
    assert f"<title>Own pictures of {escape(NAME).replace('&#x27;', '&#39;')}" in html
    assert html.index('class="stays"') < html.index("<header>")
    assert "<b>Mary" not in html
    assert "<i>3" not in html
    html = without_script(html)
    assert "<script" not in html
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:image/png;base64,)""", html)
    assert not re.search(r"url\(|@import", html)
    assert html.count("<img") == html.count("data:image/png;base64,") == 3 * SHOWN + 2 * TYPICAL


def test_large_pictures_are_made_smaller() -> None:
    big = render_private(album([0, 1], [0.1, 0.9], [True, True], (3, 4 * LARGEST, 2 * LARGEST)))
    assert len(big) < 60_000
    first = re.search(r"data:image/png;base64,([^\"]+)", big)
    assert first is not None
    assert Image.open(io.BytesIO(base64.b64decode(first[1]))).size == (LARGEST // 2, LARGEST)


@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 4, 9), (1, 1, 1)])
def test_a_picture_on_a_page_is_the_picture(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pixel; and a site without Pillow has its page too."""
    picture = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "PIL", None)
        data = png(picture)
    found = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(found, picture[0] if shape[0] == 1 else picture.transpose(1, 2, 0))


def test_only_an_earlier_page_is_written_over(tmp_path: Path) -> None:
    told = album([0, 1], [0.1, 0.9], [True, True])
    page = write_look(told, tmp_path / "look.html")
    write_look(told, page)
    page.write_text("mine")
    with pytest.raises(vt.VitrailError, match="nothing was overwritten"):
        write_look(told, page)


def test_it_opens_without_a_complaint(html: str, tmp_path: Path) -> None:
    """The policy lets its own pictures in, and nothing else."""

    def complaints(text: str) -> list[str]:
        assert BROWSER is not None, "CI is set, so that Chromium must be installed"
        page = tmp_path / "page.html"
        page.write_text(text, encoding="utf-8")
        command = [BROWSER, *FLAGS, "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0
        return [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    assert complaints(html) == []
    assert complaints(html.replace("; img-src data:", "", 1)), "or the pictures would not be seen"


def test_the_first_screen_says_how_often_the_model_is_right() -> None:
    """Beside the share of the largest class, which is what one answer to every picture would get."""
    labels, sure = [0] * 30 + [1] * 70, [0.1] * 30 + [0.9] * 65 + [0.2] * 5
    page = render_private(album(labels, sure, [True] * 100))
    short = page[page.index('class="short"') :]
    assert '<span class="answer gain">95.0 % right</span>' in short
    assert "baseline 70 %." in short
    guess = render_private(album(labels, [0.9] * 100, [True] * 100))
    assert '<span class="answer unsure">70 % right</span>' in guess
    assert "Not shown to beat the baseline." in guess

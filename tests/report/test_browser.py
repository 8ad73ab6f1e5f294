"""The page in a real browser: it paints, light and dark, and a telephone never scrolls sideways."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import zlib
from html import escape
from pathlib import Path

import numpy as np
import pytest

from report.pages import HOSTILE, SEEDS, long_names, make
from vitrail.report import Page, render

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome", "chrome") if shutil.which(b)), None)
if BROWSER is None and not os.environ.get("CI"):
    pytest.skip("no Chromium found: install it to test the pages in a browser", allow_module_level=True)

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--hide-scrollbars"]
# a headless window is never narrower than 500 pixels, a frame in it is
FRAME = """<!doctype html><title>-</title>
<iframe style="width:WIDTHpx;height:900px;border:0" srcdoc="PAGE"></iframe>
<script>addEventListener("load", () => {
  const root = document.querySelector("iframe").contentDocument.documentElement;
  document.title = root.scrollWidth + "/" + root.clientWidth;
})</script>"""
PAGES = {
    "compare": lambda: make(rounds=20),
    "run": lambda: make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=20),
    "many": lambda: make(sites=long_names(), rounds=3),
    "unbroken": lambda: make(sites=["x" * 40 + str(i) for i in range(3)], rounds=3),
    "hostile": lambda: make(sites=HOSTILE, rounds=3),
}


def browse(folder: Path, html: str, *options: str) -> str:
    assert BROWSER is not None, "CI is set, so that Chromium must be installed"
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def pixels(path: Path) -> np.ndarray:
    """A PNG's pixels [row, column, channel] as Chromium writes it: 8 bits, not interlaced."""
    data, at, packed, shape = path.read_bytes(), 8, b"", (0, 0, 0)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        at += 12 + length
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
            shape = (height, width, {2: 3, 6: 4}[colour])
        elif kind == b"IDAT":
            packed += body
    height, width, channels = shape
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    before, rows = [0] * (width * channels), []
    for line in raw.tolist():
        kind, row = line[0], line[1:]
        for i in range(len(row)) if kind else ():
            left = row[i - channels] if i >= channels else 0
            up, corner = before[i], before[i - channels] if i >= channels else 0
            row[i] = (row[i] + _guess(kind, left, up, corner)) & 255
        rows.append(row)
        before = row
    return np.array(rows, np.uint8).reshape(shape)[:, :, :3]


def _guess(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    guess = left + up - corner
    return min((left, up, corner), key=lambda v: abs(guess - v))


def measured(folder: Path, page: Page, width: int) -> tuple[int, int]:
    """Width of the content and of the window, told by the browser."""
    html = FRAME.replace("WIDTH", str(width)).replace("PAGE", escape(render(page)))
    dom = browse(folder, html, "--dump-dom", "--window-size=1300,1000")
    found = re.search(r"<title>(\d+)/(\d+)</title>", dom)
    assert found is not None, dom[:500]
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("name", PAGES)
def test_no_sideways_scrolling(tmp_path: Path, name: str) -> None:
    for width in (360, 1200):
        content, window = measured(tmp_path, PAGES[name](), width)
        assert content == window == width


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1200, False), (1200, True)])
def test_it_paints(tmp_path: Path, width: int, dark: bool) -> None:
    shot = tmp_path / "shot.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    browse(tmp_path, render(PAGES["run"]()), *scheme, f"--screenshot={shot}", f"--window-size={width},500")
    image = pixels(shot).astype(int)
    assert image.shape[1] == width
    paper = image[2, 2].mean()
    assert (paper < 60) if dark else (paper > 240)
    ink = np.abs(image - image[2, 2]).sum(2) > 200
    assert 0.005 < ink.mean() < 0.4, "blank, or not a page of text"


def test_scripts_from_names_do_not_run(tmp_path: Path) -> None:
    """Even if escaping failed, the page's policy forbids scripts."""
    html = render(make(sites=HOSTILE, rounds=3)).replace("<main", "<script>document.title = 'ran'</script><main", 1)
    assert "<title>ran</title>" not in browse(tmp_path, html, "--dump-dom")


def test_printing_opens_what_is_folded(tmp_path: Path) -> None:
    """As many sheets as with everything unfolded, and more than the folded page has without print styles."""

    def sheets(html: str) -> int:
        out = tmp_path / "page.pdf"
        browse(tmp_path, html, f"--print-to-pdf={out}")
        return len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))

    html = render(make(rounds=5))
    opened, folded = (
        html.replace("<details>", "<details open>"),
        html.replace("@media print", "@media not all"),
    )
    assert sheets(html) == sheets(opened) > sheets(folded)

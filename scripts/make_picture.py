"""The pictures of the README, cut from pages of real runs: docs/demo.png and docs/pictures/*.png.

    python scripts/make_picture.py                 runs `vitrail demo` first, in a temporary folder: about a minute
    python scripts/make_picture.py --demo FOLDER   from the folder of a `vitrail demo`

docs/demo.png is what the index of the demo opens with. The five small ones are each a figure or a table of a page; for
one of them the script also trains on the four hospitals as they are, and explains one patient. Nothing is drawn here:
an element of a page is shown alone, with the styles of its page. Needs Chromium, and Pillow (the extra `image`).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageChops

import vitrail as vt

DOCS = Path(__file__).resolve().parent.parent / "docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
VOID = {"img", "br", "meta", "link", "input", "hr"}
TALL = 2400  # pixels of the window: more than any element that is cut
HIDDEN = (
    "figcaption, .keep, .caption, summary { display: none !important; } body { padding: 10px; } * { margin-top: 0; }"
)
SITE, LINE = "cleveland", "2"  # whose patient is explained


class Cut(NamedTuple):
    """An element of a page, and how it is shown."""

    page: str  # within the folder
    attribute: str
    value: str
    width: int  # of the window: a telephone's draws figures that are read when small
    highest: float = 10.0  # of the picture, in widths; what is below is cut off
    styles: str = ""


OPENING = Cut("index.html", "class", "opening", 880, styles="figcaption { display: block !important; }")
SMALL = {
    "fit": Cut("findings.html", "data-figure", "strength", 760, 0.62),
    "joining": Cut("clinics/report.html", "data-figure", "joining", 380),
    "model": Cut("explained.html", "role", "img", 760, 0.62, ".wide { display: block; }"),
    "left": Cut("run/report.html", "class", "wire", 760, 0.62),
    "pictures": Cut("index.html", "class", "xray", 300),
}


class ElementFinder(HTMLParser):
    """The first element with this value of an attribute (one of its words), as text."""

    def __init__(self, html: str, attribute: str, value: str) -> None:
        super().__init__()
        self.attribute, self.value, self.depth, self.begin, self.text = attribute, value, 0, (0, 0), ""
        self.lines = html.splitlines(keepends=True)
        self.feed(html)
        if not self.text:
            raise SystemExit(f"There is no element with {attribute}={value!r}.")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = self.value in (dict(attrs).get(self.attribute) or "").split()
        if self.text or tag in VOID or not (self.depth or wanted):
            return
        if not self.depth:
            self.begin = self.getpos()
        self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        if self.text or tag in VOID or not self.depth:
            return
        self.depth -= 1
        if not self.depth:
            (first, left), (last, right) = self.begin, self.getpos()
            lines = self.lines[first - 1 : last]
            lines[-1] = lines[-1][:right] + f"</{tag}>"
            lines[0] = lines[0][left:]
            self.text = "".join(lines)


def show_alone(cut: Cut, folder: Path) -> str:
    """A page of that element alone, with the head of its page; what is folded is open."""
    html = (folder / cut.page).read_text(encoding="utf-8")
    head = re.sub(r"<script.*?</script>", "", html.partition("</head>")[0], flags=re.DOTALL)
    element = ElementFinder(html, cut.attribute, cut.value).text.replace("<details", "<details open")
    return f"{head}<style>{HIDDEN} {cut.styles}</style></head><body>{element}</body></html>"


def photograph(cut: Cut, folder: Path, picture: Path) -> None:
    """Of the element alone, at two pixels for one, without what is empty around it."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("Chromium is not installed.")
    with tempfile.TemporaryDirectory() as temporary:
        page, shot = Path(temporary) / "page.html", Path(temporary) / "shot.png"
        page.write_text(show_alone(cut, folder), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2"]
        flags += [f"--user-data-dir={temporary}/profile", f"--window-size={cut.width},{TALL}", f"--screenshot={shot}"]
        subprocess.run([browser, *flags, page.as_uri()], check=True, capture_output=True, timeout=120)
        image = Image.open(shot).convert("RGB")
    paper = Image.new("RGB", image.size, image.getpixel((0, 0)))
    left, top, right, bottom = ImageChops.difference(image, paper).getbbox() or (0, 0, *image.size)
    room = 12
    right, bottom = min(right + room, image.width), min(bottom + room, image.height)
    left, top = max(left - room, 0), max(top - room, 0)
    image = image.crop((left, top, right, min(bottom, top + round(cut.highest * (right - left)))))
    if picture.parent != DOCS:
        image.thumbnail((640, 640))
    picture.parent.mkdir(exist_ok=True)
    image.save(picture, optimize=True)
    print(f"{picture.relative_to(DOCS.parent)}: {image.width} x {image.height}, {picture.stat().st_size // 1000} kB")


def run_vitrail(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "vitrail.cli", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def explain_a_patient(folder: Path) -> None:
    """A run of the four hospitals as they are, and why its model says what it says of one patient."""
    study, sites = vt.Study.load(vt.datasets.packaged("heart_disease.toml")), vt.datasets.heart_disease()
    with tempfile.TemporaryDirectory() as temporary:
        run, table = Path(temporary) / "run", Path(temporary) / f"{SITE}.csv"
        vt.federate(study, sites, out=run)
        sites[SITE].to_csv(table, index=False)
        page = Path(temporary) / "explained.html"
        run_vitrail("explain", run, "--site", SITE, "--data", table, "--row", LINE, "--out", page)
        shutil.copy(page, folder / "explained.html")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, help="the folder of a `vitrail demo`; else it is run")
    given = parser.parse_args().demo
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "demo"
        if given is None:
            run_vitrail("demo", "--out", folder)
        else:
            shutil.copytree(given, folder)
        explain_a_patient(folder)
        photograph(OPENING, folder, DOCS / "demo.png")
        for name, cut in SMALL.items():
            photograph(cut, folder, DOCS / "pictures" / f"{name}.png")


if __name__ == "__main__":
    main()

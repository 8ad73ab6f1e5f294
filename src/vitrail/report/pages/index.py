"""The first page of a demo: what was found, and links to its pages and to those of other demos that lie beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from vitrail.report.pages.demo_picture import DemoPicture, parse_picture
from vitrail.report.pages.frame import fill, is_ours, write_page
from vitrail.report.pages.links import refresh_links
from vitrail.runs.integrity import add_to_chain
from vitrail.storage.atomic_files import write_atomically

ABOUT, INDEX = "demo.json", "index.html"
OWN = "Stays at {}: nobody else may read it."
ALL = "The federation’s page: all sites may read it."


class DemoPage(NamedTuple):
    """A page of a demo."""

    file: str  # within the demo's folder
    title: str
    words: str
    stays: str = ""  # the site at which it stays; "" where all may read it


class Demo(NamedTuple):
    """What a demo left in its folder, kept there as demo.json so that the index of another finds it."""

    kind: str
    title: str
    words: str
    pages: Sequence[DemoPage]
    said: Sequence[str] = ()
    thanks: str = ""
    picture: DemoPicture | None = None  # the index opens with it
    covers: Sequence[str] = ()  # other demos whose pages it holds


def write_index(folder: Path, demo: Demo, kinds: Mapping[str, str]) -> Path:
    """The index of this demo, and anew those of the demos beside it. `kinds`: all demos, with what each is about."""
    content = {**demo._asdict(), "pages": [page._asdict() for page in demo.pages]}
    write_atomically(folder / ABOUT, json.dumps(content, indent=1))
    add_to_chain(folder / ABOUT)  # the folder may be a run's, and is sealed then
    neighbours = _newest_demos(folder)
    for place in neighbours.values():
        if place != folder and is_ours(place / INDEX, "demo"):
            _write(place, _newest_demos(place), kinds)
    index = _write(folder, neighbours, kinds)
    refresh_links(folder / page.file for page in demo.pages)
    return index


def _write(folder: Path, beside: Mapping[str, Path], kinds: Mapping[str, str]) -> Path:
    here = read_demo(folder)
    assert here is not None
    shown = [(folder, here), *((p, d) for p in beside.values() if p != folder and (d := read_demo(p)))]
    made = {kind for _, demo in shown for kind in (demo.kind, *demo.covers)}
    given: dict[str, Any] = {
        "here": here,
        "demos": [_linked(folder, place, demo) for place, demo in shown],
        "more": [(f"vitrail demo {kind}", words) for kind, words in kinds.items() if kind not in made],
    }
    return write_page(fill("index.html", **given), folder / INDEX, "demo")


def _linked(folder: Path, place: Path, demo: Demo) -> dict[str, Any]:
    before = "" if place == folder else f"../{quote(place.name)}/"
    pages = [
        {
            "link": f"{before}{quote(page.file)}",
            "title": page.title,
            "words": page.words,
            "private": bool(page.stays),
            "who": OWN.format(page.stays) if page.stays else ALL,
        }
        for page in demo.pages
        if (place / page.file).is_file()
    ]
    return {"here": place == folder, "title": demo.title, "words": demo.words, "pages": pages}


def _newest_demos(folder: Path) -> dict[str, Path]:
    """Kind -> the newest demo of that kind in the folder around this one; this one for its own."""
    newest = {}
    for file in sorted(folder.parent.glob(f"*/{ABOUT}"), key=lambda file: file.stat().st_mtime):
        if (demo := read_demo(file.parent)) is not None:
            newest[demo.kind] = file.parent
    own = read_demo(folder)
    return {**newest, own.kind: folder} if own else newest


def read_demo(folder: Path) -> Demo | None:
    """None where there is none, or something else; no page outside the folder is linked."""
    try:
        content = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        pages = [DemoPage(**{k: str(v) for k, v in page.items()}) for page in content["pages"]]
        findings = [str(line) for line in content["said"]]
        kind, title, words, thanks = (str(content[k]) for k in ("kind", "title", "words", "thanks"))
        picture, covers = parse_picture(content.get("picture")), [str(kind) for kind in content.get("covers", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    inside = folder.resolve()
    linked = [p for p in pages if (folder / p.file).resolve().is_relative_to(inside)]
    return Demo(kind, title, words, linked, findings, thanks, picture, covers)

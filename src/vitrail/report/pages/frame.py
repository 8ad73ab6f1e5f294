"""The frame of every page: templates, styles, script, contents; and which files a page may write over."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from vitrail.core.errors import Problem, VitrailError, WriteFailed
from vitrail.core.text import number, p_words, signed, size
from vitrail.report.pages.links import CLOSE, OPEN, write_linked
from vitrail.report.text import FEW_MARK, SAME, few_words, metric_words, why_undefined

HEAT_STYLES = "/* only on pages with heatmaps */"  # in page.css, between the styles of every page and the others
SCRIPT = "page.js"  # figures to save, words under the pointer, print: of every page
HEADING = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>', re.DOTALL)
MAIN, HEADER = '<main id="main">', "<header>"
LISTED = 4  # headings from which on a page has a list of them


def part(name: str) -> str:
    """A template, a style sheet or a script of ours."""
    return (files("vitrail.report") / "templates" / name).read_text("utf-8")


@cache
def templates() -> Environment:
    env = Environment(
        loader=FunctionLoader(part), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters.update(number=number, signed=signed, size=size, p_words=p_words, metric=metric_words)
    env.globals.update(SAME=SAME, FEW_MARK=FEW_MARK, few_words=few_words)
    env.filters["why_undefined"] = why_undefined
    env.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return env


def fill_part(template: str, **given: Any) -> Markup:
    """A piece of a page."""
    return Markup(templates().get_template(template).render(**given).strip())


def fill(template: str, *, heat: bool = False, more_script: str = "", connects: bool = False, **given: Any) -> str:
    """One HTML file that needs no network; with the styles of heatmaps where it has some."""
    every, _, more = part("page.css").partition(HEAT_STYLES)
    css, script = Markup(every + more if heat else every), script_of(more_script)  # ours, not data
    policy = content_policy(script, connects)
    html = templates().get_template(template).render(css=css, script=script, policy=policy, **given)
    return add_contents(html.replace(HEADER, f"{HEADER}\n{OPEN}{CLOSE}", 1))


def script_of(more: str = "") -> Markup:
    """The one script of a page: that of every page, and the page's own."""
    return Markup(part(SCRIPT) + (part(more) if more else ""))


def content_policy(script: str, connects: bool = False) -> Markup:
    """What the browser lets the page do: its own styles, its one script by its hash, pictures inside the page. It loads
    nothing and sends nothing; `connects`: except from and to the server that it came from."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = ["default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'", "img-src data:"]
    allowed += ["connect-src 'self'"] * connects + ["base-uri 'none'", "form-action 'none'"]
    return Markup("; ".join(allowed))


def add_contents(html: str) -> str:
    """The page with a list of its headings before the first section; a short page needs none."""
    headings = [(at, Markup(words).striptags()) for at, words in HEADING.findall(html)]
    if len(headings) < LISTED:
        return html
    return html.replace(MAIN, f"{fill_part('parts/contents.html', headings=headings)}\n{MAIN}", 1)


def is_ours(page: Path, verb: str) -> bool:
    """Whether that verb wrote this page, so that it may write over it."""
    mark = f'<meta name="generator" content="vitrail {verb}">'
    return page.is_file() and mark in page.read_text("utf-8", errors="replace")[:2000]


def unwritten(place: Path, what: str, kind: str = "nothing was written") -> VitrailError:
    return VitrailError(kind, [Problem(f"--out {place}", what, "Choose another --out.")])


def write_page_folder(folder: Path, name: str, verb: str, write_tables: Callable[[], None], html: str) -> Path:
    """Write a page of that verb and the tables beside it; only an earlier one of that verb is written over."""
    page = folder / name
    if folder.exists() and not is_ours(page, verb) and (not folder.is_dir() or any(folder.iterdir())):
        what = f"there is something here already that `vitrail {verb}` did not write."
        raise unwritten(folder, what, "nothing was overwritten")
    try:
        write_tables()
        write_linked(html, page)
    except OSError as error:
        raise unwritten(folder, f"it cannot be written: {error.strerror}.") from None
    return page


def write_page(html: str, path: Path, verb: str, beyond: Sequence[Path] = ()) -> Path:
    """Write a page of that verb; only an earlier one of it is written over. `beyond`: pages in other folders to link
    to."""
    if path.is_dir() or not path.parent.is_dir():
        raise unwritten(path, "it is a folder." if path.is_dir() else "its folder does not exist.")
    if path.exists() and not is_ours(path, verb):
        raise unwritten(path, f"it exists already and is no page of `vitrail {verb}`.", "nothing was overwritten")
    try:
        write_linked(html, path, beyond)
    except WriteFailed as error:
        raise unwritten(path, f"it cannot be written: {error.problems[0].what}") from None
    return path

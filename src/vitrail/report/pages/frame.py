"""The frame of every page: templates, styles, words; and which files a page may write over."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from vitrail.core.errors import Problem, VitrailError, WriteFailed
from vitrail.core.text import number, p_words, signed, size
from vitrail.report.text import FEW_MARK, SAME, few_words, metric_words, why_undefined
from vitrail.runs.integrity import add_to_chain
from vitrail.storage.atomic_files import write_atomically

HEAT_STYLES = "/* only on pages with heatmaps */"  # in page.css, between the styles of every page and the others


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


def fill(template: str, *, heat: bool = False, **given: Any) -> str:
    """One HTML file that needs no network; with the styles of heatmaps where it has some."""
    every, _, more = part("page.css").partition(HEAT_STYLES)
    css = Markup(every + more if heat else every)  # ours, not data
    return templates().get_template(template).render(css=css, **given)


def scripted() -> dict[str, str]:
    """What a page needs that has page.js: the script, and the hash by which its policy allows it."""
    script = Markup(part("page.js"))  # ours, not data
    return {"script": script, "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}


def is_ours(page: Path, verb: str) -> bool:
    """Whether that verb wrote this page, so that it may write over it."""
    mark = f'<meta name="generator" content="vitrail {verb}">'
    return page.is_file() and mark in page.read_text("utf-8", errors="replace")[:2000]


def unwritten(place: Path, what: str, kind: str = "nothing was written") -> VitrailError:
    return VitrailError(kind, [Problem(f"--out {place}", what, "Choose another --out.")])


def write_page(html: str, path: Path, verb: str) -> Path:
    """Write a page of that verb; only an earlier one of it is written over."""
    if path.is_dir() or not path.parent.is_dir():
        raise unwritten(path, "it is a folder." if path.is_dir() else "its folder does not exist.")
    if path.exists() and not is_ours(path, verb):
        raise unwritten(path, f"it exists already and is no page of `vitrail {verb}`.", "nothing was overwritten")
    try:
        write_atomically(path, html)
    except WriteFailed as error:
        raise unwritten(path, f"it cannot be written: {error.problems[0].what}") from None
    add_to_chain(path)
    return path

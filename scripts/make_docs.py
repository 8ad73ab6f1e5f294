"""The documentation as a site that needs no network: build/site/index.html.

    python scripts/make_docs.py          the pages of this repository, and one that is made from the code: every method
                                         (its equations, as its file says them). mkdocstrings puts the docstrings of
                                         all public names into docs/api.md

A link that leads nowhere, or to a heading that is not there, is an error. Links to what is no page (scripts, folders)
become plain text.
"""

from __future__ import annotations

import inspect
import logging
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent.parent
PAGES, SITE = PLACE / "build" / "pages", PLACE / "build" / "site"
TOP = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
KINDS = (".md", ".png", ".svg")  # of files that a page may show
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
FIRST = (
    "tutorial.md",
    "first_hour.md",
    "study.md",
    "deploy.md",
    "parties.md",
    "methods.md",
    "every_method.md",
    "api.md",
)


def gather(place: Path, pages: Path) -> None:
    """Laid out as in the repository, so that links between pages stay as they are."""
    shutil.rmtree(pages, ignore_errors=True)
    found = [place / name for name in TOP]
    found += [
        f
        for pattern in ("docs/**/*", "benchmarks/*/results/**/*")
        for f in sorted(place.glob(pattern))
        if f.suffix in KINDS
    ]
    for file in found:
        to = pages / file.relative_to(place)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    (pages / "docs" / "every_method.md").write_text(every_method(), encoding="utf-8")
    for page in pages.rglob("*.md"):
        page.write_text(linked(page, place, pages), encoding="utf-8")


def linked(page: Path, place: Path, pages: Path) -> str:
    """The text, with links to what is there but no page as plain text. Others are left for the builder to judge."""

    def judged(found: re.Match[str]) -> str:
        words, to = found.groups()
        target = (page.parent / to.partition("#")[0]).resolve()
        if "://" in to or to.startswith("#") or target.is_file() or not target.is_relative_to(pages.resolve()):
            return found[0]
        return words if (place / target.relative_to(pages.resolve())).exists() else found[0]

    return LINK.sub(judged, page.read_text(encoding="utf-8"))


def every_method() -> str:
    from vitrail import methods

    which = "When to use which, and what we measured: [Which method](methods.md)."
    out = ["# Every method, as its file says it", "", which]
    for name, kind in {**methods.TABLE, **methods.PARTIES}.items():
        text = inspect.getdoc(sys.modules[kind.__module__] if name in methods.TABLE else kind) or ""
        out += ["", f"## {kind.catalogue.title}", "", f"`{name}`", "", as_markdown(text)]
    return "\n".join(out) + "\n"


def as_markdown(text: str) -> str:
    """A docstring: what is indented is code already; a list that follows a line at once gets its empty line."""
    return re.sub(r"<(?=[a-z/])", "&lt;", text)


def navigation(pages: Path) -> list[Any]:
    def title(file: Path) -> str:
        return file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")

    def entries(files: list[Path]) -> list[dict[str, str]]:
        return [{title(f): f.relative_to(pages).as_posix()} for f in files]

    docs = {f.name: f for f in (pages / "docs").glob("*.md")}
    ordered = [docs.pop(name) for name in FIRST if name in docs] + sorted(docs.values())
    return [
        {"Vitrail": "README.md"},
        *entries(ordered),
        {"Security": "SECURITY.md"},
        {"What was measured": entries(sorted((pages / "benchmarks").rglob("*.md")))},
        {"Decisions": entries(sorted((pages / "docs" / "decisions").glob("*.md")))},
        {"Contributing": "CONTRIBUTING.md"},
        {"Changes": "CHANGELOG.md"},
    ]


def build(pages: Path, site: Path) -> None:
    """By mkdocs, strictly: a warning is an error, and is told."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from mkdocs.commands.build import build as made
    from mkdocs.config import load_config

    version = tomllib.loads((PLACE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    shown = {"site_name": f"Vitrail {version}", "docs_dir": str(pages), "site_dir": str(site), "nav": navigation(pages)}
    made(load_config(str(PLACE / "mkdocs.yml"), strict=True, **shown))


if __name__ == "__main__":
    gather(PLACE, PAGES)
    build(PAGES, SITE)
    print(f"{len(list(SITE.rglob('*.html')))} pages: {SITE.relative_to(PLACE) / 'index.html'}")

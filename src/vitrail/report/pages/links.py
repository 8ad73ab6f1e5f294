"""Links between the pages of one study: those in the same folder, and the index of a demo.

A page has its study, its name and the site at which it stays in its head, so that another page can find it there. The
list of links is written anew into every page of the folder when one is added. A page that everybody may read never
links to a page that stays at a site, and a page that stays at a site links to no other site's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from vitrail.core.errors import WriteFailed
from vitrail.runs.integrity import MARKS, add_to_chain, altered
from vitrail.storage.atomic_files import write_atomically

HEAD = 16_000  # characters of a page in which it says what it is
INDEX = "index.html"
OPEN, CLOSE = "<!--pages-->", "<!--/pages-->"
LIST = re.compile(f"{OPEN}.*?{CLOSE}", re.DOTALL)
LINK = re.compile(r'<a href="([^"]*)">(.*?)</a>')


class PageHead(NamedTuple):
    """What a page says of itself."""

    study: str
    label: str
    site: str  # at which it stays; "" where everybody may read it
    is_index: bool = False


class PageLink(NamedTuple):
    address: str  # relative to the page that links
    label: str


def read_head(html: str) -> PageHead | None:
    """None of a page that is not ours, or that is not linked."""
    study, label, site, verb = (
        _meta(html[:HEAD], k) for k in ("vitrail-study", "vitrail-page", "vitrail-stays", "generator")
    )
    return PageHead(study, label, site, verb == "vitrail demo") if study and label else None


def _meta(head: str, name: str) -> str:
    match = re.search(f'<meta name="{name}" content="([^"]*)">', head)
    return unescape(match[1]) if match else ""


def may_link(page: PageHead, other: PageHead) -> bool:
    """Whether a page may link to another one."""
    return page.study == other.study and other.site in ("", page.site)


def write_linked(html: str, path: Path, beyond: Sequence[Path] = ()) -> None:
    """Write a page with links to those beside it, and links to it into these. `beyond`: pages in other folders that it
    may link to."""
    write_atomically(path, add_links(html, path, beyond))
    add_to_chain(path)
    refresh_links(file for file in path.parent.glob("*.html") if file != path)


def refresh_links(files: Iterable[Path]) -> None:
    """Write the list of links anew. A page that was changed since its run was closed stays as it is, so that this is
    still found out; so does a page in a private folder, which is sealed as a whole."""
    for file in files:
        sealed = (file.parent / MARKS).exists() or altered(file.parent, [file.name])
        if sealed or file.is_symlink() or head_of(file) is None:
            continue
        with suppress(OSError, WriteFailed):  # the page itself is there, with fewer links
            before = file.read_text("utf-8")
            if (html := add_links(before, file)) != before:
                write_atomically(file, html)
                add_to_chain(file)


def add_links(html: str, path: Path, beyond: Sequence[Path] = ()) -> str:
    """The page with its list of links as the files are now."""
    page, before = read_head(html), LIST.search(html)
    if page is None or before is None or page.is_index:  # an index lists them itself
        return html
    links = [*_beside(page, path), *_beyond(page, path, beyond, before[0])]
    return html[: before.start()] + OPEN + _list(page, links) + CLOSE + html[before.end() :]


def _beside(page: PageHead, path: Path) -> list[PageLink]:
    """Pages of the same folder, and the index above it."""
    path = path.absolute()  # of "page.html" the folder above would be the same
    files = [*sorted(path.parent.glob("*.html")), path.parent.parent / INDEX]
    heads = [(file, head) for file in files if file != path and (head := head_of(file)) and may_link(page, head)]
    heads = [(file, head) for file, head in heads if file.parent == path.parent or head.is_index]
    heads.sort(key=lambda entry: (not entry[1].is_index, entry[1].site, entry[1].label))
    labels = [head.label for _, head in heads] + [page.label]
    links = []
    for file, head in heads:
        name = f" ({file.name})" if labels.count(head.label) > 1 else ""
        folder = "" if file.parent == path.parent else "../"
        links.append(PageLink(folder + quote(file.name), head.label + name))
    return links


def _beyond(page: PageHead, path: Path, beyond: Sequence[Path], before: str) -> list[PageLink]:
    """Pages in other folders: those given, and those that the page had and that are still there."""
    had = [path.parent / unquote(unescape(address)) for address, _ in LINK.findall(before)]
    files = dict.fromkeys(Path(os.path.normpath(f)) for f in (*beyond, *had))
    out = []
    for file in files:
        head = None if file.absolute().parent == path.absolute().parent else head_of(file)
        if head and not head.is_index and may_link(page, head):
            address = Path(os.path.relpath(file, path.parent)).as_posix()
            out.append(PageLink(quote(address), head.label))
    return out


def head_of(file: Path) -> PageHead | None:
    try:
        with file.open(encoding="utf-8") as text:
            return read_head(text.read(HEAD))
    except (OSError, UnicodeDecodeError):
        return None


def _list(page: PageHead, links: Sequence[PageLink]) -> str:
    if not links:
        return ""
    parts = [f'<a href="{escape(link.address)}">{escape(link.label)}</a>' for link in links]
    here = f'<span aria-current="page">{escape(page.label)}</span>'
    return f'<nav class="pages scroll" aria-label="Pages of this study" tabindex="0">{here}{"".join(parts)}</nav>'

"""Every text that a person may read: strings of the source, templates, documents. One line each, with its place.

    python scripts/list_texts.py                 all of them, and how many there are
    python scripts/list_texts.py --since COMMIT  how many of them that commit did not have
    python scripts/list_texts.py --habits        those with a phrase that never reads well here

A string of the source counts where it has at least three words; docstrings count only where a command shows them.
"""

from __future__ import annotations

import argparse
import ast
import html
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = (".html", ".txt", ".js")
HABITS = (
    "is told",
    "are told",
    "was told",
    "were told",
    "said of",
    "by lot",
    "take apart",
    "taken apart",
    "own eyes",
    "stands still",
    "stand still",
    "always the same answer",
    "always giving the same answer",
    "comes to no harm",
    "come to no harm",
    "asked otherwise",
    "answers otherwise",
    "told otherwise",
    "is no number",
    "no number came",
    "are no numbers",
    "come true",
    "comes true",
    "of so many",
    "so many at once",
    "whose eyes",
    "made-up",
    "who is away",
    "who are away",
    "nobody sees a single",
    "it cannot be told",
    "cannot be told apart",
    "leave a house",
    "leaves a house",
    "ill told",
    "told right",
    "is none of",
    "has it that",
)
TAG = re.compile(r"<[^>]+>|\{[{%#].*?[#%}]\}", re.DOTALL)
WORDS = re.compile(r"[A-Za-z]{2,}")


class Text(NamedTuple):
    place: str
    text: str

    @property
    def habits(self) -> list[str]:
        lower = " ".join(self.text.lower().split())
        return [habit for habit in HABITS if re.search(rf"\b{re.escape(habit)}\b", lower)]


def is_prose(text: str) -> bool:
    return len(WORDS.findall(text)) >= 3 and " " in text.strip()


def strings_of(tree: ast.Module, shown: bool) -> Iterator[tuple[int, str]]:
    """Literals, those of an f-string with their gaps as `...`; docstrings of functions where commands show them."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr):
            first = node.body[0].value
            if isinstance(first, ast.Constant) and not (shown and isinstance(node, ast.FunctionDef)):
                parts.add(id(first))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "..." for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def texts(root: Path) -> list[Text]:
    source = root / "src" / "vitrail"
    out: list[Text] = []
    for file in sorted(source.rglob("*.py")):
        place = file.relative_to(root).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        shown = file.is_relative_to(source / "cli")
        out += [Text(f"{place}:{line}", text) for line, text in strings_of(tree, shown) if is_prose(text)]
    for file in sorted(p for p in source.rglob("*") if p.suffix in TEMPLATES):
        plain = TAG.sub("\n", file.read_text(encoding="utf-8")) if file.suffix == ".html" else file.read_text("utf-8")
        place = file.relative_to(root).as_posix()
        out += [Text(place, html.unescape(line.strip())) for line in plain.splitlines() if is_prose(line)]
    documents = [
        root / "README.md",
        root / "SECURITY.md",
        root / "CONTRIBUTING.md",
        *sorted((root / "docs").glob("*.md")),
    ]
    for file in documents:
        if file.exists():
            place, prose = (
                file.relative_to(root).as_posix(),
                re.sub(r"```.*?```", "", file.read_text("utf-8"), flags=re.DOTALL),
            )
            out += [Text(place, line.strip()) for line in prose.splitlines() if is_prose(line)]
    return out


def share_changed(now: list[Text], commit: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(kept)], input=archive, check=True)
        before = Counter(text.text for text in texts(kept))
    fresh = Counter(text.text for text in now) - before
    changed = sum(fresh.values())
    return f"{changed} of {len(now)} texts ({100 * changed / len(now):.0f} %) are not those of {commit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="count the texts that this commit did not have")
    parser.add_argument("--habits", action="store_true", help="only texts with a phrase that never reads well here")
    options = parser.parse_args()
    now = texts(ROOT)
    for text in now:
        if not options.since and (text.habits or not options.habits):
            marks = f"  [{', '.join(text.habits)}]" if options.habits else ""
            print(f"{text.place}: {' '.join(text.text.split())}{marks}")
    print(share_changed(now, options.since) if options.since else f"{len(now)} texts")
    print(f"{sum(bool(text.habits) for text in now)} with a phrase of the list")


if __name__ == "__main__":
    main()

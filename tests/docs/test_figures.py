"""A figure in a document is a link to the result file that holds it, with the quoted line as the link's title.

    [0.536](../benchmarks/attacks/results/attack_oracle.md "rounded · 1440 · 0.536 ± 0.026")

Titles have `·` where the file has `|`, since a document's own tables may hold such links. Where a figure compares
several lines of a file, the title joins them by ` … `.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r'\[([^\]]+)\]\(([^)\s]+) "((?:[^"])+)"\)')
NUMBER = re.compile(r"(?<![A-Za-z\d])\d+(?:[.,]\d+)*(?:e-?\d+)?")
ALL_FIGURES_LINKED = ("docs/results.md",)  # every measured figure of these documents has to be such a link


class Figure(NamedTuple):
    text: str
    source: Path
    quote: str

    def problems(self) -> Iterator[str]:
        """What is wrong: no such file, a quoted line that it does not hold, a number that is in no quoted line."""
        if not self.source.exists():
            yield f"{self.text}: there is no {self.source.name}"
            return
        text = " ".join(self.source.read_text(encoding="utf-8").replace("|", "·").split())
        for part in self.quote.split(" … "):
            if " ".join(part.split()) not in text:
                yield f"{self.text}: {self.source.name} does not say {part!r}"
        quoted = set(NUMBER.findall(self.quote))
        quoted |= {f"{100 * float(share):.3g}" for share in quoted if re.fullmatch(r"0\.\d+", share)}  # as per cent
        for number in NUMBER.findall(re.sub(r"\([^()]*class[^()]*\)", "", self.text)):
            if number not in quoted and not re.search(rf"\b{re.escape(number)} (?:sites|rows)", self.text):
                yield f"{self.text}: {number} is not in the quoted line"


def figures_of(document: Path) -> list[Figure]:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    return [Figure(text, (document.parent / target).resolve(), quote) for text, target, quote in links]


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_figures_stand_in_the_files_they_are_from(document: Path) -> None:
    assert not [problem for figure in figures_of(document) for problem in figure.problems()]


@pytest.mark.parametrize("name", ALL_FIGURES_LINKED)
def test_measured_figures_are_links(name: str) -> None:
    text = LINK.sub("", (ROOT / name).read_text(encoding="utf-8"))
    cells = [row.split("|")[3] for row in text.splitlines() if row.startswith("| ") and not row.startswith("| ---")]
    assert len(cells) > 30
    loose = [cell for cell in cells if NUMBER.search(cell)]
    assert not loose, loose


def test_a_stale_figure_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "result.md"
    source.write_text("| rounded | 0.536 |\n", encoding="utf-8")
    assert not list(Figure("0.536", source, "rounded · 0.536").problems())
    assert list(Figure("0.54", source, "rounded · 0.536").problems())
    assert list(Figure("0.54", source, "rounded · 0.54").problems())
    assert list(Figure("0.536", tmp_path / "other.md", "rounded · 0.536").problems())

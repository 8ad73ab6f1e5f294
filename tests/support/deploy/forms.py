"""A consent form taken apart again: its clauses by heading, and what each of the six paragraphs of a clause says."""

from __future__ import annotations

import re

PARAGRAPHS = (
    "What leaves",
    "In which form",
    "How often",
    "Who can read it",
    "What an attacker could learn",
    "What you may refuse",
)


def line_of(text: str) -> str:
    """On one line."""
    return " ".join(text.split())


def clauses(text: str) -> dict[str, str]:
    """The text of each clause, on one line, by its heading in capitals."""
    headings = list(re.finditer(r"^(\d+) {1,3}([A-Z][^a-z\n]*)$", text, re.M))
    ends = [found.start() for found in headings[1:]] + [len(text)]
    return {found[2]: line_of(text[found.end() : end]) for found, end in zip(headings, ends, strict=True)}


def clause(text: str, heading: str) -> str:
    return clauses(text)[heading]


def paragraphs(clause_text: str) -> dict[str, str]:
    """Of a clause about a disclosure, what stands under each label."""
    found = re.split(rf"\b\d+\.[1-6] ({'|'.join(PARAGRAPHS)})\.", clause_text)
    return dict(zip(found[1::2], (text.strip() for text in found[2::2]), strict=True))


def summary(text: str) -> str:
    """The first page."""
    return text.split("THE CLAUSES")[0]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table with a head, row by row; what goes on in the next line is put together."""
    out, lines = list[list[list[str]]](), text.splitlines()
    for i, line in enumerate(lines):
        if not re.fullmatch(r" *-+(  -+)+", line):
            continue
        spans = [found.span() for found in re.finditer(r"-+", line)]
        rows = list[list[str]]()
        for row in lines[i + 1 :]:
            cells = [row[start:end].strip() for start, end in spans]
            if not any(cells):
                break
            if rows and not cells[-1]:
                rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
            else:
                rows.append(cells)
        out.append(rows)
    return out

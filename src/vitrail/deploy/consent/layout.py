"""From a template's markup to a text that prints well: numbered clauses, lettered items, tables, at most WIDTH columns.

    = TITLE            a title between rules
    # label: Heading   a clause: "7  HEADING"        [[label]]   the number of that clause
    ## text            a paragraph of it: "7.1"      ~ text      a line of its own, below a paragraph
    - text             an item: "(a)"
    |! cell | cell     the head of a table           | cell | cell   a row of it

A line without a mark goes on with the paragraph above; an empty line ends it. What is filled in is never markup: see
`literal`.
"""

from __future__ import annotations

import re
import textwrap
from itertools import groupby
from typing import NamedTuple

from vitrail.core.errors import printable

WIDTH = 100
GAP = "  "  # between the columns of a table
INDENT = " " * 6  # of a paragraph's text, after its number
MARKS = re.compile(r"(=|##|#|-|~|\|!|\|) ")
GUARD = "\ue000"  # before what is filled in, so that no line begins with a mark that is not ours
MARKUP = "[]|"
HIDDEN = str.maketrans({c: chr(0xE001 + i) for i, c in enumerate(MARKUP)})
SHOWN = str.maketrans({chr(0xE001 + i): c for i, c in enumerate(MARKUP)} | {GUARD: None})
JOINED = re.compile(r"(?<=\d) (?=\d|[KMG]B|%|byte|number|time|round|x )|(?<= x) (?=\d)|(?<=clause) (?=\d)")


class Line(NamedTuple):
    """A paragraph of the markup."""

    mark: str
    text: str
    block: int  # how many empty lines are above it: what they part is not one table


def literal(value: object) -> str:
    """What is filled into a template: one line, harmless on a terminal and never markup.

    >>> lay_out("= A " + literal("# b | c"))[1]
    'A # b | c'
    """
    text = printable(" ".join(str(value).split())).translate(HIDDEN)
    return GUARD + text if text.startswith(("=", "#", "-", "~")) else text


def lay_out(markup: str) -> list[str]:
    """The lines of the finished text."""
    paragraphs = _paragraphs(markup)
    labels = [re.match(r"([\w-]+): ", line.text.translate(SHOWN)) for line in paragraphs if line.mark == "#"]
    numbers = {label[1]: str(i) for i, label in enumerate(labels, 1) if label}
    if len(numbers) != len(labels):
        raise ValueError(f"a clause has no label, or one that another has: {sorted(numbers)}")
    out, clause, part, item = list[str](), 0, 0, 0
    for table, group in groupby(paragraphs, _table_of):
        if table is not None:
            out += [*_table([_referred(line, numbers) for line in group], INDENT if clause else ""), ""]
            continue
        for line in (_referred(one, numbers) for one in group):
            if line.mark == "#":
                clause, part = clause + 1, 0
                out += ["", *_wrapped(line.text.partition(": ")[2].upper(), f"{clause:<4}", " " * 4), ""]
            elif line.mark == "##":
                part, item = part + 1, 0
                out += [*_wrapped(line.text, f"{f'{clause}.{part}':6}", INDENT), ""]
            elif line.mark == "-":
                letter, item = _letter(item), item + 1
                first = f"{INDENT}({letter}) "
                out = [*_closed(out), *_wrapped(line.text, first, " " * len(first)), ""]
            elif line.mark == "=":
                out += ["=" * WIDTH, *_wrapped(line.text, "", ""), "=" * WIDTH, ""]
            else:
                indent = INDENT if clause else ""
                out = [*(_closed(out) if line.mark == "~" else out), *_wrapped(line.text, indent, indent), ""]
    return out


def text_of(markup: str) -> str:
    """The finished text, without empty lines at either end."""
    return "\n".join(lay_out(markup)).strip("\n") + "\n"


def _paragraphs(markup: str) -> list[Line]:
    out, open_, block = list[Line](), False, 0
    for raw in markup.splitlines():
        text = " ".join(raw.split())
        mark = MARKS.match(text)
        if not text:
            open_, block = False, block + 1
        elif mark is None and open_:
            out[-1] = out[-1]._replace(text=f"{out[-1].text} {text}".strip())
        else:
            out.append(Line(mark[1] if mark else "", text[mark.end() :] if mark else text, block))
            open_ = True
    return out


def _table_of(line: Line) -> int | None:
    """Which table it is a row of; None: of none."""
    return line.block if line.mark in ("|", "|!") else None


def _referred(line: Line, numbers: dict[str, str]) -> Line:
    """With the numbers of the clauses that it names."""

    def number(found: re.Match[str]) -> str:
        label = found[1].translate(SHOWN)
        if label not in numbers:
            raise KeyError(f"no clause has the label {label!r}: {line.text.translate(SHOWN)}")
        return numbers[label]

    text = re.sub(r"\[\[(.+?)\]\]", number, line.text)
    return line._replace(text=text if line.mark.startswith("|") else text.translate(SHOWN))


def _closed(out: list[str]) -> list[str]:
    """Without the empty line that stands last: items follow each other closely."""
    return out[:-1] if out and not out[-1] else out


def _letter(place: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    first, last = divmod(place, 26)
    return (_letter(first - 1) if first else "") + chr(ord("a") + last)


def _wrapped(text: str, first: str, indent: str, width: int = WIDTH) -> list[str]:
    """A number stays with its unit."""
    held = JOINED.sub("\xa0", text)
    wrapped = textwrap.wrap(held, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in wrapped or [first.rstrip()]]


def _table(lines: list[Line], indent: str) -> list[str]:
    rows = [[cell.strip().translate(SHOWN) for cell in line.text.split("|")] for line in lines]
    count = max(map(len, rows))
    rows = [row + [""] * (count - len(row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(count)]
    room = WIDTH - len(indent) - len(GAP) * (count - 1)
    while sum(widths) > room:  # the widest gives way
        widths[widths.index(max(widths))] -= 1
    out = []
    for line, row in zip(lines, rows, strict=True):
        cells = [_wrapped(cell, "", "", width) for cell, width in zip(row, widths, strict=True)]
        for i in range(max(map(len, cells))):
            shown = [(cell[i] if i < len(cell) else "").ljust(width) for cell, width in zip(cells, widths, strict=True)]
            out.append((indent + GAP.join(shown)).rstrip())
        if line.mark == "|!":
            out.append(indent + GAP.join("-" * width for width in widths))
    return out

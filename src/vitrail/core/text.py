"""Numbers, counts and names as text for people, and a plain table for a log or a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[Any]], mark: Callable[[int, int], bool] | None = None
) -> None:
    """Three decimals, numbers right-aligned."""
    text = [[_cell(v) + ("*" if mark and mark(r, c) else "") for c, v in enumerate(row)] for r, row in enumerate(rows)]
    number = [any(isinstance(row[c], float | int) for row in rows) for c in range(len(header))]
    width = [max(len(header[c]), *(len(row[c]) for row in text), 0) for c in range(len(header))]
    for row in [list(header), ["-" * w for w in width], *text]:
        cells = [v.rjust(w) if n else v.ljust(w) for v, w, n in zip(row, width, number, strict=True)]
        print("  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.3f}"
    return str(value)


def number(value: float, digits: int = 3) -> str:
    """Three decimals and a true minus sign.

    >>> number(-0.0312), number(float("nan"))
    ('−0.031', 'not defined')
    """
    if not math.isfinite(value):
        return "not defined"
    text = f"{value:.{digits}f}"
    return text.replace("-", "" if float(text) == 0 else "−")


def signed(value: float, digits: int = 3) -> str:
    """As `number`, with the plus written: +0.031."""
    text = number(value, digits)
    return text if text[0] in "−n" or float(text) == 0 else f"+{text}"


def decimals(largest: float) -> int:
    """How many show a number of this size with three figures.

    >>> decimals(0.41), decimals(23.0), decimals(0.0012), decimals(0.0)
    (2, 1, 5, 2)
    """
    return min(9, max(0, 2 - max(math.floor(math.log10(largest)), -7))) if 0 < largest < 0.1 or largest >= 10 else 2


def percent(value: float) -> str:
    """A share for people.

    >>> percent(0.9123), percent(float("nan"))
    ('91.2 %', 'not told')
    """
    return f"{number(100 * value, 1)} %" if math.isfinite(value) else "not told"


def p_words(p: float) -> str:
    """A p-value; nothing where there is none.

    >>> p_words(0.0341), p_words(2e-5), p_words(float("nan"))
    ('p = 0.034', 'p < 0.001', '')
    """
    if not math.isfinite(p):
        return ""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def shorten(text: str, length: int) -> str:
    """At most `length` characters, both ends kept: names of sites often differ in the last words only.

    >>> shorten("University hospital, ward 7", 16)
    'University…ard 7'
    """
    if len(text) <= length:
        return text
    tail = (length - 1) // 3
    return text[: length - 1 - tail].rstrip() + "…" + text[-tail:].lstrip()


def shorten_all(names: Sequence[str], length: int) -> dict[str, str]:
    """Short forms that still differ: where they would not, the beginning that all share is dropped.

    >>> list(shorten_all(["Hospital of the 1st district", "Hospital of the 2nd district"], 14).values())
    ['…1st district', '…2nd district']
    """
    short = {n: shorten(n, length) for n in names}
    if len(set(short.values())) == len(short):
        return short
    letters = zip(*short, strict=False)  # of all names at once, place by place
    shared = "".join(place[0] for place in takewhile(lambda place: len(set(place)) == 1, letters))
    start = max(shared.rfind(" "), shared.rfind("_"), shared.rfind("-")) + 1 or len(shared)
    return {n: shorten("…" + n[start:], length) for n in names}


def size(count: float) -> str:
    """Bytes for people: 1 MB is a million bytes.

    >>> size(0), size(12_340), size(4_260_000)
    ('nothing', '12.3 KB', '4.3 MB')
    """
    if count < 999_950:
        return f"{count / 1e3:.1f} KB" if count else "nothing"
    return f"{count / 1e6:.1f} MB" if count < 999.95e6 else f"{count / 1e9:.1f} GB"


def several(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}".replace(",", " ")

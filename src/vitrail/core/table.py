"""A plain table, readable in a log as well as on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

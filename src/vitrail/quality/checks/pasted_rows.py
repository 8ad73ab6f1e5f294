"""Rows, or cells of one column, that stand in the file twice in a row: blocks that were pasted over other rows.

Only the site sees the order of its rows, so it is weight here, before anything leaves. A run of values that repeats an
earlier run counts only where chance hardly makes one: by how often each of its values occurs in the column, and by how
many pairs of places there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.findings import CheckFinding

if TYPE_CHECKING:
    from vitrail.quality.checks.columns import ParsedTable

SHORTEST = 6  # rows of a block
UNLIKELY = 1e-4  # that chance makes any such block in a column
VARIED = 3  # different values in it
DISTINCT = 12  # different values in its column: a few codes repeat by design, as the numbers of visits do
WIDEST = 2_000  # columns that are looked at one by one


class PastedBlock(NamedTuple):
    """Rows that repeat earlier ones, by their place in the file."""

    start: int
    copy: int
    rows: int


def find_block(values: NDArray[np.float64]) -> PastedBlock | None:
    """The longest run of values that repeats an earlier run, cell by cell and in the same order."""
    present = np.isfinite(values)
    codes, counts = np.unique(values[present], return_inverse=True, return_counts=True)[1:]
    if present.sum() < 2 * SHORTEST or len(counts) < DISTINCT:
        return None
    code = np.full(len(values), -1)
    code[present] = codes
    share = np.append(counts / present.sum(), 1.0)
    surprise = -np.log(share[code])  # of one equal pair of cells
    pairs = 2 * np.log(len(values))
    windows = np.lib.stride_tricks.sliding_window_view(code, SHORTEST)
    packed = np.ascontiguousarray(windows).view(np.dtype((np.void, windows.dtype.itemsize * SHORTEST))).ravel()
    order = np.argsort(packed, kind="stable")
    same = packed[order][1:] == packed[order][:-1]
    best: PastedBlock | None = None
    often = np.append(same[1:], False) | np.insert(same[:-1], 0, False)  # a pattern that comes again and again
    for one, two in zip(order[:-1][same & ~often], order[1:][same & ~often], strict=True):
        start, copy = sorted((int(one), int(two)))
        if (start and code[start - 1] == code[copy - 1]) or copy - start < SHORTEST:
            continue  # it began before; or a value that goes on and on
        rows = SHORTEST
        while copy + rows < len(code) and start + rows < copy and code[start + rows] == code[copy + rows]:
            rows += 1
        block = code[start : start + rows]
        weight = surprise[start : start + rows][block >= 0].sum()
        varied = len(np.unique(block[block >= 0])) >= VARIED
        if varied and weight - pairs > -np.log(UNLIKELY) and (best is None or rows > best.rows):
            best = PastedBlock(start, copy, rows)
    return best


def find_pasted_rows(seen: ParsedTable) -> Iterator[CheckFinding]:
    """Blocks of rows where more than half of the columns repeat the same earlier rows; and blocks of one column."""
    names = [n for n in (*seen.table.features, seen.table.target.column) if n in seen.values]
    if not names or len(seen.index) < 2 * SHORTEST or len(names) > WIDEST:
        return
    blocks = {name: block for name in names if (block := find_block(seen.values[name].to_numpy(np.float64)))}
    # by how far they lie apart: of some columns the row before happens to be the same as well
    apart, times = Counter(b.copy - b.start for b in blocks.values()).most_common(1)[0] if blocks else (0, 0)
    if times > 1 and times > len(names) / 2:
        block = min((b for b in blocks.values() if b.copy - b.start == apart), key=lambda b: b.rows)
        text = f"{block.rows} rows in a row repeat {block.rows} earlier rows in {times} of {len(names)} columns"
        yield _finding(seen, "", block, text, "Check whether a part of the table was pasted twice; remove the copy.")
        blocks = {name: b for name, b in blocks.items() if b.copy - b.start != apart}
    for name, block in blocks.items():
        text = f"{block.rows} values in a row repeat {block.rows} earlier values in the same order"
        hint = "Check whether a part of the column was pasted over these rows; if so, get their own values."
        yield _finding(seen, name, block, text, hint)


def _finding(seen: ParsedTable, column: str, block: PastedBlock, text: str, hint: str) -> CheckFinding:
    mask = np.zeros(len(seen.index), bool)
    mask[block.copy : block.copy + block.rows] = True
    return CheckFinding("pasted_rows", "warning", column, seen.rows(mask), block.rows, text, hint)

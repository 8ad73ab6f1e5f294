"""Tables as CSV that a person may open in a spreadsheet program, which runs a cell that begins like a formula.

Names of sites, columns and classes come from others. A text that such a program would run is written with an
apostrophe before it, which shows it as text; numbers stay numbers. `as_written` takes the apostrophe off again. Where a
program separates cells by semicolons, it splits a text of ours there: so what follows a semicolon is looked at too.
"""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

_MARK = r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"  # of a formula, also in the wide letters of Asian languages
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_PART = r"(?<=[;\t\r\n])"  # where a program may begin a cell of its own
_FORMULA = re.compile(rf"^(?={_MARK})(?!{_NUMBER}\Z)|{_PART}(?={_MARK})(?!{_NUMBER}(?:;|\Z))", re.IGNORECASE)
_QUOTED = re.compile(rf"(?:^|{_PART})'(?={_MARK})")


def harmless(cell: Any) -> Any:
    """
    >>> harmless("=1+1"), harmless("-5"), harmless("-5+cmd"), harmless("a;@b"), harmless(-5.0)
    ("'=1+1", '-5', "'-5+cmd", "a;'@b", -5.0)
    """
    return _FORMULA.sub("'", cell) if isinstance(cell, str) else cell


def as_written(cell: Any) -> Any:
    """
    >>> as_written(harmless("=1+1")), as_written(harmless("'=1")), as_written("'tis"), as_written("-5")
    ('=1+1', "'=1", "'tis", '-5')
    """
    return _QUOTED.sub("", cell) if isinstance(cell, str) else cell


def to_csv(frame: pd.DataFrame, index_label: str | None = None) -> str:
    """With its index where it has a label."""
    safe = frame.rename(columns=harmless, index=harmless)
    for place, dtype in enumerate(safe.dtypes):
        if dtype.kind == "O" or str(dtype) in ("category", "string", "str"):
            safe.isetitem(place, [harmless(cell) for cell in safe.iloc[:, place].tolist()])
    return str(safe.to_csv(index=index_label is not None, index_label=index_label))


def from_csv(frame: pd.DataFrame) -> pd.DataFrame:
    """A table of ours that was read from a file, with its texts as they were."""
    plain = frame.rename(columns=as_written)
    for place, dtype in enumerate(plain.dtypes):
        if dtype.kind == "O" or str(dtype) in ("string", "str"):
            plain.isetitem(place, [as_written(cell) for cell in plain.iloc[:, place].tolist()])
    return plain

"""What the cells of one column say: numbers and categories, as hospitals write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from vitrail.data.column_names import fold
from vitrail.data.schema import Cell, Feature, Target, canon

Pair = tuple[pd.Series, pd.Series]  # values with NaN for missing, and which cells do not fit
MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "?", ".", "-"})
NUMBER = (bool, int, float, np.bool_, np.integer, np.floating)
_STYLE = r"[+-]?(?:(?:\d+|[1-9]\d{{0,2}}(?:{1}\d{{3}})+)(?:{0}\d*)?|{0}\d+)(?:[eE][+-]?\d+)?"
POINT, _COMMA = (re.compile(_STYLE.format(*marks), re.ASCII) for marks in ((r"\.", ","), (",", r"\.")))


def as_numbers(column: pd.Series) -> Pair:
    """Float64 values (NaN where missing or wrong), and which cells are present but not numbers.

    Whether the comma is decimal is decided for the column. "1,234" alone can be either and is refused.

    >>> as_numbers(pd.Series(["3,5", " +4", "1.234,5", "x", None]))[0].tolist()
    [3.5, 4.0, 1234.5, nan, nan]
    >>> as_numbers(pd.Series(["1,234.5", "7"]))[0].tolist(), as_numbers(pd.Series(["1,234"]))[1].tolist()
    ([1234.5, 7.0], [True])
    """
    return _part_infinite(_find_numbers(column), column.index)


def _part_infinite(values: np.ndarray, index: pd.Index) -> Pair:
    wrong = np.isinf(values)
    return pd.Series(np.where(wrong, np.nan, values), index=index), pd.Series(wrong, index=index)


def _find_numbers(column: pd.Series) -> np.ndarray:
    """A new array: a number, NaN for missing, infinite for what does not fit."""
    if column.dtype.kind not in "biuf":
        return _judge_cells(column, _parse_numbers)
    if is_plain(column.dtype):
        values = column.to_numpy(np.float64, copy=True)
    else:
        values = column.astype("Float64").to_numpy(np.float64, copy=True, na_value=np.nan)
    return one_nan(values)


def one_nan(values: np.ndarray) -> np.ndarray:
    values[np.isnan(values)] = np.nan  # one for all: fingerprints are made of bits
    return values


def is_plain(dtype: object) -> bool:
    """Whether a column's cells are numpy's own truth values or numbers: nothing to parse, missing is NaN."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf" and dtype.itemsize <= 8


def _judge_cells(column: pd.Series, judge: Callable[[list[Any]], list[float]]) -> np.ndarray:
    """Judge each distinct value once: a number, NaN for missing, infinite for what does not fit."""
    cells = column.to_numpy() if is_plain(column.dtype) else column.astype(object).to_numpy()
    try:
        codes, values = pd.factorize(cells)
    except TypeError:  # a list in a cell cannot be hashed; its text can
        codes, values = pd.factorize(np.array([repr(cell) for cell in cells], dtype=object))
    judged = np.array([*judge(values.tolist()), np.nan])  # the last is for code -1, missing
    return judged[codes]


def _tidy(value: object) -> str:
    """Text without typography: outer spaces, the long minus, no-break spaces or ' between thousands."""
    return re.sub("(?<=[0-9])[\u00a0\u202f'](?=[0-9]{3})", "", str(value).strip().replace("\u2212", "-"))


def has_decimal_comma(column: pd.Series) -> bool | None:
    """Whether the column's numbers are written 3,5 rather than 3.5; None where nothing tells.

    >>> [has_decimal_comma(pd.Series(cells)) for cells in (["3,5", "4"], ["3.5", None], ["3", "4"])]
    [True, False, None]
    """
    written = [_tidy(cell) for cell in column.dropna().unique() if not isinstance(cell, NUMBER)]
    points, commas = _count_styles(written)
    return None if points == commas else commas > points


def _count_styles(texts: list[str]) -> tuple[int, int]:
    """How many are numbers with a decimal point, and with a decimal comma; plain whole numbers are both."""
    points, commas = (sum(1 for _ in filter(style.fullmatch, texts)) for style in (POINT, _COMMA))
    return points, commas


def _parse_numbers(values: list[Any]) -> list[float]:
    if all(type(value) is str for value in values):  # the usual column, quickly
        plain = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(float)
        if np.isfinite(plain).all():
            return list(plain)
    texts = [_tidy(value) for value in values]
    written = [text for text, value in zip(texts, values, strict=True) if not isinstance(value, NUMBER)]
    points, commas = _count_styles(written)

    def parse(value: Any, text: str) -> float:
        if text.casefold() in MISSING_WORDS:
            return np.nan
        if isinstance(value, NUMBER):
            return float(value) if abs(value) < 1e308 else np.inf  # type: ignore[operator]
        if commas > points:
            return float(text.replace(".", "").replace(",", ".")) if _COMMA.fullmatch(text) else np.inf
        either = points == commas and "," in text  # "1,234", and nothing in the column tells which
        return float(text.replace(",", "")) if POINT.fullmatch(text) and not either else np.inf

    return list(map(parse, values, texts))


def as_levels(column: pd.Series, levels: Sequence[str], missing: Sequence[Cell]) -> Pair:
    """The index of each cell's level (NaN: missing or unknown), and which cells are present but no level.

    >>> as_levels(pd.Series(["YÉS", "no", 9, None, "maybe"]), ["no", "yes"], missing=[9])[0].tolist()
    [1.0, 0.0, nan, nan, nan]
    """
    return _part_infinite(_find_levels(column, levels, missing), column.index)


def _find_levels(column: pd.Series, levels: Sequence[str], missing: Sequence[Cell]) -> np.ndarray:
    folded, absent = [fold(level) for level in levels], [canon(code) for code in missing]
    loose: dict[str, float] = dict.fromkeys(MISSING_WORDS, np.nan)  # what is added later wins
    loose |= {level: i for i, level in enumerate(folded) if folded.count(level) == 1}
    loose |= {fold(code): np.nan for code in absent}
    exact = {level: float(i) for i, level in enumerate(levels)} | dict.fromkeys(absent, np.nan)

    def place(value: Any) -> float:
        text = canon(value)
        if text not in exact and re.fullmatch(r"[0-9]+,0*", text):
            text = canon(text.replace(",", "."))  # 1,0 is how a decimal-comma file writes the category 1
        return exact.get(text, loose.get(fold(text), np.inf))

    return _judge_cells(column, lambda values: [place(value) for value in values])


def as_described(column: pd.Series, what: Feature | Target) -> Pair:
    """The column as the study describes it: values with NaN for missing, and which cells do not fit."""
    return _part_infinite(find_values(column, what), column.index)


def codes_of(what: Feature | Target) -> Sequence[Cell]:
    """What the study says is written where nothing was measured."""
    return what.missing if isinstance(what, Feature) else ()


def find_values(column: pd.Series, what: Feature | Target) -> np.ndarray:
    """A new array: a number or the index of a level, NaN for missing, infinite for what does not fit."""
    missing = codes_of(what)
    if what.kind not in ("numeric", "number"):
        return _find_levels(column, what.levels, missing)
    values = _find_numbers(column)
    if missing:
        codes = _find_numbers(pd.Series(list(missing), dtype=object))
        words = [canon(code) for code, is_word in zip(missing, np.isinf(codes), strict=True) if is_word]  # "unknown"
        if words:
            values[np.isinf(values) & np.isfinite(_find_levels(column, words, ()))] = np.nan
        values[np.isin(values, codes[np.isfinite(codes)])] = np.nan
    return values


def as_hashed(column: pd.Series) -> pd.Series:
    """Numbers that are the same where cells are written alike, whatever they are."""
    if is_plain(column.dtype):
        return column
    codes_by_text: dict[str, int] = {}  # factorize takes memory as if no two cells were alike
    texts = (cell if type(cell) is str else str(cell) for cell in column.to_numpy(object))
    codes = np.fromiter((codes_by_text.setdefault(text, len(codes_by_text)) for text in texts), np.int64, len(column))
    return pd.Series(codes, index=column.index)


def repeats(columns: Mapping[str, pd.Series], rows: int) -> np.ndarray:
    """[row]: whether it repeats an earlier one in every column."""
    alike = np.zeros(rows, np.uint64)  # a number for each row, the same for rows that are
    for column in columns.values():
        hashed = pd.util.hash_array(as_hashed(column).to_numpy(), categorize=False)
        alike = alike * np.uint64(0x9E3779B97F4A7C15) + hashed
    maybe, again = pd.Series(alike).duplicated(keep=False).to_numpy(), np.zeros(rows, bool)
    if columns and maybe.any():
        some = {i: as_hashed(c)[maybe] for i, c in enumerate(columns.values())}
        again[maybe] = pd.DataFrame(some).duplicated().to_numpy()
    return again


@dataclass(frozen=True)
class LazyColumns(Mapping[str, pd.Series]):
    """Columns by name, each made when it is asked for."""

    names: Collection[str]
    make: Callable[[str], pd.Series]

    def __getitem__(self, name: str) -> pd.Series:
        if name not in self.names:
            raise KeyError(name)
        return self.make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

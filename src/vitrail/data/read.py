"""Reading tables as hospitals write them, and turning them into what the model will see."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.data.schema import Cell, Feature, Table, Target, canon

Pair = tuple[pd.Series, pd.Series]  # values with NaN for missing, and which cells do not fit
Parsed = tuple[list[str], list[list[Any]], list[int]]  # header, columns, line numbers
MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "?", ".", "-"})
ENDING = re.compile(r"\.(?:(?:csv|tsv|data|txt)(?:\.gz)?|(?P<parquet>parquet|pq))$", re.IGNORECASE)
ENDINGS = ".csv, .tsv, .data or .txt (also .gz), .parquet or .pq"
NO_SITE = re.compile(r"\..*|(readme|licen[cs]e)(\..*)?|.*\.(md|toml|json)", re.IGNORECASE | re.DOTALL)
NUMBER = (bool, int, float, np.bool_, np.integer, np.floating)
SPLIT = partial(csv.reader, skipinitialspace=True, strict=True)
_STYLE = r"[+-]?(?:(?:\d+|[1-9]\d{{0,2}}(?:{1}\d{{3}})+)(?:{0}\d*)?|{0}\d+)(?:[eE][+-]?\d+)?"
_POINT, _COMMA = (re.compile(_STYLE.format(*marks), re.ASCII) for marks in ((r"\.", ","), (",", r"\.")))


def read_table(path: Path, table: Table | None = None) -> pd.DataFrame:
    """The file's cells as stripped text, None where missing; the index is the line number in the file.

    The header is line 1; a Parquet file has no lines, its rows count from 2 as if it had a header.
    With `table`, words such as "None" stay where the study names them as a category.
    """
    path = Path(path)
    raw, ending = _load(path), ENDING.search(path.name)
    if not ending:
        raise _refusal(path, f"expected a table ending in {ENDINGS}, got {path.name!r}.", "Export it as CSV.")
    header, columns, lines = _parse_parquet(path, raw) if ending["parquet"] else _parse_text(path, raw, table)
    _require_names(path, header, table)
    if not lines:
        raise _refusal(path, "expected rows below the header, got none.", "Export the table with its rows.")
    cells = {n: _settle(c, n, table) for n, c in zip(header, columns, strict=True)}
    frame = pd.DataFrame(cells, index=pd.Index(lines, dtype="int64"), dtype=object)
    frame.attrs["file"] = path.name  # so that later problems can say where
    return frame


def _refusal(path: Path, what: str, hint: str, at: str = "") -> VitrailError:
    return VitrailError(f"cannot read {path.name}", [Problem(f"{path}, {at}".rstrip(", "), what, hint)])


def _load(path: Path) -> bytes:
    """The bytes of the file, unpacked; everything the file system can refuse is said here."""
    try:
        if not path.is_file():
            what = f"expected a file, {'got a folder' if path.is_dir() else 'there is none'}."
            raise _refusal(path, what, "Check the path.")
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.name.casefold().endswith(".gz") else raw
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise _refusal(path, f"the file cannot be read: {error}.", "Check its permissions.") from None
    return raw


def _parse_parquet(path: Path, raw: bytes) -> Parsed:
    import pyarrow.parquet as pq  # slow to import, seldom needed

    try:
        data = pq.read_table(io.BytesIO(raw))
        kept = [name for name in data.column_names if not name.startswith("__index_level_")]  # pandas' labels
        columns = [data.column(data.column_names.index(name)).to_pylist() for name in kept]
    except Exception as error:  # the decoder may raise anything on a damaged file, and none of it is ours
        what = f"expected a Parquet file, got something else ({type(error).__name__})."
        raise _refusal(path, what, "Export it again.") from None
    return [name.strip() for name in kept], columns, list(range(2, data.num_rows + 2))


def _parse_text(path: Path, raw: bytes, table: Table | None) -> Parsed:
    text = _decode(path, raw)
    names = {table.target.column, table.site_column, *table.features} if table else set()
    reader = SPLIT(io.StringIO(text, newline=""), delimiter=_sniff(text, names))
    records, lines, last = [], [], 0
    try:
        for record in reader:
            if any(map(str.strip, record)):  # a row of nothing is no row, but its line still counts
                records.append(record)
                lines.append(last + 1)
            last = reader.line_num
    except csv.Error as error:
        hint = 'Close every " that opens, and double it inside a field.'
        raise _refusal(path, f"expected quoted fields to end ({error}).", hint, f"row {last + 1}") from None
    if not records or not text.strip(' \r\n",;\t|'):  # other delimiters make cells of lone commas
        raise _refusal(path, "expected a table, got an empty file.", "Export the table again.")
    header, rows, lines = [name.strip() for name in records[0]], records[1:], lines[1:]
    uneven = {line: len(row) for line, row in zip(lines, rows, strict=True) if len(row) != len(header)}
    if uneven:
        what = f"expected {len(header)} fields as in the header, got {_join(uneven.values())}."
        hint = "Quote fields that hold the delimiter, and give every row one field per column."
        raise _refusal(path, what, hint, name_rows(list(uneven)))
    return header, [list(column) for column in zip(*rows, strict=True)] or [[] for _ in header], lines


def _decode(path: Path, raw: bytes) -> str:
    marked = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    for encoding in ("utf-16",) if marked else ("utf-8-sig", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            text = raw.decode(encoding).rstrip("\x1a")  # DOS programs end a file with Ctrl-Z
            if not re.search("[\x00-\x08\x0e-\x1f\x7f]", text):
                return text
            break
    raise _refusal(path, "expected text, got binary data.", "Save it as CSV (an Excel file is not text).")


def _sniff(text: str, known: set[str]) -> str:
    """The delimiter that gives known names, even rows and no torn quotes; comma when all are equal."""

    def score(delimiter: str) -> tuple[float, ...]:
        reader = SPLIT(io.StringIO(text, newline=""), delimiter=delimiter)
        records: list[list[str]] = []
        with suppress(csv.Error, StopIteration):  # what came before a broken quote still tells
            while len(records) < 200:
                records.append(next(reader))
        records = [record for record in records if any(map(str.strip, record))]
        header = [name.strip() for name in records[0]] if records else []
        even = sum(len(r) == len(header) for r in records) / max(len(records), 1)
        torn = sum(c.strip().startswith('"') != c.strip().endswith('"') for r in records for c in r)
        return (len(known & set(header)), len(header) > 1, even, -torn, len(header))

    return max(",;\t|", key=score)


def _require_names(path: Path, header: list[str], table: Table | None) -> None:
    unclear = [name for name in header if not name or header.count(name) > 1]
    numbers = [name for name in header if _POINT.fullmatch(name) or name in MISSING_WORDS - {""}]
    if numbers == header and not (table and set(table.features) & set(header)):
        what = f"expected column names, got numbers ({_join(header)})."
        raise _refusal(path, what, "Add a line with the column names.", "header")
    if unclear:
        what = f"expected one name for each column, got {_join(unclear)} for {len(unclear)}."
        hint = "Rename or remove them (row labels and trailing delimiters have no name)."
        raise _refusal(path, what, hint, "header")


def _settle(cells: Sequence[Any], name: str, table: Table | None) -> list[str | None]:
    """Stripped text, None for missing, except for words that the study uses as a category of this column."""
    levels = table.target.levels if table and name == table.target.column else ()
    levels += table.features[name].levels if table and name in table.features else ()
    absent = MISSING_WORDS - {level.casefold() for level in levels}
    texts = [cell if type(cell) is str else "" if cell is None else str(cell) for cell in cells]
    settled = {t: None if t.strip().casefold() in absent else t.strip() for t in set(texts)}
    return [settled[t] for t in texts]


def read_sites(path: Path, table: Table) -> dict[str, pd.DataFrame]:
    """One frame per site, by name: from a folder with one file per site, or one file with a site column."""
    if not path.is_dir():
        return _part_sites(path, read_table(path, table), table)
    files = sorted(p for p in path.glob("*") if not p.is_dir() and not NO_SITE.fullmatch(p.name))
    if not files:
        raise _refusal(path, f"expected one table per site ({ENDINGS}), can see none.", "Put them here.")
    sites: dict[str, pd.DataFrame] = {}
    problems: list[Problem] = []
    for file in files:
        name = ENDING.sub("", file.name)
        twins = [p.name for p in files if ENDING.sub("", p.name) == name]
        if len(twins) > 1:
            what = f"expected one file per site, got {_join(twins)} for site {name!r}."
            problems += [Problem(str(file), what, "Rename or remove one of them.")]
        try:
            sites[name] = read_table(file, table)
        except VitrailError as error:
            problems += error.problems
    if problems:
        raise VitrailError(f"cannot read the sites in {path}", problems)
    return dict(sorted(sites.items()))


def _part_sites(path: Path, frame: pd.DataFrame, table: Table) -> dict[str, pd.DataFrame]:
    column = table.site_column
    if column not in frame.columns:
        hint = nearest(column, frame.columns) if column else 'Write site_column = "..." in the study.'
        raise _refusal(path, f"expected a column that names the site ({column!r}), there is none.", hint)
    empty = frame[column].isna()
    if empty.any():
        at = f"column {column}, {name_rows(pick_rows(frame.index, empty))}"
        raise _refusal(path, f"expected a site in every row, {empty.sum()} have none.", "Fill them in.", at)
    return {str(name): rows for name, rows in frame.groupby(frame[column].map(canon))}


def as_numbers(column: pd.Series) -> Pair:
    """Float64 values (NaN where missing or wrong), and which cells are present but not numbers.

    Whether the comma is decimal is decided for the column. "1,234" alone can be either and is refused.

    >>> as_numbers(pd.Series(["3,5", " +4", "1.234,5", "x", None]))[0].tolist()
    [3.5, 4.0, 1234.5, nan, nan]
    >>> as_numbers(pd.Series(["1,234.5", "7"]))[0].tolist(), as_numbers(pd.Series(["1,234"]))[1].tolist()
    ([1234.5, 7.0], [True])
    """
    return _part_infinite(_find_numbers(column), column.index)


def _part_infinite(found: np.ndarray, index: pd.Index) -> Pair:
    wrong = np.isinf(found)
    return pd.Series(np.where(wrong, np.nan, found), index=index), pd.Series(wrong, index=index)


def _find_numbers(column: pd.Series) -> np.ndarray:
    """A new array: a number, NaN for missing, infinite for what does not fit."""
    if column.dtype.kind not in "biuf":
        return _judge_cells(column, _parse_numbers)
    if is_plain(column):
        found = column.to_numpy(np.float64, copy=True)
    else:
        found = column.astype("Float64").to_numpy(np.float64, copy=True, na_value=np.nan)
    found[np.isnan(found)] = np.nan  # one NaN for all: fingerprints are made of bits
    return found


def is_plain(column: pd.Series) -> bool:
    """Whether the column is numpy's own truth values or numbers: nothing to parse, missing is NaN."""
    return isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf" and column.dtype.itemsize <= 8


def _judge_cells(column: pd.Series, judge: Callable[[list[Any]], list[float]]) -> np.ndarray:
    """Judge each distinct value once: a number, NaN for missing, infinite for what does not fit."""
    cells = column.to_numpy() if is_plain(column) else column.astype(object).to_numpy()
    try:
        codes, values = pd.factorize(cells)
    except TypeError:  # a list in a cell cannot be hashed; its text can
        codes, values = pd.factorize(np.array([repr(cell) for cell in cells], dtype=object))
    judged = np.array([*judge(values.tolist()), np.nan])  # the last is for code -1, missing
    return judged[codes]


def _tidy(value: object) -> str:
    """Text without typography: outer spaces, the long minus, no-break spaces or ' between thousands."""
    return re.sub("(?<=[0-9])[\u00a0\u202f'](?=[0-9]{3})", "", str(value).strip().replace("\u2212", "-"))


def _parse_numbers(values: list[Any]) -> list[float]:
    if all(type(value) is str for value in values):  # the usual column, quickly
        plain = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(float)
        if np.isfinite(plain).all():
            return list(plain)
    texts = [_tidy(value) for value in values]
    written = [text for text, value in zip(texts, values, strict=True) if not isinstance(value, NUMBER)]
    points, commas = (sum(1 for _ in filter(style.fullmatch, written)) for style in (_POINT, _COMMA))

    def parse(value: Any, text: str) -> float:
        if text.casefold() in MISSING_WORDS:
            return np.nan
        if isinstance(value, NUMBER):
            return float(value) if abs(value) < 1e308 else np.inf  # type: ignore[operator]
        if commas > points:
            return float(text.replace(".", "").replace(",", ".")) if _COMMA.fullmatch(text) else np.inf
        either = points == commas and "," in text  # "1,234", and nothing in the column tells which
        return float(text.replace(",", "")) if _POINT.fullmatch(text) and not either else np.inf

    return list(map(parse, values, texts))


def as_levels(column: pd.Series, levels: Sequence[str], missing: Sequence[Cell]) -> Pair:
    """The index of each cell's level (NaN: missing or unknown), and which cells are present but no level.

    >>> as_levels(pd.Series(["YES", "no", 9, None, "maybe"]), ["no", "yes"], missing=[9])[0].tolist()
    [1.0, 0.0, nan, nan, nan]
    """
    return _part_infinite(_find_levels(column, levels, missing), column.index)


def _find_levels(column: pd.Series, levels: Sequence[str], missing: Sequence[Cell]) -> np.ndarray:
    folded, absent = [level.casefold() for level in levels], [canon(code) for code in missing]
    loose: dict[str, float] = dict.fromkeys(MISSING_WORDS, np.nan)  # what is added later wins
    loose |= {level: i for i, level in enumerate(folded) if folded.count(level) == 1}
    loose |= {code.casefold(): np.nan for code in absent}
    exact = {level: float(i) for i, level in enumerate(levels)} | dict.fromkeys(absent, np.nan)

    def place(value: Any) -> float:
        text = canon(value)
        if text not in exact and re.fullmatch(r"[0-9]+,0*", text):
            text = canon(text.replace(",", "."))  # 1,0 is how a decimal-comma file writes the category 1
        return exact.get(text, loose.get(text.casefold(), np.inf))

    return _judge_cells(column, lambda values: [place(value) for value in values])


def as_described(column: pd.Series, what: Feature | Target) -> Pair:
    """The column as the study describes it: values with NaN for missing, and which cells do not fit."""
    return _part_infinite(_find_described(column, what), column.index)


def _find_described(column: pd.Series, what: Feature | Target) -> np.ndarray:
    missing = what.missing if isinstance(what, Feature) else ()
    if what.kind not in ("numeric", "number"):
        return _find_levels(column, what.levels, missing)
    found = _find_numbers(column)
    if missing:
        codes = _find_numbers(pd.Series(list(missing), dtype=object))
        words = [canon(code) for code, is_word in zip(missing, np.isinf(codes), strict=True) if is_word]  # "unknown"
        if words:
            found[np.isinf(found) & np.isfinite(_find_levels(column, words, ()))] = np.nan
        found[np.isin(found, codes[np.isfinite(codes)])] = np.nan
    return found


def take_columns(frame: pd.DataFrame) -> tuple[dict[str, pd.Series], list[str]]:
    """Columns by stripped name (the first of each), and the names that come more than once."""
    names = [str(name).strip() for name in frame.columns]
    columns: dict[str, pd.Series] = {}
    for name, (_, column) in zip(names, frame.items(), strict=True):
        columns.setdefault(name, column)
    return columns, [name for name, times in Counter(names).items() if times > 1]


def pick_rows(index: pd.Index, mask: np.ndarray | pd.Series) -> list[int]:
    """Row numbers: the index where it counts, else the line the row would have below a header."""
    positions = np.flatnonzero(np.asarray(mask))
    return [int(row) for row in (index[positions] if index.dtype.kind in "iu" else positions + 2)]


def name_rows(rows: Sequence[int]) -> str:
    """The first five, and how many more: rows 2, 3, 4, 5, 6 and 2 more."""
    text = ("row " if len(rows) == 1 else "rows ") + ", ".join(map(str, rows[:5]))
    return text + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")


def _join(values: Iterable[object]) -> str:
    several = [str(value) if type(value) is int else repr(str(value)[:40]) for value in dict.fromkeys(values)]
    return ", ".join(several[:3]) + (", ..." if len(several) > 3 else "")


def describe_misfit(where: str, column: pd.Series, bad: pd.Series, what: Feature | Target) -> Problem:
    """What was expected of the column, and the cells that are something else."""
    where = f"{where}, {name_rows(pick_rows(column.index, bad))}"
    got = f"got {_join(column[bad.to_numpy()].map(str))} ({bad.sum()} of {len(bad)} cells)."
    if what.kind in ("numeric", "number"):
        return Problem(where, f"expected numbers, {got}", "Correct or empty them (1,234 is unclear: 1234?).")
    return Problem(where, f"expected one of {', '.join(what.levels)}, {got}", "Correct them, or the study.")


def clean(frame: pd.DataFrame, table: Table, need_target: bool = True) -> pd.DataFrame:
    """What the model sees: numbers, level indices, NaN for missing; rows without a target are dropped.

    All problems are told at once. `need_target=False` lets the target be absent or wholly empty.
    """
    columns, repeated = take_columns(frame)
    target, file = table.target.column, str(frame.attrs.get("file", "table"))
    wanted: dict[str, Feature | Target] = {**table.features, target: table.target}
    found: dict[str, np.ndarray] = {}
    problems: list[Problem] = []
    for name, what in wanted.items():
        where, optional = f"{file}, column {name}", name == target and not need_target
        if name in columns and name not in repeated:
            values = _find_described(columns[name], what)
            bad = np.isinf(values)
            if bad.any():
                problems += [describe_misfit(where, columns[name], pd.Series(bad, index=frame.index), what)]
            elif not (optional and np.isnan(values).all()):
                found[name] = values
        elif name in repeated or not optional:
            what_came = "more than one" if name in repeated else "none"
            hint = nearest(name, set(columns) - set(wanted))
            problems += [Problem(where, f"expected one such column, there is {what_came}.", hint)]
    if problems:
        raise VitrailError(f"{file} does not fit the study", problems)
    if target not in found:
        return pd.DataFrame(found, index=frame.index)
    kept = ~np.isnan(found[target])
    found = {name: values[kept] for name, values in found.items()}
    if table.target.kind == "classes":
        found[target] = found[target].astype(np.int64)
    return pd.DataFrame(found, index=frame.index[kept])

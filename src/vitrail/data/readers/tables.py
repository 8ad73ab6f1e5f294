"""Reading tables as hospitals write them, and turning them into what the model will see."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.outcomes import fold_outcome, with_outcome_columns
from vitrail.data.persons import as_numbers, columns_kept, key_columns
from vitrail.data.readers.cells import MISSING_WORDS, POINT, codes_of, find_values, is_plain, one_nan
from vitrail.data.readers.column_buffer import ColumnBuffer
from vitrail.data.readers.delimited_text import (
    decode,
    each_line,
    is_large,
    load_bytes,
    read_lines,
    read_records,
    refuse_file,
    sniff,
)
from vitrail.data.readers.image_files import NO_SITE, read_pictures, site_name, site_places
from vitrail.data.readers.images import fit_column
from vitrail.data.readers.source import ENDING, ENDINGS, Query, tell, to_place
from vitrail.data.readers.sql import ask
from vitrail.data.schema import Feature, TableSchema, Target, canon

LEFT_BEHIND = re.compile(  # by systems: not worth a word, unless it is called as a table is
    rf"(?!\.[^.].*(?:{ENDING.pattern}))(?:\..*|__macosx|thumbs\.db|desktop\.ini)", re.IGNORECASE | re.DOTALL
)
TOGETHER = 4_000_000  # cells of which a copy is made at once
COMPARED = 20_000  # names looked through at most to tell which ones may be meant by those that are not there


def read_table(path: Path, table: TableSchema | None = None) -> pd.DataFrame:
    """The file's cells as stripped text, None where missing; the index is the line number in the file.

    The header is line 1; what has no lines, such as a Parquet file, counts its rows from 2 as if it had a header. With
    `table`, words such as "None" stay where the study names them as a category. Of a large table
    (data/readers/column_buffer.py) columns of numbers are numbers.
    """
    path = to_place(path)
    if table and table.images:
        return read_pictures(path, table)
    if isinstance(path, Query):
        return _finish(path, *ask(path), table)
    ending = ENDING.search(path.name)
    if ending and ending["omop"]:
        from vitrail.data.readers.omop import read_omop

        return _finish(path, *read_omop(path), table)
    if ending and ending["text"] and is_large(path):
        return _finish(path, *_parse_text(path, *read_lines(path), table), table)
    sheet = f"#{ending['sheet']}" if ending and ending["sheet"] else ""
    return parse_table(path, load_bytes(path.with_name(path.name.removesuffix(sheet))), table)


def parse_table(path: Path, raw: bytes, table: TableSchema | None = None) -> pd.DataFrame:
    """The table in these bytes, as a file of this name holds them, unpacked."""
    ending = ENDING.search(path.name)
    if not ending or ending["omop"]:
        old = path.suffix.lower() in (".xls", ".xlsb", ".ods", ".numbers")
        hint = "Save it as .xlsx, or export it as CSV." if old else "Export it as CSV."
        raise refuse_file(path, f"expected a table ending in {ENDINGS}, got {path.name!r}.", hint)
    if ending["parquet"]:
        parsed = _parse_parquet(path, raw)
    elif ending["book"]:
        from vitrail.data.readers.excel import read_book

        parsed = read_book(path, raw, ending["sheet"])
    elif ending["study"]:
        from vitrail.data.readers.stat_packages import read_labelled

        parsed = read_labelled(path, raw, ending["study"], table)
    else:
        text = decode(path, raw).text
        del raw  # of a large file the only other copy
        parsed = _parse_text(path, text, each_line(text), table)
        del text
    return _finish(path, *parsed, table)


def _finish(path: Path, header: list[str], rows: ColumnBuffer, table: TableSchema | None) -> pd.DataFrame:
    header = agreed_names(header, table)
    _require_names(path, header, table)
    if not len(rows):
        raise refuse_file(path, "expected rows below the header, got none.", "Export the table with its rows.")
    frame = rows.frame(header, table)
    frame.attrs["file"] = path.name  # so that later problems can say where
    return frame


def _parse_parquet(path: Path, raw: bytes) -> tuple[list[str], ColumnBuffer]:
    try:
        import pyarrow.parquet as pq  # slow to import, seldom needed
    except ImportError:
        hint = "pip install pyarrow, or export it as CSV."
        raise refuse_file(path, "pyarrow, which reads Parquet files, is not installed.", hint) from None
    try:
        data = pq.ParquetFile(io.BytesIO(raw))
        named = enumerate(data.schema_arrow.names)
        names = {i: name.strip() for i, name in named if not name.startswith("__index_level_")}  # pandas' labels
        rows = ColumnBuffer(len(names))
        for some in data.iter_batches(max(1, rows.room)):
            columns = (some.column(i).to_pylist() for i in names)
            rows.add_columns(columns, range(len(rows) + 2, len(rows) + 2 + len(some)))
    except Exception as error:  # the decoder may raise anything on a damaged file, and none of it is ours
        what = f"expected a Parquet file, got something else ({type(error).__name__})."
        raise refuse_file(path, what, "Export it again.") from None
    return list(names.values()), rows


def _parse_text(
    path: Path, text: str, lines: Iterable[str], table: TableSchema | None
) -> tuple[list[str], ColumnBuffer]:
    """`text`: the beginning of it, as far as it tells what separates the cells."""
    aliases = [alias for f in table.features.values() for alias in f.aliases] if table else []
    names = (
        {table.target.column, table.site_column, *with_outcome_columns(table).features, *aliases} if table else set()
    )
    records = read_records(path, lines, sniff(text, names))
    first = next(records, None)
    if first is None or not text.strip(' \r\n",;\t|'):  # other delimiters make cells of lone commas
        raise refuse_file(path, "expected a table, got an empty file.", "Export the table again.")
    header, uneven = [name.strip() for name in first.cells], dict[int, int]()
    rows = ColumnBuffer(len(header))
    while some := list(islice(records, max(1, rows.room))):
        uneven |= {r.line: len(r.cells) for r in some if len(r.cells) != len(header)}
        if not uneven:
            rows.add([r.cells for r in some], [r.line for r in some])
    if uneven:
        what = f"expected {len(header)} fields as in the header, got {_join(uneven.values())}."
        hint = "Quote fields that hold the delimiter, and give every row one field per column."
        raise refuse_file(path, what, hint, name_rows(list(uneven)))
    return header, rows


def _require_names(path: Path, header: list[str], table: TableSchema | None) -> None:
    times = Counter(header)
    unclear = [name for name in header if not name or times[name] > 1]
    numbers = [name for name in header if POINT.fullmatch(name) or name in MISSING_WORDS - {""}]
    if numbers == header and not (table and set(table.features) & set(header)):
        what = f"expected column names, got numbers ({_join(header)})."
        raise refuse_file(path, what, "Add a line with the column names.", "header")
    if unclear:
        what = f"expected one name for each column, got {_join(unclear)} for {len(unclear)}."
        hint = "Rename or remove them (row labels and trailing delimiters have no name)."
        raise refuse_file(path, what, hint, "header")


def read_sites(path: Path, table: TableSchema) -> dict[str, pd.DataFrame]:
    """One frame per site, by name: from a folder with a file (or a folder of pictures) for each, or from one file
    with a site column."""
    path = to_place(path)
    if not path.is_dir():
        return part_sites(path, read_table(path, table), table.site_column)
    files = site_places(path) if table.images else _site_files(path)
    name_of = site_name if table.images else _table_name
    sites: dict[str, pd.DataFrame] = {}
    problems: list[Problem] = []
    for file in files:
        name = name_of(file)
        twins = [p.name for p in files if name_of(p) == name]
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


def _site_files(path: Path) -> list[Path]:
    """Tables in a folder of sites; what else is there is told, but for what systems leave behind."""
    inside = [p for p in sorted(path.iterdir()) if not LEFT_BEHIND.fullmatch(p.name)]
    folders = [p for p in inside if p.is_dir()]
    if wrong := [p for p in folders if ENDING.search(p.name)]:
        problems = [
            Problem(str(p), "expected a table, got a folder of this name.", "Rename or move it.") for p in wrong
        ]
        raise VitrailError(f"cannot read the sites in {path}", problems)
    files = [p for p in inside if p not in folders and _may_be_site(p.name)]
    if not files:
        raise refuse_file(path, f"expected one table per site ({ENDINGS}), but found none.", "Put them here.")
    if folders:
        tell(
            f"{path.name or path}: not read, because sites are files here: "
            f"{_list([p.name for p in folders], 'folder')}."
        )
    if notes := [p.name for p in inside if p not in folders and p not in files]:
        tell(f"{path.name or path}: not read, because these are not tables of sites: {_list(notes, 'file')}.")
    return files


def _may_be_site(name: str) -> bool:
    ending = ENDING.search(name)
    beside = NO_SITE.fullmatch(name) or name.startswith("~$")  # of a workbook that is open in Excel
    return not beside or bool(ending and ending["omop"] and not name.startswith("."))


def _list(names: list[str], kind: str) -> str:
    """The first five: folders a, b, and how many more."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{kind}{'s' * (len(names) > 1)} {', '.join(names[:5])}{more}"


def _table_name(place: Path) -> str:
    return ENDING.sub("", place.name)


def part_sites(path: Path, frame: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    """A frame of all sites, by the column that names them."""
    if column not in frame.columns:
        hint = nearest(column, frame.columns) if column else 'Write site_column = "..." in the study.'
        raise refuse_file(path, f"expected a column that names the site ({column!r}), but there is none.", hint)
    empty = frame[column].isna()
    if empty.any():
        at = f"column {column}, {name_rows(pick_rows(frame.index, empty))}"
        raise refuse_file(path, f"expected a site in every row, but {empty.sum()} have none.", "Fill them in.", at)
    return {str(name): rows for name, rows in frame.groupby(frame[column].map(canon))}


def agreed_names(names: list[str], table: TableSchema | None) -> list[str]:
    """These names, or those that the study has for them."""
    name_of = {alias: name for name, f in table.features.items() for alias in f.aliases} if table else {}
    return [name_of.get(name, name) for name in names] if name_of else names


def take_columns(frame: pd.DataFrame, table: TableSchema | None = None) -> tuple[dict[str, pd.Series], list[str]]:
    """Columns by stripped name (the first of each), and the names that come more than once."""
    places, repeated = place_columns(frame, table)
    columns = [column for _, column in frame.items()]
    return {name: columns[at] for name, at in places.items()}, repeated


def place_columns(frame: pd.DataFrame, table: TableSchema | None = None) -> tuple[dict[str, int], list[str]]:
    """Where each column is by stripped name (the first of each), and the names that come more than once. With `table`
    by the study's names, whatever a site calls them."""
    names = agreed_names([str(name).strip() for name in frame.columns], table)
    places: dict[str, int] = {}
    for at, name in enumerate(names):
        places.setdefault(name, at)
    return places, [name for name, times in Counter(names).items() if times > 1] if len(places) < len(names) else []


def row_names(index: pd.Index, places: NDArray[np.int64]) -> list[int | str]:
    """What a site calls its rows: their line in the file, a picture's path, or the line they would have."""
    if index.dtype.kind in "iu":
        return [int(row) for row in index]
    named = [isinstance(name, str) for name in index]
    return [str(name) for name in index] if all(named) else [int(place) + 2 for place in places]


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
        return Problem(where, f"expected numbers, {got}", "Correct or empty them (1,234 could mean 1234 or 1.234).")
    return Problem(where, f"expected one of {', '.join(what.levels)}, {got}", "Correct these cells or the study.")


def clean(frame: pd.DataFrame, table: TableSchema, need_target: bool = True) -> pd.DataFrame:
    """What the model sees: numbers, level indices, NaN for missing; rows without a target are dropped.

    All problems are told at once. `need_target=False` lets the target be absent or wholly empty.
    """
    if table.target.kind != "time" and not table.weight_column and not key_columns(table):
        return _clean(frame, table, need_target)
    if not need_target:
        return _clean(frame, table.model_copy(update={"target": table.plain.target}), need_target)
    rows = _clean(as_numbers(frame, table), columns_kept(with_outcome_columns(table)), need_target)
    return fold_outcome(rows, table, str(frame.attrs.get("file", "table")))


def _clean(frame: pd.DataFrame, table: TableSchema, need_target: bool) -> pd.DataFrame:
    target, file = table.target.column, str(frame.attrs.get("file", "table"))
    wanted: dict[str, Feature | Target] = {n: f for n, f in table.features.items() if n != target}
    wanted[target] = table.target  # the last
    places, repeated = place_columns(frame, table)
    there = [None if name in repeated else places.get(name) for name in wanted]
    cells = _find_cells(frame, there, list(wanted.values()))
    bad, unused, problems = np.isinf(cells), places.keys() - wanted.keys(), []
    hints = 1 + COMPARED // (1 + len(unused))
    for i, (name, at, is_bad) in enumerate(zip(wanted, there, bad.any(1).tolist(), strict=True)):
        where = f"{file}, column {name}"
        if at is not None and is_bad:
            misfits = pd.Series(bad[i], index=frame.index)
            problems += [describe_misfit(where, frame.iloc[:, at], misfits, wanted[name])]
        elif at is None and (name in repeated or name != target or need_target):
            what_came = "more than one" if name in repeated else "none"
            hint = nearest(name, unused) if len(problems) < hints else ""
            problems += [Problem(where, f"expected one such column, but there is {what_came}.", hint)]
    pictures = None
    if table.images:
        column = table.images.column
        at = places.get(column)
        if at is None or column in repeated:
            what = f"expected one column of pictures, but there is {'none' if at is None else 'more than one'}."
            problems += [Problem(f"{file}, column {column}", what, nearest(column, unused) if at is None else "")]
        else:
            pictures, more = fit_column(frame.iloc[:, at], table.images, file)
            problems += more
    if problems:
        raise VitrailError(f"{file} does not fit the study", problems)
    index, has_target = frame.index, ~np.isnan(cells[-1])
    uses_target = need_target or bool(has_target.any())
    if uses_target and not has_target.all():
        index, cells = index[has_target], cells[:, has_target]
    out = pd.DataFrame(cells[:-1].T, index, list(wanted)[:-1], copy=False)
    if table.images:
        assert pictures is not None
        out[table.images.column] = pd.Series(pictures, frame.index, dtype=object)[
            has_target if uses_target else slice(None)
        ]
    if uses_target:
        out[target] = cells[-1].astype(np.int64) if table.target.kind == "classes" else cells[-1]
    return out


def _find_cells(frame: pd.DataFrame, there: list[int | None], wanted: list[Feature | Target]) -> np.ndarray:
    """[column, row]: what `find_values` finds in each column; NaN where there is none."""
    cells, dtypes = np.full((len(wanted), len(frame)), np.nan), list(frame.dtypes)
    ready: list[tuple[int, int]] = []  # numbers already: taken as one block, for there may be many thousands
    for i, (at, what) in enumerate(zip(there, wanted, strict=True)):
        if at is not None and is_plain(dtypes[at]) and what.kind in ("numeric", "number") and not codes_of(what):
            ready.append((i, at))
        elif at is not None:
            cells[i] = find_values(frame.iloc[:, at], what)
    step = max(1, TOGETHER // max(len(frame), 1))
    for some in (ready[at : at + step] for at in range(0, len(ready), step)):
        to, of = map(list, zip(*some, strict=True))
        cells[to] = one_nan(frame.iloc[:, of].to_numpy(np.float64, copy=True)).T
    return cells

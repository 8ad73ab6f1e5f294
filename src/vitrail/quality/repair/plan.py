"""Which cells a repair changes, and into what: worked out before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import NamedTuple

import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.cells import as_described, as_numbers, has_decimal_comma
from vitrail.data.readers.tables import name_rows, pick_rows, place_columns
from vitrail.data.schema import Feature, TableSchema, Target, canon
from vitrail.data.units import is_outside, separate_cluster
from vitrail.quality.repair.remedies import Repair, wrong_numbers, wrong_words

DIGITS = Context(prec=12)  # of a repaired number: as many as a measured one can have
STRAY = 0.02  # of the values: so many may leave the range by another unit; a draft has its ends from faulty tables
SCALE = 11  # different whole numbers at most that are taken for a scale, as from 1 to 5 or 0 to 10


class UnclearError(VitrailError):
    """What a repair would do cannot be told from the file: somebody must say one more number."""


class ColumnChange(NamedTuple):
    """What a repair does to one column of the file."""

    repair: Repair
    column: str
    before: pd.Series  # the cells that change, by the line of their row
    after: pd.Series
    numbers: str  # in words: how many, and what becomes of them
    worse: bool = False  # fewer cells fit the study's description than before


def plan(
    repairs: Sequence[Repair], frame: pd.DataFrame, table: TableSchema, comma: Callable[[str], bool] | None = None
) -> tuple[list[ColumnChange], pd.DataFrame]:
    """What each repair changes, and the frame afterwards; all problems at once. `comma`: whether numbers are written
    with one where a column does not tell. No two rows of the frame have the same label."""
    changes, problems, unclear, now = list[ColumnChange](), list[Problem](), 0, frame.astype(object)
    table = table.plain
    for repair in repairs:
        try:
            made = _change(repair, frame, table, comma)
        except VitrailError as error:
            problems += error.problems
            unclear += isinstance(error, UnclearError)
            continue
        for change in made:
            now.loc[change.after.index, change.column] = change.after.where(change.after != "", None)
        changes += made
    for name in {c.column: 0 for c in changes if sum(c.column == d.column for d in changes) > 1}:
        problems.append(
            Problem(f"column {name}", "two repairs change this column.", "Do one of them, then look again.")
        )
    if unclear and len(problems) == unclear:
        raise UnclearError("cannot repair", problems)
    _refuse(problems)
    return changes, now


def _change(
    repair: Repair, frame: pd.DataFrame, table: TableSchema, comma: Callable[[str], bool] | None
) -> list[ColumnChange]:
    columns: dict[str, Feature | Target] = {**table.features, table.target.column: table.target}
    _refuse(wrong_words(repair, columns, place_columns(frame)[0]))
    what, cells = columns[repair.column], frame[repair.column]
    _refuse(wrong_numbers(repair, what, table))
    if repair.other is not None:
        return _swap(repair, frame, columns)
    if what.kind in ("numeric", "number"):
        return [_renumber(repair, cells, what, comma)]
    if repair.code is not None:
        which = cells.map(canon, na_action="ignore") == repair.code
        return [_emptied(repair, cells, which)]
    return [_relabel(repair, cells, what)]


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise VitrailError("cannot repair", problems)


def _renumber(
    repair: Repair, cells: pd.Series, what: Feature | Target, comma: Callable[[str], bool] | None
) -> ColumnChange:
    values, wrong = as_described(cells, what)
    if wrong.any():
        text = f"expected numbers in {name_rows(pick_rows(cells.index, wrong))}, got something else."
        _refuse([Problem(f"column {repair.column}", text, "Correct them first: `vitrail check` names them.")])
    if repair.code is not None:
        code, bad = as_numbers(pd.Series([repair.code], dtype=object))
        if bad.any() or code.isna().any():
            _refuse([Problem("--code", f"expected a number, got {repair.code!r}.")])
        return _emptied(repair, cells, values == code.iloc[0])
    which = values.notna()
    if repair.cause == "unit in part":
        which = _other_unit(repair, values, what)
    scale, start = repair.factor if repair.factor is not None else 1.0, repair.offset or 0.0
    if repair.cause in ("sign", "label flip"):
        scale, start = -1.0, _turn_at(repair, values, what)
        repair = repair._replace(offset=start)
    decimal_comma = has_decimal_comma(cells)
    if decimal_comma is None:
        decimal_comma = comma is not None and comma(repair.column)
    point = "," if decimal_comma else "."
    some = values[which]
    after = pd.Series([write_number(v, scale, start, point) for v in some], index=some.index, dtype=object)
    back = as_numbers(after.str.replace(",", ".") if point == "," else after)[0]
    unit = f" {what.unit}" if what.unit else ""
    numbers = (
        f"{len(some)} of {int(values.notna().sum())} values change: their median goes from {some.median():.4g} to "
    )
    numbers += f"{back.median():.4g}{unit}"
    worse = False
    if isinstance(what, Feature) and what.range:
        out = [int(is_outside(v, what).sum()) for v in (values, values.where(~which, back))]
        numbers += f"; values outside {what.range[0]:g} to {what.range[1]:g}{unit}: {out[0]} before, {out[1]} after"
        may = STRAY * int(values.notna().sum()) if repair.cause.startswith("unit") else 0
        worse = out[1] - out[0] > may
    return ColumnChange(repair, repair.column, cells[which], after, numbers, worse)


def _other_unit(repair: Repair, values: pd.Series, what: Feature | Target) -> pd.Series:
    """The rows that `unit in part` means: those that somebody names, else those out of the agreed range that come into
    it, else those apart from all others; refused where that is not clear."""
    assert repair.factor is not None
    converted = values * repair.factor + (repair.offset or 0.0)
    if repair.below is not None or repair.above is not None:
        which = values.notna()
        which &= values < (math.inf if repair.below is None else repair.below)
        which &= values > (-math.inf if repair.above is None else repair.above)
        if not which.any():
            _refuse(
                [
                    Problem(
                        "--below, --above",
                        f"no value of {repair.column} lies in this range.",
                        "Look at the column again.",
                    )
                ]
            )
        return which
    feature = what if isinstance(what, Feature) else Feature(kind="numeric")
    outside = is_outside(values, feature)
    which = outside & ~is_outside(converted, feature) if outside.any() else separate_cluster(values)
    rest = values[values.notna() & ~which]
    inside = which.any() and len(rest) and rest.min() <= converted[which].median() <= rest.max()
    if not inside:
        text = f"the values do not show which rows of {repair.column} are in the other unit."
        hint = "Give --below X or --above X, from what is known about the file or about who measured."
        raise UnclearError("cannot repair", [Problem("--cause", text, hint)])
    return which


def _turn_at(repair: Repair, values: pd.Series, what: Feature | Target) -> float:
    """offset - value: the offset that is given; else the one that brings the values into the agreed range."""
    if repair.offset is not None:
        return repair.offset
    observed = values.dropna()
    agreed = what.range if isinstance(what, Feature) else None
    if (observed <= 0).all() and (agreed is None or agreed[1] > 0):
        return 0.0  # the sign was lost
    scale = agreed is not None and observed.nunique() <= SCALE and not is_outside(observed, what).any()  # type: ignore[arg-type]
    if agreed is None or not scale or (observed != observed.round()).any():
        text = f"the file does not show about which value {repair.column} is reversed."
        hint = "Give --offset 0 for -value, or --offset 10 for 10 - value."
        raise UnclearError("cannot repair", [Problem("--offset", text, hint)])
    return sum(agreed)


def write_number(value: float, factor: float, offset: float, point: str = ".") -> str:
    """In decimals, so that 1.31 x 10 is 13.1; with a comma so that no thousands can be meant.

    >>> write_number(1.31, 10, 0), write_number(5.9, 38.67, 0, ","), write_number(37, -1, 0)
    ('13.1', '228,1530', '-37')
    """
    number = DIGITS.fma(Decimal(repr(float(value))), Decimal(repr(float(factor))), Decimal(repr(float(offset))))
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    text = "0" if text in ("-0", "") else text
    whole, dot, rest = text.partition(".")
    if point == "," and len(rest) == 3:
        rest += "0"  # 228,153 could be a number of six digits
    return whole + (point if dot else "") + rest


def _emptied(repair: Repair, cells: pd.Series, which: pd.Series) -> ColumnChange:
    if not which.any():
        _refuse([Problem("--code", f"no cell of {repair.column} holds {repair.code}.", "Look at the column again.")])
    some = cells[which]
    numbers = f"{len(some)} of {int(cells.notna().sum())} cells hold {repair.code} and are emptied"
    return ColumnChange(repair, repair.column, some, pd.Series("", index=some.index, dtype=object), numbers)


def _relabel(repair: Repair, cells: pd.Series, what: Feature | Target) -> ColumnChange:
    """Codes by other codes, each in the spelling that the file has for it."""
    values, wrong = as_described(cells, what)
    if wrong.any():
        text = f"expected codes of the study in {name_rows(pick_rows(cells.index, wrong))}, got something else."
        _refuse([Problem(f"column {repair.column}", text, "Correct them first: `vitrail check` names them.")])
    places = {level: i for i, level in enumerate(what.levels)}
    moved = repair.levels or dict(zip(what.levels, reversed(what.levels), strict=True))
    to = {places[canon(a)]: places[canon(b)] for a, b in moved.items() if canon(a) != canon(b)}
    spelt = {i: cells[values == i].mode().iloc[0] if (values == i).any() else level for level, i in places.items()}
    which = values.isin(list(to))
    if not which.any():
        _refuse([Problem("--map", f"no cell of {repair.column} would change.", "Look at the column again.")])
    after = values[which].map(lambda v: spelt[to[int(v)]]).astype(object)
    counts = {what.levels[a]: (int((values == a).sum()), what.levels[b]) for a, b in to.items()}
    numbers = f"{int(which.sum())} of {int(values.notna().sum())} cells change: "
    numbers += ", ".join(f"{n} from {a} to {b}" for a, (n, b) in counts.items() if n)
    targets = [to.get(i, i) for i in range(len(what.levels)) if (values == i).any()]
    if len(set(targets)) < len(targets):
        numbers += "; two codes become one, which cannot be undone"
    relabelling = repair._replace(levels={what.levels[a]: what.levels[b] for a, b in to.items()})
    return ColumnChange(relabelling, repair.column, cells[which], after, numbers)


def _swap(repair: Repair, frame: pd.DataFrame, columns: Mapping[str, Feature | Target]) -> list[ColumnChange]:
    assert repair.other is not None
    names = repair.column, repair.other
    one, two = (frame[n] for n in names)
    which = (one != two) & ~(one.isna() & two.isna())
    if not which.any():
        _refuse([Problem("--other", "the two columns are equal in every row.", "Look at them again.")])
    out = []
    for name, cells, others in ((names[0], one, two), (names[1], two, one)):
        fit = [float((~v[1] & ~is_outside(v[0], w)).mean()) if isinstance(w := columns[name], Feature) else 1.0
               for v in (as_described(cells, columns[name]), as_described(others, columns[name]))]  # fmt: skip
        numbers = f"{int(which.sum())} of {len(frame)} cells are swapped; cells that fit the study's description: "
        numbers += f"{fit[0]:.0%} before, {fit[1]:.0%} after"
        mine = repair if name == repair.column else repair._replace(column=name, other=names[0])
        after = others[which].where(others[which].notna(), "")
        out.append(ColumnChange(mine, name, cells[which], after, numbers, fit[1] < fit[0]))
    return out

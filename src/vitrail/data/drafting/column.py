"""One column's part in a drafted study: what kind it seems to be, or why it had better be left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.column_names import fold, numbers_people
from vitrail.data.drafting.missing_words import ANSWER, UNKNOWN, Events, Word, find_words, is_unknown
from vitrail.data.drafting.numbers import FEW, draft_numbers, find_codes
from vitrail.data.readers.cells import MISSING_WORDS, as_numbers, is_plain
from vitrail.data.schema import canon

UNIQUE = 0.98  # of a site's values that differ from all others: identifiers, if whole numbers
DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}([./-])\d{1,2}\2(\d{4}|\d{2})( .*)?|\d{4}([./])\d{1,2}\4\d{1,2}"
)

Drafted = dict[str, Any] | str  # a feature as a study file would write it, or why there is none


class ColumnDraft(NamedTuple):
    """One column: its feature, or why there is none; what a person should know; how often a word is read as missing,
    and in how many of all rows a number is."""

    feature: Drafted
    notes: list[str] = []  # noqa: RUF012
    absent: Mapping[str, int] = {}
    codes: Mapping[float, tuple[int, int]] = {}


def find_levels(values: pd.Series, answers: Collection[str] = ()) -> list[Any]:
    """Different values, numbers in order, as a person would write them; of spellings that differ by case, accents or
    spaces the most frequent. `answers`: words for "missing" that are a value here."""
    times = Counter(canon(v) for v in values.dropna())
    spelt: dict[str, str] = {}
    for text, _ in times.most_common():
        if text.casefold() not in MISSING_WORDS or text.casefold() in answers:
            spelt.setdefault(fold(text), text)
    texts = sorted(spelt.values(), key=_in_order)
    return [int(t) if re.fullmatch(r"-?[0-9]{1,15}", t) and canon(int(t)) == t else t for t in texts]


def _in_order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def draft_column(name: str, sites: Mapping[str, pd.Series], events: Events | None = None) -> ColumnDraft:
    """From each site's cells of the column. `events`: whether each row has the outcome's positive class."""
    rows, pooled = sum(map(len, sites.values())), pool(list(sites.values()))
    words = find_words(sites, events)
    answers = [w for w in words if w.spelling.casefold() == ANSWER and w.is_asked_about]
    numbers, bad = as_numbers(pooled)
    unknown = {w.spelling: w.rows for w in words if w.spelling.casefold() in UNKNOWN}
    if bad.any() and unknown:
        without_words = pooled.mask(is_unknown(pooled))
        if not as_numbers(without_words)[1].any() and as_numbers(without_words)[0].nunique() > FEW:
            pooled, (numbers, bad) = without_words, as_numbers(without_words)
    if not bad.any() and numbers.nunique() > FEW:
        answers = []  # a word among numbers is no answer
    measured = {site: _measured(cells) for site, cells in sites.items()}
    codes = [] if bad.any() or answers else find_codes(np.concatenate([*measured.values(), np.empty(0)]))
    if codes:
        pooled = pooled.mask(numbers.isin(codes).to_numpy())
    feature = draft_feature(pooled, rows, [ANSWER] * bool(answers))
    if isinstance(feature, str):
        return ColumnDraft(feature)
    absent, notes = {w.spelling: w.rows for w in words if w.spelling.casefold() in MISSING_WORDS}, list[str]()
    if feature["kind"] == "numeric":
        draft = draft_numbers(name, measured)
        if draft.range is None:
            return ColumnDraft("constant")
        feature["range"], codes, notes = list(draft.range), draft.codes, draft.notes
        absent |= unknown
    if missing := [*(int(c) if c == int(c) else c for c in codes), *(unknown if feature["kind"] == "numeric" else ())]:
        feature["missing"] = missing
    for word in words:
        if word.is_asked_about:
            notes.append(_ask_about_word(name, word, feature, bool(answers)))
    absent = {w: n for w, n in absent.items() if not (answers and w.casefold() == ANSWER)}
    every = np.concatenate(list(measured.values()))
    return ColumnDraft(feature, notes, absent, {code: (int((every == code).sum()), rows) for code in codes})


def _ask_about_word(name: str, word: Word, feature: Mapping[str, Any], is_answer: bool) -> str:
    text, spelling = word.describe(name), word.spelling
    if (is_answer and spelling.casefold() == ANSWER) or spelling in feature.get("categories", ()):
        return (
            f"Look at this: {text}. It is drafted as a category of its own. If it means 'not measured', remove "
            f'it from categories and write missing = ["{spelling}"].'
        )
    change = "agree on numbers for it" if feature["kind"] == "numeric" else f'add "{spelling}" to its categories'
    return f"Look at this: {text}. It is read as missing. If it is an answer, {change}."


def _measured(cells: pd.Series) -> np.ndarray:
    """The numbers among the cells; words are none."""
    numbers, bad = as_numbers(cells)
    if bad.any():
        numbers, _ = as_numbers(cells.mask(is_unknown(cells)))
    return numbers.dropna().to_numpy(dtype=np.float64)


def pool(parts: list[pd.Series]) -> pd.Series:
    """All sites' values of one feature; where all are numbers already, each different one once."""
    if all(is_plain(part.dtype) for part in parts):
        different = pd.unique(np.concatenate([part.to_numpy(np.float64) for part in parts]))
        if not (np.abs(different) >= 1e308).any():  # infinite or close to it: judged cell by cell
            return pd.Series(different)
    return concat(parts)


def concat(parts: list[pd.Series]) -> pd.Series:
    return pd.concat([part.astype(object) for part in parts], ignore_index=True)


def draft_feature(values: pd.Series, rows: int, answers: Collection[str] = ()) -> Drafted:
    """Of all sites' values; `rows`: how many there were, where each different one is given once; `answers`: words for
    "missing" that are a value here. The range is the observed one."""
    numbers, bad = as_numbers(values)
    measured = numbers.dropna().to_numpy(dtype=np.float64)
    if bad.any() or answers or len(pd.unique(measured)) <= FEW:  # else there are as many levels or more
        levels = find_levels(values, answers)
        if len(levels) < 2:
            return "constant" if levels else "empty"
        if len(levels) == 2:
            return {"kind": "binary", "categories": levels}
        if bad.any() or answers:
            if sum(bool(DATE.fullmatch(str(v))) for v in levels) > 0.9 * len(levels):
                return "dates: a model needs a number, such as days since admission"
            if len(levels) > max(20, 0.2 * rows):
                return "free text or identifiers"
            return {"kind": "categorical", "categories": levels}
        if len(levels) <= FEW and (measured == np.round(measured)).all():
            return {"kind": "categorical", "categories": levels}
    low, high = float(measured.min()), float(measured.max())
    return {"kind": "numeric", "range": [low, high]} if low < high else "constant"  # "1,0", "1,00" are one number


def is_identifier(name: str, sites: Sequence[pd.Series]) -> bool:
    """Whole numbers, nearly all different at every site, that by their name or by counting on number people."""
    counts_on = True
    for part in sites:
        numbers, bad = as_numbers(part)
        values = numbers.dropna().to_numpy(dtype=np.float64)
        if bad.any() or len(values) < 10 or (values != np.round(values)).any():
            return False
        different = len(np.unique(values))
        if different < UNIQUE * len(values):
            return False
        counts_on &= np.ptp(values) < 1.5 * len(values) and len(values) >= 30
    return bool(sites) and (numbers_people(name) or counts_on)

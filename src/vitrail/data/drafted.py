"""One column's part in a drafted study: what kind it seems to be, or why it had better be left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from vitrail.data.cells import MISSING_WORDS, as_numbers
from vitrail.data.names import comes_afterwards, fold, numbers_people
from vitrail.data.schema import canon

FEW = 6  # whole numbers with at most this many different values are taken for codes, not quantities
UNIQUE = 0.98  # of a site's values that differ from all others: identifiers, if whole numbers
DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}([./-])\d{1,2}\2(\d{4}|\d{2})( .*)?|\d{4}([./])\d{1,2}\4\d{1,2}"
)
ALONE = 0.95  # the AUC of one column from which it is asked whether it is known before the outcome

Drafted = dict[str, Any] | str  # a feature as a study file would write it, or why there is none


def find_levels(values: pd.Series) -> list[Any]:
    """Different values, numbers in order, as a person would write them; of spellings that differ by case, accents or
    spaces the most frequent."""
    times = Counter(canon(v) for v in values.dropna())
    spelt: dict[str, str] = {}
    for text, _ in times.most_common():
        if text.casefold() not in MISSING_WORDS:
            spelt.setdefault(fold(text), text)
    texts = sorted(spelt.values(), key=_in_order)
    return [int(t) if re.fullmatch(r"-?[0-9]{1,15}", t) and canon(int(t)) == t else t for t in texts]


def _in_order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def draft_feature(values: pd.Series, rows: int) -> Drafted:
    """Of all sites' values; `rows`: how many there were, where each different one is given once."""
    numbers, bad = as_numbers(values)
    found = numbers.dropna().to_numpy(dtype=np.float64)
    if bad.any() or len(pd.unique(found)) <= FEW:  # else there are as many levels or more: no need to spell them
        levels = find_levels(values)
        if len(levels) < 2:
            return "constant" if levels else "empty"
        if len(levels) == 2:
            return {"kind": "binary", "categories": levels}
        if bad.any():
            if sum(bool(DATE.fullmatch(str(v))) for v in levels) > 0.9 * len(levels):
                return "dates: a model wants a number, such as days since admission"
            if len(levels) > max(20, 0.2 * rows):
                return "free text or identifiers"
            return {"kind": "categorical", "categories": levels}
        if len(levels) <= FEW and (found == np.round(found)).all():
            return {"kind": "categorical", "categories": levels}
    low, high = float(found.min()), float(found.max())
    return {"kind": "numeric", "range": [low, high]} if low < high else "constant"  # "1,0", "1,00" are one number


def is_identifier(name: str, sites: Sequence[pd.Series]) -> bool:
    """Whole numbers, nearly all different at every site, that by their name or by counting on number people."""
    counts_on = True
    for part in sites:
        numbers, bad = as_numbers(part)
        found = numbers.dropna().to_numpy(dtype=np.float64)
        if bad.any() or len(found) < 10 or (found != np.round(found)).any():
            return False
        different = len(np.unique(found))
        if different < UNIQUE * len(found):
            return False
        counts_on &= np.ptp(found) < 1.5 * len(found) and len(found) >= 30
    return bool(sites) and (numbers_people(name) or counts_on)


def told_by(values: pd.Series, positive: np.ndarray) -> float:
    """How well these numbers alone tell the outcome: AUC, from .5; 0 where that cannot be said."""
    numbers, bad = as_numbers(values)
    there = numbers.notna().to_numpy()
    x, y = numbers.to_numpy(dtype=np.float64)[there], positive[there]
    if bad.any() or not 0 < y.sum() < len(y):
        return 0.0
    ranks = pd.Series(x).rank().to_numpy()
    auc = (ranks[y].sum() - y.sum() * (y.sum() + 1) / 2) / (y.sum() * (~y).sum())
    return float(max(auc, 1 - auc))


def leak_words(name: str, target: str, auc: float) -> tuple[bool, str]:
    """Whether a column should be left out as known only after the outcome, and what to tell; "" where nothing."""
    how = f"by itself it tells {target} with an AUC of {auc:.2f}"
    if comes_afterwards(name) and auc >= 0.6:
        return True, f"{name} may be a time until the outcome, known only afterwards; {how}"
    if auc >= ALONE:
        return False, f"{name} is used; {how}: is it known before the outcome?"
    return False, ""

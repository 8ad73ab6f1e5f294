"""Words for "not measured" in a column: counted, and asked about where they may be an answer.

"None" as the kind of a haemorrhage is an answer. Read as missing it would vanish silently, although those patients may
fare quite differently. A word is asked about where it is frequent or goes with the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.readers.cells import MISSING_WORDS, is_plain

ANSWER = "none"  # the one word for missing that is an answer as well
UNKNOWN = frozenset(
    {"unknown", "unk", "unkn", "not known", "missing", "not available", "not recorded", "not documented", "not done"}
    | {"not measured", "nd", "n.d.", "n.a.", "#n/a", "unbekannt", "k.a.", "inconnu", "sconosciuto", "desconocido"}
)
FREQUENT = 0.05  # of the rows
FEWEST = 10  # rows with a word before it is held against the outcome
SURE = 3.3  # standard errors: a word that has nothing to do with the outcome is asked about once in 1,000 times

Events = Mapping[str, np.ndarray]  # each site's rows: 1 with the event, 0 without it, NaN where the outcome is missing


class Word(NamedTuple):
    """How a column uses one word, over all sites."""

    spelling: str
    rows: int
    share: float  # of all rows
    linked: str  # how it goes with the outcome, in words; empty where it does not

    @property
    def is_asked_about(self) -> bool:
        often = self.spelling.casefold() == ANSWER or self.spelling.casefold() in UNKNOWN
        return bool(self.linked) or (often and self.share >= FREQUENT)

    def describe(self, name: str) -> str:
        return f"{name} is '{self.spelling}' in {self.rows} rows ({self.share:.0%}){self.linked}"


def find_words(sites: Mapping[str, pd.Series], events: Events | None = None) -> list[Word]:
    """The words for "missing" or "unknown" in these cells, the most frequent first."""
    spellings: dict[str, Counter[str]] = {}
    for cells in sites.values():
        if is_plain(cells.dtype):
            continue
        for text, times in Counter(cell.strip() for cell in cells if isinstance(cell, str)).items():
            if text and text.casefold() in MISSING_WORDS | UNKNOWN:
                spellings.setdefault(text.casefold(), Counter())[text] += times
    rows = sum(map(len, sites.values()))
    words = []
    for word, spelt in spellings.items():
        which = {
            s: np.array([isinstance(c, str) and c.strip().casefold() == word for c in v]) for s, v in sites.items()
        }
        linked = describe_link(which, events) if events else ""
        words.append(Word(spelt.most_common(1)[0][0], spelt.total(), spelt.total() / rows, linked))
    return sorted(words, key=lambda word: -word.rows)


def is_unknown(cells: pd.Series) -> np.ndarray:
    """[row]: whether the cell says that nothing is known."""
    return np.array([isinstance(cell, str) and cell.strip().casefold() in UNKNOWN for cell in cells], bool)


def describe_link(which: Mapping[str, np.ndarray], events: Events) -> str:
    """How often these rows have the event and how often the others, where the difference within sites is more than
    chance (Cochran, Mantel and Haenszel); empty where it is not."""
    excess, variance, with_it, without = 0.0, 0.0, list[float](), list[float]()
    for site, marked in which.items():
        has_outcome = ~np.isnan(events[site])
        event, mark = events[site][has_outcome], marked[has_outcome]
        n, m, k = len(event), float(event.sum()), int(mark.sum())
        with_it += event[mark].tolist()
        without += event[~mark].tolist()
        if n > 1:
            excess += float(event[mark].sum()) - k * m / n
            variance += k * (n - k) * m * (n - m) / (n * n * (n - 1))
    if min(len(with_it), len(without)) < FEWEST or variance == 0 or abs(excess) < SURE * variance**0.5:
        return ""
    return f", and {np.mean(with_it):.0%} of them have the event; {np.mean(without):.0%} of the others do"


def count_words(counts: Mapping[str, int]) -> list[str]:
    """One line on the words that a draft reads as missing."""
    if not counts:
        return []
    listed = ", ".join(f"'{word}' in {times} cells" for word, times in sorted(counts.items(), key=lambda c: -c[1]))
    return [f"Read as missing: {listed}."]

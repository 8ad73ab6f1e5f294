"""Columns that tell the outcome too well to have been known before it. Each site is looked at by itself, so that a
fault at one site hides nothing at the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.column_names import comes_afterwards
from vitrail.data.drafting.missing_words import Events
from vitrail.data.readers.cells import as_numbers

ALONE = 0.85  # the AUC of one column from which it is asked whether it is known before the outcome
LATER = 0.6  # the same for a column that by its name is a time until something happened; it is left out
ENOUGH = 20  # rows of each class: by chance a column reaches ALONE at such a site once in 10,000 times
CLEAR = 3.0  # standard errors from .5, for those that are left out
LEVELS = 20  # categories at most


class LeakEvidence(NamedTuple):
    """How well one column alone tells the outcome, and where."""

    auc: float
    where: str
    errors: float  # standard errors from an AUC of .5


class _Ranks(NamedTuple):
    """Pairs of a row with the event and one without: how many there are, in how many the former has more."""

    pairs: float
    above: float
    variance: float  # of `above`, where the column tells nothing

    def evidence(self, where: str) -> LeakEvidence:
        auc = self.above / self.pairs
        return LeakEvidence(max(auc, 1 - auc), where, abs(self.above - self.pairs / 2) / self.variance**0.5)


def strongest(sites: Mapping[str, pd.Series], kind: str, events: Events) -> LeakEvidence:
    """The largest AUC of this column alone: at a site with enough rows of each class, or over all sites' pairs of
    patients of one site."""
    evidence, total, counts = [LeakEvidence(0.0, "", 0.0)], _Ranks(0.0, 0.0, 0.0), np.zeros(2)
    for site, cells in sites.items():
        has_outcome = ~np.isnan(events[site])
        event = events[site][has_outcome] == 1
        ranks, each = _rank(cells[has_outcome], kind, event)
        if ranks is None:
            continue
        total, counts = _Ranks(*np.add(total, ranks).tolist()), counts + each
        if each.min() >= ENOUGH:
            evidence.append(ranks.evidence(f"at {site}"))
    if total.pairs and counts.min() >= ENOUGH:
        evidence.append(total.evidence("within sites" if len(sites) > 1 else "here"))
    return max(evidence, key=lambda one: one.auc)


def _rank(cells: pd.Series, kind: str, event: np.ndarray) -> tuple[_Ranks | None, np.ndarray]:
    if kind == "numeric":
        numbers, _ = as_numbers(cells)
        there = numbers.notna().to_numpy()
        return _pairs(numbers.to_numpy(np.float64)[there], event[there])
    levels = pd.factorize(cells, use_na_sentinel=False)[0]
    if levels.max(initial=0) >= LEVELS:
        return None, np.zeros(2)
    halves, sizes = list[_Ranks](), np.zeros(2)
    for half in (0, 1):  # scores come from the other half of the rows: with its own, any column would tell something
        other, own = np.arange(len(levels)) % 2 != half, np.arange(len(levels)) % 2 == half
        hits = np.bincount(levels[other], event[other], levels.max(initial=0) + 1)
        times = np.bincount(levels[other], minlength=levels.max(initial=0) + 1)
        ranks, counts = _pairs(((hits + 0.5) / (times + 1))[levels[own]], event[own])
        halves, sizes = halves + ([ranks] if ranks else []), sizes + counts
    return (_Ranks(*np.sum(halves, axis=0).tolist()) if halves else None), sizes


def _pairs(values: np.ndarray, event: np.ndarray) -> tuple[_Ranks | None, np.ndarray]:
    ones, zeros = int(event.sum()), int((~event).sum())
    if not ones or not zeros:
        return None, np.array([ones, zeros])
    above = float(pd.Series(values).rank().to_numpy()[event].sum()) - ones * (ones + 1) / 2
    return _Ranks(ones * zeros, above, ones * zeros * (ones + zeros + 1) / 12), np.array([ones, zeros])


def find_leaks(
    sites: Mapping[str, Mapping[str, pd.Series]],
    features: Mapping[str, Mapping[str, Any]],
    target: str,
    classes: Sequence[Events],
) -> tuple[list[str], list[str]]:
    """Columns to leave out, and what to say. `sites`: for each feature each site's cells; `classes`: for each class
    which rows are of it."""
    drop, notes, strong = list[str](), list[str](), list[str]()
    for name, feature in features.items():
        evidence = max((strongest(sites[name], feature["kind"], events) for events in classes), key=lambda t: t.auc)
        how = f"an AUC of {evidence.auc:.2f} {evidence.where}"
        if (
            feature["kind"] == "numeric"
            and comes_afterwards(name)
            and evidence.auc >= LATER
            and evidence.errors >= CLEAR
        ):
            drop.append(name)
            notes.append(
                f"Left out: {name} may be a time until the outcome, known only afterwards; by itself it predicts "
                f"{target} with {how}."
            )
            notes.append(
                f"To predict when it happens, and not only whether: vitrail init ... --target {target} --time {name}."
            )
        elif evidence.auc >= ALONE:
            strong.append(f"{name} ({how})")
    if strong:
        notes.append(
            f"Look at this: {', '.join(strong)} by itself predicts {target} well, and is used. Is it known before the "
            "outcome? If not, remove it."
            if len(strong) == 1
            else f"Look at these, each of which predicts {target} well by itself and is used: {', '.join(strong)}. Is "
            "each known before the outcome? Remove those that are not."
        )
    return drop, notes

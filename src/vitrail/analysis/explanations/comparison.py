"""Values with a guest's columns united, beside those of every column (Explanation.whole): the comparison of Wang
(2019), which a simulation alone can make."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitrail.analysis.explanations.rows import Explanation, WholeSpace
from vitrail.stats.shapley import Floats


class ComparedFeature(NamedTuple):
    """A feature of the host, or all columns of a guest together; of those the values of the columns are summed."""

    feature: str
    united: float  # mean size
    whole: float
    largest: float  # difference in a row
    hidden: tuple[tuple[str, float], ...] = ()  # of a guest: its columns and their mean sizes, the largest first


class WholeComparison(NamedTuple):
    features: list[ComparedFeature]  # as united values have them
    correlation: float  # of the host's features over all rows; nan where there is nothing to compare
    same_first: float  # share of the rows in which the same feature of the host counts most


def compare_whole(united: Explanation, whole: WholeSpace) -> WholeComparison:
    own, of_all = len(united.feature_names) - len(united.united), whole.explanation
    owners, sizes = np.array(whole.owners), np.abs(of_all.values).mean(0)
    features = [
        _compared(n, united.values[:, i], of_all.values[:, i]) for i, n in enumerate(united.feature_names[:own])
    ]
    for i, guest in enumerate(united.united, own):
        at = np.flatnonzero(owners == guest)
        hidden = tuple((of_all.feature_names[j], float(sizes[j])) for j in at[np.argsort(-sizes[at], kind="stable")])
        compared = _compared(guest, united.values[:, i], of_all.values[:, at].sum(1))
        features.append(compared._replace(hidden=hidden))
    one, other = united.values[:, :own], of_all.values[:, :own]
    varied = one.size > 1 and one.std() > 0 and other.std() > 0
    correlation = float(np.corrcoef(one.ravel(), other.ravel())[0, 1]) if varied else float("nan")
    same = float((np.abs(one).argmax(1) == np.abs(other).argmax(1)).mean()) if own else float("nan")
    return WholeComparison(features, correlation, same)


def _compared(feature: str, united: Floats, whole: Floats) -> ComparedFeature:
    means = float(np.abs(united).mean()), float(np.abs(whole).mean())
    return ComparedFeature(feature, *means, float(np.abs(united - whole).max()))

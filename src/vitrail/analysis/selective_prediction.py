"""What a model's doubt is worth: how often it is right in the cases of which it is surest, site by site and together.

Any two numbers that a site tells stand on sets of rows that differ by FEWEST at least (metrics/scores.py): their
difference would tell the outcomes of those between them. A tenth is so many only at a site with a hundred rows; where
most have fewer, it is a fifth or two fifths that go to a person (`kept_share`).

If the least sure tenth of the cases goes to a person, the model answers the rest: its accuracy there, against that over
all. Of m rows handed over and k kept, the gain is m / (m + k) times the accuracy of those kept less that of those
handed over. Which rows these are hangs on doubt alone, not on the answer, so that the two groups are independent; the
interval of their difference is Newcombe's (1998, method 10). It says how far the rows at hand could mislead, not what
another training would give.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd

from vitrail.metrics.scores import SUREST, surest, surest_shares

HANDED = {90: "tenth", 80: "fifth", 60: "two fifths"}  # per cent of the rows that are kept: what is handed over
Z95 = 1.959964


class HandoverGain(NamedTuple):
    """What handing the least sure cases to a person does to the accuracy of what the model answers itself."""

    rows: int
    kept: int
    before: float  # accuracy on all rows
    after: float  # on those kept
    low: float  # 95 % interval of after - before
    high: float

    @property
    def value(self) -> float:
        return round(self.after - self.before, 12)  # nothing is nothing, however it was added up


def uncertainty(scores: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    """See Run.uncertainty. `scores`: site, metric, value of the split that tells it."""
    wide = scores.pivot(index="site", columns="metric", values="value").reset_index()
    table = sizes.rename(columns={"test_rows": "rows"}).merge(wide, on="site")
    table = table.rename(columns={"accuracy@100": "accuracy"})
    curves = coverage(scores, sizes)
    answered = curves[curves["share"] == kept_share(curves)].set_index("site")
    table["kept"] = table["site"].map(answered["rows"])
    table["accuracy_kept"] = table["site"].map(answered["accuracy"])
    return table[["site", "rows", "doubt", "auroc", "accuracy", "kept", "accuracy_kept"]]


def coverage(scores: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    """See Run.coverage."""
    table = sizes.merge(scores[scores.metric.str.startswith("accuracy@")], on="site")
    share = table["metric"].str.removeprefix("accuracy@").astype(int)
    rows = [surest(n, s) for n, s in zip(table["test_rows"], share, strict=True)]
    accuracy = [  # earlier runs told more
        value if s in surest_shares(n) else math.nan
        for n, s, value in zip(table["test_rows"], share, table["value"], strict=True)
    ]
    curves = pd.DataFrame({"site": table["site"], "share": share, "rows": rows, "accuracy": accuracy})
    if "test_persons" in table:  # rows of one person say less than as many of others: intervals count persons
        curves["persons"] = curves["rows"] * table["test_persons"] / table["test_rows"]
    return curves


def kept_share(curves: pd.DataFrame) -> int:
    """Per cent of the rows that are left where the least sure go to a person: the most of which half of the sites tell
    a number, of those that tell of any part. Where none does, those without a tenth."""
    parts = curves[curves["accuracy"].notna() & (curves["share"] < 100)]
    enough = parts["site"].nunique() / 2
    return max((share for share in SUREST if 0 < enough <= (parts["share"] == share).sum()), default=max(HANDED))


def together(curves: pd.DataFrame) -> pd.DataFrame:
    """share, rows, accuracy, low, high: over the rows of all sites of which there is a number of `kept_share`. It goes
    as far as each of them has a number: else another share would be about other sites."""
    points = curves.dropna(subset="accuracy")
    sites = set(points[points["share"] == kept_share(curves)]["site"])
    rows = []
    for share in reversed(SUREST):
        part = points[(points["share"] == share) & points["site"].isin(sites)]
        if sites and len(part) == len(sites):
            n = int(part["rows"].sum())
            p = float((part["rows"] * part["accuracy"]).sum()) / n
            many = float(part["persons"].sum()) if "persons" in part else n
            rows.append((share, n, p, *wilson(p, many), many))
    columns = ["share", "rows", "accuracy", "low", "high", "persons"]
    out = pd.DataFrame(rows, columns=columns)
    return out if "persons" in curves else out[columns[:-1]]


def gain(curve: pd.DataFrame, share: int) -> HandoverGain | None:
    """Of one curve (share, rows, accuracy), where this share is kept."""
    points = curve.dropna(subset="accuracy")
    by_share = {
        s: (int(n), float(p)) for s, n, p in zip(points["share"], points["rows"], points["accuracy"], strict=True)
    }
    if share not in by_share:
        return None
    (n, before), (k, after) = by_share[100], by_share[share]
    m = n - k
    handed_over = min(max((n * before - k * after) / m, 0.0), 1.0)  # accuracy of those handed over
    few = 1.0 if "persons" not in points else float(points["persons"].iloc[0] / points["rows"].iloc[0])
    low, high = newcombe(after, k * few, handed_over, m * few)
    return HandoverGain(n, k, before, after, m / n * low, m / n * high)


def newcombe(p: float, n: float, q: float, m: float) -> tuple[float, float]:
    """The 95 % interval of p - q, shares of n and of m.

    >>> [round(end, 4) for end in newcombe(56 / 70, 70, 48 / 80, 80)]
    [0.0524, 0.3339]
    """
    (low_p, high_p), (low_q, high_q) = wilson(p, n), wilson(q, m)
    return p - q - math.hypot(p - low_p, high_q - q), p - q + math.hypot(high_p - p, q - low_q)


def wilson(p: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share p of n (Wilson 1927).

    >>> [round(end, 3) for end in wilson(0.5, 10)]
    [0.237, 0.763]
    """
    z = Z95 * Z95 / n
    half = Z95 * math.sqrt(p * (1 - p) / n + z / (4 * n))
    return (p + z / 2 - half) / (1 + z), (p + z / 2 + half) / (1 + z)

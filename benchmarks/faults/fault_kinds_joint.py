"""Kinds of faults that show only in how columns go together: named by who used the second form, known to the third's
author. A column's own counts stay as they are, or nearly so.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from fault_kinds import LABELS, Kind, Planted, Site
from fault_kinds_fresh import pick_group


def sort_alone(s: Site) -> Planted:
    """One column of a spreadsheet was sorted, the others were not."""
    return s.put(np.sort(s.value.to_numpy(float)))


def strongest(s: Site) -> pd.Series:
    """The column that tells most of the outcome."""
    ties = {n: abs(np.nan_to_num(s.rows[n].corr(s.y))) for n in s.table.features}
    v = s.rows[max(ties, key=ties.__getitem__)]
    return v.fillna(v.mean())


def grade_on_a_curve(s: Site) -> Planted:
    """The outcome relative to patients alike: the same share in each quarter by the column that tells most."""
    quarter = np.ceil(4 * strongest(s).rank(pct=True, method="first")).to_numpy()
    tied = s.y + s.rng.uniform(-0.4, 0.4, len(s.rows)) if s.table.target.kind == "classes" else s.y
    rank = tied.groupby(quarter).rank(pct=True, method="first")
    return s.put(np.sort(s.y.to_numpy())[np.ceil(rank * len(rank)).astype(int).clip(1) - 1])


def keep_survivors(s: Site) -> Planted | None:
    """Those whom the column spoke against and who had the rarer outcome never reached the table."""
    rare = s.y > s.y.median() if s.table.target.kind == "number" else s.y == s.y.value_counts().index[-1]
    high = s.value > s.value.median() if s.value.nunique() > 2 else s.value == s.value.max()
    gone = (rare & (high if s.value.corr(s.y) > 0 else ~high) & s.some(0.9)).to_numpy()
    rows = s.rows[~gone].reset_index(drop=True)
    return (rows, [s.column, s.table.target.column]) if len(rows) >= 30 and gone.mean() > 0.05 else None


def paste_block(s: Site) -> Planted:
    """A block of cells was copied over another one: a third to half of the rows hold the values of others."""
    n = len(s.rows)
    size = int(n * s.rng.uniform(0.33, 0.5))
    start = int(s.rng.integers(0, n - 2 * size + 1))
    v = s.value.to_numpy().copy()
    v[start + size : start + 2 * size] = v[start : start + size]
    return s.put(v)


def repeat_rows(s: Site) -> Planted | None:
    """A join repeats whole rows: one group of patients is there four times over."""
    group = pick_group(s)
    if group is None:
        return None
    times = np.where(group & s.some(0.5), 4, 1)
    rows = s.rows.loc[s.rows.index.repeat(times)].reset_index(drop=True)
    return rows.sample(frac=1.0, random_state=int(s.rng.integers(2**31))).reset_index(drop=True), list(s.rows)


def mismatch(s: Site) -> Planted:
    """A join by a key that is not one: half of the values are another patient's."""
    v, bad = s.value.to_numpy().copy(), s.some(s.rng.uniform(0.4, 0.6))
    v[bad] = s.rng.permutation(v[bad])
    return s.put(v)


def mismatch_several(s: Site) -> Planted:
    """A second table was joined wrongly: up to three columns belong to other patients in most rows."""
    others = [str(c) for c in s.rng.permutation(s.alike())[:2]]
    rows, bad = s.rows.copy(), s.some(0.7)
    order = s.rng.permutation(np.flatnonzero(bad))
    for c in [s.column, *others]:
        v = rows[c].to_numpy().copy()
        v[bad] = v[order]
        rows[c] = v
    return rows, [s.column, *others]


FEATURES = "numeric,binary,categorical"
JOINT: dict[str, Kind] = {
    "sorted alone": Kind("numeric", sort_alone, ("shuffled",)),
    "relative outcome": Kind(LABELS, grade_on_a_curve, ("label noise",)),
    "survivors only": Kind(FEATURES, keep_survivors),
    "pasted block": Kind(FEATURES, paste_block, ("shuffled",)),
    "duplicated rows": Kind(FEATURES, repeat_rows),
    "merge error": Kind(FEATURES, mismatch, ("shuffled",)),
    "merge error of several": Kind(FEATURES, mismatch_several, ("shuffled",)),
    "outcomes merged": Kind(LABELS, mismatch, ("label noise",)),
}
# also known to leave a column's own counts as they are, or nearly so
ONLY_RELATIONS = (*JOINT, "shuffle", "label noise", "slipped a line", "outcome slipped a line")

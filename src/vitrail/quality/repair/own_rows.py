"""A finding of the screening in a site's own rows: its cause with the rows behind it, and a repair that they bear out.

The screening's cause comes first. What the file itself shows, or the shared model with private layers, is added where
it says the same (then in one), or something that can be true besides; never a second reading of the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from vitrail.core.errors import VitrailError
from vitrail.data.readers.cells import as_described
from vitrail.data.readers.tables import pick_rows, take_columns
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.data.units import spot_unit
from vitrail.quality.causes import Cause
from vitrail.quality.repair.plan import UnclearError, plan
from vitrail.quality.repair.remedies import ASKS, Repair, repair_of
from vitrail.quality.screening.result import CAUSES, LABEL, Finding

# what a file shows (quality/causes) -> the screening's causes that say the same
SAME = {
    "swapped_label": ("label flip",),
    "swapped_columns": ("swapped",),
    "disguised_missing": ("code",),
    "filled_in": ("code",),
    "unit_mixup": ("unit", "unit in part"),
    "recoded": ("recoded", "sign"),
    "clipped": ("clipped",),
    "constant_column": ("constant",),
    "much_missing": ("not here",),
}
BESIDES = ("disguised_missing", "missing_by_class", "much_missing", "clipped")  # true of a column whatever else is
OPEN = ("other", "differs")  # name no cause: what the file shows comes first


def join_causes(finding: Finding, shown: Sequence[Cause], frame: pd.DataFrame, table: TableSchema) -> tuple[Cause, ...]:
    """One list: the finding's own cause, and of what the file shows that which goes with it."""
    if finding.kind in OPEN:
        return tuple(shown)
    own, _ = own_cause(finding, frame, table)
    alike = [c for c in shown if finding.kind in SAME.get(c.kind, ())]
    for cause in alike[:1]:
        if own.command:
            own = own._replace(numbers=f"{own.numbers}; {cause.numbers}")
        else:  # the finding's numbers do not fit this file, its own do
            own = cause._replace(kind=own.kind, what=own.what)
    return own, *(c for c in shown if c.kind in BESIDES and c not in alike)


def own_cause(finding: Finding, frame: pd.DataFrame, table: TableSchema) -> tuple[Cause, Repair | None]:
    """Its cause with the site's own numbers; and the repair, where they bear it out."""
    table = table.plain
    name = table.target.column if finding.feature == LABEL else finding.feature
    what: Feature | Target = table.target if finding.feature == LABEL else table.features[name]
    blank, cells = Cause(finding.kind, CAUSES[finding.kind], "", ASKS[finding.kind]), take_columns(frame)[0]
    values = as_described(cells[name], what)[0] if name in cells else pd.Series(dtype=float)
    doubts, repairs = "", _repairs(finding, values, table)
    for repair in repairs:
        try:
            change, *more = plan([repair], pd.DataFrame(cells).reset_index(drop=True), table)[0]
        except UnclearError as error:
            (unclear,) = error.problems
            words = f"{ASKS[finding.kind]} {unclear.what[:1].upper()}{unclear.what[1:]} {unclear.hint}"
            blank = blank._replace(repair=words)
            continue
        except VitrailError as error:
            doubts = doubts or f"this file does not show it: {error.problems[0].what.rstrip('.')}"
            continue
        if change.worse or any(c.worse for c in more):
            doubts = (
                doubts or f"this file does not show it: after the repair the column would fit worse ({change.numbers})"
            )
            continue
        at = np.zeros(len(frame), bool)
        at[change.after.index] = True
        words = f"{ASKS[finding.kind]} If that confirms it, the repair is: {change.repair.words()}."
        cause = blank._replace(numbers=change.numbers, repair=words, command=change.repair.flags())
        return cause._replace(rows=tuple(pick_rows(frame.index, at)[:5]), count=int(at.sum())), change.repair
    return blank._replace(numbers=doubts or _describe(finding, values, what)), None


def _repairs(finding: Finding, values: pd.Series, table: TableSchema) -> list[Repair]:
    """What may be tried, the likeliest first."""
    published = repair_of(finding, table)
    if finding.kind != "unit in part" or finding.feature == LABEL:
        return [published] if published else []
    # quantiles tell a factor only roughly; the rows that are apart tell which conversion it is
    spotted = spot_unit(values, finding.feature, table.features[finding.feature])
    estimated = (
        [Repair(finding.feature, finding.kind, c.factor, c.offset or None) for c in [spotted[0]]] if spotted else []
    )
    back = (
        [published._replace(factor=1 / published.factor, offset=None)]
        if published and published.factor and not published.offset
        else []
    )
    return [*estimated, *([published] if published else []), *back]


def _describe(finding: Finding, values: pd.Series, what: Feature | Target) -> str:
    """The site's own numbers where there is no repair."""
    observed = values.dropna()
    if finding.kind == "label noise" and "share" in finding.numbers:
        wrong = f"about {finding.numbers['share']:.0%} of {len(observed)} outcomes are wrong"
        return f"judged by the other sites' rows, {wrong}"
    if finding.kind in ("only here", "not here") or not len(observed):
        return f"{len(observed)} of {len(values)} rows have a value"
    counts = observed.value_counts()
    top, times = counts.index[0], int(counts.iloc[0])
    if what.levels:
        return f"{times} of {len(observed)} values are {what.levels[int(top)]}"
    if finding.kind == "constant":
        return f"{times} of {len(observed)} values are {top:g}"
    if finding.kind == "clipped":
        ends = [(int((observed == end).sum()), end) for end in (observed.min(), observed.max())]
        return "{} values are {:g} (the smallest), and {} are {:g} (the largest)".format(*ends[0], *ends[1])
    if finding.kind == "rounded":
        return f"{len(observed)} values, of which {len(counts)} are different; the smallest step is {_step(counts):g}"
    low, middle, high = observed.quantile([0.05, 0.5, 0.95])
    ninety = f"nine in ten lie between {low:.4g} and {high:.4g}"
    return f"the median of {len(observed)} values is {middle:.4g}, and {ninety}"


def _step(counts: pd.Series) -> float:
    return float(np.diff(np.sort(counts.index.to_numpy(float))).min()) if len(counts) > 1 else 0.0

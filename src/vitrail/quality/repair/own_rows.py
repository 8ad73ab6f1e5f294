"""A finding of the screening in a site's own rows: its cause with the rows behind it, and a repair that they bear out.

The screening's cause comes first. What the file itself shows, or the shared model with private layers, is added where
it says the same (then in one), or something that can be true besides; never a second reading of the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import VitrailError
from vitrail.data.readers.cells import as_described
from vitrail.data.readers.tables import pick_rows, take_columns
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.data.units import SLIPS, known_pairs, spot_unit
from vitrail.quality.causes import Cause
from vitrail.quality.repair.closeness import Closeness, compare, is_published
from vitrail.quality.repair.plan import ColumnChange, UnclearError, plan
from vitrail.quality.repair.remedies import ASKS, Repair, repair_of
from vitrail.quality.screening.result import CAUSES, LABEL, Finding

# causes that say nearly the same of a column
ALIKE = ({"unit", "unit in part"}, {"recoded", "sign"}, {"mostly missing", "not here"})
BESIDES = ("code", "missing by class", "mostly missing", "clipped")  # true of a column whatever else is
CLEARLY = 0.25  # widths by which one conversion must come closer than another
SAME_FACTOR = 0.02
UNCLEAR = "Which factor these rows need is not clear from the file: two come as close."
OPEN = ("other", "differs")  # name no cause: what the file shows comes first


def join_causes(
    finding: Finding,
    shown: Sequence[Cause],
    frame: pd.DataFrame,
    table: TableSchema,
    pooled: Mapping[str, Any] | None = None,
) -> tuple[Cause, ...]:
    """One list: the finding's own cause, and of what the file shows that which goes with it."""
    if finding.kind in OPEN:
        return tuple(shown)
    own, _ = own_cause(finding, frame, table, pooled)
    alike = [c for c in shown if c.kind == finding.kind or any({c.kind, finding.kind} <= of for of in ALIKE)]
    for cause in alike[:1]:
        if own.command:
            own = own._replace(numbers=f"{own.numbers}; {cause.numbers}")
        else:  # the finding's numbers do not fit this file, its own do
            own = cause._replace(kind=own.kind, what=own.what)
    return own, *(c for c in shown if c.kind in BESIDES and c not in alike)


def own_cause(
    finding: Finding, frame: pd.DataFrame, table: TableSchema, pooled: Mapping[str, Any] | None = None
) -> tuple[Cause, Repair | None]:
    """Its cause with the site's own numbers; and the repair, where they bear it out and it brings them closer to what
    all sites published."""
    name = table.plain.target.column if finding.feature == LABEL else finding.feature
    what: Feature | Target = table.plain.target if finding.feature == LABEL else table.plain.features[name]
    blank, cells = Cause(finding.kind, CAUSES[finding.kind], "", ASKS[finding.kind]), take_columns(frame)[0]
    values = as_described(cells[name], what)[0] if name in cells else pd.Series(dtype=float)
    tried = [_try(finding, repair, frame, cells, table, pooled) for repair in _repairs(finding, values, table)]
    good = [t for t in tried if t.change is not None]
    if finding.kind == "unit in part" and pooled:
        good = _clearest(good)
        if not good and any(t.change for t in tried):
            blank = blank._replace(repair=f"{blank.repair} {UNCLEAR}")
    if not good:
        unclear = [t.doubt for t in tried if t.unclear]
        blank = blank._replace(repair=f"{blank.repair} {unclear[-1]}") if unclear else blank
        doubts = [t.doubt for t in tried if t.doubt and not t.unclear]
        return blank._replace(numbers=doubts[0] if doubts else _describe(finding, values, what)), None
    change, closeness = good[0].change, good[0].closeness
    assert change is not None
    at = np.zeros(len(frame), bool)
    at[change.after.index] = True
    words = f"{ASKS[finding.kind]} If that confirms it, the repair is: {change.repair.words()}."
    numbers = "; ".join([change.numbers, *([closeness.words] if closeness and closeness.words else [])])
    cause = blank._replace(numbers=numbers, repair=words, command=change.repair.flags())
    return cause._replace(rows=tuple(pick_rows(frame.index, at)[:5]), count=int(at.sum())), change.repair


class TriedRepair(NamedTuple):
    """What a repair would do; or why it is not proposed."""

    change: ColumnChange | None = None
    closeness: Closeness | None = None
    doubt: str = ""
    unclear: bool = False  # somebody must say one more number


def _try(
    finding: Finding,
    repair: Repair,
    frame: pd.DataFrame,
    cells: Mapping[str, pd.Series],
    table: TableSchema,
    pooled: Mapping[str, Any] | None,
) -> TriedRepair:
    before = pd.DataFrame(cells).reset_index(drop=True)
    try:
        changes, after = plan([repair], before, table)
    except UnclearError as error:
        (unclear,) = error.problems
        return TriedRepair(doubt=f"{unclear.what[:1].upper()}{unclear.what[1:]} {unclear.hint}", unclear=True)
    except VitrailError as error:
        return TriedRepair(doubt=f"this file does not show it: {error.problems[0].what.rstrip('.')}")
    change = changes[0]
    if any(c.worse for c in changes):
        doubt = f"this file does not show it: after the repair the column would fit worse ({change.numbers})"
        return TriedRepair(doubt=doubt)
    if not pooled or not is_published([c.column for c in changes], table, pooled):
        return TriedRepair(change)
    closeness = compare([c.column for c in changes], before, after, table, pooled)
    if closeness is None:
        return TriedRepair(
            doubt="no repair is proposed: the file has other errors, so nothing can be compared; see check"
        )
    if not closeness.closer(repair.cause):
        shown = f" ({closeness.words})" if closeness.words else ""
        doubt = f"no repair is proposed: “{repair.words()}” would not bring the column closer to the other sites{shown}"
        return TriedRepair(doubt=doubt)
    return TriedRepair(change, closeness)


def _clearest(tried: list[TriedRepair]) -> list[TriedRepair]:
    """The conversion after which the column is closest to the others'; none where another one comes as close."""
    left = sorted(tried, key=lambda t: t.closeness.after.counts if t.closeness else np.inf)
    best = left[0].closeness.after.counts if left and left[0].closeness else np.inf
    rivals = [
        t for t in left[1:] if t.closeness and t.change and t.closeness.after.counts < best + CLEARLY
        and not np.isclose(t.change.repair.factor or 1.0, left[0].change.repair.factor or 1.0, rtol=SAME_FACTOR)  # type: ignore[union-attr]
    ]  # fmt: skip
    return left[:1] if left and not rivals else []


def _repairs(finding: Finding, values: pd.Series, table: TableSchema) -> list[Repair]:
    """What may be tried, the likeliest first."""
    published = repair_of(finding, table)
    if finding.kind != "unit in part" or finding.feature == LABEL:
        return [published] if published else []
    # quantiles tell a factor only roughly: the rows that are apart, and known pairs of units, tell which it may be
    feature = table.plain.features[finding.feature]
    spotted = spot_unit(values, finding.feature, feature)
    own, generic = known_pairs(finding.feature, feature)
    some = [*([spotted[0]] if spotted else []), *own, *SLIPS, *generic]
    different: dict[tuple[float, float], Repair] = {}
    for c in some:
        different.setdefault((round(c.factor, 6), round(c.offset, 6)),
                             Repair(finding.feature, finding.kind, c.factor, c.offset or None))  # fmt: skip
    return [*different.values()]


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

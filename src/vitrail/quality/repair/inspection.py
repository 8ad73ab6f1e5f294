"""Phase C, at the site alone: its own rows behind each finding. Nothing of it leaves.

For each finding about this site: its own values by class, in their own unit; the likely cause with the rows behind it,
and a repair to try (own_rows.py, quality/causes.py); where a method learns private layers, what the shared model takes
them for (effective_values.py). `inspect_site` works the facts out once; runs/site/inspection_text.py and
report/pages/site show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.encoding import Encoder, columns
from vitrail.data.outcomes import as_plain
from vitrail.data.readers.tables import clean
from vitrail.data.schema import Feature, TableSchema
from vitrail.metrics.holdout_summary import HoldOutSummary
from vitrail.quality.causes import Cause, Expects, find_causes
from vitrail.quality.repair.command import COMMAND
from vitrail.quality.repair.effective_values import InputLayers, read_levels, read_number
from vitrail.quality.repair.own_rows import join_causes
from vitrail.quality.repair.remedies import ASKS
from vitrail.quality.screening.result import CAUSES, LABEL, Finding
from vitrail.quality.screening.text import known_words

if TYPE_CHECKING:
    from vitrail.study.model import Study

BINS = 40  # at most
CLASSES = 6  # so many are drawn, the largest
NO_MARK = "No finding concerns this site: its data fits as well as chance allows."
MAY_BE_REAL = "Nothing at this site is likely wrong; its differences from the other sites may be real."
FILE_SHOWS = (
    "Compared with the other sites, nothing here is likely wrong: what differs may be real. The file by itself shows "
    "something to look at."
)
NOT_ASKED = "The run did not compare this site's data with the other sites': this is only what the file itself shows."
NOTHING = "nothing that explains the finding"


class ClassRows(NamedTuple):
    """The rows of one class."""

    name: str
    rows: int
    missing: int
    counts: tuple[int, ...]  # in each bin, or of each level
    taken: tuple[int, ...]  # in each bin, as the shared model takes them; empty where there is no such picture


class ColumnView(NamedTuple):
    """One column, or the label, before the site's own eyes."""

    name: str
    kind: str  # numeric, binary, categorical, label
    about: str  # the study's description
    unit: str
    trouble: str = ""  # the finding's cause in words; empty where somebody only asked
    wrong: bool = False  # likely wrong; else it differs, and may be real
    brief: bool = False  # it may be real, nothing in the file speaks against that, and nobody asked: told in short
    answer: str = ""  # who answered the finding, and what; empty where nobody did
    said: str = ""  # the finding's text
    edges: tuple[float, ...] = ()  # of the bins, when numeric
    levels: tuple[str, ...] = ()
    groups: tuple[ClassRows, ...] = ()
    undrawn: int = 0  # classes that are not among the groups
    beyond: int = 0  # rows that the shared model takes for something outside the picture
    agreed: tuple[float, float] | None = None  # the study's range
    pooled: tuple[float, float] | None = None  # mean and SD over all sites, where the study standardises so
    reading: str = ""  # what the shared model makes of it, in words
    read_as: tuple[tuple[float, float], ...] = ()  # for each level: what it counts as where it is, and where it is not
    causes: tuple[Cause, ...] = ()
    ask: str = ""  # what to ask where the file shows no cause; empty without a finding

    def rank(self, i: int) -> str:
        """How the i-th cause is introduced."""
        if self.trouble and not self.wrong and self.causes:  # one answer: what differs may be real
            return "Also seen in the file"
        return "Also seen" if i else "Most likely" if self.trouble and self.causes else "Seen in the file"

    @property
    def verdict(self) -> str:
        """The first cause in words."""
        return self.causes[0].what if self.causes else NOTHING if self.trouble else "nothing that stands out"

    @property
    def judged(self) -> str:
        """How sure the federation is."""
        if not self.trouble:
            return ""
        return "likely wrong" if self.wrong else self.answer or "differs, and may be real"


class HeldOutView(NamedTuple):
    """How the site's model does on its own hold-out rows."""

    study: Study
    summary: HoldOutSummary


class SiteInspection(NamedTuple):
    """All that a site sees of itself."""

    site: str
    study: str
    target: str
    rows: int
    same: bool  # these rows are those that the run saw
    views: tuple[ColumnView, ...]
    columns: tuple[str, ...]  # what could be looked at
    command: str = COMMAND  # before a cause's own flags
    judged: bool = True  # whether the site was compared with the others at all
    together: str = ""  # the command of all repairs at once, where there are several
    performance: HeldOutView | None = None  # of the rows that the run saw

    @property
    def repairs(self) -> int:
        """How many of the likely wrong columns have a repair."""
        return sum(v.wrong and bool(v.causes and v.causes[0].command) for v in self.views)

    @property
    def lead(self) -> str:
        if any(v.wrong for v in self.views):
            return f"What may explain the findings about this site, from its own {self.rows} rows."
        if not self.judged:
            return NOT_ASKED
        if any(v.trouble and any(c.command for c in v.causes) for v in self.views):
            return FILE_SHOWS
        return MAY_BE_REAL if any(v.trouble for v in self.views) else NO_MARK


def inspect_site(
    site: str,
    frame: pd.DataFrame,
    table: TableSchema,
    encoder: Encoder,
    findings: Sequence[Finding] = (),
    asked: Sequence[str] = (),
    *,
    ends: InputLayers | None = None,
    expects: Expects | None = None,
    same: bool = True,
    study: str = "",
    private: bool = True,
    judged: bool = True,
    pooled: Mapping[str, Any] | None = None,
) -> SiteInspection:
    """`findings` are those about this site; `asked` names further columns, or the target. `private`: the method learns
    layers of the site's own, whether or not the others published theirs. `judged`: it was compared with them.
    `pooled`: what all sites published, which a repair must come closer to."""
    # labels may repeat, positions do not
    rows, table, own = as_plain(clean(frame, table), table).reset_index(drop=True), table.plain, table
    wanted = {f.feature: f for f in reversed(findings)}  # of several about one column the first
    wanted = {f.feature: wanted[f.feature] for f in findings}
    also = [LABEL if a in (LABEL, table.target.column) else a for a in asked]
    names = dict.fromkeys([*(n for n, f in wanted.items() if f.wrong), *also, *wanted])
    kinds = {name: wanted[name].kind if name in wanted else "" for name in names}
    causes = find_causes(frame, rows, table, encoder, expects, kinds)
    views = []
    for name in names:
        layers = ends if name in own.features else None  # how long a row was followed goes through none
        view = _label_view(rows, table) if name == LABEL else _view(rows, table, encoder, name, layers)
        view = view._replace(causes=causes[name], reading=view.reading if private else "")
        if finding := wanted.get(name):
            view = view._replace(
                trouble=CAUSES[finding.kind],
                wrong=finding.wrong,
                said=finding.text,
                # what somebody answered needs no repair
                causes=() if finding.known else join_causes(finding, causes[name], frame, table, pooled),
                answer=known_words(finding),
                ask=ASKS[finding.kind],
            )
            shown = finding.known or finding.wrong or name in also or any(c.command for c in view.causes)
            view = view._replace(brief=not shown)
        views.append(view)
    views.sort(key=lambda view: view.brief)  # stable
    offered = (*table.features, table.target.column)
    return SiteInspection(site, study, table.target.column, len(rows), same, tuple(views), offered, judged=judged)


def _view(rows: pd.DataFrame, table: TableSchema, encoder: Encoder, name: str, ends: InputLayers | None) -> ColumnView:
    feature = table.features[name]
    at = [i for i, c in enumerate(columns(table)) if c == name or (feature.levels and c.startswith(f"{name}="))]
    about = ColumnView(name, feature.kind, feature.description, feature.unit, agreed=feature.range)
    groups, undrawn = _by_class(rows, table)
    if feature.kind != "numeric":
        counted = tuple(
            ClassRows(n, len(part), int(part[name].isna().sum()), _count_levels(part[name], feature), ())
            for n, part in groups
        )
        reading, read_as = read_levels(feature, at, ends)
        return about._replace(
            levels=feature.levels, groups=counted, undrawn=undrawn, reading=reading, read_as=read_as, agreed=None
        )
    mean, sd = encoder.mean.get(name, 0.0), encoder.sd.get(name, 1.0)
    values = rows[name]
    reading, factor, start = read_number(feature, at[0], ends, mean, sd, values)
    taken = values * math.nan if factor is None else factor * values + start
    edges = _edges(values, taken, feature.range)
    binned = []
    for n, part in groups:
        own = taken.loc[part.index] if factor is not None else None
        missing = int(part[name].isna().sum())
        binned.append(
            ClassRows(n, len(part), missing, _bin(part[name], edges), () if own is None else _bin(own, edges))
        )
    outside = int(((taken < edges[0]) | (taken > edges[-1])).sum()) if edges else 0
    pooled = (mean, sd) if table.standardise == "global" else None
    return about._replace(
        edges=edges, groups=tuple(binned), undrawn=undrawn, beyond=outside, reading=reading, pooled=pooled
    )


def _label_view(rows: pd.DataFrame, table: TableSchema) -> ColumnView:
    target = table.target
    blank = ColumnView(LABEL, "label", f"the outcome, {target.column}", target.unit)
    values = rows[target.column]
    if target.kind == "number":
        edges = _edges(values, values * math.nan, None)
        return blank._replace(edges=edges, groups=(ClassRows("all rows", len(values), 0, _bin(values, edges), ()),))
    counts = tuple(int((values == k).sum()) for k in range(len(target.levels)))
    return blank._replace(levels=target.levels, groups=(ClassRows("all rows", len(values), 0, counts, ()),))


def _by_class(rows: pd.DataFrame, table: TableSchema) -> tuple[list[tuple[str, pd.DataFrame]], int]:
    """The largest classes, in the study's order, and how many are left out."""
    target = table.target
    if target.kind == "number":
        return [("all rows", rows)], 0
    parts = [(f"{target.column} = {n}", rows[rows[target.column] == k]) for k, n in enumerate(target.levels)]
    parts = [p for p in parts if len(p[1])]
    largest = sorted(sorted(range(len(parts)), key=lambda i: -len(parts[i][1]))[:CLASSES])
    return [parts[i] for i in largest], len(parts) - len(largest)


def _edges(values: pd.Series, taken: pd.Series, agreed: tuple[float, float] | None) -> tuple[float, ...]:
    """Round bin edges over the site's values, over what they are taken for unless that is far off, and the range."""
    observed = values.dropna()
    if observed.empty:
        return ()
    low, high = float(observed.min()), float(observed.max())
    span = (high - low) or max(1.0, abs(low) / 10)
    other = taken.dropna().clip(low - span, high + span)
    if len(other):
        low, high = min(low, float(other.min())), max(high, float(other.max()))
    if agreed and (agreed[1] - agreed[0] <= 4 * (high - low) or not agreed[0] <= float(observed.median()) <= agreed[1]):
        low, high = min(low, agreed[0]), max(high, agreed[1])
    whole = bool((observed == observed.round()).all())
    raw = max((high - low) / BINS, 1.0 if whole else 0.0) or 1.0
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(m * ten for m in (1, 2, 5, 10) if m * ten >= raw * 0.999)
    half = step / 2 if whole and step == 1 else 0.0  # whole numbers stand in the middle of their bins
    first = math.floor((low + half) / step + 1e-9)
    last = max(math.ceil((high + half) / step - 1e-9), first + 1)
    return tuple(round(i * step - half, 10) for i in range(first, last + 1))


def _bin(values: pd.Series, edges: Sequence[float]) -> tuple[int, ...]:
    observed = values.dropna().to_numpy(dtype=np.float64)
    return tuple(np.histogram(observed, bins=np.asarray(edges))[0].tolist()) if len(edges) else ()


def _count_levels(values: pd.Series, feature: Feature) -> tuple[int, ...]:
    return tuple(int((values == k).sum()) for k in range(len(feature.levels)))

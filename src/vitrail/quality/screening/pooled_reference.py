"""What all sites together published: for a site alone, before anything leaves it, and beside each finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vitrail.data.outcomes import as_plain
from vitrail.data.persons import one_row_each
from vitrail.data.schema import Feature, TableSchema
from vitrail.quality.screening.diagnosis.cell import unlikeness
from vitrail.quality.screening.diagnosis.differences import compared
from vitrail.quality.screening.diagnosis.plain_evidence import settle_levels, settle_number
from vitrail.quality.screening.result import LABEL, Finding
from vitrail.quality.screening.schema import CUTS, FLOOR, QUANTILES, Numbers, ScreeningSchema
from vitrail.quality.screening.site_summaries import SiteSummaries, width_of
from vitrail.quality.screening.text import measured, percent
from vitrail.stats.tests import compare_counts, median_known

OFTEN = 4.0  # z from which a share counts as another one
WEAK = 0.1  # a correlation that tells nothing
APART = 0.2  # and it must be so far off
APART_BY = 1.5  # widths, or as a logarithm of the width: sites differ by less
MEDIAN = 9  # where it lies in QUANTILES
SHARED = 3  # sites with another share of a level, from which on its largest shares say how much they may differ


def pool(p: SiteSummaries) -> dict[str, Any]:
    """What all sites together published of each column, as plain lists: {column: ...}."""
    at = p.layout
    out: dict[str, Any] = {}
    for c, name in enumerate(at.columns):
        observed = float(np.nansum(p.known[:, c]))
        summary: dict[str, Any] = {"sites": int((np.nan_to_num(p.known[:, c]) > 0).sum()), "known": observed}
        summary["rows"] = float(p.rows.sum())
        if at.kinds[c] == "numeric":
            i = int(np.searchsorted(at.column[at.numbers], c))
            summary["quantiles"] = [_plain(x) for x in median_known(p.quantiles[:, i])]
            summary["width"] = _plain(float(median_known(p.widths[:, i])))
            summary["between"] = _plain(unlikeness(p.quantiles[:, i, MEDIAN]))
            summary["apart"] = _plain(_usually_apart(p.quantiles[:, i, MEDIAN], summary["width"]))
        else:
            which = np.flatnonzero(at.column == c)
            summary["levels"] = [float(x) for x in np.nansum(p.shares[:, which] * p.known[:, [c]], 0)]
            summary["most"] = [_plain(x) for x in _largest_shares(p.shares[:, which], at.kinds[c] == "binary")]
        out[name] = summary
    for (column, other), pairs in _usual_ties(p).items():
        out[at.columns[column]].setdefault("ties", {})[at.columns[other]] = pairs
    return out


def _usually_apart(medians: Numbers, width: float | None) -> float:
    """How far a site's median lies from the usual one, in widths: the second farthest, for one site may be wrong."""
    medians = medians[np.isfinite(medians)]
    if len(medians) < SHARED or not width:
        return float("nan")
    return float(np.sort(np.abs(medians - np.median(medians)))[-2] / width)


def _largest_shares(shares: Numbers, binary: bool) -> Numbers:
    """[level]: the second largest share of any site, so that one site that is wrong is no measure."""
    shares = shares[np.isfinite(shares).all(1)]
    shares = np.column_stack([1 - shares, shares]) if binary else shares
    return np.sort(shares, axis=0)[-2] if len(shares) >= SHARED else np.full(shares.shape[1], np.nan)


def _usual_ties(p: SiteSummaries) -> dict[tuple[int, int], list[list[float]]]:
    """(column, other column) -> [own level, other's level, correlation]; -1 for a number. The sites' median, so that a
    site that is wrong does not count."""
    at, out = p.layout, dict[tuple[int, int], list[list[float]]]()
    r = np.where(p.ties.rows > 0, p.ties.r, np.nan)
    usual = median_known(r)
    for k in np.flatnonzero((np.isfinite(r).sum(0) >= SHARED) & (np.abs(usual) > WEAK)):
        a, b = int(p.ties.first[k]), int(p.ties.second[k])
        for one, two in ((a, b), (b, a)):
            pair = [float(at.level[one]), float(at.level[two]), round(float(usual[k]), 4)]
            out.setdefault((int(at.column[one]), int(at.column[two])), []).append(pair)
    return out


def evidence_of(p: SiteSummaries, findings: Sequence[Finding]) -> dict[str, Any]:
    """What a page draws of each column with a finding: {column: {"all": ..., "sites": {site: ...}}}, of all sites
    together and of the sites with a finding in it. Of a number these are five quantiles (5, 25, 50, 75 and 95 %), else
    the share of each of `names`; and the share that is missing."""
    at, out = p.layout, dict[str, Any]()
    for f in findings:
        c, s = at.columns.index(f.feature), p.sites.index(f.site)
        x = _values(p, c)
        if f.feature not in out:
            out[f.feature] = {**_about(p, c), "all": _of_all(p, c), "sites": {}}
        out[f.feature]["sites"][f.site] = _summary(at.kinds[c], x[s], 1 - float(p.known[s, c] / p.rows[s]))
    return out


def _about(p: SiteSummaries, column: int) -> dict[str, Any]:
    at, target = p.layout, p.layout.table.target
    feature = at.table.features.get(at.columns[column])
    names = at.levels[column][1:] if at.kinds[column] == "binary" else at.levels[column]
    return {"unit": feature.unit if feature else target.unit, "names": list(names)}


def _of_all(p: SiteSummaries, column: int) -> dict[str, Any]:
    x, rows_with = _values(p, column), np.nan_to_num(p.known[:, column])
    kind, rows = p.layout.kinds[column], float(p.rows[np.isfinite(p.known[:, column])].sum())
    levels = (np.nan_to_num(x) * rows_with[:, None]).sum(0) / max(1.0, float(rows_with.sum()))
    return _summary(kind, median_known(x) if kind == "numeric" else levels, 1 - float(rows_with.sum()) / max(1.0, rows))


def _values(p: SiteSummaries, column: int) -> Numbers:
    """[site, value]: five quantiles, or the share of each level (of a yes-or-no that of yes)."""
    at = p.layout
    if at.kinds[column] == "numeric":
        return np.asarray(p.quantiles[:, np.searchsorted(at.column[at.numbers], column), CUTS])
    return np.asarray(p.shares[:, at.column == column])


def _summary(kind: str, values: Numbers, missing: float) -> dict[str, Any]:
    name = "quantiles" if kind == "numeric" else "levels"
    return {name: [_plain(float(f"{x:.6g}")) for x in values], "missing": _plain(round(missing, 4))}


def _plain(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def as_number(x: object) -> float:
    return float(x) if isinstance(x, int | float) else float("nan")


class PooledNumber:
    """A site's own number against what all sites together published of it."""

    def __init__(self, name: str, feature: Feature | None, x: Numbers, summary: Mapping[str, Any]) -> None:
        self.name, self.feature = name, feature
        usual = np.array([as_number(v) for v in summary.get("quantiles", [])])
        self.usual = usual if len(usual) == len(QUANTILES) else np.full(len(QUANTILES), np.nan)
        self.wide, self.between = as_number(summary.get("width")), as_number(summary.get("between"))
        self.apart = as_number(summary.get("apart"))
        self.wide = self.wide if self.wide > 0 else float("nan")
        self.q = np.quantile(x, QUANTILES) if len(x) >= FLOOR else np.full(len(QUANTILES), np.nan)
        values, count = np.unique(x, return_counts=True)
        self.known, self.distinct = float(len(x)), float(len(values))
        most = np.argsort(-count, kind="stable")[:20]
        self.held = [(float(values[j]), float(count[j] / len(x))) for j in most]
        self.share = self.held[0][1]
        self.both = np.isfinite(self.q) & np.isfinite(self.usual)

    def off(self, q: Numbers) -> float:
        return float(np.abs(q - self.usual)[self.both].mean() / self.wide) if self.both.any() else float("nan")


def compare_with_pooled(
    rows: pd.DataFrame, table: TableSchema, pooled: Mapping[str, Any], site: str = ""
) -> list[Finding]:
    """What in one site's cleaned rows does not fit `Screening.pooled`; nothing leaves. The likely wrong first, each
    strongest first. Likely wrong is only what `screen` would call so of the same numbers, whatever the other columns
    show: what is far from the pooled numbers besides may be real."""
    layout = ScreeningSchema(table)
    rows, table = as_plain(rows.iloc[one_row_each(rows, table)], table), layout.table
    out: list[Finding] = []
    for c, name in enumerate(layout.columns):
        summary = pooled.get(name)
        if not isinstance(summary, Mapping) or not summary.get("known"):
            continue
        x = rows[layout.target if name == LABEL else name].to_numpy(np.float64)
        x = x[np.isfinite(x)]
        if not len(x):
            text = "It is not measured here: ask whether it can be added."
            out.append(Finding(site, name, "not here", False, 0.0, text))
        elif layout.kinds[c] == "numeric":
            out += _number_against(site, name, table, x, summary)
        elif name != LABEL:
            out += _levels_against(site, name, layout.levels[c], layout.kinds[c], x, summary)
    return sorted(out, key=lambda f: (not f.wrong, -f.strength))


def _number_against(site: str, name: str, table: TableSchema, x: Numbers, summary: Mapping[str, Any]) -> list[Finding]:
    view = PooledNumber(name, table.features.get(name), x, summary)
    if not view.wide > 0 or not np.isfinite(view.usual).any():
        return []
    gap = abs(float(np.median(x)) - view.usual[MEDIAN]) / view.wide
    stretched = abs(float(np.log(max(float(width_of(view.q)), 1e-12) / view.wide))) if view.both.any() else 0.0
    strength = round(float(np.nan_to_num(max(gap, stretched))), 3)
    diagnosis = settle_number(view, view.held)
    if diagnosis:
        return [Finding(site, name, diagnosis.kind, True, strength, diagnosis.text, diagnosis.numbers)]
    if not view.both.any() or max(gap, stretched) < APART_BY:
        return []
    unit = table.features[name].unit if name in table.features else table.target.unit
    here, there = float(view.q[MEDIAN]), float(view.usual[MEDIAN])
    what, write = "median", f"Its median is {measured(here, unit)} here, {measured(there, unit)} over the sites"
    if gap < stretched:
        here, there = float(width_of(view.q)), view.wide
        what = "width of the middle half"
        write = (
            f"The middle half of its values spans {measured(here, unit)} here, {measured(there, unit)} over the sites"
        )
    numbers = compared(what, "value", here, there)
    return [Finding(site, name, "differs", False, strength, f"{write}: ask whether it is measured alike.", numbers)]


def _levels_against(
    site: str, name: str, levels: tuple[str, ...], kind: str, x: Numbers, summary: Mapping[str, Any]
) -> list[Finding]:
    shown = [1] if kind == "binary" else list(range(len(levels)))
    theirs = np.array([as_number(v) for v in summary.get("levels", [])])
    if len(theirs) != len(shown) or not np.isfinite(theirs).all():
        return []
    total, most = float(summary["known"]), np.array([as_number(v) for v in summary.get("most", [])])
    if len(most) == len(levels) and np.isfinite(most).all():
        here = np.array([(x == k).mean() for k in range(len(levels))])
        if diagnosis := settle_levels(levels, here, len(x), most):
            return [Finding(site, name, diagnosis.kind, True, 1.0, diagnosis.text, diagnosis.numbers)]
    mine = np.array([(x == level).sum() for level in shown], np.float64)
    z = compare_counts(mine, np.full(len(mine), float(len(x))), theirs, np.full(len(mine), total))
    gap = np.abs(mine / len(x) - theirs / total)
    j = int(np.where(gap > APART, z, 0.0).argmax())
    if z[j] < OFTEN or gap[j] < APART:
        return []
    share, there, level = mine[j] / len(x), theirs[j] / total, levels[shown[j]]
    text = f"{percent(share)} have {level} here, {percent(there)} over the sites: ask whether it means the same."
    numbers = {"level": level, **compared(f"share with {level}", "share", share, there)}
    return [Finding(site, name, "differs", False, round(float(z[j] / OFTEN), 3), text, numbers)]

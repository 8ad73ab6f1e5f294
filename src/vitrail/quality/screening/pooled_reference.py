"""What all sites together published: for a site alone, before anything leaves it, and beside each finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vitrail.data.missing_codes import CODES
from vitrail.data.outcomes import as_plain
from vitrail.data.schema import TableSchema
from vitrail.quality.screening.diagnosis.numbers import PooledNumber, moved
from vitrail.quality.screening.result import Finding
from vitrail.quality.screening.schema import CUTS, QUANTILES, Numbers, ScreeningSchema
from vitrail.quality.screening.site_summaries import SiteSummaries, width_of
from vitrail.quality.screening.text import percent
from vitrail.stats.tests import compare_counts, median_known

OFTEN = 4.0  # z from which a share counts as another one
APART = 0.2  # and it must be so far off
SPIKE = 0.05


def pool(p: SiteSummaries) -> dict[str, Any]:
    """What all sites together published of each column, as plain lists: {column: ...}."""
    at = p.layout
    out: dict[str, Any] = {}
    for c, name in enumerate(at.columns[:-1]):
        observed = float(np.nansum(p.known[:, c]))
        summary: dict[str, Any] = {"sites": int((np.nan_to_num(p.known[:, c]) > 0).sum()), "known": observed}
        summary["rows"] = float(p.rows.sum())
        if at.kinds[c] == "numeric":
            i = int(np.searchsorted(at.column[at.numbers], c))
            summary["quantiles"] = [_plain(x) for x in median_known(p.quantiles[:, i])]
            summary["width"] = _plain(float(median_known(p.widths[:, i])))
        else:
            which = np.flatnonzero(at.column == c)
            summary["levels"] = [float(x) for x in np.nansum(p.shares[:, which] * p.known[:, [c]], 0)]
        out[name] = summary
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
    x, known = _values(p, column), np.nan_to_num(p.known[:, column])
    kind, rows = p.layout.kinds[column], float(p.rows[np.isfinite(p.known[:, column])].sum())
    levels = (np.nan_to_num(x) * known[:, None]).sum(0) / max(1.0, float(known.sum()))
    return _summary(kind, median_known(x) if kind == "numeric" else levels, 1 - float(known.sum()) / max(1.0, rows))


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


def _number(x: object) -> float:
    return float(x) if isinstance(x, int | float) else float("nan")


def compare_with_pooled(
    rows: pd.DataFrame, table: TableSchema, pooled: Mapping[str, Any], site: str = ""
) -> list[Finding]:
    """What in one site's cleaned rows does not fit `Screening.pooled`; nothing leaves. Strongest first."""
    layout = ScreeningSchema(table)
    rows, table = as_plain(rows, table), layout.table
    out: list[Finding] = []
    for c, name in enumerate(layout.columns[:-1]):
        summary = pooled.get(name)
        if not isinstance(summary, Mapping) or not summary.get("known"):
            continue
        x = rows[name].to_numpy(np.float64)
        x = x[np.isfinite(x)]
        if not len(x):
            text = "It is not measured here: ask whether it can be added."
            out.append(Finding(site, name, "not here", False, 0.0, text))
        elif layout.kinds[c] == "numeric":
            out += _number_against(site, name, table, x, summary)
        else:
            out += _levels_against(site, name, layout.levels[c], layout.kinds[c], x, summary)
    return sorted(out, key=lambda f: (not f.wrong, -f.strength))


def _number_against(site: str, name: str, table: TableSchema, x: Numbers, summary: Mapping[str, Any]) -> list[Finding]:
    usual = np.array([_number(v) for v in summary.get("quantiles", [])])
    wide = _number(summary.get("width"))
    if len(usual) != len(QUANTILES) or not wide > 0:
        return []
    values, count = np.unique(x, return_counts=True)
    share = float(count.max() / len(x))
    finite = usual[np.isfinite(usual)]
    for value, rows in sorted(zip(values, count, strict=True), key=lambda pair: -pair[1])[:20]:
        apart = len(finite) and not finite.min() - wide <= value <= finite.max() + wide
        if apart and value in CODES and rows / len(x) >= SPIKE:
            part = float(rows / len(x))
            seen = f"{percent(part)} of the rows have {value:g}, far from the other sites' values"
            text = f"{seen}: ask whether it stands for values that were not measured."
            return [Finding(site, name, "code", True, part, text, {"code": float(value), "share": part})]
    alone = PooledNumber(name, table.features[name], np.quantile(x, QUANTILES), usual, wide, share)
    diagnosis = moved(alone, 1.0, 9.0) if alone.both.any() and len(x) >= 10 else None
    if diagnosis is None:
        return []
    gap = abs(float(np.quantile(x, 0.5)) - usual[9]) / wide
    stretched = abs(float(np.log(max(float(width_of(alone.q)), 1e-12) / wide)))
    if max(gap, stretched) < 1.5:  # sites differ by less
        return []
    return [Finding(site, name, diagnosis.kind, True, round(max(gap, stretched), 3), diagnosis.text, diagnosis.numbers)]


def _levels_against(
    site: str, name: str, levels: tuple[str, ...], kind: str, x: Numbers, summary: Mapping[str, Any]
) -> list[Finding]:
    shown = [1] if kind == "binary" else list(range(len(levels)))
    theirs = np.array([_number(v) for v in summary.get("levels", [])])
    if len(theirs) != len(shown) or not np.isfinite(theirs).all():
        return []
    mine = np.array([(x == level).sum() for level in shown], np.float64)
    total = float(summary["known"])
    z = compare_counts(mine, np.full(len(mine), float(len(x))), theirs, np.full(len(mine), total))
    gap = np.abs(mine / len(x) - theirs / total)
    j = int(np.where(gap > APART, z, 0.0).argmax())
    if z[j] < OFTEN or gap[j] < APART:
        return []
    here, there, level = mine[j] / len(x), theirs[j] / total, levels[shown[j]]
    text = f"{percent(here)} have {level} here, {percent(there)} over the sites: ask whether it means the same."
    return [Finding(site, name, "differs", False, round(float(z[j] / OFTEN), 3), text, {"level": level})]

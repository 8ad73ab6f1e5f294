"""What sites published of one column, beside all sites together: boxes of a number, shares of a level or of missing
values; and, where only a statistic is at hand, its value here and at the other sites. One small figure for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.quality.screening.result import MISSING, Finding
from vitrail.quality.screening.text import correlation, measured, percent, written
from vitrail.report.charts import axes
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, RowMark, interval_rows
from vitrail.report.text import Interval

MOST = 8  # sites in one figure, the strongest findings first
WIDE = 340  # pixels: beside another on a page, alone on a telephone
ALL = "all sites"
ENDS = {"share": (0.0, 1.0), "correlation": (-1.0, 1.0)}
FOLLOWS = "correlations, as a share of those at the other sites"


def figures(column: str, findings: Sequence[Finding], evidence: Mapping[str, Any] | None) -> list[Markup]:
    """Of one column: what was published, and the statistics that it does not show."""
    kinds = {f.site: "wrong" if f.wrong else "maybe" for f in reversed(findings)}
    sites = {f.site: evidence["sites"][f.site] for f in findings if evidence and f.site in evidence["sites"]}
    out, drawn = [], set[str]()
    if evidence and sites:
        rows = dict(list(sites.items())[:MOST])
        statistics = [str(f.numbers.get("statistic", "")) for f in findings]
        if MISSING in statistics or any(f.kind in ("only here", "not here") for f in findings):
            missing = {site: of["missing"] for site, of in rows.items()}
            out.append(_shares(column, MISSING, missing, evidence["all"]["missing"], kinds))
        if "quantiles" in evidence["all"]:
            out.append(_boxes(column, evidence["unit"], rows, evidence["all"], kinds))
        else:
            out.append(_levels(column, evidence, rows, kinds))
        drawn = {"share", "value"}
    named: dict[str, list[Finding]] = {}
    for f in map(_with_relations, findings):
        if "here" in f.numbers and f.numbers["scale"] not in drawn:
            named.setdefault(str(f.numbers["statistic"]), []).append(f)
    unit = evidence["unit"] if evidence else ""
    out += [_statistic(column, name, of[:MOST], kinds, unit) for name, of in list(named.items())[:2]]
    return [figure for figure in out if figure]


def _with_relations(f: Finding) -> Finding:
    """How far the correlations of a column follow those at the other sites is a statistic as well."""
    if f.numbers.get("strength") is None:
        return f
    here = {"statistic": FOLLOWS, "scale": "correlation", "here": f.numbers["strength"], "elsewhere": 1.0}
    return f._replace(numbers=here)


def _boxes(
    column: str, unit: str, sites: Mapping[str, Any], whole: Mapping[str, Any], kinds: Mapping[str, str]
) -> Markup:
    rows = [_box(name, of["quantiles"], unit, kinds.get(name, "all")) for name, of in (*sites.items(), (ALL, whole))]
    drawn = [row for row in rows if row is not None]
    if len(drawn) < 2:
        return Markup()
    ends = [end for row in drawn for end in row.interval if math.isfinite(end)]
    title = f"{column}: from 5 to 95 % of the values, the middle half, and the median"
    axis = f"{column} ({unit})" if unit else column
    return _figure(title, drawn, axis, *axes.domain(ends))


def _box(name: str, quantiles: Sequence[float | None], unit: str, kind: str) -> IntervalRow | None:
    low, first, middle, third, high = (math.nan if q is None else q for q in quantiles)
    if not (math.isfinite(first) and math.isfinite(third)):
        return None
    ends = Interval(third, low if math.isfinite(low) else first, high if math.isfinite(high) else third)
    words = f"{name}: median {measured(middle, unit)}, middle half {measured(first)} to {measured(third, unit)}"
    mark = RowMark(middle, "block", "published middle", 8.0)
    return IntervalRow(name, words, ends, [mark], f"published {kind}", first, line="reach")


def _levels(column: str, evidence: Mapping[str, Any], sites: Mapping[str, Any], kinds: Mapping[str, str]) -> Markup:
    """The level whose share differs the most."""
    whole = evidence["all"]["levels"]
    gaps = [
        max((abs(of["levels"][k] - usual) for of in sites.values() if of["levels"][k] is not None), default=-1.0)
        for k, usual in enumerate(whole)
    ]
    k = max(range(len(gaps)), key=lambda level: gaps[level])
    shares = {site: of["levels"][k] for site, of in sites.items()}
    return _shares(column, f"share with {column} = {evidence['names'][k]}", shares, whole[k], kinds)


def _shares(
    column: str, what: str, shares: Mapping[str, float | None], whole: float | None, kinds: Mapping[str, str]
) -> Markup:
    rows = []
    for name, share in [*shares.items(), (ALL, whole)]:
        if share is not None:
            beside = Label(percent(share), "label", "start")
            words = f"{name}: {percent(share)}"
            kind = f"published {kinds.get(name, 'all')}"
            rows.append(IntervalRow(name, words, Interval(share), bar=kind, beside=beside))
    return _figure(f"{column}: {what}", rows, what, 0.0, 1.0, share=True) if len(rows) > 1 else Markup()


def _statistic(column: str, name: str, findings: Sequence[Finding], kinds: Mapping[str, str], unit: str) -> Markup:
    """Here, and at the other sites."""
    rows, scale = [], str(findings[0].numbers["scale"])
    for f in findings:
        here, elsewhere = written(f.numbers, unit)
        marks = [
            RowMark(f.numbers["elsewhere"], "block", "published others", 8.0),
            RowMark(f.numbers["here"], "dot", f"published {kinds[f.site]}"),
        ]
        rows.append(IntervalRow(f.site, f"{f.site}: {here}; the other sites: {elsewhere}", marks=marks))
    ends = [float(f.numbers[side]) for f in findings for side in ("here", "elsewhere")]
    low, high = ENDS.get(scale, axes.domain(ends))
    key = [
        RowMark(0.0, "dot", f"published {kinds[findings[0].site]}", words="this site"),
        RowMark(0.0, "block", "published others", 7.0, "the other sites"),
    ]
    axis = f"{name} ({unit})" if unit and scale == "value" else name
    return _figure(f"{column}: {name}", rows, axis, low, high, share=scale == "share", key=key)


def _figure(
    title: str,
    rows: Sequence[IntervalRow],
    axis: str,
    low: float,
    high: float,
    share: bool = False,
    key: Sequence[RowMark] = (),
) -> Markup:
    write = (lambda value, digits: percent(value)) if share else _plain_number
    figure = IntervalRows(
        title, rows, axis, low, high, write, step=(24.0, 40.0), letters=18, key=key, shape="plot published"
    )
    return interval_rows(figure, WIDE)


def _plain_number(value: float, digits: int) -> str:
    return correlation(value, digits - 2) if digits else f"{value:.0f}".replace("-", "−")

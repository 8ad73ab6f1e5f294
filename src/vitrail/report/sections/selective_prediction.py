"""What is gained by handing the least sure cases to a person: accuracy against the share that the model answers."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd
from markupsafe import Markup

from vitrail.analysis.selective_prediction import HANDED, HandoverGain, gain, kept_share, together
from vitrail.core.losses import UncertaintyLoss
from vitrail.core.text import number, percent, several, shorten_all, signed
from vitrail.metrics.scores import FEWEST, SUREST
from vitrail.report.charts import svg
from vitrail.report.charts.comparison import marked
from vitrail.report.charts.svg import line
from vitrail.report.text import SAME, listed, name
from vitrail.runs.result import Run
from vitrail.runs.setup import COVERAGE, loss_of

ALL = "all sites"
NONE: Mapping[str, float] = MappingProxyType({})
APART = 6  # so many sites are told apart by colour and name


def has_coverage(run: Run) -> bool:
    """Whether at some site there are enough rows to tell those apart that would go to a person."""
    less = [f"accuracy@{share}" for share in SUREST if share < 100]
    told = run.history[(run.history.split == COVERAGE) & run.history.metric.isin(less)]
    return bool(told["value"].notna().any())


def contents(run: Run, chance: Mapping[str, float] = NONE, few: Container[str] = ()) -> dict[str, Any]:
    """What the template is given; `chance`: site -> share of its hold-out cases in the most common class. Sites of
    `few` stand on few rows."""
    table, curves = run.uncertainty(), run.coverage()
    share = kept_share(curves)
    gains = {site: gain(curve, share) for site, curve in curves.groupby("site", sort=False)}
    known = {str(site): found for site, found in gains.items() if found}
    pooled = together(curves)
    whole, loss = gain(pooled, share), loss_of(run.study)
    assert whole is not None
    assert isinstance(loss, UncertaintyLoss)
    counts = {s: g.rows for s, g in known.items() if s in chance}
    same = (
        sum(chance[s] * n for s, n in counts.items()) / sum(counts.values())
        if counts and len(counts) == len(known)
        else None
    )
    return {
        "sentences": [_whole(whole, len(known), HANDED[share]), *_sites(known)],
        "handed": HANDED[share],
        "means": loss.uncertainty_means,
        "auroc": float(table["auroc"].mean()),
        "figure": svg.twice(lambda width: _figure(curves, pooled, list(known), same, width)),
        "rows": [_row(r, known.get(r["site"]), chance, few) for r in table.to_dict("records")],
        "same": same,
        "out": listed([s for s in table.site if s not in known]),
        "fewest": FEWEST,
        "many": len(known) > 1,
    }


def _points(found: HandoverGain) -> list[str]:
    """What is gained, as the two shares are written, and its interval, in points of a hundred."""
    value = round(100 * found.after, 1) - round(100 * found.before, 1)
    return [signed(v, 1) for v in (value, 100 * found.low, 100 * found.high)]


def _whole(found: HandoverGain, sites: int, handed: str) -> Markup:
    head = f"Handing the least sure {handed} of the cases to a person"
    if found.value > 0:
        text = head + ", the model is right in {} of the rest, instead of {}"
        chance = "" if found.low > 0 else " That cannot be told from chance here."
    else:
        text = head + " gains nothing here: the model is right in {} of the rest, and in {} of all"
        chance = " It is less sure where it is right." if found.high < 0 else ""
    text += " ({} points, 95 % interval {} to {})." + chance
    counted = f" Counted over {several(found.rows, 'hold-out case')}{f' of {sites} sites' if sites > 1 else ''}, "
    counted += f"of which {found.rows - found.kept} go to a person{', at each site its own' if sites > 1 else ''}."
    return Markup(text).format(name(percent(found.after)), percent(found.before), *_points(found)) + counted


def _row(
    told: dict[Hashable, Any], found: HandoverGain | None, chance: Mapping[str, float], few: Container[str]
) -> list[str]:
    """A site's row in the table."""
    numbers = [number(told[k], 2) for k in ("doubt", "auroc")]
    shares = [percent(told[k]) for k in ("accuracy", "accuracy_kept")]
    return [
        marked(told["site"], few),
        str(told["rows"]),
        *numbers,
        percent(chance[told["site"]]) if told["site"] in chance else "",
        *shares,
        "{} ({} to {})".format(*_points(found)) if found else "",
    ]


def _sites(gains: dict[str, HandoverGain]) -> list[Markup]:
    """Where it helps most, and where least."""
    if len(gains) < 2:
        return []
    order = sorted(gains, key=lambda site: -gains[site].value)
    told = [
        Markup("{} ({} instead of {}, {})").format(
            name(s), percent(g.after), percent(g.before), several(g.rows, "case")
        )
        for s, g in ((s, gains[s]) for s in (order[0], order[-1]))
    ]
    falls = [site for site in order if gains[site].value < 0]
    more = Markup(" It falls at {}.").format(listed(falls)) if len(falls) > 1 else ""
    return [Markup("The gain is largest at {} and smallest at {}.{}").format(*told, more)]


def _figure(curves: pd.DataFrame, pooled: pd.DataFrame, sites: Sequence[str], same: float | None, width: int) -> Markup:
    """A line for each site, all of them together on top with its interval; the surest cases on the left.
    Dashed: `same`, what always giving the most common answer comes to over all cases."""
    narrow, few = svg.is_narrow(width), len(sites) <= APART
    short = shorten_all(sites, 14 if narrow else 24)
    series = []
    for i, site in enumerate(sites if len(sites) > 1 else ()):
        kind = f"series {svg.colour(i)}" if few else "series faint"
        here = curves[(curves.site == site) & curves.accuracy.notna()].sort_values("share")
        series.append(_series(site, short[site] if few else "", kind, here))
    title, label = (ALL, ALL) if len(sites) > 1 else (sites[0], short[sites[0]])
    low, high = ((100 * pooled[end]).tolist() for end in ("low", "high"))
    series.append(_series(title, label, "series strong m6", pooled)._replace(band=(low, high)))
    level = None if same is None else 100 * same
    left, top, room = 40.0, svg.ABOVE + 18 * (level is not None), max(len(s.label) for s in series)
    bottom = top + (190.0 if narrow else 230.0)
    x = svg.AxisScale(10, 100, left, width - 22 - 6.6 * room)
    y = svg.AxisScale(
        *svg.domain([v for s in series for v in s.y] + low + high + [level] * (level is not None)), bottom, top
    )
    axis = "share that the model answers (%)" if narrow else "share of the cases that the model answers itself (%)"
    parts = [svg.text(0, 12, "right answers among them (%)", "axis")]
    parts += svg.axis_left(x, y, svg.written(svg.ticks(y.low, y.high, 5)))
    parts += svg.axis_below(x, range(10, 101, 30 if narrow else 10), top, bottom, axis, number)
    if level is not None:
        words = f"{SAME}, over all cases"
        parts += [line(x.start, y(level), x.end, y(level), "level"), line(0, 26, 26, 26, "level key")]
        parts.append(svg.text(32, 30, f"{words}: {number(level, 1)} %", "label level"))
    parts += svg.lines(series, x, y)
    said = "; ".join(s.said for s in series if s.label)
    said += "" if level is None else f"; {SAME}: {number(level, 1)} %"
    return svg.plot(width, bottom + 40, "Right answers against the share that the model answers", f"{said}.", parts)


def _series(title: str, label: str, kind: str, curve: pd.DataFrame) -> svg.Series:
    found = dict(zip(curve["share"], curve["accuracy"], strict=True))
    less = sorted(share for share in found if share < 100)
    told = [f"{percent(found[share])} of the surest {share} %" for share in (*less[-1:], *less[:1])]
    rows = int(curve["rows"].max())
    said = f"{title} ({several(rows, 'case')}): right in {percent(found[100])} of all, {', '.join(dict.fromkeys(told))}"
    return svg.Series(title, label, kind, list(found), [100 * v for v in found.values()], said=said)

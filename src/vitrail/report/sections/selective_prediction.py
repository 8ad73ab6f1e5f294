"""What is gained by handing the least sure cases to a person: accuracy against the share that the model answers."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd
from markupsafe import Markup

from vitrail.analysis.selective_prediction import HANDED, HandoverGain, gain, kept_share, together
from vitrail.core.losses import UncertaintyLoss
from vitrail.core.text import number, percent, several, shorten_all, signed
from vitrail.metrics.scores import FEWEST, SUREST
from vitrail.report.charts import axes, svg
from vitrail.report.charts.curves import Curves, Panel, Series, curves
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import SAME, listed, marked, name
from vitrail.runs.result import Run
from vitrail.runs.setup import COVERAGE, loss_of

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

ALL = "all sites"
NONE: Mapping[str, float] = MappingProxyType({})
APART = 6  # so many sites are told apart by colour and name


def has_coverage(run: Run) -> bool:
    """Whether at some site there are enough rows to tell those apart that would go to a person."""
    less = [f"accuracy@{share}" for share in SUREST if share < 100]
    rows = run.history[(run.history.split == COVERAGE) & run.history.metric.isin(less)]
    return bool(rows["value"].notna().any())


def contents(page: Page) -> Contents:
    return contents_of(run_of(page), page.chance_in("accuracy"), page.few)


def contents_of(run: Run, chance: Mapping[str, float] = NONE, few: Container[str] = ()) -> Contents:
    """`chance`: site -> share of its hold-out cases in the most common class. Sites of `few` stand on few rows."""
    table, by_site = run.uncertainty(), run.coverage()
    share = kept_share(by_site)
    every = {str(site): gain(curve, share) for site, curve in by_site.groupby("site", sort=False)}
    gains = {site: change for site, change in every.items() if change}
    pooled = together(by_site)
    whole, loss = gain(pooled, share), loss_of(run.study)
    assert whole is not None
    assert isinstance(loss, UncertaintyLoss)
    counts = {s: g.rows for s, g in gains.items() if s in chance}
    same = (
        sum(chance[s] * n for s, n in counts.items()) / sum(counts.values())
        if counts and len(counts) == len(gains)
        else None
    )
    return {
        "sentences": [_whole(whole, len(gains), HANDED[share]), *_sites(gains)],
        "handed": HANDED[share],
        "means": loss.uncertainty_means,
        "auroc": float(table["auroc"].mean()),
        "figure": svg.twice(lambda width: _figure(by_site, pooled, list(gains), same, width)),
        "rows": [_row(r, gains.get(r["site"]), chance, few) for r in table.to_dict("records")],
        "same": same,
        "out": listed([s for s in table.site if s not in gains]),
        "fewest": FEWEST,
        "many": len(gains) > 1,
    }


def _points(change: HandoverGain) -> list[str]:
    """What is gained, as the two shares are written, and its interval, in points of a hundred."""
    value = round(100 * change.after, 1) - round(100 * change.before, 1)
    return [signed(v, 1) for v in (value, 100 * change.low, 100 * change.high)]


def _whole(change: HandoverGain, sites: int, handed: str) -> Markup:
    head = f"Handing the least sure {handed} of the cases to a person"
    if change.value > 0:
        text = head + ", the model is right in {} of the rest, instead of {}"
        chance = "" if change.low > 0 else " This may be chance."
    else:
        text = head + " gains nothing here: the model is right in {} of the rest, and in {} of all"
        chance = " It is less sure where it is right." if change.high < 0 else ""
    text += " ({} points, 95 % interval {} to {})." + chance
    counted = f" Counted over {several(change.rows, 'hold-out case')}{f' of {sites} sites' if sites > 1 else ''}, "
    counted += f"of which {change.rows - change.kept} go to a person{', at each site its own' if sites > 1 else ''}."
    return Markup(text).format(name(percent(change.after)), percent(change.before), *_points(change)) + counted


def _row(
    site: dict[Hashable, Any], change: HandoverGain | None, chance: Mapping[str, float], few: Container[str]
) -> list[str]:
    """A site's row in the table."""
    numbers = [number(site[k], 2) for k in ("doubt", "auroc")]
    shares = [percent(site[k]) for k in ("accuracy", "accuracy_kept")]
    return [
        marked(site["site"], few),
        str(site["rows"]),
        *numbers,
        percent(chance[site["site"]]) if site["site"] in chance else "",
        *shares,
        "{} ({} to {})".format(*_points(change)) if change else "",
    ]


def _sites(gains: dict[str, HandoverGain]) -> list[Markup]:
    """Where it helps most, and where least."""
    if len(gains) < 2:
        return []
    order = sorted(gains, key=lambda site: -gains[site].value)
    ends = [
        Markup("{} ({} instead of {}, {})").format(
            name(s), percent(g.after), percent(g.before), several(g.rows, "case")
        )
        for s, g in ((s, gains[s]) for s in (order[0], order[-1]))
    ]
    falls = [site for site in order if gains[site].value < 0]
    more = Markup(" It falls at {}.").format(listed(falls)) if len(falls) > 1 else ""
    return [Markup("The gain is largest at {} and smallest at {}.{}").format(*ends, more)]


def _figure(
    by_site: pd.DataFrame, pooled: pd.DataFrame, sites: Sequence[str], same: float | None, width: int
) -> Markup:
    """A line for each site, all of them together on top with its interval; the surest cases on the left.
    Dashed: `same`, what always giving the most common answer comes to over all cases."""
    narrow, few = svg.is_narrow(width), len(sites) <= APART
    short, series = shorten_all(sites, 14 if narrow else 24), list[Series]()
    for i, site in enumerate(sites if len(sites) > 1 else ()):
        kind = f"series {svg.colour(i)}" if few else "series faint"
        here = by_site[(by_site.site == site) & by_site.accuracy.notna()].sort_values("share")
        series.append(_series(site, short[site] if few else "", kind, here))
    title, label = (ALL, ALL) if len(sites) > 1 else (sites[0], short[sites[0]])
    low, high = ((100 * pooled[end]).tolist() for end in ("low", "high"))
    series.append(_series(title, label, "series strong m6", pooled)._replace(band=(low, high)))
    level = None if same is None else (f"{SAME}, over all cases", 100 * same)
    ends = axes.domain([v for s in series for v in s.y] + low + high + ([level[1]] if level else []))
    panel = Panel("right answers among them (%)", series, *ends, level, digits=1)
    text = "; ".join(s.words for s in series if s.label)
    text += "" if same is None else f"; {SAME}: {number(100 * same, 1)} %"
    axis = "share that the model answers (%)" if narrow else "share of the cases that the model answers itself (%)"
    marks = [(float(v), str(v)) for v in range(10, 101, 30 if narrow else 10)]
    heading = "Right answers against the share that the model answers"
    return curves(Curves(heading, f"{text}.", [panel], axis, 10.0, 100.0, marks, (230.0, 190.0)), width)


def _series(title: str, label: str, kind: str, curve: pd.DataFrame) -> Series:
    right = dict(zip(curve["share"], curve["accuracy"], strict=True))
    less = sorted(share for share in right if share < 100)
    parts = dict.fromkeys(f"{percent(right[share])} of the surest {share} %" for share in (*less[-1:], *less[:1]))
    cases = several(int(curve["rows"].max()), "case")
    words = f"{title} ({cases}): right in {percent(right[100])} of all, {', '.join(parts)}"
    return Series(title, label, kind, list(right), [100 * v for v in right.values()], words)


SECTION = Section(contents, lambda page: page.run is not None and has_coverage(page.run))

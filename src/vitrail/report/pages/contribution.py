"""The page of `vitrail contribution`: who lowered one user's loss, and the ledger of credits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, several, shorten_all, signed
from vitrail.report.charts import svg
from vitrail.report.pages.frame import fill, is_ours, unwritten
from vitrail.report.text import Interval, listed, name, spoken
from vitrail.storage.atomic_files import write_atomically
from vitrail.studies.contribution.values import AGAIN, CARRIED, ROUND, WHOLE, Contribution, write_tables

PAGE = "contribution.html"
KINDS = {
    AGAIN: "each group of sites was trained from the first model on, as the study says, with all sites’ {}s",
    CARRIED: "from what every site reported in every round and the user’s own {}s. A group’s reports are merged as "
    "the method does. They answer the model that all had made; what they would have been at the group’s own model is "
    "taken from how the user’s own report changes between the two, for which it trained at each",
    ROUND: "a group’s reports are merged at the shared model of each round, and the falls in loss are summed",
    WHOLE: "what a group’s reports would have changed is summed over the run, from the first model on",
}


def write_contribution(told: Contribution, folder: Path) -> Path:
    """Page and tables; only an earlier one of ours is written over."""
    page = folder / PAGE
    if folder.exists() and not is_ours(page, "contribution") and (not folder.is_dir() or any(folder.iterdir())):
        what = "there is something here already that `vitrail contribution` did not write."
        raise unwritten(folder, what, "nothing was overwritten")
    try:
        write_tables(told, folder)
        write_atomically(page, render_contribution(told))
    except OSError as error:
        raise unwritten(folder, f"it cannot be written: {error.strerror}.") from None
    return page


def render_contribution(told: Contribution) -> str:
    paid, main = len(told.ledger) > 0, told.main().reset_index().sort_values("value", ascending=False, kind="stable")
    ways = list(dict.fromkeys(zip(told.values.way, told.values.kind, strict=True)))
    by_way = {k: part.set_index("site") for k, part in told.values.groupby(["way", "kind"], sort=False)}
    sites = list(dict.fromkeys(told.values.site))
    return fill(
        "contribution.html",
        told=told,
        paid=paid,
        lead=_lead(told),
        findings=_findings(told, main),
        figure=value_figure(main, told),
        again=told.kind == AGAIN,
        kinds=[
            (kind, words.format(told.row_word)) for kind, words in KINDS.items() if (told.values.kind == kind).any()
        ],
        ledger=told.ledger.sort_values("value", ascending=False).to_dict("records") if paid else [],
        whole=float(told.ledger.credit.sum()) if paid else 0.0,
        ways=ways,
        table=[(s, [by_way[w].loc[s] for w in ways]) for s in sites],
        sums=[float(by_way[w].value.sum()) for w in ways],
        costs=told.costs.to_dict("records"),
    )


def _lead(told: Contribution) -> str:
    fell = "fell" if told.gain > 0 else "rose"
    return (
        f"On its own {several(told.rows, f'test {told.row_word}')} the {told.unit} {fell} from {number(told.start)} to "
        f"{number(told.end)} over the run: a {'gain' if told.gain > 0 else 'loss'} of {number(abs(told.gain))}. "
        f"The same answer to every {told.row_word} would have {number(told.same)}."
    )


def _findings(told: Contribution, main: pd.DataFrame) -> list[Markup]:
    sure = [name(s) for s in main[main.low > 0].site]
    harm = [name(s) for s in main[main.high < 0].site[::-1]]
    open_ = [name(s) for s in main[(main.low <= 0) & (main.high >= 0)].site]
    first = main.iloc[0]
    words = spoken(Interval(first.value, first.low, first.high), signed)
    out = [Markup("Most came from {}: {}.").format(name(first.site), words)]
    if sure:
        out.append(Markup("Helped, the interval leaves zero out: {}.").format(listed(sure)))
    if harm:
        out.append(Markup("Raised the loss, the interval leaves zero out: {}.").format(listed(harm)))
    if open_:
        seen = several(told.rows, f"test {told.row_word}") + (f" and {told.seeds} seeds" if told.seeds > 1 else "")
        out.append(Markup("Cannot tell from {}: {}.").format(seen, listed(open_)))
    if told.doubt():
        out.insert(0, Markup('<b class="warn">Not settled.</b> {}').format(told.doubt()))
    out.append(Markup("{}").format(told.reliance()))
    if told.unpaid():
        out.insert(0, Markup('<b class="warn">{}</b>').format(told.unpaid()))
    if len(told.ledger) and not told.doubt():
        paid = told.ledger[told.ledger.credit > 0].sort_values("credit", ascending=False)
        whole = number(float(told.ledger.credit.sum()))
        if len(paid):
            out.append(Markup("Credits of {} in all go to {}.").format(whole, listed([name(s) for s in paid.site])))
        else:
            out.append(Markup("There was no gain, so that there are no credits."))
    return out


def value_figure(main: pd.DataFrame, told: Contribution) -> Markup:
    """One bar per site with its interval, wide and narrow."""
    return svg.twice(lambda width: _bars(main, told, width))


def _bars(main: pd.DataFrame, told: Contribution, width: int) -> Markup:
    narrow, sites = svg.is_narrow(width), [str(s) for s in main.site]
    height, top, thick = (46.0, 8.0, 13.0) if narrow else (32.0, 8.0, 16.0)
    short = shorten_all(sites, 26)
    left = 6.0 if narrow else 20 + 7.5 * max(map(len, short.values()))
    right = width - (6.0 if narrow else 84.0)
    low, high = min(0.0, float(main.low.min())), max(0.0, float(main.high.max()))
    air = 0.04 * (high - low) or 0.1
    x = svg.AxisScale(low - air, high + air, left, right)
    bottom = top + height * len(sites)
    marks = svg.ticks(low - air, high + air, 4 if narrow else 7)
    parts = svg.axis_below(x, marks, top, bottom, f"fall in {told.unit}", signed)
    said = []
    rows: list[dict[str, Any]] = main.to_dict("records")  # type: ignore[assignment]
    for i, row in enumerate(rows):
        base = top + i * height + height * (0.72 if narrow else 0.5)
        words = f"{row['site']}: {spoken(Interval(row['value'], row['low'], row['high']), signed)}"
        said.append(words)
        a, b = sorted((x(0), x(row["value"])))
        kind = "verdict gain" if row["value"] >= 0 else "verdict loss"
        bar = svg.tag("rect", x=a, y=base - thick / 2, width=max(b - a, 0.8), height=thick, class_="bar")
        ends = [svg.line(x(v), base - 4, x(v), base + 4, "reach") for v in (row["low"], row["high"])]
        reach = svg.line(x(row["low"]), base, x(row["high"]), base, "reach")
        parts.append(svg.tag("g", svg.tip(words), bar, reach, *ends, class_=kind))
        label = base - 14 if narrow else base + 4
        parts.append(svg.text(0, label, short[row["site"]], "name", full=row["site"]))
        parts.append(svg.text(width, label, signed(row["value"], 4), "value", "end"))
    title = f"What each site's taking part was worth to {told.user}"
    return svg.plot(width, bottom + 40, title, "; ".join(said) + ".", parts)

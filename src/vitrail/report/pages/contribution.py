"""The page of `vitrail contribution`: who lowered one user's loss, and the ledger of credits."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, several, signed
from vitrail.report.charts import svg
from vitrail.report.charts.axes import interval_domain
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, interval_rows
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


def write_contribution(contribution: Contribution, folder: Path) -> Path:
    """Page and tables; only an earlier one of ours is written over."""
    page = folder / PAGE
    if folder.exists() and not is_ours(page, "contribution") and (not folder.is_dir() or any(folder.iterdir())):
        what = "there is something here already that `vitrail contribution` did not write."
        raise unwritten(folder, what, "nothing was overwritten")
    try:
        write_tables(contribution, folder)
        write_atomically(page, render_contribution(contribution))
    except OSError as error:
        raise unwritten(folder, f"it cannot be written: {error.strerror}.") from None
    return page


def render_contribution(contribution: Contribution) -> str:
    paid, main = (
        len(contribution.ledger) > 0,
        contribution.main().reset_index().sort_values("value", ascending=False, kind="stable"),
    )
    ways = list(dict.fromkeys(zip(contribution.values.way, contribution.values.kind, strict=True)))
    by_way = {k: part.set_index("site") for k, part in contribution.values.groupby(["way", "kind"], sort=False)}
    sites = list(dict.fromkeys(contribution.values.site))
    return fill(
        "contribution.html",
        told=contribution,
        paid=paid,
        lead=_lead(contribution),
        findings=_findings(contribution, main),
        figure=value_figure(main, contribution),
        again=contribution.kind == AGAIN,
        kinds=[
            (kind, words.format(contribution.row_word))
            for kind, words in KINDS.items()
            if (contribution.values.kind == kind).any()
        ],
        ledger=contribution.ledger.sort_values("value", ascending=False).to_dict("records") if paid else [],
        whole=float(contribution.ledger.credit.sum()) if paid else 0.0,
        ways=ways,
        table=[(s, [by_way[w].loc[s] for w in ways]) for s in sites],
        sums=[float(by_way[w].value.sum()) for w in ways],
        costs=contribution.costs.to_dict("records"),
    )


def _lead(contribution: Contribution) -> str:
    fell = "fell" if contribution.gain > 0 else "rose"
    gain, word = "gain" if contribution.gain > 0 else "loss", contribution.row_word
    return (
        f"On its own {several(contribution.rows, f'test {word}')} the {contribution.unit} {fell} from "
        f"{number(contribution.start)} to {number(contribution.end)} over the run: a {gain} of "
        f"{number(abs(contribution.gain))}. The same answer to every {word} would have {number(contribution.same)}."
    )


def _findings(contribution: Contribution, main: pd.DataFrame) -> list[Markup]:
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
        seen = several(contribution.rows, f"test {contribution.row_word}") + (
            f" and {contribution.seeds} seeds" if contribution.seeds > 1 else ""
        )
        out.append(Markup("Cannot tell from {}: {}.").format(seen, listed(open_)))
    if contribution.doubt():
        out.insert(0, Markup('<b class="warn">Not settled.</b> {}').format(contribution.doubt()))
    out.append(Markup("{}").format(contribution.reliance()))
    if contribution.unpaid():
        out.insert(0, Markup('<b class="warn">{}</b>').format(contribution.unpaid()))
    if len(contribution.ledger) and not contribution.doubt():
        paid = contribution.ledger[contribution.ledger.credit > 0].sort_values("credit", ascending=False)
        whole = number(float(contribution.ledger.credit.sum()))
        if len(paid):
            out.append(Markup("Credits of {} in all go to {}.").format(whole, listed([name(s) for s in paid.site])))
        else:
            out.append(Markup("There was no gain, so that there are no credits."))
    return out


def value_figure(main: pd.DataFrame, contribution: Contribution) -> Markup:
    """One bar per site with its interval, wide and narrow."""
    return svg.twice(lambda width: _bars(main, contribution, width))


def _bars(main: pd.DataFrame, contribution: Contribution, width: int) -> Markup:
    rows = []
    for row in main.to_dict("records"):
        interval = Interval(row["value"], row["low"], row["high"])
        words = f"{row['site']}: {spoken(interval, signed)}"
        kind = "verdict gain" if row["value"] >= 0 else "verdict loss"
        value = Label(signed(row["value"], 4), "value")
        rows.append(IntervalRow(row["site"], words, interval, bar="bar", kind=kind, line="reach", right=[value]))
    low, high = interval_domain([row.interval for row in rows], [0.0])
    title, axis = f"What each site's taking part was worth to {contribution.user}", f"fall in {contribution.unit}"
    return interval_rows(IntervalRows(title, rows, axis, low, high, signed), width)

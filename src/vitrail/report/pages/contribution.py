"""The page of `vitrail contribution`: who lowered one user's loss, and the ledger of credits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, several, signed
from vitrail.report.charts import svg
from vitrail.report.charts.axes import interval_domain
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, interval_rows
from vitrail.report.pages.frame import fill, write_page_folder
from vitrail.report.text import Interval, Standing, spoken
from vitrail.studies.contribution.rewards import RULES
from vitrail.studies.contribution.values import AGAIN, CARRIED, ROUND, WHOLE, Contribution, write_tables

PAGE = "contribution.html"
STANDING = 8  # sites of the first screen
KINDS = {
    AGAIN: "each group of sites was trained from the same first model on, as the study says, with all sites’ {}s",
    CARRIED: "from what every site reported in every round, and the user’s own {}s. A group’s reports are merged as "
    "the method does. They were made at the model that all sites had trained; what they would have been at the group’s "
    "own model is estimated from how the user’s own report changes between the two models",
    ROUND: "a group’s reports are merged at the shared model of each round, and the falls in loss are summed",
    WHOLE: "what a group’s reports would have changed is summed over the run, from the first model on",
}


def write_contribution(contribution: Contribution, folder: Path) -> Path:
    """Page and tables; only an earlier one of ours is written over."""
    html = render_contribution(contribution)
    return write_page_folder(folder, PAGE, "contribution", lambda: write_tables(contribution, folder), html)


def render_contribution(contribution: Contribution) -> str:
    paid = len(contribution.ledger) > 0
    main = contribution.main().reset_index().sort_values("value", ascending=False, kind="stable")
    ways = list(dict.fromkeys(zip(contribution.values.way, contribution.values.kind, strict=True)))
    by_way = {k: part.set_index("site") for k, part in contribution.values.groupby(["way", "kind"], sort=False)}
    sites = list(dict.fromkeys(contribution.values.site))
    standings = [_standing(row) for row in main.to_dict("records")]
    return fill(
        "contribution.html",
        contribution=contribution,
        paid=paid,
        lead=_lead(contribution),
        doubt=contribution.doubt(),
        unpaid=contribution.unpaid(),
        disagreement=contribution.disagreement(),
        standings=standings[:STANDING],
        more_standings=standings[STANDING:],
        credits=_credits(contribution),
        next_step=_next_step(contribution, standings),
        figure=value_figure(main, contribution),
        again=contribution.kind == AGAIN,
        kinds=[
            (kind, words.format(contribution.row_word))
            for kind, words in KINDS.items()
            if (contribution.values.kind == kind).any()
        ],
        ledger=contribution.ledger.sort_values("value", ascending=False).to_dict("records") if paid else [],
        rewards=contribution.rewards.to_dict("records"),
        rules={name: rule.about(contribution.row_word) for name, rule in RULES.items()},
        some_unknown=bool(contribution.rewards.isna().any(axis=None)),
        whole=float(contribution.ledger.credit.sum()) if paid else 0.0,
        ways=ways,
        table=[(s, [by_way[w].loc[s] for w in ways]) for s in sites],
        sums=[float(by_way[w].value.sum()) for w in ways],
        costs=contribution.costs.to_dict("records"),
    )


def _lead(contribution: Contribution) -> str:
    gain, word = "gain" if contribution.gain > 0 else "loss", contribution.row_word
    return (
        f"On its own {several(contribution.rows, f'test {word}')} the {contribution.unit} is "
        f"{number(contribution.end)} with the model of all sites. Baseline (one answer to every {word}): "
        f"{number(contribution.same)}, so this is a {gain} of {number(abs(contribution.gain))}."
    )


def _standing(row: dict[Any, Any]) -> Standing:
    """Whether a site's taking part helped, by the interval of its value."""
    words = f"{signed(row['value'])} (95 % interval {signed(row['low'])} to {signed(row['high'])})."
    if row["low"] > 0:
        return Standing(row["site"], "helped", "gain", words)
    if row["high"] < 0:
        return Standing(row["site"], "raised the loss", "loss", words)
    return Standing(row["site"], "cannot tell", "unsure", words)


def _credits(contribution: Contribution) -> str:
    """Who earns credits; nothing where none were computed, or where they should not be used."""
    if contribution.doubt() or not len(contribution.ledger):
        return ""
    paid = contribution.ledger[contribution.ledger.credit > 0].sort_values("credit", ascending=False)
    if not len(paid):
        return "Credits: none, since no site's value is clearly above zero."
    whole = float(contribution.ledger.credit.sum())
    shares = [f"{site} {100 * credit / whole:.0f} %" for site, credit in zip(paid.site, paid.credit, strict=True)]
    return f"Credits, {number(whole)} in all: {', '.join(shares)}."


def _next_step(contribution: Contribution, standings: Sequence[Standing]) -> str:
    user, word = contribution.user, contribution.row_word
    if contribution.unpaid():
        return (
            f"Find out why the model does not beat the baseline for {user} (vitrail card). Nobody should be paid by it."
        )
    if contribution.doubt():
        return "Do not pay by these numbers. With all sites’ files in one place, train every group again: --retrain."
    if all(standing.kind == "unsure" for standing in standings):
        return f"Too little to decide: score on more test {word}s of {user}, or train again from more seeds."
    if not contribution.by_shapley:
        return "For values that sum to the gain: --method shapley."
    return "Agree among the sites on what a credit is worth before anybody is paid; Vitrail does not handle money."


def value_figure(main: pd.DataFrame, contribution: Contribution) -> Markup:
    """One bar per site with its interval, wide and narrow."""
    return svg.twice(lambda width: _bars(main, contribution, width))


def _bars(main: pd.DataFrame, contribution: Contribution, width: int) -> Markup:
    rows = []
    for row in main.to_dict("records"):
        interval = Interval(row["value"], row["low"], row["high"])
        words = f"{row['site']}: {spoken(interval, signed)}"
        kind = "verdict gain" if row["value"] >= 0 else "verdict loss"
        value = Label(signed(row["value"]), "value")
        rows.append(IntervalRow(row["site"], words, interval, bar="bar", kind=kind, line="reach", right=[value]))
    low, high = interval_domain([row.interval for row in rows], [0.0])
    title, axis = f"What each site’s taking part was worth to {contribution.user}", f"fall in {contribution.unit}"
    return interval_rows(IntervalRows(title, rows, axis, low, high, signed), width)

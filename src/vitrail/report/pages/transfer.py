"""The page of `vitrail transfer`: whose model carries over to whose rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, signed
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.charts.svg import shade
from vitrail.report.pages.frame import fill
from vitrail.report.pages.links import write_linked
from vitrail.report.text import SAME, Standing, listed, name, opening
from vitrail.studies.transfer import Transfer, on_trust

STANDING = 8  # users of the first screen
CELL = (46.0, 84.0)  # pixels: widths of a cell, at least and at most


def write_transfer(transfer: Transfer, folder: Path, scores: pd.DataFrame | None = None) -> Path:
    """Tables and page."""
    transfer.save(folder, scores)
    page = folder / "transfer.html"
    write_linked(render_transfer(transfer, scores), page)
    return page


def render_transfer(transfer: Transfer, scores: pd.DataFrame | None = None) -> str:
    target = transfer.study.target
    linear = transfer.study.network.kind == "linear" or not transfer.study.network.hidden
    log_odds = "the log-odds" if len(target.levels) == 2 else "an answer’s score"
    log_odds = "the log hazard" if target.kind == "time" else log_odds
    standings = [_standing(transfer, user) for user in transfer.sites]
    return fill(
        "transfer.html",
        heat=True,
        transfer=transfer,
        figure=_figure(transfer),
        standings=standings[:STANDING],
        more_standings=standings[STANDING:],
        next_step=_next_step(scores, transfer),
        groups=_groups(transfer),
        unit="log loss per case"
        if target.kind != "number"
        else f"the square of {target.unit or 'the unit of ' + target.column}",
        same=transfer.same,
        few=transfer.few,
        trust=on_trust(transfer.study.row_word),
        rankings=[(user, _finding(transfer, user), _ranking(transfer, user)) for user in transfer.sites],
        answer=target.column if target.kind == "number" else log_odds,
        effect="the weights of the linear model"
        if linear
        else "mean slopes over the user’s rows, since weights of a network with hidden layers cannot be compared",
        has_feedback=not transfer.study.images and not transfer.remote,
        metrics=list(transfer.study.metrics),
        scores=[] if scores is None else _scores(transfer, scores),
        held_few=_held_few(scores),
    )


def _figure(transfer: Transfer) -> Markup:
    """User x site: blue where the site's model does better on the user's rows than at home, red where worse."""
    matrix = transfer.matrix()
    values = matrix.to_numpy()
    most = float(np.nanmax(np.abs(np.where(np.isfinite(values), values, np.nan)), initial=0.0)) or 1.0

    def cell(user: str, site: str) -> GridCell:
        value = float(matrix.loc[user, site])  # type: ignore[arg-type]
        if user == site:
            return GridCell(f"{user}: its own model", "none", "itself")
        if not math.isfinite(value):
            why = "not reported" if transfer.remote else "diverged"
            return GridCell(f"{user}, model of {site}: {why}", "none", why)
        return GridCell(f"{user}, model of {site}: {signed(value)}", shade(value / most), signed(value, 2))

    cells = [[cell(user, site) for site in transfer.sites] for user in transfer.sites]
    text = "; ".join(one.words for row in cells for one in row)
    return grid(
        [Grid(transfer.sites, transfer.sites, cells, CELL, 30.0)], "Transfer loss, by user and site", f"{text}."
    )


def _standing(transfer: Transfer, user: str) -> Standing:
    """Whom a user should learn from first, and whether anybody's model beats its baseline there."""
    first, close = _first_and_close(transfer, user)
    if not math.isfinite(first.transfer):
        why = "No loss of another model was reported here." if transfer.remote else "All other models diverged."
        return Standing(user, "nobody", "warn" if transfer.remote else "loss", why)
    words = f"Transfer loss {signed(first.transfer)}."
    if close:
        words += f" As good, within the error: {listed(close)}."
    if user in transfer.same and first.loss_on_user >= transfer.same[user]:
        losses = f"{number(first.loss_on_user)} against {number(transfer.same[user])}"
        words += f" No better there than the baseline (loss {losses})."
        return Standing(user, f"{first.site}, with doubt", "warn", words)
    return Standing(user, f"learn from {first.site}", "gain", words)


def _first_and_close(transfer: Transfer, user: str) -> tuple[Any, list[str]]:
    """The best ranked row, and the sites that are as good within the standard error."""
    rows = transfer.table[transfer.table.user == user].sort_values("rank")
    first = rows.iloc[0]
    close = rows[1:][rows.transfer[1:] - first.transfer < np.hypot(rows.error[1:], first.error)]
    return first, [str(site) for site in close.site]


def _groups(transfer: Transfer) -> list[tuple[str, str, str]]:
    """Between machines: user, whom it would learn from, and what the user said of training."""
    if (far := transfer.remote) is None:
        return []
    status = dict.fromkeys(far.training, "trains") | dict.fromkeys(far.withdrew, "withdrew, or was silent")
    return [(u, ", ".join(s) or "nobody", status.get(u, "was not chosen")) for u, s in far.subsets.items()]


def _next_step(scores: pd.DataFrame | None, transfer: Transfer) -> str:
    if transfer.remote and not np.isfinite(transfer.table.transfer).any():
        return "Sites with few patients report no rounded loss. A study may ask for exact losses, if the sites agree."
    if transfer.remote:
        return "Read who trains below. The page of the run has the scores of the model that they trained."
    if scores is None:
        return "Train with the sites that rank first (--train-with top:3), and compare over seeds before you decide."
    return "Compare over several seeds before you decide (vitrail compare): one seed has no interval."


def _finding(transfer: Transfer, user: str) -> Markup:
    first, close = _first_and_close(transfer, user)
    if not math.isfinite(first.transfer):
        why = "no loss of one was reported" if transfer.remote else "they diverged"
        return Markup("{}: no other site’s model can be judged; {}.").format(opening(user), why)
    text = Markup("For {}, {} ranks first: transfer loss {}").format(
        name(user), name(first.site), signed(first.transfer)
    )
    many = Markup("; {} {} as good, within the error.").format(
        listed([name(site) for site in close]), "is" if len(close) == 1 else "are"
    )
    text += many if close else Markup(".")
    rows = transfer.table[transfer.table.user == user]
    best = rows.sort_values("loss_on_user", kind="stable").iloc[0]
    if best.site != first.site:
        text += Markup(
            " By the loss on {0}’s {5}s alone {1} would rank first ({2} against {3}): {4}’s own {5}s are harder to "
            "predict."
        ).format(
            *(name(user), name(best.site), number(best.loss_on_user), number(first.loss_on_user), name(first.site)),
            transfer.study.row_word,
        )
    return text


def _ranking(transfer: Transfer, user: str) -> list[dict[str, Any]]:
    rows: list[Any] = transfer.table[transfer.table.user == user].sort_values("rank").to_dict("records")
    return [{"words": transfer.most_different(user, row["site"], 5)} | row for row in rows]


def _scores(transfer: Transfer, scores: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each way of training, and one more for each user's baseline."""
    rows = []
    for user, mine in scores.groupby("user", sort=False):
        for trained, part in mine.groupby("trained", sort=False):
            values = part.set_index("metric").value
            numbers = [float(values[m]) for m in transfer.study.metrics]
            rows.append({"user": user, "trained": trained, "sites": part.sites.iloc[0] or "nobody", "numbers": numbers})
        if "same" in mine:
            same = mine.drop_duplicates("metric").set_index("metric").same
            numbers = [float(same[m]) for m in transfer.study.metrics]
            rows.append({"user": user, "trained": SAME, "sites": "", "numbers": numbers})
    return rows


def _held_few(scores: pd.DataFrame | None) -> dict[str, str]:
    """Users whose hold-out rows are few -> how many."""
    if scores is None or "few_rows" not in scores:
        return {}
    pairs = zip(scores["user"], scores["few_rows"], strict=True)
    return {str(user): str(words) for user, words in pairs if words}

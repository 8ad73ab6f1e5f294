"""The page of `vitrail transfer`: whose model carries over to whose rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, signed
from vitrail.report.charts.svg import SHADES, shade
from vitrail.report.pages.frame import fill
from vitrail.report.text import SAME, name
from vitrail.storage.atomic_files import write_atomically
from vitrail.studies.transfer import Transfer, on_trust

DEEP = 4  # shades from nothing: above it letters are pale


def write_transfer(found: Transfer, folder: Path, scores: pd.DataFrame | None = None) -> Path:
    """Tables and page."""
    found.save(folder, scores)
    write_atomically(folder / "transfer.html", render_transfer(found, scores))
    return folder / "transfer.html"


def render_transfer(found: Transfer, scores: pd.DataFrame | None = None) -> str:
    target = found.study.target
    linear = found.study.network.kind == "linear" or not found.study.network.hidden
    log_odds = "the log-odds" if len(target.levels) == 2 else "an answer’s score"
    log_odds = "the log hazard" if target.kind == "time" else log_odds
    return fill(
        "transfer.html",
        heat=True,
        found=found,
        findings=[_finding(found, user) for user in found.sites],
        matrix=_matrix(found),
        unit="log loss per case"
        if target.kind != "number"
        else f"the square of {target.unit or 'the unit of ' + target.column}",
        same=found.same,
        few=found.few,
        trust=on_trust(found.study.row_word),
        rankings=[(user, _ranking(found, user)) for user in found.sites],
        answer=target.column if target.kind == "number" else log_odds,
        effect="the weights of the linear model"
        if linear
        else "mean slopes over the user’s rows, since weights of a network with hidden layers cannot be compared",
        metrics=list(found.study.metrics),
        scores=[] if scores is None else _scores(found, scores),
        held_few=_held_few(scores),
    )


def _finding(found: Transfer, user: str) -> Markup:
    rows = found.table[found.table.user == user].sort_values("rank")
    first = rows.iloc[0]
    if not math.isfinite(first.transfer):
        return Markup("{}: no other site’s model can be judged; they diverged.").format(name(user))
    said = Markup("For {}, {} ranks first: transfer loss {}").format(
        name(user), name(first.site), signed(first.transfer)
    )
    close = rows[1:][rows.transfer[1:] - first.transfer < np.hypot(rows.error[1:], first.error)]
    said += Markup("; {} cannot be told apart from it.").format(_names(close.site)) if len(close) else Markup(".")
    best = rows.sort_values("loss_on_user", kind="stable").iloc[0]
    if best.site != first.site:
        said += Markup(
            " By the loss on {0}’s {5}s alone it would be {1} ({2} against {3}): {4}’s own {5}s are harder to predict."
        ).format(
            *(name(user), name(best.site), number(best.loss_on_user), number(first.loss_on_user), name(first.site)),
            found.study.row_word,
        )
    return said


def _names(sites: pd.Series[str]) -> Markup:
    return Markup(", ").join(name(s) for s in sites)


def _matrix(found: Transfer) -> list[tuple[str, list[tuple[str, str]]]]:
    table = found.matrix()
    values = table.to_numpy()
    most = float(np.nanmax(np.abs(np.where(np.isfinite(values), values, np.nan)), initial=0.0)) or 1.0
    out = []
    for user in found.sites:
        cells = []
        for site in found.sites:
            value = float(table.loc[user, site])  # type: ignore[arg-type]
            if user == site or not math.isfinite(value):
                cells.append(("itself" if user == site else "diverged", "own"))
                continue
            part = value / most
            cells.append((signed(value), shade(part) + (" deep" if round(SHADES * abs(part)) > DEEP else "")))
        out.append((user, cells))
    return out


def _ranking(found: Transfer, user: str) -> list[dict[str, Any]]:
    rows: list[Any] = found.table[found.table.user == user].sort_values("rank").to_dict("records")
    return [{"words": found.most_different(user, row["site"], 5)} | row for row in rows]


def _scores(found: Transfer, scores: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each way of training, and of each user one more: always the same answer."""
    rows = []
    for user, mine in scores.groupby("user", sort=False):
        for trained, part in mine.groupby("trained", sort=False):
            values = part.set_index("metric").value
            numbers = [float(values[m]) for m in found.study.metrics]
            rows.append({"user": user, "trained": trained, "sites": part.sites.iloc[0] or "nobody", "numbers": numbers})
        if "same" in mine:
            same = mine.drop_duplicates("metric").set_index("metric").same
            numbers = [float(same[m]) for m in found.study.metrics]
            rows.append({"user": user, "trained": SAME, "sites": "", "numbers": numbers})
    return rows


def _held_few(scores: pd.DataFrame | None) -> dict[str, str]:
    """Users whose hold-out rows are few -> how many."""
    if scores is None or "few_rows" not in scores:
        return {}
    told = zip(scores["user"], scores["few_rows"], strict=True)
    return {str(user): str(words) for user, words in told if words}

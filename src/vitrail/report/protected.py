"""What stood between reports and their use in a run: who was set aside, who lay far off, what of a budget is spent."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.core.facts import OUTLYING
from vitrail.report import draw
from vitrail.report.words import listed, name, number, several
from vitrail.runs.protection import Spent, spent_by
from vitrail.runs.run import Run

NAMED = 3.0  # times as far off as the median site, and furthest in most rounds: then a site is named
ROBUST = {
    "median": "the median of each number",
    "trimmed": "the mean of each number without its ends",
    "multikrum": "the mean of those reports that lie nearest to each other",
    "clipping": "a centre to which each report is pulled",
}


def has_protection(run: Run) -> bool:
    plain = type(run.study.protect)()
    return run.study.protect != plain or bool(run.info.get("outcasts") or run.info.get("unusual"))


def contents(run: Run) -> dict[str, Any]:
    far = run.told(OUTLYING)
    rows = np.empty((0, len(run.sites))) if far is None else far.double().numpy()
    rows = rows[np.isfinite(rows).any(1)]
    named = outlying(rows)
    return {
        "masked": run.study.protect.least if run.study.protect.sum == "masked" else 0,
        "away": run.info.get("engine") == "deployed",
        "how": ROBUST.get(run.study.protect.robust, ""),
        "aside": [
            Markup("{} was set aside: {}. The others went on without it.").format(name(site), why)
            for site, why in run.info.get("outcasts", {}).items()
        ],
        "unusual": [
            Markup(
                "{} reported a change more than 10 times as long as the median site’s, or as its own last one, in {}."
            ).format(name(site), several(rounds, "round"))
            for site, rounds in run.info.get("unusual", {}).items()
        ],
        "named": [_said(run.sites[i], rows[:, i], rows) for i in named],
        "figure": draw.twice(lambda width: _bars(run.sites, rows, named, width)) if len(rows) else "",
        "budget": _budget(spent_by(run.study, run.method)),
    }


def outlying(rows: np.ndarray) -> list[int]:
    """[round, site] -> sites that lie far off in most rounds, the furthest first."""
    if not len(rows):
        return []
    middle = np.nanmedian(rows, 0)
    first = (rows == np.nanmax(rows, 1, keepdims=True)).mean(0)
    return [int(i) for i in np.argsort(-middle, kind="stable") if middle[i] > NAMED and first[i] > 0.5]


def _said(site: str, mine: np.ndarray, rows: np.ndarray) -> Markup:
    first = int((mine == np.nanmax(rows, 1)).sum())
    told = "{} lay furthest from the centre of all reports in {} of {} rounds, in the median {} times as far as the "
    told += "median site: it lies, or its rows differ much from the others’. Ask what it trained on."
    return Markup(told).format(name(site), first, len(rows), number(float(np.nanmedian(mine)), 1))


def _budget(spent: Spent | None) -> dict[str, Any] | None:
    if spent is None:
        return None
    said = "Each row’s gradient was cut to a length of {} and noise of {} times that was added in every step; each "
    said += "row was looked at {} times. By that no row changes the probability of anything that follows from the "
    said += "reports by more than a factor e to the {} (epsilon), but for a chance of {} (delta)."
    numbers = number(spent.clip, 2), number(spent.noise, 2), spent.looks, number(spent.epsilon, 2), f"{spent.delta:g}"
    return {
        "said": Markup(said).format(*numbers),
        "covers": listed([Markup.escape(c) for c in spent.covers], 9),
        "leaves_out": listed([Markup.escape(c) for c in spent.leaves_out], 9),
    }


def _bars(sites: list[str], rows: np.ndarray, named: list[int], width: int) -> Markup:
    """A line from the lowest to the highest tenth of rounds and a dot at the median, for each site."""
    order = np.argsort(-np.nanmedian(rows, 0), kind="stable")[:40]
    low, middle, high = (np.nanquantile(rows, q, axis=0) for q in (0.1, 0.5, 0.9))
    left, right, step = 130.0, width - 20.0, 22.0
    top, bottom = draw.ABOVE, draw.ABOVE + step * len(order)
    x = draw.Scale(0.0, max(4.0, float(np.nanmax(high)) * 1.05), left, right)
    parts = [draw.text(0, top - 10, "times as far as the median site", "axis")]
    for value in (1.0, NAMED):
        parts.append(draw.path([(x(value), top), (x(value), bottom)], kind="zero"))
        parts.append(draw.text(x(value), bottom + 16, f"{value:g}", "tick", "middle"))
    said = []
    for k, i in enumerate(order):
        y, words = top + step * (k + 0.5), f"{sites[i]}: {middle[i]:.1f} ({low[i]:.1f} to {high[i]:.1f})"
        said.append(words)
        kind = "verdict loss" if int(i) in named else "verdict"
        dot = draw.tag("circle", draw.tip(words), cx=x(float(middle[i])), cy=y, r=4, class_="dot")
        line = draw.path([(x(float(low[i])), y), (x(float(high[i])), y)], kind="line")
        parts.append(draw.tag("g", line, dot, class_=kind))
        parts.append(draw.text(left - 10, y + 4, sites[i][:18], "label", "end"))
    return draw.plot(
        width, bottom + 24, "How far each site’s reports lay from the centre", "; ".join(said) + ".", parts
    )

"""What stood between reports and their use in a run: who was set aside, who lay far off, what of a budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from scipy.special import betaincinv

from vitrail.core import facts as means
from vitrail.core.text import number, several
from vitrail.privacy.secure_sum.fixed_point import fewest_of
from vitrail.report.charts import axes, svg
from vitrail.report.charts.curves import Curves, Panel, Series, curves
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, RowMark, interval_rows
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import Interval, listed, name
from vitrail.runs.protection.budget import SpentBudget, replaced_after, spent_after, spent_by
from vitrail.runs.result import Run

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

NAMED = 3.0  # times as far off as the median site, and furthest in most rounds: then a site is named
HONEST = (0, 100)  # runs without a liar in which a site is named, of how many: benchmarks/attacks/attacks.py
ROBUST = {
    "median": "the median of each number",
    "trimmed": "the mean of each number without its ends",
    "multikrum": "the mean of those reports that lie nearest to each other",
    "clipping": "a centre to which each report is pulled",
}
SUMS = {
    "plain": "",
    "masked": "",  # the page says it itself
    "groups": "Sites were put into groups, the same in every round; the coordinator read the total of each group, and "
    "no single report. Of the groups’ means it took {}, which one group with a liar in it can hardly move.",
    "two servers": "Each report was split between two servers, neither of which could read it. They found how far "
    "apart reports lie, took those that lie nearest to each other, and opened the total of these.",
}
SHORT = {
    "no": "",
    "int8": "Each report crossed in whole numbers of one byte; what that loses was said in the next one.",
    "rank": "Each matrix of a report crossed as two thin ones; what that loses was said in the next one.",
}


def has_protection(run: Run) -> bool:
    plain = type(run.study.protect)()
    return run.study.protect != plain or any(run.info.get(k) for k in ("outcasts", "unusual", "unused"))


def contents(page: Page) -> Contents:
    run = run_of(page)
    far = run.fact(means.OUTLYING)
    rows = np.empty((0, len(run.sites))) if far is None else far.double().numpy()
    rows = rows[np.isfinite(rows).any(1)]
    named = outlying(rows)
    protect, several_names = run.study.protect, [run.sites[i] for i in named]
    together = protect.sum == "groups" and len(named) > 0
    return {
        "masked": fewest_of(len(run.sites), protect.least) if protect.sum == "masked" else 0,
        "away": run.info.get("engine") == "deployed",
        "how": ROBUST.get(protect.robust, "") if protect.sum == "plain" else "",
        "words": [
            w
            for w in (SUMS[protect.sum].format(ROBUST.get(protect.robust, ROBUST["median"])), SHORT[protect.compress])
            if w
        ],
        "sure": sure() if len(rows) else "",
        "aside": [
            Markup("{} was set aside: {}. The others went on without it.").format(name(site), why)
            for site, why in run.info.get("outcasts", {}).items()
        ],
        "unused": [_unused(run.info["unused"])] if run.info.get("unused") else [],
        "unusual": [
            Markup(
                "{} reported a change more than 10 times as long as the median site’s, or as its own last one, in {}."
            ).format(name(site), several(rounds, "round"))
            for site, rounds in run.info.get("unusual", {}).items()
        ],
        "named": [_outlier_sentence(several_names, rows[:, named[0]], rows)]
        if together
        else [_outlier_sentence([run.sites[i]], rows[:, i], rows) for i in named],
        "figure": svg.twice(lambda width: _distances(run.sites, rows, named, width)) if len(rows) else "",
        "budget": _budget(run, spent_by(run.study, run.method)),
    }


def _unused(sums: list[list[int]]) -> str:
    """Stage and round of each sum that changed nothing."""
    rounds = len({tuple(one) for one in sums})
    return (
        f"{several(rounds, 'round')} changed nothing, because the sum of the reports could not be opened or would have "
        "moved the model further than the sites accept. One of the sites may have sent wrong reports: see events.jsonl."
    )


def outlying(rows: np.ndarray) -> list[int]:
    """[round, site] -> sites that lie far off in most rounds, the furthest first."""
    if not len(rows):
        return []
    middle = np.nanmedian(rows, 0)
    first = (rows == np.nanmax(rows, 1, keepdims=True)).mean(0)
    return [int(i) for i in np.argsort(-middle, kind="stable") if middle[i] > NAMED and first[i] > 0.5]


def sure() -> str:
    """How often the rule names somebody although nobody lies."""
    wrong, runs = HONEST
    most = float(betaincinv(wrong + 1, runs - wrong, 0.95))
    return (
        f"How sure that is: of {several(runs, 'run')} in which nobody lied, this rule named somebody all the same in "
        f"{wrong}, so that it does so in at most {100 * most:.0f} of 100 such runs (with 95 % certainty)."
    )


def _outlier_sentence(sites: list[str], mine: np.ndarray, rows: np.ndarray) -> Markup:
    first = int((mine == np.nanmax(rows, 1)).sum())
    one = len(sites) == 1
    who = (
        Markup("{}").format(name(sites[0]))
        if one
        else Markup("The group of {}").format(listed(list(map(name, sites)), 9))
    )
    text = (
        "{} lay furthest from the centre of all {} in {} of {} rounds, in the median {} times as far as the median {}: "
    )
    if one:
        text += "it lies, or its rows differ much from the others’. Ask what it trained on."
    else:
        text += "one of them lies, or their rows differ much from the others’; a total does not show which."
    times = number(float(np.nanmedian(mine)), 1)
    what = ("reports", "site") if one else ("groups", "group")
    return Markup(text).format(who, what[0], first, len(rows), times, what[1])


def _budget(run: Run, spent: SpentBudget | None) -> dict[str, Any] | None:
    if spent is None:
        return None
    if spent.of == "row":
        text = "Each row’s gradient was cut to a length of {} and noise of {} times that was added in every step; each "
        text += "row was looked at {} times. By that no row changes the probability of anything that follows from the "
        text += (
            "reports by more than a factor e to the {} (epsilon), but for a chance of {} (delta). That compares the "
        )
        text += (
            "run with one in which the row’s numbers are taken away. Where another person’s row stands in its place, "
        )
        text += "which is what counts if it is known that the row takes part, epsilon is {}."
    elif spent.of == "patient":
        text = "Each row’s gradient was cut to a length of {}, divided by the number of training rows of its patient, "
        text += "and noise of {} times the undivided length was added in every step; each row was looked at {} times. "
        text += "By that no patient, with all rows together, changes the probability of anything that follows from the "
        text += "reports by more than a factor e to the {} (epsilon), but for a chance of {} (delta). That compares "
        text += "the run with one in which the patient’s numbers are taken away. Where another patient’s rows stand in "
        text += "their place, epsilon is {}."
    else:
        text = "Each site’s change was cut to a length of {}, and the sites together added noise of at least {} times "
        text += "that to the total, in {} rounds. By that no site changes the probability of anything that follows "
        text += "from the totals by more than a factor e to the {} (epsilon), but for a chance of {} (delta). That "
        text += "compares the run with one without the site; where another site stands in its place, epsilon is {}."
    both = number(spent.epsilon, 2), f"{spent.delta:g}", number(spent.replaced, 2)
    numbers = number(spent.clip, 2), number(spent.noise, 2), spent.looks, *both
    took = run.info.get("took_part", {})
    rounds = max([1, *took.values()])
    path = [(r, spent_after(run.study, run.method, r)) for r in sorted({round(rounds * k / 40) for k in range(41)})]
    return {
        "of": spent.of,
        "said": Markup(text).format(*numbers),
        "covers": listed([Markup.escape(c) for c in spent.covers], 9),
        "leaves_out": listed([Markup.escape(c) for c in spent.leaves_out], 9),
        "sites": [
            (site, n, *(number(f(run.study, run.method, n), 2) for f in (spent_after, replaced_after)))
            for site, n in took.items()
        ],
        "figure": svg.twice(lambda width: _spending(path, width)),
    }


def _spending(path: Sequence[tuple[int, float]], width: int) -> Markup:
    """Epsilon against rounds."""
    rounds, spent = [float(r) for r, _ in path], [e for _, e in path]
    first, middle, last = spent[0], spent[len(spent) // 2], spent[-1]
    text = f"Epsilon {first:.2f} before the first round, {middle:.2f} half-way, {last:.2f} at the end."
    line = Series("epsilon", "", "series strong calm", rounds, spent, text)
    panel = Panel("epsilon spent", [line], 0.0, max(spent) * 1.1 or 1.0)
    title, axis = "What of the privacy budget is spent after how many rounds", "rounds in which a site took part"
    end = max(1.0, rounds[-1])
    return curves(Curves(title, text, [panel], axis, 0.0, end, axes.round_ticks(0.0, end, 4), (130.0, 130.0)), width)


def _distances(sites: Sequence[str], rows: np.ndarray, named: Sequence[int], width: int) -> Markup:
    """A line from the lowest to the highest tenth of rounds and a dot at the median, for each site."""
    low, middle, high = (np.nanquantile(rows, q, axis=0).tolist() for q in (0.1, 0.5, 0.9))
    shown = [
        IntervalRow(
            sites[i],
            f"{sites[i]}: {middle[i]:.1f} ({low[i]:.1f} to {high[i]:.1f})",
            Interval(middle[i], low[i], high[i]),
            [RowMark(middle[i], size=4.5)],
            kind="verdict loss" if i in named else "verdict calm",
        )
        for i in np.argsort(-np.nanmedian(rows, 0), kind="stable")[:40].tolist()
    ]
    title, axis = "How far each site’s reports lay from the centre", "times as far as the median site"
    _, most = axes.interval_domain([row.interval for row in shown])
    levels = [(1.0, "1, the median site"), (NAMED, f"{NAMED:g}, named beyond")]
    figure = IntervalRows(title, shown, axis, 0.0, max(4.0, most), step=(24.0, 40.0), references=levels)
    return interval_rows(figure, width)


SECTION = Section(
    contents, lambda page: page.run is not None and has_protection(page.run), (means.ROUND, means.OUTLYING)
)

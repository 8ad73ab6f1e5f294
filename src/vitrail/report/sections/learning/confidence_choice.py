"""Who was chosen in each round: a strip of cells for each site."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from vitrail.analysis.uncertainty import ConfidenceChoice, read_choice
from vitrail.core import facts as means
from vitrail.report.charts import svg
from vitrail.report.charts.grid import Span, TimelineRow, timeline
from vitrail.report.sections.section import Contents, Section, has_fact, run_of
from vitrail.report.text import listed, name

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

SPANS = {True: 30, False: 75}  # cells of a strip, on a telephone and else: each of as many rounds as it takes


def contents(page: Page) -> Contents:
    choice = read_choice(run_of(page).sites, run_of(page).facts)
    assert choice is not None, "the section needs a choice"
    return contents_of(choice)


def contents_of(choice: ConfidenceChoice) -> Contents:
    """Sites that were chosen most often come first."""
    often = choice.often()
    order = sorted(range(len(choice.sites)), key=lambda i: (-often[i], i))
    return {
        "said": _sentence(choice, often, order),
        "strip": svg.twice(partial(_strip, choice, order)),
        "why": choice.sure is not None,
        "span": -(-len(choice.rounds) // SPANS[False]),
    }


def _sentence(choice: ConfidenceChoice, often: np.ndarray, order: Sequence[int]) -> Markup:
    always = [choice.sites[i] for i in order if often[i] == 1]
    never = [choice.sites[i] for i in order if often[i] == 0]
    if len(always) == len(order):
        return Markup("Everybody was chosen in every round in which it took part.")
    if always or never:
        ends = (("Always chosen when there: {}.", always), ("Never chosen: {}.", never))
        return Markup(" ").join(Markup(words).format(listed(sites)) for words, sites in ends if sites)
    ends_of = [v for i in (order[0], order[-1]) for v in (name(choice.sites[i]), f"{100 * often[i]:.0f}")]
    return Markup("Chosen most often: {} ({} % of its rounds); least often: {} ({} %).").format(*ends_of)


def _strip(choice: ConfidenceChoice, order: Sequence[int], width: int) -> Markup:
    """Sites down, rounds across. A cell is filled from below by the share of its rounds in which the site was chosen as
    one of the sure, then by the share in which it was drawn; of one round it is full or not."""
    rounds, often, rows = len(choice.rounds), choice.often(), []
    span = -(-rounds // SPANS[svg.is_narrow(width)])
    sure = choice.chosen if choice.sure is None else choice.chosen & choice.sure
    for i in order:
        spans = []
        for start in range(0, rounds, span):
            at = slice(start, min(start + span, rounds))
            here = int(choice.here[at, i].sum())
            part = [int(of[at, i].sum()) for of in (sure, choice.chosen & ~sure)]
            which = choice.rounds[at]
            words = f"{choice.sites[i]}, {_which(which)}: {_reason(choice, part, here, at.stop - at.start)}"
            shares = [(n / here, kind) for n, kind in zip(part, ("h1", "h9"), strict=True)] if here else []
            spans.append(Span(int(which[0]), int(which[-1]), words, "h6" if here else "none", shares))
        rows.append(TimelineRow(choice.sites[i], spans, f"{100 * often[i]:.0f} %"))
    text = "Chosen in " + ", ".join(f"{row.name} {row.end}" for row in rows) + "."
    return timeline(rows, width, "Who was chosen in each round", text, _key(choice), "chosen")


def _which(rounds: np.ndarray) -> str:
    first, last = int(rounds[0]), int(rounds[-1])
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def _reason(choice: ConfidenceChoice, part: Sequence[int], here: int, of: int) -> str:
    if not here:
        return "away"
    words = ["chosen"] if choice.sure is None else ["chosen: of the surer half", "chosen at random"]
    if of == 1:
        return next((w for w, count in zip(words, part, strict=False) if count), "not chosen")
    times = [f"{w} {count} times" for w, count in zip(words, part, strict=False) if count]
    return ", ".join(times or ["not chosen"]) + (f"; away {of - here} times" if here < of else "")


def _key(choice: ConfidenceChoice) -> list[tuple[str, str]]:
    """What the colours mean."""
    kinds = [("h1", "chosen")] if choice.sure is None else [("h1", "surer half"), ("h9", "by lot")]
    return [*kinds, ("h6", "not chosen"), *([] if choice.here.all() else [("none", "away")])]


SECTION = Section(contents, has_fact(means.CHOSEN), (means.ROUND, means.CHOSEN, means.SURE), heat=True)

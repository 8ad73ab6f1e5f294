"""The page of a model card, and the Markdown beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitrail.core.text import number
from vitrail.report.charts import svg
from vitrail.report.charts.axes import interval_domain
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, RowMark, interval_rows
from vitrail.report.pages.card.contents import about, lead, sections, title, within
from vitrail.report.pages.card.markdown import is_card, to_markdown
from vitrail.report.pages.card.standings import beats_baseline, next_step, standings
from vitrail.report.pages.frame import fill, unwritten, write_page
from vitrail.report.sections.calibration import benefit_figure, calibration_figure, event_words
from vitrail.report.text import METRICS, Interval, metric_name
from vitrail.runs.integrity import add_to_chain
from vitrail.runs.site.card import Card, CardScore
from vitrail.storage.atomic_files import write_atomically
from vitrail.study.model import LOWER_IS_BETTER

SHARES = ("share", "0 to 1")
STEP = (28.0, 42.0)  # pixels from score to score, wide and narrow
COLOURS = {True: "gain", False: "loss", None: "unsure"}


def write_card(
    card: Card, path: Path, joining: dict[str, Any] | None = None, beyond: Sequence[Path] = ()
) -> tuple[Path, Path]:
    """The page and, beside it, the Markdown; only an earlier card is written over. `joining`: the site's own verdict,
    for the page alone. `beyond`: pages in other folders to link to."""
    plain = path.with_suffix(".md")
    if plain.exists() and not is_card(plain.read_text("utf-8", errors="replace")):
        raise unwritten(plain, "it exists already and is no card of ours.", "nothing was overwritten")
    write_page(render_card(card, joining), path, "card", beyond)
    write_atomically(plain, to_markdown(card))
    add_to_chain(plain)
    return path, plain


def render_card(card: Card, joining: dict[str, Any] | None = None) -> str:
    bedside, benefit = card.bedside, card.bedside.benefit if card.bedside else None
    return fill(
        "card.html",
        header={"site": card.site, "study": card.study.name, "same": card.same},
        card=card,
        title=title(card),
        lead=lead(card),
        about=about(card),
        figure=score_figure(card),
        standings=standings(card),
        next_step=next_step(card),
        sections=sections(card),
        calibration=calibration_figure(card.site, bedside.counts) if bedside else "",
        benefit=benefit_figure(card.site, benefit) if benefit else "",
        event=event_words(card.study.target.levels),
        joining=joining,
    )


def score_figure(card: Card) -> Markup:
    """The scores that have the scale and the direction of the first one, each beside its baseline."""
    if not card.scores:
        return Markup()
    shown = [s for s in card.scores if _scale(s) == _scale(card.scores[0])]
    return svg.twice(lambda width: _rows(card, shown, width))


def _scale(score: CardScore) -> tuple[str, bool]:
    unit = METRICS.get(score.metric, ("", score.metric))[1]
    return "share" if unit in SHARES else unit, score.metric in LOWER_IS_BETTER


def _rows(card: Card, scores: Sequence[CardScore], width: int) -> Markup:
    rows = []
    for score in scores:
        name, value = metric_name(score.metric), score.estimate.value
        words = f"{name}: {within(score.estimate)}; baseline {number(score.chance)}"
        marks = [RowMark(score.chance, "tick", "level short", 9.0), RowMark(value)]
        kind = f"verdict {COLOURS[beats_baseline(score)]}"
        right = [Label(number(value) if svg.is_narrow(width) else within(score.estimate), "value")]
        rows.append(IntervalRow(name, words, Interval(*score.estimate), marks, kind=kind, right=right))
    low, high = interval_domain([row.interval for row in rows], [score.chance for score in scores])
    unit, lower = _scale(scores[0])
    best, target = "smaller is better" if lower else "larger is better", card.study.target
    axis = f"score; {best}" if unit == "share" else f"{target.unit or unit}; {best}"
    key = [RowMark(0.0, words="model, with its 95 % interval"), RowMark(0.0, "tick", "level short", 7.0, "baseline")]
    title = f"Scores at {card.site} beside the baseline"
    return interval_rows(IntervalRows(title, rows, axis, low, high, step=STEP, letters=40, key=key), width)

"""A site's model card as a page and as Markdown; both of the same words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.analysis.calibration import RateInterval, judge, observed_expected
from vitrail.core.text import number
from vitrail.data.event_class import event_sentence
from vitrail.quality.screening.result import CAUSES, LABEL
from vitrail.report.charts import svg
from vitrail.report.pages.frame import fill, unwritten, write_page
from vitrail.report.sections.calibration import benefit_figure, calibration_figure, event_words, useful_words
from vitrail.report.text import SAME, metric_words
from vitrail.runs.integrity import add_to_chain
from vitrail.runs.site.card import Card
from vitrail.storage.atomic_files import write_atomically

MARK = "<!-- vitrail card -->"
STAYS = "It is private to the site: it shows shares and scores of its own rows. Nobody sent it anywhere."
Table = tuple[str, list[str], list[list[str]]]  # caption, heads, rows


def write_card(
    card: Card, path: Path, joining: dict[str, Any] | None = None, beyond: Sequence[Path] = ()
) -> tuple[Path, Path]:
    """The page and, beside it, the Markdown; only an earlier card is written over. `joining`: the site's own verdict,
    for the page alone. `beyond`: pages in other folders to link to."""
    plain = path.with_suffix(".md")
    if plain.exists() and not plain.read_text("utf-8", errors="replace").startswith(MARK):
        raise unwritten(plain, "it exists already and is no card of ours.", "nothing was overwritten")
    write_page(render_card(card, joining), path, "card", beyond)
    write_atomically(plain, to_markdown(card))
    add_to_chain(plain)
    return path, plain


def render_card(card: Card, joining: dict[str, Any] | None = None) -> str:
    given: dict[str, Any] = {"calibration": "", "benefit": "", "joining": joining}
    if bedside := card.bedside:
        given["calibration"] = svg.panels([[calibration_figure(card.site, bedside.counts)]])
        if bedside.benefit:
            given["benefit"] = svg.panels([[benefit_figure(card.site, bedside.benefit)]])
    header = {"site": card.site, "study": card.study.name, "same": card.same}
    shown = tables(card)
    heads = {k: [(words, "") for words in table[1]] for k, table in shown.items()}
    given |= {"about": about(card), "event": event_words(card.study.target.levels), "said": bedside_words(card)}
    return fill("card.html", told=header, card=card, tables=shown, heads=heads, **given)


def about(card: Card) -> str:
    made = ", ".join(f"{k} {v}" for k, v in card.versions.items())
    event = f" {event_sentence(card.study.target)}".rstrip()
    return (
        f"The model of {card.site} from run {card.run} of the study {card.study.name}: {card.method}, "
        f"seed {card.seed}, to predict {card.study.target.column}.{event} Made with {made}."
    )


def _within(rate: RateInterval, digits: int = 3) -> str:
    ends = f" ({number(rate.low, digits)} to {number(rate.high, digits)})" if rate.low == rate.low else ""
    return number(rate.value, digits) + ends


def tables(card: Card) -> dict[str, Table]:
    word = card.study.row_word
    total = max(1, sum(n for _, n in card.shares))
    classes = [[level, str(n), f"{100 * n / total:.0f} %"] for level, n in card.shares]
    columns = [[c.name, c.kind, c.unit, f"{100 * c.missing:.0f} %"] for c in card.columns]
    scores = [[metric_words(s.metric), _within(s.told), number(s.chance, 3)] for s in card.scores]
    findings = [
        [card.study.target.column if f.feature == LABEL else f.feature, CAUSES[f.kind],
         "likely wrong" if f.wrong else "may be real", f.text]
        for f in card.findings or []
    ]  # fmt: skip
    out = {
        "classes": (f"All {word}s of the file by class", ["class", f"{word}s", "share"], classes),
        "columns": ("Columns that the model uses", ["column", "kind", "unit", "missing"], columns),
        "scores": (
            f"On {card.test} {word}s that were held out, with 95 % intervals",
            ["score", "value", SAME],
            scores,
        ),
        "findings": (
            "What the comparison with the other sites said of this one",
            ["column", "what", "how sure", "in words"],
            findings,
        ),
    }
    return {k: table for k, table in out.items() if table[2]}


def bedside_words(card: Card) -> list[str]:
    """Calibration and net benefit in sentences."""
    if (bedside := card.bedside) is None:
        return []
    verdict = judge(bedside.counts, bedside.line)
    lines = [
        f"In short: {verdict}. A model whose risks come true is blamed about once in twenty times; with few cases one "
        "that is off is mostly not found."
    ]
    ratio = observed_expected(bedside.counts)
    lines.append(f"For each case that the model expected, {_within(ratio, 2)} came; 1 is right.")
    if line := bedside.line:
        lines.append(
            f"Calibration intercept {_within(line.intercept, 2)}, 0 is right: below, risks are too high. "
            f"Slope {_within(line.slope, 2)}, 1 is right: below, risks are too extreme."
        )
    else:
        lines.append("Intercept and slope cannot be told: too few cases of one kind, or no mistake among them.")
    off, apart, left = bedside.parts
    lines.append(
        f"Of the Brier score over groups, {number(off, 3)} is risks that do not come true, {number(apart, 3)} is won "
        f"by telling cases apart, and {number(left, 3)} is what always saying the share would have."
    )
    if bedside.benefit:
        lines.append(f"Risks at which acting on it beats acting on all and on none: {useful_words(bedside.benefit)}.")
    return lines


def to_markdown(card: Card) -> str:
    """The same words, for a repository or a register."""
    parts = [MARK, f"# Model card: {_plain(card.site)}", _plain(about(card)), f"**{_plain(STAYS)}**"]
    shown = tables(card)
    parts += ["## Where it should not be trusted", _list(card.limits)]
    rows = f"{card.train} {card.study.row_word}s to train on, {card.test} held out."
    parts += ["## Data", _plain(f"{rows} {card.target}".strip())]
    parts += [_table(shown[k]) for k in ("classes", "columns") if k in shown]
    parts += ["## Scores", _table(shown["scores"]) if "scores" in shown else "There are no held-out rows."]
    if lines := bedside_words(card):
        parts += ["## At the bedside", _list(lines)]
    if "findings" in shown:
        parts += ["## Findings", _table(shown["findings"])]
    parts += ["## What left the house", _list([*card.left, *card.guards])]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """What others wrote, as text and never as markup.

    >>> _plain("a|b <i> [x](y)")
    'a\\\\|b &lt;i> \\\\[x\\\\](y)'
    """
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;"))


def _list(items: list[str]) -> str:
    return "\n".join(f"- {_plain(item)}" for item in items) or "- nothing"


def _table(table: Table) -> str:
    caption, heads, rows = table
    lines = [f"| {' | '.join(map(_plain, cells))} |" for cells in [heads, *rows]]
    lines.insert(1, "|" + " --- |" * len(heads))
    return f"{_plain(caption)}:\n\n" + "\n".join(lines)

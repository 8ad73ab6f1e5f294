"""A model card as Markdown, with the YAML header that model hubs read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence

from vitrail.core.text import number
from vitrail.report.pages.card.contents import STAYS, CardSection, CardTable, about, lead, sections, title
from vitrail.report.pages.card.standings import next_step, standings
from vitrail.report.text import metric_name
from vitrail.runs.site.card import Card, CardScore

MARK = "<!-- vitrail card -->"
HUB_METRICS = {"auc": "roc_auc", "brier": "brier_score", "squared_error": "mse", "r2": "r_squared"}  # as hubs call them


def is_card(text: str) -> bool:
    """Whether a file is a card of ours; earlier ones had no header."""
    return text.startswith(MARK) or (text.startswith("---\n") and f"\n---\n\n{MARK}\n" in text)


def to_markdown(card: Card) -> str:
    """The words of the page, for a repository or a register."""
    parts = [
        header(card) + f"\n\n{MARK}",
        f"# {_plain(title(card))}",
        _plain(lead(card)),
        _plain(about(card)),
        f"**{_plain(STAYS)}**",
    ]
    parts.append(_list([f"{s.name}: {s.status}. {s.words}" for s in standings(card)]))
    parts.append(f"What to do next: {_plain(next_step(card))}")
    for section in sections(card):
        parts += _section(section)
    return "\n\n".join(part for part in parts if part) + "\n"


def header(card: Card) -> str:
    """YAML; strings are written as JSON does, which YAML reads."""
    task = _task(card)
    shown = [score for score in card.scores if math.isfinite(score.estimate.value)]
    lines = ["---", "language: en", "library_name: vitrail"]
    lines += [f"pipeline_tag: {task}"] * (card.study.target.kind != "time")
    lines += ["tags:", *(f"- {tag}" for tag in ("vitrail", "federated-learning", task))]
    lines += ["metrics:", *(f"- {_metric(score)}" for score in shown)] if shown else []
    lines += ["model-index:", f"- name: {_string(f'{card.method} at {card.site}')}"]
    lines += [*_results(card, task, shown)] if shown else ["  results: []"]
    return "\n".join([*lines, "---"])


def _results(card: Card, task: str, scores: Sequence[CardScore]) -> Iterator[str]:
    yield from ("  results:", "  - task:", f"      type: {task}", "    dataset:", "      type: private")
    yield f"      name: {_string(f'{card.study.name}: held-out {card.study.unit_word}s of {card.site}')}"
    yield from ("      split: test", "    metrics:")
    for score in scores:
        low, high = score.estimate.low, score.estimate.high
        ends = f", 95 % interval {number(low)} to {number(high)}" if math.isfinite(low) else ""
        yield f"    - type: {_metric(score)}"
        yield f"      value: {score.estimate.value:.4f}"
        yield f"      name: {_string(f'{metric_name(score.metric)}{ends}; baseline {number(score.chance)}')}"


def _task(card: Card) -> str:
    kind = card.study.target.kind
    if kind == "time":
        return "survival-analysis"
    data = "image" if card.study.images else "tabular"
    return f"{data}-{'regression' if kind == 'number' else 'classification'}"


def _metric(score: CardScore) -> str:
    return HUB_METRICS.get(score.metric, score.metric)


def _string(text: str) -> str:
    printable = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return json.dumps(printable, ensure_ascii=False)


def _section(section: CardSection) -> list[str]:
    parts = [f"## {_plain(section.title)}", _list([f"{label}: {words}" for label, words in section.facts])]
    parts += [_list(section.lines), *map(_table, section.tables)]
    parts += [f"{_plain(fold.summary)}:\n\n{_list(fold.lines)}" for fold in section.folded]
    return [*parts, _plain(section.caution)]


def _plain(text: str) -> str:
    """What others wrote, as text and never as markup.

    >>> _plain("a|b <i> [x](y)")
    'a\\\\|b &lt;i> \\\\[x\\\\](y)'
    """
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;"))


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {_plain(item)}" for item in items)


def _table(table: CardTable) -> str:
    lines = [f"| {' | '.join(map(_plain, cells))} |" for cells in [table.heads, *table.rows]]
    lines.insert(1, "|" + " --- |" * len(table.heads))
    return f"{_plain(table.caption)}:\n\n" + "\n".join(lines)

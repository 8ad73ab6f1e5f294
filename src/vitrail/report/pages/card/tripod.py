"""Which items of TRIPOD+AI a card answers, where it does, and what those who report the study have to add.

TRIPOD+AI: Collins et al., BMJ 2024;385:e078378, 27 items in 52 parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vitrail.runs.site.card import Card

PARTS = {3: "abc", 5: "ab", 6: "abc", 8: "abc", 9: "abc", 12: "abcdefg", 18: "abcdef", 20: "abc", 23: "ab", 27: "abc"}
ITEMS = tuple(f"{item}{part}" for item in range(1, 28) for part in PARTS.get(item, " "))


class ReportingItem(NamedTuple):
    item: str
    topic: str
    section: str  # of the card, by its key
    missing: str = ""  # what the card does not say of it; "" where it answers the item


def answered_items(card: Card) -> list[ReportingItem]:
    """In the order of the checklist."""
    order = {item.strip(): place for place, item in enumerate(ITEMS)}
    return sorted(_items(card), key=lambda entry: order[entry.item])


def other_items(card: Card) -> list[str]:
    answered = {entry.item for entry in answered_items(card)}
    return [item.strip() for item in ITEMS if item.strip() not in answered]


def _items(card: Card) -> Iterator[ReportingItem]:
    study = card.study
    if study.description:
        yield ReportingItem("3b", "Target population and intended purpose", "use", "intended users, place in care")
    if card.findings is not None:
        yield ReportingItem("7", "Data preparation and quality checking", "data", "whether it was alike across groups")
    yield ReportingItem("8a", "Outcome and time horizon", "use", "how and when the outcome was assessed, and why it")
    yield ReportingItem("9b", "Definition of all predictors", "data", "how and when they were measured")
    if not study.images:
        yield ReportingItem("11", "Missing data", "data")
    yield ReportingItem("12a", "How the data were used, and split", "data")
    yield ReportingItem("12b", "How predictors were handled", "made")
    yield ReportingItem("12c", "Type of model and internal validation", "made", "the rationale, and any tuning")
    if card.scores:
        yield ReportingItem("12e", "Measures and plots of performance", "performance", "why these")
        yield ReportingItem("12g", "How predictions were calculated", "use")
        yield ReportingItem("23a", "Performance with confidence intervals", "performance", "subgroups")
    if study.protect.rows is None:
        yield ReportingItem("12f", "Model updating: recalibration to the site", "made")
    if study.target.kind == "classes":
        yield ReportingItem("13", "Class imbalance", "made")
    yield ReportingItem("15", "Model output, and the threshold of decisions", "use")
    yield ReportingItem("20a", "Participants, with and without the outcome", "data", "how participants were selected")
    yield ReportingItem("21", "Numbers in each analysis", "data", "events among those held out" * bool(card.shares))
    yield ReportingItem("22", "The model, for predictions in new individuals", "use", "who may have it")
    yield ReportingItem("26", "Limitations", "limits", "those of the study's design")

"""What a model card says, section by section, in the order of a model card: for the page and for the Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vitrail.analysis.calibration import RateInterval, judge, observed_expected
from vitrail.core.text import number, several
from vitrail.data.event_class import decision_sentence, event_sentence
from vitrail.metrics.survival import end_words
from vitrail.quality.screening.result import LABEL, Finding
from vitrail.quality.screening.text import STANDINGS, cause_text, standing
from vitrail.report.pages.card.tripod import answered_items, other_items
from vitrail.report.text import metric_words
from vitrail.runs.site.card import Card

STAYS = "It is private to the site: it shows shares and scores of the site’s own rows. It was sent to nobody."
FOLDED = 15  # rows of a table from which on it is folded
STANDARDISED = {
    "global": "Numbers are standardised by the mean and spread of all sites together.",
    "none": "Numbers are not standardised.",
}
BALANCED = {
    "inverse": "Classes weigh the same in training.",
    "undersample": "The site trains on as many rows of each class as its rarest class has; the others are left out.",
}
OWN_SCALE = "Numbers are standardised by the site’s own mean and spread."


class CardTable(NamedTuple):
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = "numbers few"  # its class on the page
    folded: bool = False

    @property
    def head_cells(self) -> list[tuple[str, str]]:
        """As the table of a page takes them: words and class."""
        return [(words, "") for words in self.heads]


class FoldedList(NamedTuple):
    summary: str
    lines: Sequence[str]


class CardSection(NamedTuple):
    key: str
    title: str
    facts: Sequence[tuple[str, str]] = ()
    lines: Sequence[str] = ()
    tables: Sequence[CardTable] = ()
    folded: Sequence[FoldedList] = ()
    caution: str = ""


def title(card: Card) -> str:
    return f"{card.method} at {card.site}: model card"


def lead(card: Card) -> str:
    """What was asked, of whom, with which model."""
    target = card.study.target
    asked = f"the time to “{target.column}”" if target.kind == "time" else f"“{target.column}”"
    return f"How well does this model predict {asked} at {card.site}, and where should it not be trusted?"


def about(card: Card) -> str:
    purpose = card.study.description or "The study file states no purpose."
    return f"Study “{card.study.name}”. {purpose}"


def sections(card: Card) -> list[CardSection]:
    """Those that have something to say."""
    every = [_use(card), _data(card), _performance(card), _calibration(card), _limits(card), _left(card), _made(card)]
    return [section for section in [*every, _reporting(card, every)] if section is not None]


def within(rate: RateInterval, digits: int = 3) -> str:
    ends = f" ({number(rate.low, digits)} to {number(rate.high, digits)})" if rate.low == rate.low else ""
    return number(rate.value, digits) + ends


def _use(card: Card) -> CardSection:
    study, target = card.study, card.study.target
    stated = study.description or "The study file states none (key: description)."
    inputs = study.images.words if study.images else f"{several(len(card.columns), 'column')}, listed under Data"
    facts = [
        ("Stated purpose", stated),
        ("Predicts", _predicts(card)),
        ("Input", inputs),
        ("Output", _output(card)),
        *([("Decisions", decision_sentence(target))] if decision_sentence(target) else []),
        ("How to use it", "vitrail predict; it marks values outside the ranges that the study agreed on."),
        (
            "Not for",
            f"Patients of other hospitals: it was tested on {study.row_word}s of {card.site} alone. Questions of cause "
            "or treatment. Nobody has approved it for clinical use, and this card is no approval.",
        ),
    ]
    return CardSection("use", "Intended use", facts)


def _predicts(card: Card) -> str:
    target = card.study.target
    if target.kind == "time":
        return f"When “{target.column}” happens, up to {end_words(target.ends, target.unit)[-1]}."
    if target.kind == "number":
        return f"{target.column}, a number{f' in {target.unit}' if target.unit else ''}."
    return f"{target.column}: {', '.join(target.levels)}. {event_sentence(target)}".strip()


def _output(card: Card) -> str:
    target = card.study.target
    if target.kind == "time":
        return f"The risk of “{target.column}” by the end of each of {several(len(target.ends), 'interval')}."
    if target.kind == "number":
        return "The expected value."
    return "The risk of the event." if len(target.levels) == 2 else "The probability of each class."


def _data(card: Card) -> CardSection:
    study, word = card.study, card.study.row_word
    total = max(1, sum(many for _, many in card.shares))
    if card.persons:
        trained, held = card.persons
        counts = (
            f"{trained} patients ({card.train} {word}s) to train on, {held} patients ({card.test} {word}s) held out; "
            "no patient is in both."
        )
    else:
        counts = f"{card.train} {word}s to train on, {card.test} held out."
    lines = [f"{counts} {_split(card)} {card.target}{'.' * bool(card.target)}".strip()]
    if not study.images:
        lines.append(_missing(card))
    tables = []
    if card.shares:
        rows = [[level, str(many), f"{100 * many / total:.0f} %"] for level, many in card.shares]
        tables.append(CardTable(f"All {word}s of the file by class", ["class", f"{word}s", "share"], rows))
    if card.columns:
        rows = [[c.name, c.kind, c.unit, f"{100 * c.missing:.0f} %"] for c in card.columns]
        heads = ["column", "kind", "unit", "missing"]
        tables.append(CardTable("Columns that the model uses", heads, rows, "wire", folded=len(rows) > FOLDED))
    folded = []
    if card.findings is not None:
        sorts = {kind: [_finding(card, f) for f in card.findings if standing(f) == kind] for kind in STANDINGS}
        wrong, maybe, answered = (sorts[kind] for kind in STANDINGS)
        verb = "is" if len(wrong) == 1 else "are"
        many = f"{several(len(wrong), 'column')} of this site {verb} likely wrong:"
        none = "no column of this site is likely wrong."
        lines += [f"Compared with the other sites, {many if wrong else none}", *wrong]
        if maybe:
            folded.append(FoldedList(f"{several(len(maybe), 'column')} that differ and may be real", maybe))
        if answered:
            folded.append(FoldedList(f"{several(len(answered), 'finding')} that somebody answered", answered))
    return CardSection("data", "Data", lines=lines, tables=tables, folded=folded)


def _split(card: Card) -> str:
    split = card.study.split
    if not card.same:
        return "These are not the rows that the run saw, so all of them are scored."
    if split.by == "date":
        return f"Held out are those from {split.test_from} on."
    return "Those held out were drawn at random" + (", with the classes in the same shares." if card.shares else ".")


def _missing(card: Card) -> str:
    marked = [name for name, feature in card.study.features.items() if feature.indicator]
    text = "A missing number counts as the mean, and a missing category as halfway between the categories."
    return text + (f" A column of its own marks where a value is missing in: {', '.join(marked)}." if marked else "")


def _finding(card: Card, finding: Finding) -> str:
    return finding_line(card.study.target.column, finding)


def finding_line(outcome: str, finding: Finding) -> str:
    """A finding under the name of its column."""
    return f"{outcome if finding.feature == LABEL else finding.feature}: {cause_text(finding)}"


def _performance(card: Card) -> CardSection:
    unit = card.study.unit_word
    if not card.scores:
        return CardSection("performance", "Performance", lines=[f"There are no held-out {unit}s to score."])
    rows = [[metric_words(s.metric), within(s.estimate), number(s.chance, 3)] for s in card.scores]
    held = card.persons[1] if card.persons else card.test
    caption = f"On {several(held, f'held-out {unit}')}, with 95 % intervals"
    caution = (
        f"Baseline: one answer to every {card.study.row_word}. Intervals are over these {unit}s; another training "
        "would give other numbers."
    )
    table = CardTable(caption, ["score", "model", "baseline"], rows)
    return CardSection("performance", "Performance", tables=[table], caution=caution)


def _calibration(card: Card) -> CardSection | None:
    if card.bedside is None:
        return None
    caution = "How well risks agree with outcomes for other patients, or within a group of cases, is not known."
    return CardSection("calibration", "Calibration and net benefit", lines=calibration_lines(card), caution=caution)


def calibration_lines(card: Card) -> list[str]:
    """Calibration and net benefit in sentences."""
    if (bedside := card.bedside) is None:
        return []
    verdict, ratio = judge(bedside.counts, bedside.line), observed_expected(bedside.counts)
    lines = [
        f"{verdict[:1].upper()}{verdict[1:]}. This check wrongly flags 1 in 20 well-calibrated models; with few cases "
        "it misses most that are not.",
        f"Observed/expected {within(ratio, 2)}; 1 is ideal. Below 1 the model predicts too many cases, above 1 too "
        "few.",
    ]
    if line := bedside.line:
        lines.append(
            f"Calibration intercept {within(line.intercept, 2)}; 0 is ideal, below 0 means that risks are too high. "
            f"Calibration slope {within(line.slope, 2)}; 1 is ideal, below 1 means that risks are too extreme."
        )
    else:
        lines.append("Calibration intercept and slope are not defined: too few cases of one kind, or no mistake.")
    off, apart, left = (number(value, 3) for value in bedside.parts)
    lines.append(
        f"Brier score in groups of risk: miscalibration {off}, discrimination {apart}, uncertainty {left} (the Brier "
        "score of stating the event rate for everybody)."
    )
    if bedside.benefit and bedside.benefit.useful:
        low, high = (f"{100 * threshold:.0f}" for threshold in bedside.benefit.useful)
        at = f"a threshold of {low} %" if low == high else f"thresholds from {low} to {high} %"
        lines.append(f"At {at}, using the model clearly beats treating everyone and treating no one.")
    elif bedside.benefit:
        lines.append("There is no threshold at which using the model clearly beats treating everyone or no one.")
    return lines


def _limits(card: Card) -> CardSection:
    return CardSection("limits", "Limits: where it should not be trusted", lines=card.limits)


def _left(card: Card) -> CardSection:
    lines = [f"{several(len(card.left), 'kind')} of numbers." if card.left else "Nothing.", *card.guards]
    folded = [FoldedList("Each of them, with the tensors that hold it", card.left)] if card.left else []
    return CardSection("left", "What left the site", lines=lines, folded=folded)


def _made(card: Card) -> CardSection:
    study, training = card.study, card.study.training
    weights = BALANCED.get(training.class_weights, "None.")
    rows = study.protect.rows is None
    constant = "The site adds a constant of its own to the answers, fitted to its training rows." if rows else "None."
    facts = [
        ("Method", f"{card.method}, {several(training.rounds, 'round')}, seed {card.seed}"),
        ("Network", f"{study.network.kind}{_hidden(card)}"),
        ("Predictors", study.images.words if study.images else STANDARDISED.get(study.standardise, OWN_SCALE)),
        *([("Class imbalance", weights)] if study.target.kind == "classes" else []),
        ("Recalibration", constant),
        ("Internal validation", f"{study.row_word.capitalize()}s that no training saw; how many is listed under Data."),
        ("Run", card.run),
        ("Made with", ", ".join(f"{name} {version}" for name, version in card.versions.items())),
    ]
    return CardSection("made", "How it was made", facts)


def _hidden(card: Card) -> str:
    network = card.study.network
    units = " and ".join(map(str, network.hidden)) if network.kind in ("mlp", "cnn") else ""
    return f" with layers of {units} units" if units else ""


def _reporting(card: Card, others: Sequence[CardSection | None]) -> CardSection:
    titles = {section.key: section.title for section in others if section is not None}
    rows = [[i.item, i.topic, titles.get(i.section, ""), i.missing] for i in answered_items(card)]
    whole = sum(not row[3] for row in rows)
    heads = ["item", "topic", "section of this card", "still to be added"]
    lines = [
        f"Of the 52 parts of the checklist this card answers {whole} in full and {len(rows) - whole} in part. The "
        f"others are for those who report the study: {', '.join(other_items(card))}."
    ]
    table = CardTable("Items of TRIPOD+AI (BMJ 2024;385:e078378) that this card answers", heads, rows, "why", True)
    return CardSection("tripod", "TRIPOD+AI items that it answers", lines=lines, tables=[table])

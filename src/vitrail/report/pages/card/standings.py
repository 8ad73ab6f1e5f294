"""How a model stands at its site, in a status each for performance, risks and data, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitrail.analysis.calibration import is_off, judge, observed_expected
from vitrail.core.text import number, several
from vitrail.metrics.skill import no_better
from vitrail.report.pages.card.contents import within
from vitrail.report.text import Standing, listed, metric_name
from vitrail.runs.site.card import Card, CardScore
from vitrail.study.model import LOWER_IS_BETTER


def standings(card: Card) -> list[Standing]:
    shown = [_performance(card.scores, card.study.unit_word), _risks(card), _data(card)]
    return [standing for standing in shown if standing is not None]


def beats_baseline(score: CardScore) -> bool | None:
    """Whether the whole interval is better than the baseline, or worse; None where it is neither."""
    sign = -1 if score.metric in LOWER_IS_BETTER else 1
    gains = [sign * (end - score.chance) for end in (score.estimate.low, score.estimate.high)]
    if not all(map(math.isfinite, gains)) or min(gains) <= 0 <= max(gains):
        return None
    return min(gains) > 0


def _performance(scores: Sequence[CardScore], unit: str) -> Standing:
    if not scores:
        return Standing("Performance", "not scored", "unsure", f"There are no held-out {unit}s.")
    first, others = scores[0], no_better_scores(scores[1:])
    words = f"{_capitalised(metric_name(first.metric))} {within(first.estimate)}; baseline {number(first.chance)}."
    match beats_baseline(first):
        case True if others:
            words = f"{words} No better than the baseline in {listed(others)}."
            return Standing("Performance", "better in part", "warn", words)
        case True:
            return Standing("Performance", "better than the baseline", "gain", words)
        case False:
            return Standing("Performance", "worse than the baseline", "loss", words)
    return Standing("Performance", "not shown to beat the baseline", "unsure", words)


def no_better_scores(scores: Sequence[CardScore]) -> list[str]:
    """Names of the scores that are not better than their baselines."""
    return [metric_name(s.metric) for s in scores if no_better(s.estimate.value, s.chance, s.metric in LOWER_IS_BETTER)]


def _risks(card: Card) -> Standing | None:
    if card.bedside is None:
        return None
    counts, line = card.bedside.counts, card.bedside.line
    words = f"Observed/expected {within(observed_expected(counts), 2)}; 1 is ideal."
    if not is_off(counts, line):
        return Standing("Risks", "no sign that they are off", "calm", words)
    return Standing("Risks", "off", "loss", f"{words} {_capitalised(judge(counts, line))}.")


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _data(card: Card) -> Standing:
    if card.findings is None:
        return Standing(
            "Data", "not compared", "unsure", "Whether its columns mean the same as elsewhere is not known."
        )
    wrong = [f for f in card.findings if f.wrong]
    maybe = sum(not (f.wrong or f.known) for f in card.findings)
    words = f"{several(maybe, 'column')} {'differs' if maybe == 1 else 'differ'}, and may be real."
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        return Standing("Data", f"{several(len(wrong), 'column')} {verb} likely wrong", "loss", words if maybe else "")
    return Standing("Data", "no column likely wrong", "calm", words if maybe else "")


def next_step(card: Card) -> str:
    """The most urgent thing."""
    if any(f.wrong for f in card.findings or ()):
        return "Look at the columns that are likely wrong (vitrail look), correct the file, and run the study again."
    if card.scores and beats_baseline(card.scores[0]) is not True:
        return (
            f"Do not use it for decisions at {card.site} yet. Score it on more {card.study.unit_word}s, or compare it "
            "with other methods (vitrail compare)."
        )
    if card.bedside is not None and is_off(card.bedside.counts, card.bedside.line):
        return (
            "Do not act on the stated risks. Use the model to rank patients at most, and look at the calibration below."
        )
    if card.scores and no_better_scores(card.scores):
        return (
            f"Decide which score matters for the purpose, and check the model on {card.study.unit_word}s that came "
            "after the run."
        )
    return f"Before any use, check it on {card.study.unit_word}s that came after the run, and read the limits below."

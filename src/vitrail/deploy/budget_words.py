"""The privacy budget in the words of the consent form: what epsilon means, and what these rows have spent before."""

from __future__ import annotations

import math

from vitrail.deploy.agreement import Agreement
from vitrail.deploy.ledger import LEDGER, Ledger, total_of
from vitrail.report.words import several
from vitrail.runs.budgets import budget_words, spent_by

SHOWN = 5  # earlier runs that are named


def noise_words(agreement: Agreement) -> str:
    """Whether noise is added, and how much, in half a sentence."""
    spent = spent_by(agreement.study, agreement.method)
    if spent is None:
        return "No noise is added"
    where = "at this site in every step" if spent.of == "row" else "to the total of every round, a part of it here"
    told = (
        f"epsilon {spent.epsilon:.3g} for a {spent.of} that is removed, {spent.replaced:.3g} for one that is replaced"
    )
    return f"Noise is added {where} ({told} by any other, delta {spent.delta:g})"


def budget_meaning(agreement: Agreement) -> list[str]:
    """What the two numbers mean, and what they do not cover."""
    spent = spent_by(agreement.study, agreement.method)
    return [] if spent is None else [budget_words(spent)]


def ledger_words(ledger: Ledger) -> list[str]:
    """What these rows have spent before, and what it would come to."""
    standing, row = ledger.standing(), ledger.agreement.study.row_word
    before, delta = standing.before, standing.delta
    out = []
    if before:
        named = [f"{entry.study}, {entry.when}" for entry in before[-SHOWN:]]
        more = f" and {len(before) - SHOWN} earlier" if len(before) > SHOWN else ""
        said = _said(*total_of((entry.loss for entry in before), delta), delta, row)
        out.append(f"Before: {several(len(before), 'run')} of these {row}s ({'; '.join(named)}{more}). {said}")
        if unguarded := sum(math.isinf(entry.loss) for entry in before):
            out.append(f"{several(unguarded, 'run')} of these added no noise.")
    else:
        out.append(f"Before: no run of these {row}s is known on this machine.")
    after = _said(*total_of([standing.spent, standing.loss], delta), delta, row)
    if math.isinf(standing.loss):
        after = "This study adds no noise, so that no epsilon holds for what it tells."
    out.append(f"With one run of this study: {after} A run counts whole as soon as it begins.")
    limit = "no limit is set here; --most-epsilon sets one, and this site then refuses a run that would exceed it."
    if math.isfinite(standing.most):
        limit = f"epsilon {standing.most:.3g} for a removed {row}; this site refuses a run that would exceed it."
    out.append(f"Limit: {limit}")
    out.append(
        f"It is counted in {ledger.folder / LEDGER}: every run of a file with the same place, the same bytes, or one "
        f"in twenty of its {row}s. What was done with these {row}s on other machines, by other users or without "
        "vitrail is not in it, nor what epsilon does not cover."
    )
    return out


def _said(removed: float, replaced: float, delta: float, row: str) -> str:
    if math.isinf(removed):
        return "Together no epsilon holds."
    return f"Together epsilon {removed:.3g} for a removed {row}, {replaced:.3g} for a replaced one (delta {delta:g})."

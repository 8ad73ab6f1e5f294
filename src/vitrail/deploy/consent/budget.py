"""The privacy budget in the words of the consent form: what epsilon means, and what these rows have spent before."""

from __future__ import annotations

import math

from vitrail.core.text import several
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.privacy_ledger import LEDGER, PrivacyLedger, total_of
from vitrail.runs.protection.budget import budget_words, spent_by

SHOWN = 5  # earlier runs that are named


def noise_text(agreement: Agreement) -> str:
    """Whether noise is added, and how much, in half a sentence."""
    spent = spent_by(agreement.study, agreement.method)
    if spent is None:
        return "No noise is added"
    where = "at this site in every step" if spent.of != "site" else "to the total of every round, a part of it here"
    told = (
        f"epsilon {spent.epsilon:.3g} for a {spent.of} that is removed, {spent.replaced:.3g} for one that is replaced"
    )
    return f"Noise is added {where} ({told} by any other, delta {spent.delta:g})"


def budget_meaning(agreement: Agreement) -> list[str]:
    """What the two numbers mean, and what they do not cover."""
    spent = spent_by(agreement.study, agreement.method)
    return [] if spent is None else [budget_words(spent)]


def ledger_text(ledger: PrivacyLedger) -> list[str]:
    """What these rows have spent before, and what it would come to."""
    standing, row = ledger.standing(), ledger.agreement.study.row_word
    before, delta = standing.before, standing.delta
    out = [f"Earlier runs: none of these {row}s is known on this machine."]
    if before:
        named = [f"{entry.study}, {entry.when}" for entry in before[-SHOWN:]]
        more = f"; and {len(before) - SHOWN} before them" if len(before) > SHOWN else ""
        said = _epsilons(*total_of((entry.loss for entry in before), delta), delta, row)
        if unguarded := sum(math.isinf(entry.loss) for entry in before):
            said = f"no epsilon, because {several(unguarded, 'run')} added no noise"
        out = [f"Earlier runs: {len(before)} ({'; '.join(named)}{more}). Together they spent {said}."]
    after = f"{_epsilons(*total_of([standing.spent, standing.loss], delta), delta, row)} in all"
    if math.isinf(standing.loss):
        after = "no epsilon, because this study adds no noise"
    out.append(f"After one run of this study: {after}. A run counts in full as soon as it begins.")
    limit = "none is set. `--most-epsilon X` sets one, and this site then refuses a run that would exceed it"
    if math.isfinite(standing.most):
        limit = f"epsilon {standing.most:.3g} for a removed {row}. This site refuses a run that would exceed it"
    out.append(f"Limit: {limit}.")
    out.append(
        f"Runs are counted in {ledger.folder / LEDGER} if their file had the same place or the same bytes, or at least "
        f"one {row} in twenty in common. What was done with these {row}s on other machines, by other users or without "
        "vitrail is not counted, nor is what epsilon does not cover."
    )
    return out


def _epsilons(removed: float, replaced: float, delta: float, row: str) -> str:
    if math.isinf(removed):
        return "no epsilon, because an earlier run added no noise"
    return f"epsilon {removed:.3g} for a removed {row} and {replaced:.3g} for a replaced one (delta {delta:g})"

"""What a site reads before its form: what its own file would publish, and what its rows have spent of their privacy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from vitrail.deploy.consent.form import fill
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.privacy_ledger import LEDGER, PrivacyLedger, total_of
from vitrail.quality.screening import budget

SHOWN = 5  # earlier runs that are named


class ColumnBudget(NamedTuple):
    """How many numbers a site of so many rows publishes of a column."""

    units: int
    most: int
    widest: str  # a column of which it publishes so many


class Epsilons(NamedTuple):
    removed: str
    replaced: str
    delta: str

    @classmethod
    def of(cls, losses: Iterable[float], delta: float) -> Epsilons:
        removed, replaced = total_of(losses, delta)
        return cls(f"{removed:.3g}", f"{replaced:.3g}", f"{delta:g}")


class FileSheet(NamedTuple):
    row: str
    unit: str
    columns: ColumnBudget | None  # None where nothing is published
    before: tuple[str, ...]  # the last earlier runs, with their days
    before_count: int
    unguarded: int  # earlier runs without noise
    adds_noise: bool
    spent: Epsilons  # in earlier runs
    after: Epsilons  # with one run of this study
    limit: str  # "" without
    place: str


def file_sheet(agreement: Agreement, publishes: bool, units: int, ledger: PrivacyLedger) -> str:
    """`units`: how many rows the file has, or patients where the study names them."""
    standing, study = ledger.standing(), agreement.study
    before, delta = standing.before, standing.delta
    return fill(
        "file_sheet.txt",
        FileSheet(
            study.row_word,
            study.unit_word,
            _columns(agreement, units) if publishes and agreement.parts else None,
            tuple(f"{entry.study}, {entry.when}" for entry in before[-SHOWN:]),
            len(before),
            sum(math.isinf(entry.loss) for entry in before),
            math.isfinite(standing.loss),
            Epsilons.of((entry.loss for entry in before), delta),
            Epsilons.of([standing.spent, standing.loss], delta),
            f"{standing.most:.3g}" if math.isfinite(standing.most) else "",
            str(ledger.folder / LEDGER),
        ),
    )


def _columns(agreement: Agreement, units: int) -> ColumnBudget:
    each = budget(agreement.study, units)
    widest = max(each, key=lambda name: each[name])
    return ColumnBudget(units, each[widest], widest)

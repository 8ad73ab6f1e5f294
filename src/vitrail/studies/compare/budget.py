"""A comparison under a fixed budget: every method trains as many rounds as the same bytes, or the same steps, pay.

Both are worked out before the first round, for one training and one site:

    bytes   what crosses a site's wire in both directions, by the table of `vitrail wire`, without the screening and
            without the scores: these train nothing. Where rows are pooled, all training rows of the largest site
    steps   gradients of one model on one batch, at the site with the most training rows; where a method trains
            several models of a site on the same batches, each counts. Models that are only judged do not

Methods that may skip gradients (of a site that nobody trusts any more) are charged for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.text import several, size
from vitrail.methods import TABLE
from vitrail.runs.plan import Plan
from vitrail.runs.setup import resolve
from vitrail.studies.folds import whole_folds
from vitrail.study.model import Study


class FixedBudget(NamedTuple):
    """Of one training, at one site; None: no limit."""

    bytes: int | None = None
    steps: int | None = None

    def problems(self) -> list[Problem]:
        return [
            Problem(f"budget_{name}", f"expected a whole number of at least 1, got {value}.", "Leave it out: no limit.")
            for name, value in self._asdict().items()
            if value is not None and value < 1
        ]

    @property
    def words(self) -> str:
        """Of what, in a sentence."""
        parts = [size(self.bytes)] if self.bytes is not None else []
        return " and ".join(parts + ([several(self.steps, "gradient step")] if self.steps is not None else []))

    @property
    def sentence(self) -> str:
        return f"Every method had the same budget for one training at one site: {self.words}."

    def pays(self, spent: Spent) -> bool:
        within = self.bytes is None or spent.bytes <= self.bytes
        return within and (self.steps is None or spent.steps <= self.steps)


class Spent(NamedTuple):
    """What a training of so many rounds takes at one site."""

    rounds: int
    bytes: int
    steps: int


def spent_by(study: Study, name: str, rounds: int, rows: Mapping[str, int]) -> Spent:
    """`rows`: how many each site trains on."""
    study, method = resolve(study, name, rounds)
    plan = Plan(study, method, study.seeds[0], len(rows))
    most = sum(rows.values()) if method.catalogue.pools_rows else max(rows.values())
    most -= int(method.needs.validation_share * most)
    crossed = sum(
        line.bytes * line.rounds * (max(rows.values()) if line.per_row else 1)
        for line in plan.wire(screened=False)
        if line.stage != "scores"
    )
    epoch, steps = -(-most // study.training.batch), 0
    for t in plan.stages:
        for place, turn in enumerate(t.turns):
            drawn, limit = epoch * study.training.epochs, turn.exchange.batches()
            drawn = drawn if limit is None else min(drawn, limit)
            by_batch, beside = turn.gradients
            steps += t.stage.times(place) * (by_batch * drawn + beside * epoch)
    return Spent(rounds, crossed, steps)


def rounds_within(
    study: Study, cleaned: Mapping[str, pd.DataFrame], names: Sequence[str], seed: int, folds: int, budget: FixedBudget
) -> dict[str, Spent]:
    """By method: the most rounds that the budget pays, and no more than the study's, with what they take."""
    cut = whole_folds(cleaned, study, seed, folds)
    rows = {n: max(int(cut.trained(n, k).sum()) for k in range(cut.folds)) for n in cut.cleaned}
    out, problems = dict[str, Spent](), list[Problem]()
    for name in names:
        least = spent_by(study, name, 1, rows)
        if budget.pays(least):
            out[name] = _most(least, study.training.rounds, lambda r: spent_by(study, name, r, rows), budget)  # noqa: B023
            continue
        title, over = TABLE[name].catalogue.title, []
        if budget.bytes is not None and least.bytes > budget.bytes:
            over.append(f"{least.bytes:,} bytes at a site, and the budget is {budget.bytes:,}")
        if budget.steps is not None and least.steps > budget.steps:
            over.append(f"{several(least.steps, 'gradient step')}, and the budget is {budget.steps:,}")
        what = f"a training of one round by {title} takes {'; and '.join(over)}."
        problems.append(Problem(name, what, "Raise the budget, or leave the method out of --methods."))
    if problems:
        raise VitrailError("the budget does not pay a single round", problems)
    return out


def _most(least: Spent, ceiling: int, take: Callable[[int], Spent], budget: FixedBudget) -> Spent:
    """The most rounds up to the ceiling: what they take grows with them."""
    low, high = least, ceiling
    while low.rounds < high:
        now = take((low.rounds + high + 1) // 2)
        if budget.pays(now):
            low = now
        else:
            high = now.rounds - 1
    return low

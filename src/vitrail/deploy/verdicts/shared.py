"""Is joining worth it here? Between machines every site answers that for itself, after the run ([verdict] in a study).

Each site cuts its rows into folds, by a secret of its own. For every fold all sites train once more, each on its rows
outside of it, from the study's first model: a *fold* is a run of its own, with the guards, masks, memories and checks
of a run, and less: nothing is screened, no score is asked for, nothing is shown. Beside it the site trains alone on the
same rows. In the end it knows of each of its rows how well it was told by a model that had not seen it, joined and
alone; that stays there.

Where the study asks for a refit (training.refit), all sites train once more after the folds, on all of their rows: that
is a fold in which nothing is held out, and each site keeps the model that comes of it.

This is what both ends know of folds. A fold's questions say which run and which fold they are of.
"""

from __future__ import annotations

import hashlib
from typing import Any

from vitrail.deploy.protocol.agreement import Agreement
from vitrail.runs.verdict_wire import fold_count, later_trainings
from vitrail.studies.compare.execution import seeds_of

FOLD = "fold"  # the word that says which: from 0, the folds of the first seed first
KINDS = ("round", "mask", "settle")  # what a site may be asked in a fold


def fold_run(run: str, number: int) -> str:
    """The name of a fold as a run of its own, at both ends."""
    return hashlib.sha256(f"vitrail fold 1 {run} {number}".encode()).hexdigest()[:16]


class FoldAgreement:
    """What is agreed of each fold; all folds of a seed begin with the same model."""

    def __init__(self, agreed: Agreement) -> None:
        self.agreed, self.verdict = agreed, agreed.study.verdict
        self._known: dict[int, Agreement] = {}  # by seed: it takes time to work out

    def __len__(self) -> int:
        return sum(later_trainings(self.agreed.study, self.agreed.method).values())

    def is_refit(self, number: int) -> bool:
        """Whether it is the training on all rows, which comes last."""
        return number == fold_count(self.agreed.study) < len(self)

    def agreement(self, number: int) -> Agreement:
        """A refit begins as the run did, with the model of the run's own seed."""
        repeat = 0 if self.is_refit(number) or self.verdict is None else number // self.verdict.folds
        if repeat not in self._known:
            changes: dict[str, Any] = {
                "verdict": None,
                "transfer": None,
                "screen": {"ask": False},
                "protect": {"scores": "none"},
            }
            study = self.agreed.study.with_changes(**changes, training={"refit": False})
            seeds = seeds_of(study.with_changes(seeds=(self.agreed.seed,)), repeat + 1)
            self._known[repeat] = Agreement.of(study, seeds[repeat], self.agreed.roster or self.agreed.sites)
        return self._known[repeat]

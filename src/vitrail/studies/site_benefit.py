"""Is joining worth it here? One site's answer about one method, from its own rows alone (benefit.py has the rule)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.studies.benefit import NO, NO_HARM, UNSURE, YES, BenefitAnswer, Floats, Ints, SiteLosses, decide, why
from vitrail.studies.cross_validation import row_losses, same_loss, yardstick
from vitrail.study.model import Study

COUNTS = ("rows", "folds", "seeds")
NUMBERS = ("alone", "joined", "gain", "low", "high", "least", "needed", "harm", "same")
VERDICT = "verdict"
FAR = 1e100  # no loss of real data


def own_verdict(
    study: Study,
    y: NDArray[Any],
    lots: Ints,
    alone: Sequence[Floats],
    joined: Sequence[Floats],
    units: int | None = None,
) -> dict[str, Any]:
    """Plain values: the verdict and what it rests on; None for a number that there is not. `units`: how many
    persons these rows are of, where the study names them. `lots` [repeat, row]: folds; `alone` and `joined`, for
    each repeat [row, answer]: what models that were not trained on a row say of it."""
    assert study.verdict is not None
    lost = [np.stack([row_losses(study, y, answers) for answers in by_repeat]) for by_repeat in (alone, joined)]
    folds, same = int(lots.max()) + 1, same_loss(study, y)
    harm = study.verdict.harm * same
    answer = decide(SiteLosses(lost[0], lost[1][None], lots, 1 / folds), harm)
    rows, needed = len(y), answer.needed
    if units is not None:
        rows, needed = units, answer.needed * units / len(y)
    numbers = {**answer._asdict(), "needed": needed, "harm": harm, "same": same}
    counts = dict(zip(COUNTS, (rows, folds, len(lots)), strict=True))
    return {VERDICT: answer.verdict} | counts | {k: _finite(numbers[k]) for k in NUMBERS}


def explain_verdict(study: Study, verdict: Mapping[str, Any]) -> str:
    """The reason of what `own_verdict` gave, with its numbers, in words."""
    number = {k: math.nan if verdict[k] is None else float(verdict[k]) for k in NUMBERS}
    number["needed"] = math.inf if verdict["needed"] is None else number["needed"]
    answer = BenefitAnswer(
        verdict=verdict[VERDICT], best=0, **{k: number[k] for k in BenefitAnswer._fields if k in number}
    )
    about = study.build_method().catalogue.title, yardstick(study).replace("_", " "), study.unit_word
    return why(answer, *about, verdict["rows"], number["harm"], verdict["seeds"], crossed=True)


def cannot_be(study: Study, verdict: Mapping[str, Any]) -> str | None:
    """Why this is nothing that `own_verdict` gives, whoever wrote it; None where it could be."""
    assert study.verdict is not None
    if verdict.keys() != {VERDICT, *COUNTS, *NUMBERS}:
        return "verdict: expected a verdict with its numbers"
    if verdict[VERDICT] not in (YES, NO, NO_HARM, UNSURE):
        return "verdict: expected one of the four verdicts"
    most = {"rows": 10**9, "folds": study.verdict.folds, "seeds": study.verdict.seeds}
    if any(type(verdict[k]) is not int or not 1 <= verdict[k] <= most[k] for k in COUNTS):
        return "verdict: its number of rows, folds or seeds is not possible"
    numbers = [verdict[k] for k in NUMBERS if verdict[k] is not None]
    if any(type(v) is not float or not abs(v) < FAR for v in numbers):
        return "verdict: a number is not finite, or too large"
    return None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) and abs(value) < FAR else None

"""The coordinator's side of a common scale under masks: one sum, of those who report to it in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from vitrail.core.errors import StudyStopped, SumRefused
from vitrail.data.encoding import Matrix, Moments
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.secure_sum.coordinator import SumCoordinator
from vitrail.deploy.secure_sum.shared import SCALE, SumName
from vitrail.privacy.secure_sum.limbs import from_limbs

NEGLIGIBLE = 1e-9  # of a column's spread: what rounding may leave below zero
HINT = (
    "events.jsonl says what sites answered. Sites add the same numbers to no second list: begin a new run, vitrail "
    "serve STUDY --new, and every site joins with --another-run."
)


def masked_moments(sums: SumCoordinator, names: Sequence[str]) -> Callable[[Matrix | None], list[Moments]]:
    """What the sites together say, for `finish_moments`."""
    try:
        opened = sums.collect_once(SumName(SCALE), names, "", Message("standardise", {"step": 1}))
    except SumRefused as error:
        what = f"it cannot be opened: {'; '.join(problem.what.rstrip('.') for problem in error.problems)}."
        raise StudyStopped("common scale", what, HINT) from None
    if missing := [n for n in names if n not in opened.reporters]:
        sums.call.way.log("not in the scale", sites=missing, step=1)
    rows, total, squares = opened.total["rows"], *(from_limbs(opened.total[k]) for k in ("total", "squares"))

    def moments(mean: Matrix | None) -> list[Moments]:
        if mean is None:
            return [Moments(rows, np.array([float(value) for value in total]))]
        columns = zip(rows.tolist(), total, squares, map(Fraction, mean.tolist()), strict=True)
        spread = np.array([float(square - m * (2 * first - int(n) * m)) for n, first, square, m in columns])
        if (rows < 0).any() or (spread < -rows * (NEGLIGIBLE * (1 + np.abs(mean))) ** 2).any():
            what = "what sites reported about their columns cannot be: a count or a sum of squares is below zero."
            raise StudyStopped("common scale", what, HINT)
        return [Moments(rows, spread.clip(min=0.0))]

    return moments

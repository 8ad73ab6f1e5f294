"""Is joining worth it here? One site's answer about one method, from its own rows alone (joining.py has the rule)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.studies.crossed import row_losses, same_loss, yardstick
from vitrail.studies.joining import Floats, Ints, Losses, decide, why
from vitrail.study import Study


def own_verdict(
    study: Study, title: str, y: NDArray[Any], lots: Ints, alone: Sequence[Floats], joined: Sequence[Floats]
) -> dict[str, Any]:
    """Plain values. `lots` [repeat, row]: folds; `alone` and `joined`, for each repeat [row, answer]: what models that
    were not trained on a row say of it. `title` of the method that was joined in."""
    assert study.verdict is not None
    lost = [np.stack([row_losses(study, y, said) for said in told]) for told in (alone, joined)]
    folds, same = int(lots.max()) + 1, same_loss(study, y)
    harm, metric = study.verdict.harm * same, yardstick(study)
    answer = decide(Losses(lost[0], lost[1][None], lots, 1 / folds), harm)
    text = why(answer, title, metric.replace("_", " "), study.row_word, len(y), harm, len(lots), crossed=True)
    numbers = {k: v for k, v in answer._asdict().items() if k not in ("verdict", "best")}
    numbers |= {"harm": harm, "same": same}
    about = {"verdict": answer.verdict, "why": text, "method": title, "metric": metric}
    about |= {"rows": len(y), "folds": folds, "seeds": len(lots)}
    return about | {k: float(v) if math.isfinite(v) else None for k, v in numbers.items()}

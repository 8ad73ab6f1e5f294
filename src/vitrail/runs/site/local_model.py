"""A site that keeps the model of its rows alone, whatever all agreed on; and what that decision rests on."""

from __future__ import annotations

import math

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.exchange import Method
from vitrail.core.facts import ALONE, ALONE_LEFT_OUT, ERROR_LEFT_OUT, LEFT_OUT
from vitrail.runs.result import Model

SURE = 1.645  # standard errors: beyond it by chance at one site of twenty, on this side


def kept_alone(model: Model, name: str) -> tuple[Model, str]:
    """The model with which the site then predicts, and in words what speaks for it. `name`: of the yardstick that is
    each site by itself."""
    choices = methods.named(lambda kind: kind.catalogue.alone)
    problems = []
    if name not in choices:
        problems.append(Problem("--keep", f"expected {' or '.join(choices)}, got {name!r}.", nearest(name, choices)))
    elif ALONE not in model.models():
        what = f"{model.method.catalogue.title} trains no model on the site's rows alone."
        able = methods.named(lambda kind: kind.self_report is not Method.self_report)
        problems.append(Problem("--keep", what, f"Run it with --method {' or '.join(able)}."))
    if problems:
        raise VitrailError("cannot keep it", problems)
    return model._replace(keep=ALONE), rests_on(model.knows(), model.study.row_word)


def rests_on(knows: dict[str, float], row: str) -> str:
    """In words."""
    what = "Kept: the model trained on this site's rows alone."
    agreed, alone, error = (knows.get(k, math.nan) for k in (LEFT_OUT, ALONE_LEFT_OUT, ERROR_LEFT_OUT))
    if not (math.isfinite(agreed) and math.isfinite(alone)) or agreed == alone == 0:
        return f"{what} Which of the two models is better is not known: the site was absent when losses were compared."
    more = agreed - alone
    sentence = f"On its left-out {row}s, the agreed model has a loss of {agreed:.4f} per {row} and the model trained "
    sentence += f"alone {alone:.4f}, a difference of {abs(more):.4f}"
    if not math.isfinite(error):
        return f"{what} {sentence}. The error of this difference was not kept."
    sentence += f", give or take {error:.4f}."
    if more > SURE * error:
        end = (
            "Its own rows say that the model trained alone is better; chance gives a difference this large at 1 site "
            "in 20."
        )
    elif more > 0:
        end = "Chance alone can give such a difference, so it says little."
    else:
        end = "Its own rows say that the agreed model is better, so the kept model is probably the worse one."
    return f"{what} {sentence} {end} No other site learns of this, and nothing else changes."

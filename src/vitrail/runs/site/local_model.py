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
        return f"{what} Nothing is known here of which is better: the site was not there when losses were compared."
    more = agreed - alone
    sentence = f"On its {row}s left out, what was agreed cost {agreed:.4f} per {row}, alone {alone:.4f}: "
    sentence += f"{abs(more):.4f} {'more' if more > 0 else 'less'}"
    if not math.isfinite(error):
        return f"{what} {sentence}. How sure that is was not kept."
    sentence += f", give or take {error:.4f}."
    if more > SURE * error:
        end = "Its own rows say that alone is better; so large a difference comes by chance at one site of twenty."
    elif more > 0:
        end = "That is within what chance does to a site that is served as well: it says little."
    else:
        end = "Its own rows say that what was agreed is better: this keeps the worse one, as far as they tell."
    return f"{what} {sentence} {end} Nobody else is told, and nothing else changes."

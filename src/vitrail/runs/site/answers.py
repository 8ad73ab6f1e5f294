"""The hold-out rows of sites on this machine, each with what the site's own model answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.core.facts import OWN
from vitrail.core.losses import Loss
from vitrail.core.task import Task
from vitrail.core.tensors import map_tensors
from vitrail.methods import AnyMethod
from vitrail.metrics.holdout_summary import HeldOutAnswers
from vitrail.metrics.recalibration import placed
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.runs.evaluation import Evaluator

MOST_ROWS = 500  # as the network takes them, of a site: more are not kept in memory
Floats = NDArray[np.float64]


class SitePredictor(NamedTuple):
    """A site's own model on rows as the network takes them."""

    study: Study
    method: AnyMethod
    task: Task
    state: Any  # its settled state, stacked over this one site
    loss: Loss  # with the site's own constant

    def answers(self, x: NDArray[Any]) -> Floats:
        with torch.no_grad():
            rows = torch.from_numpy(x).to(self.task.like.device)
            z = self.method.predict(self.task, self.state, rows[None])[0]
        return in_units(self.study, self.loss.predictions(z.double().cpu()).numpy())


def in_units(study: Study, answers: NDArray[Any]) -> Floats:
    """A number in the target's own unit; shares as they are."""
    values = np.asarray(answers, np.float64)
    return values * study.target.scale + study.target.center if study.target.kind == "number" else values


def _only(settled: Any, at: int) -> Any:
    """The settled state of one site, stacked over this site alone."""
    return map_tensors(lambda t: t[at : at + 1].clone(), settled)


def collect_answers(judge: Evaluator, settled: Any) -> dict[str, HeldOutAnswers]:
    """By site; of settled sites."""
    p, (y, real) = judge.answers(settled, "test", others=False)["test"], judge.truth["test"]
    rows = {i: stack.x[k] for stack in judge.stacks["test"] for k, i in enumerate(stack.sites)}
    constants = judge.constants(settled, others=False).get(OWN)
    study, task, method = judge.study, judge.runner.task, judge.runner.method
    out = {}
    for i, site in enumerate(judge.data):
        many, at = int(real[i].sum()), judge.at[i]
        some = slice(0, 0) if study.images else slice(0, many, -(-many // MOST_ROWS) or 1)
        cut = None if judge.thresholds is None else judge.thresholds[i]
        loss = placed(task.loss, None if constants is None else constants[i])
        state = None if study.images else _only(settled, at)
        predict = SitePredictor(study, method, task, state, loss).answers
        x = rows[i][some].cpu().numpy().copy()
        out[site.name] = HeldOutAnswers(y[i, :many], p[i, :many], site.test_persons, site.test_w, cut, x, predict)
    return out

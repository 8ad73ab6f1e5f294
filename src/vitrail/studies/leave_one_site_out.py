"""Leave one site out: for each site a model of all others is tested on its rows, as at a hospital that comes later.

The site that is left out takes part in nothing: neither in training nor in a common scale. By a local scale its columns
are standardised by its own means, which needs no outcome. It is given the shared model; where a method has no model
that is shared as a whole, the mean of what the other sites' models say. With pooled rows there is one model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import map_tensors
from vitrail.data.encoding import Encoder, SiteData, fit_encoders
from vitrail.data.outcomes import weights_of
from vitrail.data.persons import persons_of
from vitrail.engine.local import Engine
from vitrail.methods import AnyMethod
from vitrail.metrics.scores import score
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.evaluation import constant_scores, truth_of
from vitrail.runs.setup import build_task, held_rows, resolve, training_of, training_rows
from vitrail.studies.executor import Step
from vitrail.study.model import Study

LEFT_OUT = ["method", "seed", "site", "metric", "value", "chance"]


def leave_one_out(
    study: Study,
    cleaned: Mapping[str, pd.DataFrame],
    methods: Sequence[str],
    seed: int,
    engine: str = "vectorised",
    device: str = "cpu",
    step: Step = lambda done, of: None,
) -> pd.DataFrame:
    """LEFT_OUT: the score of each method at each site when that site is left out, and beside it what always giving the
    same answer comes to there."""
    if len(cleaned) < 3:
        what = f"expected at least 3 sites, so that at least two can train together, got {len(cleaned)}."
        raise VitrailError("no site can be left out", [Problem("sites", what, "Omit --leave-one-site-out.")])
    rows, jobs = list[tuple[Any, ...]](), [(site, name) for site in cleaned for name in methods]
    for done, (site, name) in enumerate(jobs):
        changed, method = resolve(study, name, None)
        scores = _scored(changed, method, cleaned, site, seed, engine, device)
        rows += [(name, seed, site, metric, *values) for metric, values in scores.items()]
        step(done + 1, len(jobs))
    return pd.DataFrame(rows, columns=LEFT_OUT)


def _scored(
    study: Study,
    method: AnyMethod,
    cleaned: Mapping[str, pd.DataFrame],
    left: str,
    seed: int,
    engine: str,
    device: str,
) -> dict[str, tuple[float, float]]:
    """Metric -> score and baseline, on all rows of the site that is left out."""
    others = {name: frame for name, frame in cleaned.items() if name != left}
    encoders = fit_encoders(others, study)
    shared_scale = study.standardise == "global"
    own = next(iter(encoders.values())) if shared_scale else fit_encoders({left: cleaned[left]}, study)[left]
    task = build_task(study, method, seed, device)
    both = [_site(name, frame, encoders[name]) for name, frame in others.items()]
    *data, target = as_rows([*both, _site(left, cleaned[left], own)], task.net, device)
    given = task, method, training_rows(data, study, method, device), training_of(study), seed
    runner = Engine(*given, looped=engine == "looped", held=held_rows(data, study, method, device))
    *_, moment = chain([runner.start()], runner.run())
    y, w = truth_of(study, target, "train"), target.train_w
    p = _answers(runner, moment, torch.from_numpy(target.train_x).to(device))
    p = p * study.target.scale + study.target.center if study.target.kind == "number" else p
    same = constant_scores(study, study.metrics, y, w)
    return {metric: (value, same[metric]) for metric, value in score(study.metrics, y, p, w).items()}


def _site(name: str, frame: pd.DataFrame, encoder: Encoder) -> SiteData:
    """All rows to train on. Hold-out rows, which a method may count on, are the same ones."""
    table = encoder.table
    y = frame[table.target.column].to_numpy(copy=True)
    y = (y - table.target.center) / table.target.scale if table.target.kind == "number" else y
    x, w, persons = encoder.matrix(frame), weights_of(frame, table), persons_of(frame, table)
    return SiteData(name, encoder, x, y, x, y, "", None, w, w, persons, persons)


@torch.no_grad()
def _answers(runner: Engine, moment: Any, x: torch.Tensor) -> NDArray[np.float64]:
    """[row, answer] of what the site is given."""
    task, method = runner.task, runner.method
    rows = runner.sites.numbers(x)[None].to(task.like)
    shared = method.shared(moment.coord)
    if shared and shared.keys() == task.start.keys():
        z = task.output({k: v[None].to(task.like) for k, v in shared.items()}, rows)
    else:
        settled = runner.settled(moment)
        z = torch.cat(
            [
                method.predict(task, map_tensors(lambda t: t[i : i + 1], settled), rows)  # noqa: B023
                for i in range(len(runner.names))
            ]
        )
    return np.asarray(task.loss.predictions(z.double()).mean(0).cpu().numpy(), np.float64)

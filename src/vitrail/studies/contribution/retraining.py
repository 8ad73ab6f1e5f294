"""Training again: what every coalition of a run's sites would have made, with all their rows at hand.

Rows, hold-out and encoders are those of the run; each coalition starts from the model that all started from and trains
as the study says, all coalitions in one stack (engine/coalitions.py). A run is one draw of the first model and of the
batches: `seeds` beyond the run's own draw them anew, and how far the values then differ is their noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import stdtrit  # Student's t

from vitrail.core.errors import VitrailError
from vitrail.core.tensors import map_tensors
from vitrail.data.encoding import prepare
from vitrail.engine.coalitions import Coalitions
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.result import Run
from vitrail.runs.setup import absence, build_task, training_of, training_rows
from vitrail.stats.shapley import Floats, Masks, Values, every
from vitrail.studies.contribution.coalition_loss import CoalitionLoss, Solve, Tell, other_rows
from vitrail.studies.executor import Step, done


class CoalitionRetraining(CoalitionLoss):
    """A run, all its sites' tables, and one user's test rows."""

    def __init__(self, run: Run, user: str, frames: Mapping[str, pd.DataFrame], seeds: Sequence[int]) -> None:
        data = prepare({name: frames[name] for name in run.sites}, run.study, run.seed)
        if problems := other_rows(run, data):
            raise VitrailError(f"these are other {run.study.row_word}s", problems)
        task = build_task(run.study, run.method, run.seed)
        self.rows, self.seeds = training_rows(as_rows(data, task.net), run.study, run.method, "cpu"), list(seeds)
        super().__init__(run, user, frames[user], self.rows.names)
        info, stages = run.info, run.method.plan(run.study.training.rounds)
        self.absent = absence(self.names, run.seed, info["dropout_rate"], info["away"], info["refuse"], stages)
        away = [self.absent(0, r).numpy() for r in range(stages[0].rounds)] if self.absent else []
        self.took_part = stages[0].rounds - np.sum([np.zeros(len(self.names), dtype=np.int64), *away], axis=0)
        self._worth: dict[tuple[int, bytes], Floats] = {}

    def models(self, masks: Masks, seed: int, tell: Tell = lambda words, done, total: None) -> list[Any]:
        """The coordinator of each coalition [coalition, site] after training with that seed."""
        run = self.run
        task, training = build_task(run.study, run.method, seed), training_of(run.study)
        out = [run.method.coord(task, 1)] * len(masks)
        some = np.flatnonzero(masks.any(1))
        for i in range(0, len(some), self.at_once):
            part = some[i : i + self.at_once]
            members = torch.from_numpy(masks[part])
            stack = Coalitions(task, run.method, self.rows, training, seed, members, self.absent)
            made = stack.train(lambda done, total: tell(f"rounds of seed {seed}", done, total))
            for c, coord in zip(part, made, strict=True):
                out[c] = coord
        return [map_tensors(lambda t: t.double() if t.is_floating_point() else t, coord) for coord in out]

    def worth(self, masks: Masks, seed: int, tell: Tell = lambda words, done, total: None) -> Floats:
        """[coalition, row]; a coalition is trained once. Nobody is worth the baseline, not a model drawn by lot."""
        new = np.array([m for m in masks if m.any() and (seed, m.tobytes()) not in self._worth], dtype=bool)
        if len(new):
            got = -self.losses(self.models(new, seed, tell))
            self._worth |= {(seed, m.tobytes()): row for m, row in zip(new, got, strict=True)}
        nobody = -self.baseline()
        return np.array([self._worth[seed, m.tobytes()] if m.any() else nobody for m in masks])

    def train_far(self, cluster: str, frames: Mapping[str, pd.DataFrame], tell: Tell) -> None:
        """All coalitions of every seed on the machines of a cluster, a seed each; they are known here afterwards."""
        masks = every(len(self.names))[0]
        held = self.run, self.user, {name: frames[name] for name in self.run.sites}, masks
        report = lambda seed, so_far: tell("seeds, on the cluster", int(so_far), len(self.seeds))  # noqa: E731
        for seed, got in zip(self.seeds, done(self.seeds, _worth_far, held, 1, report, cluster=cluster), strict=True):
            self._worth |= {(seed, m.tobytes()): row for m, row in zip(masks, got, strict=True)}

    def by_seed(self, solve: Solve, tell: Tell) -> Values:
        """The mean of the games of all seeds, and half of its 95 % interval over them; with one seed there is none."""
        got = [solve(partial(self.worth, seed=seed, tell=tell), len(self.names)) for seed in self.seeds]
        means, k = np.array([v.mean for v in got]), len(got)
        half = stdtrit(k - 1, 0.975) * means.std(0, ddof=1) / np.sqrt(k) if k > 1 else np.zeros(means.shape[1])
        drawn = np.sqrt(np.mean([v.half**2 for v in got], axis=0) / k)
        return got[0]._replace(rows=np.mean([v.rows for v in got], axis=0), half=np.hypot(half, drawn))

    def end(self) -> float:
        """The loss of everybody's model; mean over rows and seeds."""
        everybody = np.ones((1, len(self.names)), dtype=bool)
        return float(-np.mean([self.worth(everybody, seed) for seed in self.seeds]))


def _worth_far(seed: int, held: tuple[Run, str, dict[str, pd.DataFrame], Masks], step: Step) -> Floats:
    run, user, frames, masks = held
    return CoalitionRetraining(run, user, frames, [seed]).worth(masks, seed, lambda words, part, of: step(part, of))

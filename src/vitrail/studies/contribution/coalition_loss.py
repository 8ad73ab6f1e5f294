"""The loss of any shared model on one user's own test rows: what a coalition's model is worth is counted here.

The user would add a constant of its own to whatever model it is given (metrics/recalibration.py). So each model is
scored with the constant that the user's training rows give it, as in a run: nobody is paid for what the user can
correct alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.exchange import Roster
from vitrail.core.losses import Loss, log_shares
from vitrail.core.random import key
from vitrail.core.tensors import flatten, map_tensors, unflatten
from vitrail.data.encoding import SiteData, prepare
from vitrail.engine.rounds import clock_of
from vitrail.metrics import survival
from vitrail.metrics.recalibration import fit_constant, placed
from vitrail.runs.evaluation import trained_on
from vitrail.runs.result import Run
from vitrail.stats.shapley import Floats, Masks, Values, Worth

CHUNK = 64  # coalitions evaluated at once
ROWS = 512  # on so many rows
HELD = 1 << 29  # bytes
Solve = Callable[[Worth, int], Values]  # a game and its number of players -> their values
Tell = Callable[[str, int, int], None]  # words, done, in all


def no_such_user(user: str, names: Sequence[str]) -> Problem:
    return Problem("--user", f"no site {user!r} took part in the run.", nearest(user, names))


def as_double(v: Tensor) -> Tensor:
    return v.double() if v.is_floating_point() else v


class CoalitionLoss:
    """A run and one user's test rows. `names`: the sites, in the order in which coalitions name them."""

    def __init__(self, run: Run, user: str, frame: pd.DataFrame, names: Sequence[str]) -> None:
        self.run, self.user, self.names, self.evaluations = run, user, tuple(names), 0
        if user not in self.names:
            raise VitrailError("there is no such user", [no_such_user(user, self.names)])
        (data,) = prepare({user: frame}, run.study, run.seed, run.encoders[user])
        if problems := other_rows(run, [data]):
            raise VitrailError(f"these are other {run.study.row_word}s", problems)
        task = run.plan.task
        self.task = replace(task, start={k: v.double() for k, v in task.start.items()})
        self.ex = run.method.plan(run.study.training.rounds)[0].last
        self.keys = torch.tensor([key(run.seed, name, "coordinator") for name in self.names])
        self.at, self.data = self.names.index(user), data
        model = {k: v[None].double() for k, v in run.models[user].items()}
        self.state = unflatten(map_tensors(as_double, run.plan.settled), model)
        self.x = as_double(torch.from_numpy(data.test_x))[None]
        self.y = torch.from_numpy(np.ascontiguousarray(data.test_y))
        self.train_x = as_double(torch.from_numpy(data.train_x))[None]
        self.outcomes = None if run.study.protect.rows else trained_on(run.study, data)  # else they would be told of
        self.start = run.method.coord(self.task, len(self.names))

    def roster(self, present: Tensor, round_: int) -> Roster:
        return Roster(self.names, present, self.keys, torch.tensor(clock_of(0, round_, 0)))

    @torch.no_grad()
    def losses(self, coords: Sequence[Any]) -> Floats:
        """[model, test row]: the user's loss under each of these shared models."""
        out, everyone = [], self.roster(torch.ones(len(self.names), dtype=torch.bool), 0)
        for i in range(0, len(coords), CHUNK):
            messages = [self.ex.send(self.task, c, everyone) for c in coords[i : i + CHUNK]]
            flat = [dict(flatten(map_tensors(lambda t: t[self.at : self.at + 1], d))) for d in messages]
            down = unflatten(messages[0], {k: torch.cat([f[k] for f in flat]) for k in flat[0]})
            n = len(flat)
            state = self.ex.settle(self.task, map_tensors(lambda t: t.expand(n, *t.shape[1:]), self.state), down)  # noqa: B023
            out.append(self._loss(self._placed(state, n), self._scores(state, self.x, n)).numpy())
            self.evaluations += n
        got = np.concatenate(out)
        if not np.isfinite(got).all():
            what = f"the loss of a coalition on the test {self.run.study.row_word}s of {self.user!r} is not a number."
            raise VitrailError("the run diverged", [Problem("the run", what, "Train it with a lower learning rate.")])
        return got

    def _scores(self, state: Any, x: Tensor, n: int) -> Tensor:
        """[model, row, output] of n models"""
        parts = (part.expand(n, *part.shape[1:]) for part in torch.split(x, ROWS, 1))
        return torch.cat([self.run.method.predict(self.task, state, part) for part in parts], 1).double()

    def _placed(self, state: Any, n: int) -> Loss:
        """The loss with the user's own constant for each of n models."""
        if self.outcomes is None:
            return self.task.loss
        y, w = self.outcomes
        fitted = [fit_constant(self.task.loss, z, y, w) for z in self._scores(state, self.train_x, n)]
        constants = [c for c in fitted if c is not None]
        return placed(self.task.loss, torch.from_numpy(np.stack(constants))[:, None] if constants else None)

    def _loss(self, loss: Loss, z: Tensor) -> Tensor:
        """[model, row]"""
        target = self.run.study.target
        if target.kind == "number":
            return ((loss.predictions(z)[..., 0] - self.y) * target.scale) ** 2
        if target.kind == "time":
            y, curves = self.data.test_y.astype(np.float64), loss.predictions(z).numpy()
            return torch.from_numpy(np.stack([survival.losses(y, p) for p in curves]))
        return -log_shares(loss, z).gather(2, self.y.long().view(1, -1, 1).expand(len(z), -1, 1))[..., 0]

    def baseline(self) -> Floats:
        """[row]: the loss of one answer to every row: the mean of the training rows, or the shares of their classes."""
        target, train, test = self.run.study.target, self.data.train_y, self.data.test_y
        if target.kind == "number":
            return np.asarray(((test - train.mean()) * target.scale) ** 2, dtype=np.float64)
        if target.kind == "time":
            curve = survival.life_table(train.astype(np.float64), target.outputs)
            return np.asarray(survival.losses(test.astype(np.float64), np.tile(curve, (len(test), 1))))
        count = np.bincount(train.astype(np.int64), minlength=len(target.levels)) + 0.5  # none is impossible
        return np.asarray(-np.log(count / count.sum())[test.astype(np.int64)])

    @property
    def own_matters(self) -> bool:
        """Whether the user predicts with anything that was not sent to it."""
        mine, other = self.state, map_tensors(lambda t: t + 1, self.state)
        self.state, under_mine = other, self.losses([self.start])
        under_other, self.state = self.losses([self.start]), mine
        return not np.array_equal(under_mine, under_other)

    def worth_of(
        self, make: Callable[[Masks], list[Any]], masks: Masks, players: NDArray[np.int64], chunk: int = CHUNK
    ) -> Floats:
        """[coalition, player] -> [coalition, row]: less loss is worth more. Models may be large: not all at once."""
        wide = np.zeros((len(masks), len(self.names)), dtype=bool)
        wide[:, players] = masks
        parts = (wide[i : i + chunk] for i in range(0, len(wide), chunk))
        return -np.concatenate([self.losses(make(part)) for part in parts])

    @property
    def at_once(self) -> int:
        """Coalitions whose models, reports and optimisers' memory are held at once."""
        size = sum(v.numel() * v.element_size() for v in self.task.start.values())
        return max(1, HELD // (3 * size * len(self.names)))

    def counted(self, game: Callable[[Solve, Tell], Values], solve: Solve, tell: Tell) -> tuple[Values, int]:
        """And how many models it took to evaluate."""
        before = self.evaluations
        return game(solve, tell), self.evaluations - before


def other_rows(run: Run, data: Sequence[SiteData]) -> list[Problem]:
    """Rows that are not those that the run had."""
    word, hint = run.study.row_word, "Give the same data as in the run."
    sentence = "these are not the {}s of {!r} that the run used (fingerprint {})."
    return [
        Problem("--data", sentence.format(word, site.name, site.fingerprint), hint)
        for site in data
        if site.fingerprint != run.info["fingerprints"].get(site.name)
    ]

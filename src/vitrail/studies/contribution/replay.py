"""A run with its updates, gone through again: the loss that any coalition of its sites would have led to.

What every site reported in every round is aggregated again for some of the sites only (engine/aggregation.py). Nothing
is trained, except at the user itself where `carried` asks for it. `values.py` says what is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import flatten, map_tensors, per_site, unflatten
from vitrail.engine.aggregation import collect_coalitions, merge
from vitrail.engine.coalitions import Coalitions
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.folder import UPDATES
from vitrail.runs.result import Run
from vitrail.runs.setup import training_of, training_rows
from vitrail.stats.shapley import Floats, Masks, Values
from vitrail.studies.contribution.coalition_loss import CoalitionLoss, Solve, Tell, as_double

HELD = 1 << 29  # bytes of updates that are kept in memory


class RecordedRound(NamedTuple):
    """One round: where the shared model stood, what each site reported, who did."""

    round: int  # from 0
    coord: Any
    up: Any  # stacked over all sites; zero for those absent
    present: Masks


class UpdateReplay(CoalitionLoss):
    """A run with its updates and one user's test rows: the loss there of what any coalition would have made."""

    def __init__(self, run: Run, path: Path, user: str, frame: pd.DataFrame) -> None:
        self.files = _files(run, path)
        with safe_open(self.files[0], "pt") as file:
            names = json.loads(file.metadata()["sites"])
        super().__init__(run, user, frame, names)
        self.took_part = np.zeros(len(self.names), dtype=np.int64)
        self._held: list[RecordedRound] | None = None
        self.final = self._replay()

    def _replay(self) -> Any:
        """Go through the run once; its last shared model must come out."""
        held: list[RecordedRound] = []
        small = sum(f.stat().st_size for f in self.files) * 2 <= HELD  # double precision
        coord = self.start
        for recorded in self.rounds():
            self.took_part += recorded.present
            held += [recorded] if small else []
            (coord,) = self.merged(recorded, recorded.present[None])
        got = dict(flatten(coord))
        if any(not torch.allclose(got[k], v.double(), rtol=1e-3, atol=1e-4) for k, v in self.run.shared.items()):
            what = "the updates do not add up to the last shared model of the run."
            raise VitrailError(
                "the updates do not fit", [Problem(str(self.files[0].parent), what, "Run the study again.")]
            )
        if not self.took_part.any():
            raise VitrailError(
                "there is no gain to distribute", [Problem("the run", "no site ever answered.", "Run the study again.")]
            )
        self._held = held if small else None
        return coord

    def rounds(self) -> Iterator[RecordedRound]:
        if self._held is not None:
            yield from self._held
            return
        coord, shape = self.start, map_tensors(as_double, self.run.plan.stages[0].turns[-1].up)
        for r, path in enumerate(self.files):
            with safe_open(path, "pt") as file:
                present = file.get_tensor("present")
                up = map_tensors(lambda t: t.new_zeros((len(present), *t.shape[1:])), shape)  # noqa: B023
                for name, whole in flatten(up) if bool(present.any()) else ():
                    whole[present] = file.get_tensor(f"report/{name}").to(whole)
            recorded = RecordedRound(r, coord, up, present.numpy())
            yield recorded
            (coord,) = self.merged(recorded, recorded.present[None])

    def merged(self, recorded: RecordedRound, masks: Masks) -> Iterator[Any]:
        """The coordinator after this round, had only these sites answered."""
        members = torch.from_numpy(masks & recorded.present)
        roster = self.roster(torch.from_numpy(recorded.present), recorded.round)
        for collected in collect_coalitions(self.ex, recorded.up, members):
            yield merge(self.ex, self.task, recorded.coord, collected, roster)[0]

    def by_round(self, solve: Solve, tell: Tell) -> Values:
        """The game of each round among those who answered, summed."""
        n, rows = len(self.names), self.x.shape[1]
        total, half, asked = np.zeros((n, rows)), np.zeros(n), 0
        for r, recorded in enumerate(self.rounds()):
            players = np.flatnonzero(recorded.present)
            if len(players):

                def worth(
                    masks: Masks, recorded: RecordedRound = recorded, players: NDArray[np.int64] = players
                ) -> Floats:
                    return self.worth_of(lambda part: list(self.merged(recorded, part)), masks, players)

                got = solve(worth, len(players))
                total[players] += got.rows
                half[players] = np.hypot(half[players], got.half)
                asked += got.asked
            tell("rounds", r + 1, len(self.files))
        return Values(total, half, asked)

    def by_run(self, solve: Solve, tell: Tell) -> Values:
        """One game of the whole run."""
        return self._game(solve, lambda masks, players: self.worth_of(self.rebuilt, masks, players))

    def by_own_rows(self, solve: Solve, tell: Tell) -> Values:
        """One game of the whole run, with what the user's own rows say about other models."""

        def make(masks: Masks) -> list[Any]:
            return self.carried(masks, tell)

        return self._game(solve, lambda masks, players: self.worth_of(make, masks, players, self.at_once))

    def _game(self, solve: Solve, worth: Callable[[Masks, NDArray[np.int64]], Floats]) -> Values:
        """Among those who ever answered."""
        players = np.flatnonzero(self.took_part)
        got = solve(lambda masks: worth(masks, players), len(players))
        rows, half = np.zeros((len(self.names), self.x.shape[1])), np.zeros(len(self.names))
        rows[players], half[players] = got.rows, got.half
        return got._replace(rows=rows, half=half)

    def rebuilt(self, masks: Masks) -> list[Any]:
        """What each coalition's reports alone would have added up to over the run."""
        sums = [{k: v.clone() for k, v in flatten(self.start)} for _ in masks]
        for recorded in self.rounds():
            before = dict(flatten(recorded.coord))
            for total, after in zip(sums, self.merged(recorded, masks), strict=True):
                for k, v in flatten(after):
                    total[k] += v - before[k]
        return [unflatten(self.start, total) for total in sums]

    def carried(self, masks: Masks, tell: Tell = lambda words, done, total: None) -> list[Any]:
        """The same, each report carried from w_t to the model that the coalition had by then: the user trains there
        too, and what its own report differs by is added."""
        run, lanes = self.run, np.concatenate([masks, np.ones((1, len(self.names)), dtype=bool)])  # last: w_t itself
        task = run.plan.task
        rows = training_rows(as_rows([self.data], task.net), run.study, run.method, "cpu")
        alone = torch.ones(len(lanes), 1, dtype=torch.bool)
        stack = Coalitions(task, run.method, rows, training_of(run.study), run.seed, alone)
        at, rounds = _stacked([self.start] * len(lanes)), self.rounds()

        def after(r: int, before: list[Any], now: list[Any]) -> list[Any]:
            nonlocal at
            here = next(rounds)
            some = torch.from_numpy((lanes & here.present).any(1))  # a coalition that nobody answers for stays
            own = {k: v - was for (k, v), was in zip(_stacked(now).items(), _stacked(before).values(), strict=True)}
            merged, then = _stacked(list(self.merged(here, lanes))), dict(flatten(here.coord))
            for k, v in at.items():
                v += per_site(some.to(v), v) * (merged[k] - then[k] + own[k] - own[k][-1:])
            return [unflatten(c, {k: v[i] for k, v in at.items()}) for i, c in enumerate(now)]

        stack.train(lambda done, total: tell("rounds, at the user", done, total), after)
        return [unflatten(self.start, {k: v[i] for k, v in at.items()}) for i in range(len(masks))]


def _stacked(coords: Sequence[Any]) -> dict[str, Tensor]:
    flat = [dict(flatten(c)) for c in coords]
    return {k: torch.stack([f[k] for f in flat]) for k in flat[0]}


def _files(run: Run, path: Path) -> list[Path]:
    rounds = run.method.plan(run.study.training.rounds)[0].rounds
    files = [path / UPDATES / f"round-{r:05d}.safetensors" for r in range(1, rounds + 1)]
    missing = [f.name for f in files if not f.exists()]
    if missing:
        what = (
            f"{len(missing)} of {rounds} rounds have no stored updates "
            f"({missing[0]}{(', ...' if len(missing) > 1 else '')})."
        )
        hint = "Train the run with `vitrail run ... --keep-updates`, or give all sites' data and --retrain."
        raise VitrailError("the run did not store its updates", [Problem(str(path / UPDATES), what, hint)])
    return files

"""A run with its updates, gone through again: the loss that any coalition of its sites would have led to.

What every site reported in every round is merged anew with the method's own merge, for some of the sites only; nothing
is trained. `contribution.py` says what is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from vitrail.core.exchange import Roster
from vitrail.core.losses import log_shares
from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.core.random import key
from vitrail.core.tensors import each, filled, per_site, tensors
from vitrail.data.encode import prepare
from vitrail.engines.rounds import clock_of
from vitrail.engines.wire import rehearse, settled_shape
from vitrail.explain.shapley import Floats, Masks, Values, Worth
from vitrail.runs.folder import UPDATES
from vitrail.runs.run import Run
from vitrail.runs.setup import build_task

CHUNK = 64  # coalitions evaluated at once
HELD = 1 << 29  # bytes of updates that are kept in memory
Solve = Callable[[Worth, int], Values]  # a game and its number of players -> their values
Tell = Callable[[str, int, int], None]  # words, done, in all


class Said(NamedTuple):
    """One round: where the shared model stood, what each site reported, who did."""

    round: int  # from 0
    coord: Any
    up: Any  # stacked over all sites; zero for those absent
    present: Masks


def no_such_user(user: str, names: Sequence[str]) -> Problem:
    return Problem("--user", f"no site {user!r} took part in the run.", nearest(user, names))


class Record:
    """A run with its updates and one user's test rows: the loss there of what any coalition would have made."""

    def __init__(self, run: Run, path: Path, user: str, frame: pd.DataFrame) -> None:
        self.run, self.user, self.evaluations = run, user, 0
        self.files = _files(run, path)
        with safe_open(self.files[0], "pt") as file:
            self.names: tuple[str, ...] = tuple(json.loads(file.metadata()["sites"]))
        if user not in self.names:
            raise VitrailError("there is no such user", [no_such_user(user, self.names)])
        (data,) = prepare({user: frame}, run.study, run.seed, run.encoders[user])
        if data.fingerprint != run.info["fingerprints"][user]:
            word = run.study.row_word
            what = f"these are not the {word}s that the run had from {user!r} (fingerprint {data.fingerprint})."
            hint = "Give what the run was given."
            raise VitrailError(f"these are other {word}s", [Problem("--data", what, hint)])
        task = build_task(run.study, run.method, run.seed)
        self.task = replace(task, start={k: v.double() for k, v in task.start.items()})
        self.ex = run.method.plan(run.study.training.rounds)[0].last
        self.keys = torch.tensor([key(run.seed, name, "coordinator") for name in self.names])
        self.at = self.names.index(user)
        model = {k: v[None].double() for k, v in run.models[user].items()}
        self.state = filled(settled_shape(self.task, run.method), model)
        self.x, self.y = torch.from_numpy(data.test_x)[None], torch.from_numpy(np.ascontiguousarray(data.test_y))
        self.start = run.method.coord(self.task, len(self.names))
        self.took_part = np.zeros(len(self.names), dtype=np.int64)
        self._held: list[Said] | None = None
        self.final = self._replay()

    def _replay(self) -> Any:
        """Go through the run once; its last shared model must come out."""
        held: list[Said] = []
        small = sum(f.stat().st_size for f in self.files) * 2 <= HELD  # double precision
        coord = self.start
        for said in self.rounds():
            self.took_part += said.present
            held += [said] if small else []
            (coord,) = self._merged(said, said.present[None])
        got = dict(tensors(coord))
        if any(not torch.allclose(got[k], v.double(), rtol=1e-3, atol=1e-4) for k, v in self.run.shared.items()):
            what = "they do not lead to the run's last shared model."
            raise VitrailError("the updates do not fit", [Problem(str(self.files[0].parent), what, "Run it anew.")])
        if not self.took_part.any():
            raise VitrailError(
                "there is nothing to share", [Problem("the run", "no site ever answered.", "Run it anew.")]
            )
        self._held = held if small else None
        return coord

    def rounds(self) -> Iterator[Said]:
        if self._held is not None:
            yield from self._held
            return
        coord, shape = self.start, next(rehearse(self.task, self.run.method, 1)).turns[-1].up
        for r, path in enumerate(self.files):
            with safe_open(path, "pt") as file:
                present = file.get_tensor("present")
                up = each(lambda t: t.new_zeros((len(present), *t.shape[1:])), shape)  # noqa: B023
                for name, whole in tensors(up) if bool(present.any()) else ():
                    whole[present] = file.get_tensor(f"report/{name}").to(whole)
            said = Said(r, coord, up, present.numpy())
            yield said
            (coord,) = self._merged(said, said.present[None])

    def roster(self, present: Tensor, round_: int) -> Roster:
        return Roster(self.names, present, self.keys, torch.tensor(clock_of(0, round_, 0)))

    def _merged(self, said: Said, masks: Masks) -> Iterator[Any]:
        """The coordinator after this round, had only these sites answered."""
        who = torch.from_numpy(masks & said.present)
        sums = each(lambda t: torch.tensordot(who.to(t), t, 1), said.up) if self.ex.sees == "sum" else None
        for c, here in enumerate(who):
            if not bool(here.any()):
                yield said.coord
                continue
            if self.ex.sees == "sum":
                heard = each(lambda t: t[c], sums)  # noqa: B023
            else:
                heard = each(lambda t: t * per_site(here.to(t), t), said.up)  # noqa: B023
            yield self.ex.merge(self.task, said.coord, heard, self.roster(here, said.round))[0]

    @torch.no_grad()
    def losses(self, coords: Sequence[Any]) -> Floats:
        """[model, test row]: the user's loss under each of these shared models."""
        out, everyone = [], self.roster(torch.ones(len(self.names), dtype=torch.bool), 0)
        for i in range(0, len(coords), CHUNK):
            told = [self.ex.send(self.task, c, everyone) for c in coords[i : i + CHUNK]]
            flat = [dict(tensors(each(lambda t: t[self.at : self.at + 1], d))) for d in told]
            down = filled(told[0], {k: torch.cat([f[k] for f in flat]) for k in flat[0]})
            n = len(flat)
            state = self.ex.settle(self.task, each(lambda t: t.expand(n, *t.shape[1:]), self.state), down)  # noqa: B023
            z = self.run.method.predict(self.task, state, self.x.expand(n, *self.x.shape[1:]))
            out.append(self._loss(z).numpy())
            self.evaluations += n
        got = np.concatenate(out)
        if not np.isfinite(got).all():
            what = f"a rebuilt model's loss on the test {self.run.study.row_word}s of {self.user!r} is no number."
            raise VitrailError("the run diverged", [Problem("the run", what, "Train it with a lower learning rate.")])
        return got

    def _loss(self, z: Tensor) -> Tensor:
        """[model, row]"""
        target = self.run.study.target
        if target.kind == "number":
            return ((z[..., 0] - self.y) * target.scale) ** 2
        return -log_shares(self.task.loss, z).gather(2, self.y.long().view(1, -1, 1).expand(len(z), -1, 1))[..., 0]

    @property
    def own_matters(self) -> bool:
        """Whether the user predicts with anything that was not sent to it."""
        mine, other = self.state, each(lambda t: t + 1, self.state)
        self.state, under_mine = other, self.losses([self.final])
        under_other, self.state = self.losses([self.final]), mine
        return not np.array_equal(under_mine, under_other)

    def by_round(self, solve: Solve, tell: Tell) -> Values:
        """The game of each round among those who answered, summed."""
        n, rows = len(self.names), self.x.shape[1]
        total, half, asked, orders = np.zeros((n, rows)), np.zeros(n), 0, 0
        cuts: list[float] = []
        for r, said in enumerate(self.rounds()):
            players = np.flatnonzero(said.present)
            if len(players):

                def worth(masks: Masks, said: Said = said, players: NDArray[np.int64] = players) -> Floats:
                    return self._worth(lambda part: list(self._merged(said, part)), masks, players)

                got = solve(worth, len(players))
                total[players] += got.rows
                half[players] = np.hypot(half[players], got.half)
                asked, orders = asked + got.asked, max(orders, got.orders)
                cuts.append(got.cut)
            tell("rounds", r + 1, len(self.files))
        return Values(total, half, asked, orders, float(np.mean(cuts or [0.0])))

    def by_run(self, solve: Solve, tell: Tell) -> Values:
        """One game of the whole run, among those who ever answered."""
        players = np.flatnonzero(self.took_part)

        def worth(masks: Masks) -> Floats:
            return self._worth(self.rebuilt, masks, players)

        got = solve(worth, len(players))
        rows, half = np.zeros((len(self.names), self.x.shape[1])), np.zeros(len(self.names))
        rows[players], half[players] = got.rows, got.half
        return got._replace(rows=rows, half=half)

    def _worth(self, make: Callable[[Masks], list[Any]], masks: Masks, players: NDArray[np.int64]) -> Floats:
        """[coalition, player] -> [coalition, row]: less loss is worth more. Models may be large: not all at once."""
        wide = np.zeros((len(masks), len(self.names)), dtype=bool)
        wide[:, players] = masks
        parts = (wide[i : i + CHUNK] for i in range(0, len(wide), CHUNK))
        return -np.concatenate([self.losses(make(part)) for part in parts])

    def rebuilt(self, masks: Masks) -> list[Any]:
        """What each coalition's reports alone would have added up to over the run."""
        sums = [{k: v.clone() for k, v in tensors(self.start)} for _ in masks]
        for said in self.rounds():
            before = dict(tensors(said.coord))
            for total, after in zip(sums, self._merged(said, masks), strict=True):
                for k, v in tensors(after):
                    total[k] += v - before[k]
        return [filled(self.start, total) for total in sums]

    def counted(self, game: Callable[[Solve, Tell], Values], solve: Solve, tell: Tell) -> tuple[Values, int]:
        """And how many models it took to evaluate."""
        before = self.evaluations
        return game(solve, tell), self.evaluations - before


def _files(run: Run, path: Path) -> list[Path]:
    rounds = run.method.plan(run.study.training.rounds)[0].rounds
    files = [path / UPDATES / f"round-{r:05d}.safetensors" for r in range(1, rounds + 1)]
    missing = [f.name for f in files if not f.exists()]
    if missing:
        what = f"{len(missing)} of {rounds} rounds have none ({missing[0]}{', ...' if len(missing) > 1 else ''})."
        hint = "Train it with `vitrail run ... --keep-updates`; updates cannot be had afterwards."
        raise VitrailError("the run kept no updates", [Problem(str(path / UPDATES), what, hint)])
    return files

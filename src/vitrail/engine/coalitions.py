"""Many federations of the same sites at once: every coalition trains a model of its own, all of them in one stack.

A site's rows are held once for all its lanes (replicas.py). Of the plan the first stage is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vitrail.core.task import Task
from vitrail.engine.batches import Sites
from vitrail.engine.local import Engine
from vitrail.engine.replicas import Replicas
from vitrail.engine.rounds import AnyMethod, Training
from vitrail.engine.threads import quiet_torch

Tell = Callable[[int, int], None]  # rounds done, of how many
After = Callable[[int, list[Any], list[Any]], list[Any]]  # round, coordinators before and after it


class Coalitions(Replicas):
    """`members` [coalition, site] bool, sites in the order of sites.names; none of them without a member."""

    def __init__(
        self,
        task: Task,
        method: AnyMethod,
        sites: Sites,
        training: Training,
        seed: int,
        members: Tensor,
        absent: Callable[[int, int], Tensor] | None = None,
    ) -> None:
        site, coalition = members.T.nonzero().T  # by site, so that lanes with most rows come first
        lanes = [(coalition == c).nonzero()[:, 0] for c in range(len(members))]
        engine = Engine(task, method, sites.again(site.tolist()), training, seed)
        super().__init__(engine, lanes, absent and (lambda s, r: absent(s, r)[site]))

    def train(self, tell: Tell = lambda done, total: None, after: After = lambda round_, before, now: now) -> list[Any]:
        """The coordinator of each coalition after training. `after` each round it may be put elsewhere than where the
        round has led from `before`."""
        e, rounds = self.engine, self.engine.stages[0].rounds
        _, _, coords, state = self.start()
        with quiet_torch(e.device) as e.pool:
            for r in range(rounds):
                coords = after(r, coords, self.turn(0, r, coords, state))
                tell(r + 1, rounds)
        return coords

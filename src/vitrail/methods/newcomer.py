"""A site that comes after training: the shared model stands still, only the site's private layers are fitted.

    f = f_out o f_shared o f_in      f_shared fixed; f_in (and f_out) by the same steps as in iFedAvg

Not in the table of methods: it has no federation of its own. See runs/newcomer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitrail.core.exchange import Pace
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, add_, pull_, to_all
from vitrail.methods.fedavg import Work
from vitrail.methods.ifedavg import PRIVATE
from vitrail.methods.local import Local


@dataclass(frozen=True)
class Newcomer(Local):
    title: ClassVar[str] = "Newcomer"
    identity: float = 0.0

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        task.push(work.params, work.velocity, batch, pace.lr, pace.momentum)
        own: Params = task.select(work.params, PRIVATE)
        if self.identity:
            rest = {k: v.new_full(v.shape[1:], float(k.endswith("scale"))) for k, v in own.items()}
            pull_(work.velocity, work.params, to_all(rest, batch.x.shape[0]), pace.lr * self.identity)
        add_(own, work.velocity)

"""Weight Erosion on the small federation, in the open."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.support.small import make_rows, make_task
from vitrail import methods
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training

ROUNDS = Training(rounds=9, batch=8, lr=0.02, decays=0, mean=True)
LINEAR = make_task(hidden=(), dropout=0.0)
FEW = {"p_d": 0.03, "beside": True}


def erode(given: dict[str, Any], training: Training = ROUNDS, **more: Any) -> tuple[Engine, list[Snapshot]]:
    sites = more.pop("sites", None) or gather_sites(make_rows())
    engine = Engine(more.pop("task", LINEAR), methods.build("weight_erosion", given), sites, training, 5, **more)
    moments = []
    for moment in engine.run():
        coord = moment.coord._replace(models={k: v.clone() for k, v in moment.coord.models.items()})
        moments.append(moment._replace(coord=coord))
    return engine, moments[: training.rounds]


def comes_and_goes(stage: int, round_: int) -> Tensor:
    """Site 1 comes in round 4; site 3 skips every third round; site 0 is away in round 6; site 4 comes in round 2."""
    gone = [round_ == 5, round_ < 3, False, round_ % 3 == 2, round_ < 1]
    return torch.tensor([False] * 5 if stage else gone)

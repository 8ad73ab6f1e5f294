"""A coordinator that sees each report gets every site's own, whatever the chunks; absent sites are zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from tests.support.small import gap, make_task, models, train
from vitrail.core.tensors import apply_update, tree_map
from vitrail.methods.fedavg import FedAvg, Shared


@dataclass(frozen=True)
class AverageOfEach(FedAvg):
    """FedAvg once more, from the single reports."""

    wire = replace(FedAvg.wire, aggregation="each")

    def merge(self, task, coord, up, roster):
        absent = ~roster.present
        assert all((v[absent] == 0).all() for v in up.change.values())
        assert torch.equal(up.weight != 0, roster.present)
        return Shared(apply_update(coord.params, tree_map(lambda v: v.sum(0), up.change), up.weight.sum())), {}


@pytest.mark.parametrize("engine", [{}, {"looped": True}, {"chunk": 2}], ids=str)
@pytest.mark.parametrize("absent", [None, lambda s, r: torch.tensor([(i + r) % 3 == 0 for i in range(5)])])
@pytest.mark.parametrize("weights", ["uniform", "rows"])
def test_each_equals_sum(engine, absent, weights) -> None:
    task = make_task()
    one = models(*train(FedAvg(weights=weights), task, absent=absent))
    other = models(*train(AverageOfEach(weights=weights), task, absent=absent, **engine))
    assert gap(one, other) < 1e-12

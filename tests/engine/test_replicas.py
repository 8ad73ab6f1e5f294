"""Many federations with rows of their own in one stack: the same numbers as one after the other."""

from __future__ import annotations

import pytest
import torch

import vitrail as vt
from tests.support.small import make_rows, make_task
from vitrail.core.tensors import flatten, map_tensors
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.replicas import Replicas, stack_replicas
from vitrail.engine.rounds import Training
from vitrail.nets import MLP
from vitrail.testing.federation import LOSSES, task_of, worst

TRAINING = Training(rounds=3, batch=8, lr=0.02, momentum=0.5)
SIZES = {"north": 33, "south": 20, "west": 27}
METHODS = [
    name for name, kind in vt.methods.TABLE.items() if not kind.catalogue.required_net and not kind.catalogue.pools_rows
]
METHODS = [m for m in METHODS if not any(e.needs.holdout for s in vt.methods.TABLE[m]().plan(1) for e in s.exchanges)]


def federation(fold: int) -> Sites:
    """The same names, other rows; and so that their order by size is another in each."""
    sizes = {name: n + (fold * 7 * (i + 1)) % 11 for i, (name, n) in enumerate(SIZES.items())}
    rows = make_rows(sizes=list(sizes.values()), first=2 + 3 * fold)
    return gather_sites([(name, *own) for name, (_, *own) in zip(sizes, rows, strict=True)])


@pytest.mark.parametrize("name", METHODS)
def test_as_one_after_the_other(name: str) -> None:
    """All stages of every method, what a site settles with and what is counted in the ledger."""
    method, parts = vt.methods.TABLE[name](), [federation(k) for k in range(3)]
    task = task_of(MLP(6, 3, (9, 7), 0.3).framed(method.needs.adapters), LOSSES["classes"])
    sites, lanes = stack_replicas(parts)
    assert list(sites.sizes) == sorted(sites.sizes, reverse=True)
    stack = Replicas(Engine(task, method, sites, TRAINING, 5), lanes)
    *_, now = stack.run()
    settled = stack.settled(now)
    for part, mine, names in zip(parts, lanes, stack.names, strict=True):
        alone = Engine(task, method, part, TRAINING, 5)
        *_, last = alone.run()
        assert names == part.names
        own = map_tensors(lambda t: t[mine], settled)  # noqa: B023
        gap, where = worst(dict(flatten(own)), dict(flatten(alone.settled(last))))
        assert gap < 1e-12, (names, where)
    assert stack.ledger.counts == _counts(task, method, parts[0])


def _counts(task, method, part: Sites) -> dict[str, list[int]]:
    engine = Engine(task, method, part, TRAINING, 5)
    for _ in engine.run():
        pass
    return engine.ledger.counts


def test_each_coordinator_hears_its_own_lanes() -> None:
    """Where one federation's rows are others', no other federation's model changes."""
    task, method = make_task(), vt.methods.FedAvg()
    first, second, other = federation(0), federation(1), federation(2)

    def models(*parts: Sites) -> list[torch.Tensor]:
        sites, lanes = stack_replicas(parts)
        *_, now = Replicas(Engine(task, method, sites, TRAINING, 5), lanes).run()
        return [torch.cat([v.flatten() for _, v in flatten(coord)]) for coord in now.coords]

    one, two = models(first, second), models(first, other)
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[1], two[1])

"""Row-level privacy: exact lengths, clipping, noise, and the budget."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.task import Batch, Task
from vitrail.privacy.budget import Budget, noise_for, replaced, spent
from vitrail.privacy.dp_sgd import DrawnNoise, PrivateTask
from vitrail.runs.protection.checks import tells_rows


def private(task: Task, **given: Any) -> PrivateTask:
    return PrivateTask(**{f.name: getattr(task, f.name) for f in fields(Task)}, **given)


def batch_of(task: Task, rows: int = 7) -> Batch:
    (_, x, y, w), (_, x2, y2, w2) = make_rows()[0], make_rows()[3]
    pick = [torch.stack([a[:rows], b[:rows]]) for a, b in ((x, x2), (y, y2), (w, w2))]
    units = sum(task.net.units)
    keep = torch.randint(0, 2, (2, rows, units), generator=torch.Generator().manual_seed(2), dtype=torch.int32) * -1
    parts = tuple(torch.split(keep, list(task.net.units), -1)) if units else ()
    return Batch(*pick, parts, noise_source=DrawnNoise(torch.arange(2)))


def copy(batch: Batch) -> Batch:
    return batch._replace(x=batch.x.clone())


@pytest.mark.parametrize(
    "ends",
    [
        {},
        {"affine_in": True},
        {"affine_in": True, "affine_out": "each"},
        {"affine_out": "scalar"},
        {"affine_out": "shift"},
        {"affine_in": True, "affine_out": "factor"},
        {"proportional": True},
        {"proportional": True, "affine_in": True, "affine_out": "each", "hidden": ()},
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_lengths_of_row_gradients_are_those_of_each_row_by_itself(ends: Any, dropout: float) -> None:
    task = make_task(dropout=dropout, **ends)
    batch = batch_of(task)
    params = {k: v.expand(2, *v.shape).clone() for k, v in task.start.items()}
    whole = copy(batch)
    out = task.net.forward(params, whole.x, whole.keep)
    net: Any = task.net
    got = net.row_norms(params, out.tape, task.loss.grad(out, whole))
    for r in range(batch.x.shape[1]):
        one = Batch(*(t[:, r : r + 1].clone() for t in batch[:3]), tuple(k[:, r : r + 1] for k in batch.keep))
        slope = task.grad(params, one)
        want = torch.stack([v.flatten(1).square().sum(1) for v in slope.values()]).sum(0).sqrt()
        torch.testing.assert_close(got[:, r], want)


def test_clipped_gradients_are_the_sum_of_clipped_rows() -> None:
    task = make_task(affine_in=True)
    batch, params = batch_of(task), {k: v.expand(2, *v.shape).clone() for k, v in task.start.items()}
    got = private(task, clip=0.4).grad(params, copy(batch))
    want = {k: torch.zeros_like(v) for k, v in params.items()}
    for r in range(batch.x.shape[1]):
        one = Batch(*(t[:, r : r + 1].clone() for t in batch[:3]), tuple(k[:, r : r + 1] for k in batch.keep))
        slope = task.grad(params, one)
        size = torch.stack([v.flatten(1).square().sum(1) for v in slope.values()]).sum(0).sqrt()
        for k, v in slope.items():
            want[k] += v * (0.4 / size).clamp(max=1).view(-1, *[1] * (v.dim() - 1))
    for k, v in want.items():
        torch.testing.assert_close(got[k], v)


def test_without_noise_and_with_a_long_clip_nothing_changes() -> None:
    plain, guarded = train(methods.build("fedavg")), train(methods.build("fedavg"), private(make_task(), clip=1e9))
    assert gap(models(*plain), models(*guarded)) < 1e-10


def test_noise_is_the_same_in_every_engine_and_new_in_every_step() -> None:
    task = private(make_task(), clip=0.1, noise=2.0)
    one, other = (train(methods.build("fedavg"), task, chunk=chunk) for chunk in (5, 1))
    assert gap(models(*one), models(*other)) < 1e-12
    quiet = train(methods.build("fedavg"), private(make_task(), clip=0.1))
    assert gap(models(*one), models(*quiet)) > 1e-3
    lots = DrawnNoise(torch.arange(3))
    first, second = lots.draw(torch.zeros(3, 4000)), lots.draw(torch.zeros(3, 4000))
    several = lots.draw(torch.zeros(6, 4000))
    every = torch.cat([first, second, several])
    correlation = torch.corrcoef(every)
    assert float((correlation - torch.eye(len(every))).abs().max()) < 0.08
    assert float(every.std()) == pytest.approx(1, abs=0.02)


def test_what_a_budget_comes_to() -> None:
    """Against the definition: the largest gain of an attacker who sees one number under noise."""
    for z, looks, delta in ((1.0, 1, 1e-5), (4.0, 20, 1e-4), (30.0, 100, 1e-6)):
        epsilon = spent(z, looks, delta)
        s = z / math.sqrt(looks)
        x = torch.linspace(-40 * s, 40 * s, 400_001, dtype=torch.double)
        one, other = (torch.exp(-(((x - m) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi)) for m in (1.0, 0.0))
        gain = float((one - math.exp(epsilon) * other).clamp(min=0).sum() * (x[1] - x[0]))
        assert gain == pytest.approx(delta, rel=0.02)
    assert spent(noise_for(Budget(3.0, 1e-5), 40), 40, 1e-5) == pytest.approx(3.0, abs=1e-6)
    assert spent(0.0, 5, 1e-5) == math.inf
    assert spent(1.0, 0, 1e-5) == 0.0


LOOKS = ((1.0, 1, 1e-5), (4.0, 20, 1e-4), (30.0, 100, 1e-6), (2.0, 7, 1e-3))


@pytest.mark.parametrize(("z", "looks", "delta"), LOOKS)
def test_the_budget_is_that_of_the_losses_added_up(z: float, looks: int, delta: float) -> None:
    """By another way: the distribution of the privacy loss of one look on a grid, convolved with itself."""
    step, sd, mean = 0.002 / z, 1 / z, 1 / (2 * z * z)
    far = looks * mean + 12 * sd * math.sqrt(looks)
    grid = np.arange(-far, far, step)
    size = 1 << math.ceil(math.log2(2 * len(grid) * 2))
    one = np.exp(-(((grid - mean) / sd) ** 2) / 2)
    power = np.fft.rfft(one / one.sum(), size) ** looks
    whole = np.fft.irfft(power, size)
    start = looks * grid[0]  # the loss that place 0 stands for; places wrap round after `size`
    places = (start + step * np.arange(size) + far) % (size * step) - far
    epsilon = spent(z, looks, delta)
    gain = float((whole * np.clip(1 - np.exp(epsilon - places), 0, None)).sum())
    assert gain == pytest.approx(delta, rel=0.02)


@pytest.mark.parametrize(("z", "looks", "delta"), LOOKS)
def test_the_budget_is_that_of_dp_accounting(z: float, looks: int, delta: float) -> None:
    """Google's library, where it is installed: its pins do not go with ours (attrs), so that CI has the test above."""
    library = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = pld.PLDAccountant()
    accountant.compose(library.GaussianDpEvent(z), looks)
    assert spent(z, looks, delta) == pytest.approx(accountant.get_epsilon(delta), abs=1e-4)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (4.0, 1e-5), (8.0, 1e-5), (3.0, 1e-3)])
def test_a_replaced_row_is_a_row_that_goes_and_one_that_comes(epsilon: float, delta: float) -> None:
    """Against the definition: one number under noise, of which a row's part is turned round. And below what group
    privacy says in general of two rows: Renyi's divergence of order a grows four times."""
    z = noise_for(Budget(epsilon, delta), 1)
    both = replaced(z, 1, delta)
    x = torch.linspace(-40 * z, 40 * z, 400_001, dtype=torch.double)
    one, other = (torch.exp(-(((x - m) / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi)) for m in (1.0, -1.0))
    gain = float((one - math.exp(both) * other).clamp(min=0).sum() * (x[1] - x[0]))
    assert gain == pytest.approx(delta, rel=0.02)
    orders = np.linspace(1.01, 200, 20_000)
    general = (orders * 4 / (2 * z * z) + math.log(1 / delta) / (orders - 1)).min()
    assert 2 * epsilon < both < general


@pytest.mark.parametrize(("z", "looks", "delta"), LOOKS)
def test_a_replaced_row_by_dp_accounting(z: float, looks: int, delta: float) -> None:
    library = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = pld.PLDAccountant(library.NeighboringRelation.REPLACE_ONE)
    accountant.compose(library.GaussianDpEvent(z), looks)
    assert replaced(z, looks, delta) == pytest.approx(accountant.get_epsilon(delta), abs=1e-3)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fedper", "ifedavg", "ditto", "apfl"])
def test_methods_that_tell_of_rows_by_gradients_alone(name: str) -> None:
    method = methods.build(name)
    assert tells_rows(make_task(affine_in=method.needs.adapters.input), method) == []


@pytest.mark.parametrize("name", ["ripfl", "moon", "fed_rod"])
def test_methods_that_tell_more(name: str) -> None:
    method = methods.build(name)
    assert tells_rows(make_task(), method)

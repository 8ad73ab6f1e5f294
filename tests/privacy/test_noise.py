"""Noise between machines: exact, on a grid, from a cryptographic generator; and what the old noise gave away."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from tests.support.small import make_sites, make_task
from vitrail import methods
from vitrail.core.random import normals
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import flatten
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.privacy import noise as noise_module
from vitrail.privacy.dp_sgd import BLOCK, DrawnNoise, PrivateTask, StepNoise, block_of
from vitrail.privacy.guards import AT_REST, Guards
from vitrail.privacy.noise import ROOM, Generator, blurred, blurred_report, grid_of, report_grid, upper_tail

SECRET = "5e" * 32


def chances(deviation: float, reach: int) -> NDArray[np.float64]:
    """The exact chance of each whole number from -reach to reach: that of a normal number to be rounded to it."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / deviation
    low, high = edges[:-1], edges[1:]
    right = low >= 0
    return np.where(right, stats.norm.sf(low) - stats.norm.sf(high), stats.norm.cdf(high) - stats.norm.cdf(low))


@pytest.mark.parametrize("deviation", [0.4, 3.0, 17.3])
def test_whole_numbers_come_as_often_as_they_should(deviation: float) -> None:
    count, reach = 400_000, math.ceil(6 * deviation)
    drawn = Generator(SECRET).whole_normals(deviation, count, "law", deviation)
    assert np.abs(drawn).max() <= reach
    wanted = chances(deviation, reach)
    seen = np.bincount(drawn + reach, minlength=2 * reach + 1)
    apart = np.abs(np.cumsum(seen) / count - np.cumsum(wanted)).max()
    assert apart < 1.63 / math.sqrt(count), "Kolmogorov and Smirnov, 1 %; for whole numbers it is stricter still"
    often = wanted * count >= 10
    chi = ((seen - wanted * count)[often] ** 2 / (wanted * count)[often]).sum()
    assert chi < stats.chi2.ppf(0.999, often.sum())


def test_variance_and_tails_of_large_deviations() -> None:
    deviation, count = 2.0**17 * 1.37, 1_000_000
    drawn = Generator(SECRET).whole_normals(deviation, count, "tails") / deviation
    assert drawn.std() == pytest.approx(1, abs=4 / math.sqrt(2 * count))
    assert abs(drawn.mean()) < 4 / math.sqrt(count)
    for far in (2.0, 3.0, 4.0):
        wanted = 2 * stats.norm.sf(far) * count
        assert (np.abs(drawn) > far).sum() == pytest.approx(wanted, abs=4 * math.sqrt(wanted))
    assert np.corrcoef(drawn[:-1], drawn[1:])[0, 1] == pytest.approx(0, abs=4 / math.sqrt(count))


def test_what_is_decided_in_double_precision_is_what_80_digits_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Generator(SECRET)
    quick = [own.whole_normals(deviation, 150, "exact") for deviation in (2.5, 1e3, 2.0**25)]
    monkeypatch.setattr(noise_module, "SMALL", 1 << 63)  # every number in 80 digits
    slow = [own.whole_normals(deviation, 150, "exact") for deviation in (2.5, 1e3, 2.0**25)]
    for one, other in zip(quick, slow, strict=True):
        assert np.array_equal(one, other)


def test_the_quantile_in_double_precision_is_nearer_than_the_margin() -> None:
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.uniform(0, 0.5, 200), 2.0 ** -rng.uniform(1, 54, 100)])
    z = -torch.special.ndtri(torch.from_numpy(p)).numpy()
    with localcontext(Context(prec=80)):
        for tail, quantile in zip(p.tolist(), z.tolist(), strict=True):
            x = Decimal(quantile)
            density = (-x * x / 2).exp() / (2 * noise_module.PI).sqrt()
            error = abs(upper_tail(x) - Decimal(tail)) / density
            assert float(error) < noise_module.MARGIN * (1 + quantile) / 8


def test_tails_in_80_digits() -> None:
    with localcontext(Context(prec=80)):
        for x in (0.0, 0.3, 1.0, 4.0, 9.0):
            assert float(upper_tail(Decimal(x))) == pytest.approx(float(stats.norm.sf(x)), rel=1e-13)


def on_grid(values: NDArray[np.float64], step: float) -> float:
    """The share of values that are multiples of a step."""
    return float((values == np.round(values / step) * step).mean())


def test_all_low_bits_lie_on_the_grid_whatever_the_value() -> None:
    rng = np.random.default_rng(2)
    for reach, z in ((1.0, 3.7), (0.37, 0.8), (1e-3, 20.0)):
        value = rng.normal(size=2000)
        step = grid_of(reach, len(value))
        new = blurred(torch.from_numpy(value), reach, z, Generator(SECRET), "grid").numpy()
        assert on_grid(new, step) == 1.0
        old = value + z * reach * normals(torch.tensor([3]), len(value))[0].numpy()
        assert on_grid(old, step) < 0.01, "the control: noise in floating point keeps the value's own low bits"


def released(value: float, lots: DrawnNoise | StepNoise, count: int = 4000) -> NDArray[np.float64]:
    """A gradient of so many equal numbers, in single precision, as a site would go on with it."""
    slope = {"w": torch.full((1, count), value)}
    if isinstance(lots, StepNoise):
        lots.add_to(slope, 1.0, 1.0)
    else:
        task = private(make_task(), clip=1.0, noise=1.0)
        task._stir(slope, Batch(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), noise_source=lots), 1.0)
    return slope["w"][0].double().numpy()


def surely_zero(numbers: NDArray[np.float64]) -> float:
    """Mironov's attack on single precision. Where the sum was 1, everything below 1/2 is a multiple of 2^-24, the last
    place of what was added to it: a number that is none came from a sum of 0, for sure."""
    return float(((np.abs(numbers) < 0.5) & (numbers != np.round(numbers * 2.0**24) / 2.0**24)).mean())


def test_low_bits_tell_for_sure_which_row_is_missing_under_the_old_noise_alone() -> None:
    old = [surely_zero(released(value, DrawnNoise(torch.tensor([8])))) for value in (0.0, 1.0)]
    assert old[0] > 0.2, "a fifth of all numbers says for sure that the row is not there: no epsilon allows that"
    assert old[1] == 0.0
    new = [surely_zero(released(value, StepNoise([Generator(SECRET)], 8))) for value in (0.0, 1.0)]
    assert new == [0.0, 0.0]


def test_noise_is_as_large_as_was_asked_for_and_a_little_more_for_rounding() -> None:
    count = 200_000
    for reach, z in ((1.0, 1.5), (0.01, 30.0)):
        drawn = blurred(torch.zeros(count), reach, z, Generator(SECRET), "size", z).numpy()
        assert drawn.std() == pytest.approx(z * reach * (1 + 2 * ROOM), rel=4 / math.sqrt(2 * count))
    value = torch.from_numpy(np.random.default_rng(0).normal(size=5000))
    for row in (torch.zeros(5000).double(), torch.eye(5000)[3].double()):  # what one row adds
        step = grid_of(1.0, 5000)
        moved = ((value + row) / step).round() * step - (value / step).round() * step
        assert float(moved.norm()) <= float(row.norm()) + ROOM, "on the grid a row moves hardly more than off it"


def test_reports_of_sites_grow_no_longer_and_add_up_exactly() -> None:
    clip, z, count = 0.2, 0.7, 3000
    step = report_grid(clip, z)
    change = torch.randn(count, generator=torch.Generator().manual_seed(1))
    change = change * (clip / change.norm())
    noises = [blurred_report(torch.zeros(count), clip, z, Generator(str(i)), "report", 0) for i in range(4)]
    told = [blurred_report(change, clip, z, Generator(str(i)), "report", 0) for i in range(4)]
    for noise, report in zip(noises, told, strict=True):
        assert float((report - noise).norm()) <= clip
        assert float((report - noise - change).norm()) <= step * math.sqrt(count) + clip * 2.0**-19
        assert torch.equal(report.float().double(), report), "exact in single precision"
        assert on_grid(report.numpy(), step) == 1.0
    one_by_one = sum((r.float() for r in told), torch.zeros(count))
    assert torch.equal(one_by_one.double(), torch.stack(told).sum(0)), "so is their sum"
    assert float(torch.stack(noises).std()) == pytest.approx(z * clip, rel=4 / math.sqrt(2 * 4 * count))


def test_the_same_question_has_the_same_noise_and_nothing_else_has() -> None:
    one = Generator(SECRET).words(64, "step", 3, 0)
    assert np.array_equal(one, Generator(SECRET).words(64, "step", 3, 0)), "a site that was started again"
    assert np.array_equal(one[:10], Generator(SECRET).words(10, "step", 3, 0))
    others = [("step", 3, 1), ("step", 30), ("report", 3, 0), ("step", 3, 0, "more")]
    for stream in [Generator(SECRET).words(64, *name) for name in others] + [Generator("x").words(64, "step", 3, 0)]:
        assert not np.intersect1d(one, stream).size


def test_bits_are_those_of_chacha20() -> None:
    """Against the test vector of its zero key (RFC 7539, appendix A.1, the first), by the same way of reading words."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update(bytes(16))
    assert stream.hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    words = Generator(SECRET).words(50_000, "bits")
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert ones == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(64 * 50_000))


def private(task: Task, **given: Any) -> PrivateTask:
    return PrivateTask(**{f.name: getattr(task, f.name) for f in fields(Task)}, **given)


def engine(task: Task, secrets: dict[str, str] | None, chunk: int, guards: Guards = AT_REST) -> Engine:
    sites = make_sites()
    how: dict[str, Any] = {"chunk": chunk, "keep_reports": True, "guards": guards, "secrets": secrets}
    return Engine(task, methods.build("fedavg"), sites, Training(rounds=2, batch=4, epochs=1), 5, **how)


def report_of(trained: Engine) -> dict[str, torch.Tensor]:
    trained.turn(0, 0, trained.start().coord, trained.start().state)
    return {k: v.double() for k, v in flatten(trained.reports)}


SECRETS = {name: f"{i:064x}" for i, name in enumerate(make_sites().names)}


def test_a_site_with_a_secret_draws_from_its_own_generator_in_every_engine() -> None:
    task = private(make_task(), clip=0.1, noise=2.0)
    one, other, seeded = (report_of(engine(task, s, c)) for s, c in ((SECRETS, 5), (SECRETS, 1), (None, 5)))
    for name, v in one.items():
        torch.testing.assert_close(v, other[name], rtol=0, atol=1e-6)
    assert any(not torch.allclose(v, seeded[name], atol=1e-3) for name, v in one.items())
    quiet = report_of(engine(private(make_task(), clip=0.1), SECRETS, 5))
    assert any(not torch.allclose(v, quiet[name], atol=1e-3) for name, v in one.items())


def test_what_a_site_with_a_secret_reports_under_noise_for_sites_lies_on_the_grid() -> None:
    guards = Guards(clip=0.5, noise=1.0)
    step = report_grid(0.5, 1.0)
    new = report_of(engine(make_task(), SECRETS, 5, guards))
    old = report_of(engine(make_task(), None, 5, guards))
    assert all(on_grid(v.numpy(), step) == 1.0 for k, v in new.items())
    changes = [v.numpy() for k, v in old.items() if k != "weight"]
    assert all(on_grid(v, step) < 0.2 for v in changes), "the control: noise from the seed, in floating point"


def test_a_row_changes_the_sum_of_its_own_block_alone_and_blocks_add_up() -> None:
    """Else the rounding errors of a large batch would move the sum by more than one row may."""
    task = make_task()
    task = replace(task, start={k: v.float() for k, v in task.start.items()})
    params = {k: v[None].clone() for k, v in task.start.items()}
    rows, g = 3 * BLOCK + 5, torch.Generator().manual_seed(3)
    x, w = torch.randn(1, rows, *task.net.shape, generator=g), torch.ones(1, rows, 1)
    y = torch.nn.functional.one_hot(torch.randint(task.net.outputs, (1, rows), generator=g), task.net.outputs).float()
    other = x.clone()
    other[0, 10] = 3.0
    quiet = private(task, clip=0.4)
    sums = [quiet.grad(params, Batch(v.clone(), y, w)) for v in (x, other)]
    told = [
        quiet.grad(params, Batch(v.clone(), y, w, noise_source=StepNoise([Generator(SECRET)], 1))) for v in (x, other)
    ]
    for k, v in sums[0].items():
        torch.testing.assert_close(told[0][k], v, rtol=1e-4, atol=1e-4)
    late = [private(task, clip=0.4)._sum(params, block_of(Batch(v, y, w), slice(BLOCK, rows))) for v in (x, other)]
    assert all(torch.equal(late[0][k], late[1][k]) for k in late[0]), "to the last bit"
    apart = torch.cat([(told[0][k].double() - told[1][k].double()).flatten() for k in told[0]]).norm()
    assert 0 < float(apart) <= 2 * 0.4 * (1 + ROOM)

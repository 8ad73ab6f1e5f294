"""What the noise of a privacy budget gives away by how it is made, what it costs, and what epsilon comes to.

    python benchmarks/attacks/attack_noise.py        # a minute; writes results/attack_noise.md

low bits    Two batches of heart disease that differ in one patient. Who knows both, as the definition of differential
            privacy allows, and sees the gradient under noise asks of every number whether the sampler could have made
            it from each of the two sums. The old noise: splitmix64, Box and Muller, added in single precision. The new
            one: privacy/noise.py. Against it the attacker knows the grid.
stream      One word of 64 bits is known: how many of the next 1000 can be told?
time        100,000 numbers of noise; one round of training at one site, with noise in every step.
epsilon     of a removed and of a replaced row; and of three runs on one file, from a site's own ledger.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.random import bits, normals
from vitrail.core.task import Batch, Task
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.encoding import prepare
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.privacy_ledger import PLACE, PrivacyLedger, total_of
from vitrail.deploy.site.site import Site
from vitrail.privacy.budget import Budget, epsilon_of, noise_for, replaced
from vitrail.privacy.dp_sgd import DrawnNoise, PrivateTask, StepNoise
from vitrail.privacy.noise import ROOM, Generator, blurred, blurred_report, grid_of
from vitrail.runs.setup import build_task, resolve

RESULTS = Path(__file__).parent / "results" / "attack_noise.md"
TRIALS, ROWS, EPSILON, DELTA = 200, 32, 1.0, 1e-5
SITE, RUN = "cleveland", "0123456789abcdef"
WORD = (1 << 64) - 1


def study(epsilon: float | None = EPSILON, **changes: Any) -> vt.Study:
    heart = vt.Study.load(packaged("heart_disease.toml"))
    protect = {"rows": {"epsilon": epsilon, "delta": DELTA}} if epsilon else {}
    quiet = {"training": {"rounds": 1}, "screen": {"ask": False}, "protect": protect}
    return resolve(heart.with_changes(**{**quiet, **changes}), "fedavg", None)[0]


# low bits


def batches(task: Task) -> tuple[Batch, Batch]:
    """So many patients, and the same with the first replaced by another."""
    plain = study(None)
    (data,) = prepare({SITE: heart_disease()[SITE]}, plain, 1, None)
    x = torch.tensor(np.asarray(data.train_x[: ROWS + 1]), dtype=torch.float32)
    y = torch.nn.functional.one_hot(torch.tensor(data.train_y[: ROWS + 1].astype(int)), task.net.outputs).float()
    w = torch.ones(ROWS + 1, 1)
    first, second = torch.arange(ROWS), torch.arange(1, ROWS + 1)
    second = torch.cat([second[-1:], second[:-1]])  # the new one stands where the old one stood
    return tuple(Batch(x[at][None], y[at][None], w[at][None]) for at in (first, second))  # type: ignore[return-value]


def gradient(task: PrivateTask, params: Any, batch: Batch) -> Tensor:
    found = task.grad(params, batch._replace(x=batch.x.clone()))
    return torch.cat([v.flatten() for v in found.values()])


def possible_before(y: Tensor, x: Tensor, alpha: float) -> Tensor:
    """[number]: whether some number in single precision, added as it was before, makes y of x."""
    middle = ((y.double() - x.double()) / alpha).float()
    found = torch.zeros(len(y), dtype=torch.bool)
    for step in range(-4, 5):
        near = (middle.view(torch.int32) + step).view(torch.float32)
        found |= torch.add(x, near, alpha=alpha) == y
    return found


def possible_now(y: Tensor, x: Tensor, step: float) -> Tensor:
    """[number]: whether some whole number of steps makes y of x."""
    whole = (x.double() / step).round()
    middle = (y.double() / step).round() - whole
    found = torch.zeros(len(y), dtype=torch.bool)
    for more in (-1, 0, 1):
        found |= ((whole + middle + more) * step).float() == y
    return found


def low_bits() -> list[list[str]]:
    own = study(None, network={"hidden": (12,), "dropout": 0.0})
    task = build_task(own, own.build_method(), 1)
    given = {f.name: getattr(task, f.name) for f in fields(Task)}
    z = noise_for(Budget(EPSILON, DELTA), 1)
    quiet, noisy = PrivateTask(**given, clip=1.0), PrivateTask(**given, clip=1.0, noise=z)
    params = {k: v[None].clone() for k, v in task.start.items()}
    pair = batches(task)
    sums = [gradient(quiet, params, b) for b in pair]
    apart = float((sums[0] - sums[1]).norm())
    step, out = grid_of(1.0, len(sums[0])), []
    fair = 0.5 * (1 + math.erf(apart / z / 2 / math.sqrt(2)))  # who looks at the size of numbers alone
    for name in ("old", "new"):
        right, sure, impossible = 0, 0, list[float]()
        for i in range(TRIALS):
            true = i % 2
            lots = (
                DrawnNoise(torch.tensor([i * 7919])) if name == "old" else StepNoise([Generator(f"secret {i}")], 1, 0)
            )
            y = gradient(noisy, params, pair[true]._replace(noise_source=lots))
            test: Callable[[Tensor, Tensor, float], Tensor] = possible_before if name == "old" else possible_now
            can = [test(y, x, z if name == "old" else step) for x in sums]
            assert bool(can[true].all()), "the true sum is always possible"
            impossible.append(float((~can[1 - true]).double().mean()))
            excluded = bool((~can[1 - true]).any())
            sure += excluded
            nearer = int((y - sums[1]).double().norm() < (y - sums[0]).double().norm())
            right += excluded or nearer == true
        out.append([name, f"{100 * np.mean(impossible):.1f} %", f"{sure} of {TRIALS}", f"{right} of {TRIALS}"])
    out.append([f"allowed by the budget (sums {apart:.2f} clips apart)", "0", "0", f"{fair * TRIALS:.0f} of {TRIALS}"])
    return out


# the stream


def unmixed(word: int) -> int:
    """splitmix64's last steps backwards: key + counter * weyl."""

    def back(z: int, by: int) -> int:
        found = z
        for _ in range(64 // by + 1):
            found = z ^ (found >> by)
        return found

    z = back(word & WORD, 31)
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & WORD
    z = back(z, 27)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & WORD
    return back(z, 30)


def predicted() -> tuple[int, int]:
    """Of 1000 words that follow one that is known: by the old generator, by ChaCha20 with the same inversion."""
    counts = []
    old = bits(torch.tensor([123456789]), 1001)[0].numpy().view(np.uint64)
    new = Generator("a secret").words(1001, "stream")
    for stream in (old, new):
        key = (unmixed(int(stream[0])) - 0x9E3779B97F4A7C15) & WORD
        key = key - (1 << 64) if key >> 63 else key
        guess = bits(torch.tensor([key]), 1001)[0].numpy().view(np.uint64)
        counts.append(int((guess[1:] == stream[1:]).sum()))
    return counts[0], counts[1]


# time


def took(act: Callable[[], object], times: int = 15) -> float:
    """Median milliseconds of the processor: others use this machine, too."""
    found = []
    for _ in range(times + 2):
        began = time.process_time()
        act()
        found.append(1e3 * (time.process_time() - began))
    return statistics.median(found[2:])


def times() -> list[list[str]]:
    count, own, zeros = 100_000, Generator("a secret"), torch.zeros(100_000)
    out = [
        ["old: splitmix64, Box and Muller", f"{took(lambda: normals(torch.tensor([5]), count)):.1f}"],
        ["new: 100,000 numbers of a gradient (z = 3.73)", f"{took(lambda: blurred(zeros, 1.0, 3.73, own, 1)):.1f}"],
        ["new: the same, z = 37", f"{took(lambda: blurred(zeros, 1.0, 37.0, own, 1)):.1f}"],
        ["new: 100,000 numbers of a site's report", f"{took(lambda: blurred_report(zeros, 1.0, 0.7, own, 1)):.1f}"],
        ["of it, ChaCha20", f"{took(lambda: own.words(count, 1)):.1f}"],
    ]
    with tempfile.TemporaryDirectory() as place:
        agreed = Agreement.of(study(network={"hidden": (128, 64)}), None, 4)
        engine = Site(SITE, heart_disease()[SITE], agreed, Path(place) / "home").rehearsal()
        own_generators = engine.generators
        steps = engine.sampler.steps[0]
        for name, given in (("old", []), ("new", own_generators)):
            engine.generators = given
            ms = took(lambda: engine.turn(0, 0, engine.start().coord, engine.start().state), 7)
            size = sum(v.numel() for v in agreed.task.start.values())
            out.append([f"one round at {SITE}, {steps} steps of {size:,} numbers, {name} noise", f"{ms:.1f}"])
    return out


# epsilon


def by_definition(z: float) -> float:
    """The epsilon at which an attacker who sees one number under noise, moved from -1 to 1, gains delta: summed up."""
    x = np.linspace(-40 * z, 40 * z, 1_000_001)
    one, other = (np.exp(-(((x - m) / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi)) for m in (1.0, -1.0))
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        gain = np.clip(one - math.exp(middle) * other, 0, None).sum() * (x[1] - x[0])
        low, high = (middle, high) if gain > DELTA else (low, middle)
    return high


def by_library(z: float) -> str:
    """Google's dp-accounting, where it is installed; its pins do not go with ours."""
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError:
        return "not installed"
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    return f"{accountant.compose(dp_accounting.GaussianDpEvent(z)).get_epsilon(DELTA):.4f}"


def budgets() -> list[list[str]]:
    out = []
    for epsilon in (1.0, 4.0, 8.0):
        z = noise_for(Budget(epsilon, DELTA), 1)
        closed = f"{replaced(z, 1, DELTA):.4f}"
        out.append([f"{epsilon:g}", closed, f"{by_definition(z):.4f}", by_library(z), f"{z:.3f}"])
    return out


def three_runs() -> list[list[str]]:
    """By the ledger of a site that took part in three studies with one file."""
    out = []
    for epsilons in ((1.0, 1.0, 1.0), (4.0, 4.0, 4.0), (1.0, 4.0, 8.0)):
        with tempfile.TemporaryDirectory() as place:
            os.environ[PLACE] = str(Path(place) / "ledger")
            frame, file = heart_disease()[SITE], Path(place) / "patients.csv"
            frame.to_csv(file, index=False)
            for i, epsilon in enumerate(epsilons):
                agreed = Agreement.of(study(epsilon, name=f"study {i}"), None, 4)
                ledger = PrivacyLedger(Path(place) / f"home {i}", file, frame, agreed, None)
                ledger.begin(RUN)
                ledger.begin(RUN)  # started again
            last = PrivacyLedger(Path(place) / "one more", file, frame, agreed, None).standing()
            removed, other = total_of((entry.loss for entry in last.before), last.delta)
            direct = epsilon_of(sum(noise_for(Budget(e, DELTA), 1) ** -2 for e in epsilons), DELTA)
            assert len(last.before) == 3
            shown = ", ".join(f"{e:g}" for e in epsilons)
            out.append([shown, f"{removed:.2f}", f"{other:.2f}", f"{direct:.2f}", f"{sum(epsilons):g}"])
    return out


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    torch.set_num_threads(1)
    old, new = predicted()
    bits_heads = ["noise", "numbers that exclude the wrong sum", "releases given away for sure", "right"]
    epsilon_heads = ["removed", "replaced", "by the definition", "by dp-accounting (PLD, REPLACE_ONE)", "z"]
    run_heads = ["epsilon of each", "removed, by the ledger", "replaced", "removed, closed form", "sum"]
    parts = [
        "# Noise: what it gives away by how it is made",
        "`python benchmarks/attacks/attack_noise.py`, one thread. The control is the same attack on the old noise.",
        "## Low bits",
        f"{ROWS} patients of {SITE}, one of them replaced or not; the gradient of a small network, clipped to 1 for "
        f"each patient, under noise for epsilon {EPSILON:g} (delta {DELTA:g}); {TRIALS} releases. A release is given "
        "away where one of the two sums could not have led to one of its numbers; else the nearer sum is believed.",
        table(bits_heads, low_bits()),
        "The attacker knows all rows but one, and the order in which they were added up, as the definition of "
        "differential privacy allows. What of it remains in a report of many steps was not tried.",
        "## The generator",
        f"Of 1000 words that follow a known one, {old} can be told from splitmix64 (the control), {new} from ChaCha20 "
        "by the same inversion. The key of a new stream is HMAC-SHA256 of the site's secret and of what the noise is "
        "for.",
        "## Time",
        "Median milliseconds of one core.",
        table(["what", "ms"], times()),
        "## Epsilon",
        "Of a row that is removed, and of one that is replaced by any other (delta 1e-05); z is the noise of a single "
        f"look. The noise between machines is {1 + 2 * ROOM:.5f} times that, for rounding to the grid and in sums.",
        table(epsilon_heads, budgets()),
        "## Three runs on one file",
        "Three studies, each begun twice, by the ledger of the site. Beside it the closed form, and the plain sum of "
        "epsilons, which is a looser bound.",
        table(run_heads, three_runs()),
    ]
    text = "\n\n".join(parts) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

"""The same numbers on a GPU, captured graph or not. Also runs without pytest: python tests/engine/test_cuda.py

With a device as argument, `cpu`, the same comparison of the CPU with itself: what is wrong then is this file. Names of
methods after it, separated by commas: these alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if __name__ == "__main__":  # a GPU machine may have torch but neither pytest nor us
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parents[2]), str(here.parents[2] / "src")]
elif "pytest" in sys.modules:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

from tests.support.small import gap, make_sites, make_task, models, pooled
from vitrail import methods
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import AnyMethod
from vitrail.testing import LAWS
from vitrail.testing.federation import worst
from vitrail.testing.trial import trials

torch.backends.cudnn.deterministic = True  # laws ask for the same bits twice
ONLY = sys.argv[2].split(",") if __name__ == "__main__" and len(sys.argv) > 2 else list(methods.TABLE)
CASES: list[tuple[str, dict[str, Any]]] = [
    (name, {}) for name in methods.named(lambda kind: not kind.catalogue.required_net)
]
CASES += [  # rows set aside; gradients no longer asked for; users that stop
    ("weight_erosion", {"validation": 0.25, "patience": 1, "p_d": 0.2}),
    ("weight_erosion", {"update": "local", "size": "weight", "momentum": 0.5, "p_d": 0.4, "beside": False}),
    ("influence", {"share": 0.4}),
    ("ripfl", {"rear": 2, "takes": 2, "drawn": 0.0, "lam": 1.5}),
    ("ripfl", {"rear": 1, "selection": "random", "similarity": False}),
    ("ripfl", {"rear": "never", "selection": "all", "evidence": False}),
    ("cfl", {"eps1": 1e9, "eps2": 0.0, "after": 1, "smallest": 1}),  # groups that are split in every round
    ("cfl", {"eps1": 1e9, "eps2": 0.0, "after": 2, "linkage": "complete", "weights": "rows"}),
    ("apple", {"weights": "uniform", "schedule": "cosine", "fades": 3}),
]
GIVEN: dict[str, dict[str, Any]] = {"indisco": {"least": 1}}  # so few rows that by its default nothing is told
TRAINING = Training(rounds=6, batch=8, lr=0.02, decays=2)  # a graph is captured anew when the rate changes
Absent = Callable[[int, int], Tensor] | None
Told = dict[str, dict[str, Tensor]]  # round -> fact -> value


def told(method: AnyMethod, device: str, absent: Absent) -> tuple[Told, Told, Engine]:
    """Every site's model at the end, and the facts of every round."""
    task = make_task(affine_in=True, affine_out="each")
    task = replace(task, start={k: v.to(device) for k, v in task.start.items()})
    engine = Engine(task, method, pooled(method, make_sites()).to(device), TRAINING, 5, absent=absent)
    facts, last = {}, engine.start()
    for last in engine.run():
        facts[f"{last.stage}, {last.round}"] = {k: f.value.cpu() for k, f in last.facts.items()}
    return {s: {k: v.cpu() for k, v in m.items()} for s, m in models(engine, last).items()}, facts, engine


def apart(one: Told, other: Told) -> float:
    """`gap`, where what is not a number must be so in both."""
    for round_, facts in one.items():
        for k, v in facts.items():
            assert torch.equal(v.isnan(), other[round_][k].isnan()), (round_, k)
    return gap(*({r: {k: v.double().nan_to_num() for k, v in f.items()} for r, f in t.items()} for t in (one, other)))


def agree(device: str) -> None:
    for name, given in (case for case in CASES if case[0] in ONLY):
        method = methods.build(name, given)
        for absent in (None, lambda s, r: torch.tensor([(i + r) % 4 == 0 for i in range(5)])):
            if method.catalogue.pools_rows and absent:
                continue
            (cpu, facts, here), (gpu, said, there) = (told(method, d, absent) for d in ("cpu", device))
            case = f"{name} {given or ''} absent sites: {absent is not None}"
            differences = gap(cpu, gpu), apart(facts, said)
            print(f"{case:110s} largest difference of models {differences[0]:.1e}, of facts {differences[1]:.1e}")
            assert max(differences) < 1e-10, case
            assert here.ledger.rows() == there.ledger.rows(), case
            assert (here.aside is None) == (method.needs.validation_share == 0), case
            if "validation" in given:
                assert "loss" in there.contracts[0][0].up, "what was measured on rows set aside is on the wire"
            if given.get("p_d"):
                end = facts["0, 5"]
                assert (end["alpha"] == 0).any(), "a case in which no gradient is left out shows too little"
                assert bool(end["stopped"].any()) == ("validation" in given)
            if name == "influence":
                weights = torch.stack([f["influence"] for f in facts.values()]).nan_to_num()
                assert ((weights > 0) & ~torch.eye(5, dtype=torch.bool)).any(), "nobody learned from another"


def every_net_and_rule(device: str) -> None:
    """Models and facts of every method, network and optimiser, on the device and on the CPU."""
    for name in ONLY:
        method = methods.build(name, GIVEN.get(name))
        for near, far in zip(trials(method), trials(method, device), strict=True):
            for how in ("whole", "ragged"):  # nobody absent: captured as a graph; sites that come and go: not
                here, there = (getattr(trial, how).results for trial in (near, far))
                size, where = worst(here, {k: v.cpu() for k, v in there.items()})
                print(f"{near!s:70s} {how:6s} {size:.1e} {where}")
                assert size < 1e-9, f"{near}, {how}: {where}"


def laws_hold(device: str) -> None:
    """The laws themselves, on the device."""
    for name in ONLY:
        for trial in trials(methods.build(name, GIVEN.get(name)), device):
            if (trial.net, trial.optimiser) in (("MLP", "sgd"), ("CNN", "adam"), ("prototypes", "adam")):
                for law in LAWS:
                    law(trial)
                print(f"{trial}: {len(LAWS)} laws")


def test_cuda_agrees_with_cpu() -> None:
    agree("cuda")


def test_every_net_and_rule_on_cuda() -> None:
    every_net_and_rule("cuda")


def test_laws_on_cuda() -> None:
    laws_hold("cuda")


if __name__ == "__main__":
    for check in (laws_hold, agree, every_net_and_rule):
        check(sys.argv[1] if len(sys.argv) > 1 else "cuda")

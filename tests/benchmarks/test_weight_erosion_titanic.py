"""The pieces of benchmarks/methods/weight_erosion_titanic.py: its skews, its schemes, its attackers, its counting."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.scripts import load_script
from vitrail.data.encoding import prepare
from vitrail.methods.weight_erosion import WeightErosion

GIVEN: dict[str, Any] = {"lr": 0.5, "p_d": 0.01, "p_s": 0.0, "beside": False}


@pytest.fixture(scope="module")
def bench() -> Any:
    module = load_script("weight_erosion_titanic")
    module.ROUNDS, module.EVERY = 8, 4
    return module


def fit(bench: Any, method: Any, name: str = "iid", seed: int = 3) -> Any:
    sites = bench.FEDERATIONS[name][1](bench.passengers(), seed)
    return bench.fit(prepare(sites, bench.study(), seed), method, seed)


def test_every_federation_has_all_passengers_in_four_sites(bench: Any) -> None:
    everyone = bench.passengers()
    for name, (_, cut) in bench.FEDERATIONS.items():
        sites = cut(everyone, 3)
        assert len(sites) == 4, name
        assert sorted(i for f in sites.values() for i in f.index) == list(everyone.index), name


def test_each_skew_is_of_its_kind(bench: Any) -> None:
    everyone = bench.passengers()
    share = {n: [f.survived.mean() for f in bench.FEDERATIONS[n][1](everyone, 3).values()] for n in bench.FEDERATIONS}
    assert np.all(np.diff(share["label"]) > 0.1), "the share of survivors grows"
    assert np.ptp(share["x_given_y"]) < 0.01
    fares = [f.groupby("survived").fare.median() for f in bench.FEDERATIONS["x_given_y"][1](everyone, 3).values()]
    assert all((b > a).all() for a, b in itertools.pairwise(fares)), "within each fate the fares grow"
    for name, column in (("y_given_x", "survived"), ("y_given_sex", "sex")):
        sites = bench.FEDERATIONS[name][1](everyone, 3)
        odd = bench.guilty(list(sites), 3)
        for site, frame in sites.items():
            true = everyone.loc[frame.index]
            assert frame.drop(columns=column).equals(true.drop(columns=column))
            assert (frame[column] == true[column]).all() if site != odd else (frame[column] != true[column]).all()


def test_the_ends_of_weight_erosion_are_global_and_local(bench: Any) -> None:
    shared = np.array(fit(bench, WeightErosion(**{**GIVEN, "p_d": 0.0}))["weights"])
    assert np.ptp(shared, 0).max() == 0, "one model"
    alone, turned = (
        np.array(fit(bench, WeightErosion(**{**GIVEN, "p_d": bench.ALONE}), name)["weights"])
        for name in ("iid", "y_given_sex")
    )
    odd = 3  # of seed 3: what it does reaches nobody after the first round
    assert np.abs(alone[odd] - turned[odd]).max() > 0.01
    assert np.array_equal(alone[:odd], turned[:odd])


@pytest.mark.parametrize("attack", ["noise", "noise x 10", "negative", "negative x 10", "copy", "echo"])
def test_attackers_do_what_they_are_said_to_do(bench: Any, attack: str) -> None:
    kind, strength = bench.ATTACKS[attack]
    at, honest = 3, [0, 1, 2]
    lie = {"attacker": "site-4", "attack": kind, "strength": strength}
    plain, hit = (np.array(fit(bench, m)["alpha"]) for m in (WeightErosion(**GIVEN), bench.Attacked(**GIVEN, **lie)))
    assert np.array_equal(plain[0][:, :at], hit[0][:, :at]), "in the first round the others are who they were"
    lost, before = 1 - hit[0, honest, at], 1 - plain[0, honest, at]
    if attack == "copy":
        assert (hit[:, honest, at] == 1).all()
        assert (hit[:, at, honest] < 1).all(), "it gains no trust in others by it"
    elif attack == "echo":
        assert np.array_equal(plain[0], hit[0]), "there is no step to repeat yet"
        assert (hit[-1, honest, at] != plain[-1, honest, at]).all()
    else:
        assert (lost > before).all()
    if attack == "noise":  # orthogonal to the user's, and about as long
        assert np.all(np.abs(lost / GIVEN["p_d"] - 2**0.5) < 0.5)
    if attack in ("noise x 10", "negative x 10"):
        assert np.all(lost / GIVEN["p_d"] > 5)


def test_all_users_at_once_cost_the_gradients_of_their_own_runs(bench: Any) -> None:
    counts = bench.cost(4)
    at_once, apart = (counts[f"Weight Erosion, {k}"] for k in ("all users at once", "a run for each user, summed"))
    assert [at_once[k] for k in ("gradients", "rows")] == [apart[k] for k in ("gradients", "rows")]
    most = counts["Weight Erosion, all at once, nobody ever distrusted"]
    assert most["gradients"] == 4 * 4 * bench.ROUNDS
    assert most["rows"] == 4 * 4 * bench.ROUNDS * bench.BATCH
    influence = counts["Influence, all users at once"]
    assert influence["losses"] == (4 * 4 + 4) * bench.ROUNDS
    assert influence["gradients"] % (4 * bench.ROUNDS) == 0

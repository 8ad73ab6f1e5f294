"""Two servers that open distances and weighted totals: equal to Weight Erosion in the open, and what each may learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.shared_erosion import SharedErosion
from tests.support.small import make_rows, train
from vitrail import methods
from vitrail.engine.batches import gather_sites
from vitrail.engine.rounds import Training
from vitrail.privacy.two_server.distances import (
    DistanceServer,
    OpenedDistances,
    effective_sites,
    open_distances,
    open_total,
    with_shares,
)

SIZES = (37, 20, 15, 53, 18)
CLIP = 2.0


def updates(n: int = 6, d: int = 200, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(d) + 0.5 * rng.standard_normal((n, d))) / np.sqrt(d)
    x[:, 7] = 0  # where nobody says anything
    return x


def opened(x: np.ndarray, user: int = 0, least: int = 1, weights: Any = None) -> tuple[OpenedDistances, Any]:
    present = list(range(len(x)))
    servers = with_shares(x, present, user, CLIP)
    found = open_distances(servers, present)
    return found, open_total(servers, present, np.ones(len(x)) if weights is None else weights, least)


@pytest.mark.parametrize("given", [{}, {"update": "local", "size": "weight"}, {"cone": 0.05}])
@pytest.mark.parametrize("away", [False, True])
def test_models_and_alphas_are_those_of_the_open_run(given: dict[str, Any], away: bool) -> None:
    """To 1e-6, every user's, in every round, also where sites come and go."""
    given = {"p_d": 0.05, "beside": False, **given}
    training = Training(rounds=8, batch=8, lr=0.1, mean=True)
    here = lambda s, r: torch.tensor([away and (r + i) % 4 == 0 for i in range(len(SIZES))])  # noqa: E731
    runs = []
    for method in (methods.build("weight_erosion", given), SharedErosion(**given, clip=1.0)):
        engine, last = train(method, sites=gather_sites(make_rows(sizes=SIZES)), training=training, absent=here)
        runs.append((engine, last))
    (_, one), (_, two) = runs
    assert float((one.coord.alpha - two.coord.alpha).abs().max()) < 1e-6
    assert max(float((v - two.coord.models[k]).abs().max()) for k, v in one.coord.models.items()) < 1e-6
    assert float(one.coord.alpha.min()) < 0.9, "trust did erode"


def test_distances_are_right_to_the_error_that_is_stated() -> None:
    for seed, scale in enumerate((1.0, 0.1, 1e-3, 1e-5)):
        x = updates(seed=seed) * scale
        found, _ = opened(x)
        true = np.linalg.norm(x - x[0], axis=1) / np.linalg.norm(x[0])
        off = np.abs(found.distance - true)
        assert (off <= found.error).all()
        assert scale < 1 or found.error.max() < 5e-7
    assert found.error.max() < 0.05, "an update of a hundred thousandth of the clip still has a direction"


def test_an_update_below_the_fixed_point_has_no_distances() -> None:
    x = updates()
    x[0] = 1e-9
    found, _ = opened(x)
    assert found.vanished
    assert not found.distance.any()


def test_a_total_is_the_mean_by_the_weights() -> None:
    x, weights = updates(), np.array([1.0, 0.5, 0.0, 0.25, 1e-3, 0.7])
    total = opened(x, weights=weights)[1]
    np.testing.assert_allclose(total, weights @ x / weights.sum(), atol=CLIP * 2.0**-27)


def test_what_each_server_holds_and_what_they_open_is_noise() -> None:
    """But for the squares and the total: two worlds with the same distances to the user look alike to each server."""
    x = updates(8, 4000)
    present = list(range(len(x)))
    first, second = with_shares(x, present, 0, CLIP)
    blinded = [s.blinded(present) for s in (first, second)]
    for words in (first.halves[3], second.halves[3], blinded[0][3], blinded[1][3], blinded[0][3] + blinded[1][3]):
        top = (words >> np.uint64(60)).astype(int)
        assert np.bincount(top, minlength=16).max() < 1.5 * len(words) / 16
    control = (first.halves[3] + second.halves[3]) >> np.uint64(60)
    assert np.bincount(control.astype(int), minlength=16).max() > 0.4 * x.shape[1], "both halves are the update"


def test_no_distance_between_two_others_can_be_worked_out() -> None:
    """Sites 1 and 2 lie on one side of the user or on either: the numbers that are opened are the same."""
    x = updates(3)
    far = x[1] - x[0]
    worlds = [np.stack([x[0], x[0] + far, x[0] + sign * far]) for sign in (1, -1)]
    one, two = (opened(world)[0].distance for world in worlds)
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert np.linalg.norm(worlds[0][1] - worlds[0][2]) < 0.1 * np.linalg.norm(worlds[1][1] - worlds[1][2])


@pytest.mark.parametrize("others", [0.0, 1e-3])
def test_a_total_that_is_one_sites_update_is_not_opened(others: float) -> None:
    """The control reads it: all trust but that of one site is gone, or nearly."""
    x = updates()
    weights = np.full(len(x), others)
    weights[4] = 1.0
    assert opened(x, least=3, weights=weights)[1] is None
    read = opened(x, least=1, weights=weights)[1]
    assert read @ x[4] / np.linalg.norm(read) / np.linalg.norm(x[4]) > 0.999
    assert opened(x, least=3)[1] is not None


def test_effective_sites_never_count_more_than_there_are() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights = rng.random(7) ** 4
        assert 1 <= effective_sites(weights) <= 7
    assert effective_sites(np.zeros(3)) == 0


@pytest.mark.parametrize("power", [32, 40])
def test_a_difference_that_is_nothing_mod_two_to_the_64_moves_no_model(power: int) -> None:
    """Its distance is that of an honest update, which is the control; the total is longer than the clip."""
    x = updates()
    present, weights = list(range(len(x))), np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    servers = with_shares(x, present, 0, CLIP)
    honest = open_distances(servers, present).distance[1]
    servers[1].halves[1][7] += np.uint64(1 << power)
    assert open_distances(servers, present).distance[1] == pytest.approx(honest, rel=1e-6)
    assert open_total(servers, present, weights, 1) is None


def test_a_user_whose_total_stays_closed_stands_still() -> None:
    given = {"p_d": 0.05, "beside": False}
    method = SharedErosion(**given, clip=1.0, least=len(SIZES) + 1)
    engine, last = train(
        method, sites=gather_sites(make_rows(sizes=SIZES)), training=Training(rounds=3, lr=0.1, mean=True)
    )
    assert all(torch.equal(v, engine.task.start[k].expand_as(v)) for k, v in last.coord.models.items())


def test_a_server_takes_one_half_of_each_site() -> None:
    from vitrail.core.errors import VitrailError

    servers = with_shares(updates(), [0, 1], 0, CLIP)
    assert isinstance(servers[0], DistanceServer)
    with pytest.raises(VitrailError, match="refused"):
        servers[0].take(0, servers[0].halves[0])
    with pytest.raises(VitrailError, match="not split"):
        with_shares(updates() * 100, [0], 0, CLIP)

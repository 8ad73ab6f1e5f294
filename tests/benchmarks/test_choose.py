"""benchmarks/verdicts/choose.py and its worlds: what is drawn, what is judged, and the rival with random groups."""

from __future__ import annotations

import numpy as np
import torch

from tests.support.scripts import load_script

load_script("worlds")  # of which it takes some
bench = load_script("choose")
SMALL = bench.World(2, sites=6, rows=(20, 40), wrong="by lot", hard=True)


def test_a_world_is_its_seeds_and_only_training_labels_are_wrong() -> None:
    one, again, other = (bench.sites_of(SMALL, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0].x[:5], other[0].x[:5])
    assert [s.honest for s in one] == [True, True, False] * 2
    right = bench.sites_of(SMALL._replace(wrong=""), 1)
    assert np.array_equal(one[0].y, right[0].y)
    assert all(20 <= len(s.y) <= 40 and len(s.test_y) == bench.TEST for s in one)


def test_tuning_looks_at_training_rows_alone() -> None:
    sites = bench.sites_of(SMALL, 1)
    for whole, part in zip(sites, bench.inner(sites, 1), strict=True):
        rows = np.concatenate([part.x, part.test_x])
        assert len(part.test_y) == len(whole.y) // 3
        assert np.array_equal(np.sort(rows, 0), np.sort(whole.x, 0))


def test_groups_by_lot_are_the_same_in_every_round_and_not_those_of_the_losses() -> None:
    sites = bench.sites_of(bench.World(2, sites=8, rows=(60, 60)), 3)
    given = {"groups": 2, "folds": 2, "starts": 1, "alpha": 0.0, "constant": False}
    engine = bench.Engine(
        bench.Task(net := bench.MLP(10, 2, ()), net.init(torch.Generator().manual_seed(1))),
        bench.RandomCentres(**given),
        bench.gather_sites(
            [(f"{i}", *bench.tensors_of(s.x, s.y, 2), torch.ones(len(s.y), 1)) for i, s in enumerate(sites)]
        ),
        bench.Training(5, batch=32, lr=0.5, momentum=0.0, mean=True),
        1,
    )
    seen = [m.state.groups[:, 0, 1].tolist() for m in engine.run() if m.stage == 0]
    assert seen[1] == seen[-1]
    assert set(seen[-1]) == {0, 1}
    truth = [sites[int(name)].group for name in engine.names]
    assert seen[-1] not in (truth, [1 - t for t in truth])


def test_the_best_setting_is_that_of_both_seeds() -> None:
    one = {"tried": [{"lr": 1.0, "epochs": 3, "loss": 0.5}, {"lr": 0.1, "epochs": 3, "loss": 0.6}]}
    two = {"tried": [{"lr": 1.0, "epochs": 3, "loss": float("nan")}, {"lr": 0.1, "epochs": 3, "loss": 0.6}]}
    assert bench.best([one]) == {"lr": 1.0, "epochs": 3}
    assert bench.best([one, two]) == {"lr": 0.1, "epochs": 3}


def test_gains_are_of_honest_sites_and_paired() -> None:
    case = {"honest": [True, True, False], "truth": [0, 0, 1]}
    runs = {
        "local": [{**case, "loss": [0.5 + s, 0.5 + s, 9.0]} for s in (0.0, 0.3)],
        "centres": [
            {**case, "loss": [0.4 + s, 0.52 + s, 0.1], "choice": [2, 0, 0], "group": [1, 1, 2]} for s in (0, 0.3)
        ],
    }
    r = bench.Result("a third by lot", [1, 2], runs)
    assert np.allclose(r.gain("local"), 0.04)
    assert r.harmed("centres") == 0.5
    assert r.apart() == "2 of 2"

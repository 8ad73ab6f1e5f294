"""The benchmark's own machinery: seeds stacked in one run, and what is read back from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.scripts import load_script

tables = load_script("ifedavg_tables")


@pytest.fixture
def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    site = np.repeat([0, 1, 2], [70, 40, 30])
    x = rng.standard_normal((140, 5)).astype(np.float32)
    return {
        "x": x,
        "y": (x[:, 0] + x[:, 1] + rng.standard_normal(140) > 0).astype(np.int64),
        "site": site,
        "test": rng.random((len(tables.SEEDS), 140)) < 0.4,
        "number": np.ones(5, dtype=bool),
        "local": np.array(1),
        "names": np.array(["b", "a", "c"]),
        "rows": np.bincount(site),
    }


@pytest.mark.parametrize("method", tables.METHODS)
def test_a_seed_gives_the_same_stacked_as_alone(data: dict[str, Any], method: str) -> None:
    def learn(*seeds: int) -> list[dict[str, list[float]]]:
        return tables.learn(tables.Job("small", method, seeds, 4), data, "cpu", lambda n: None)

    together = learn(0, 1, 2)
    for s in range(3):
        (alone,) = learn(s)
        assert together[s]["auc"] == pytest.approx(alone["auc"], abs=1e-6)
    assert together[0]["auc"] != together[1]["auc"]


def test_the_cache_forgets_other_data(tmp_path: Path) -> None:
    job, cache = tables.Job("some data", "fedavg", (0, 3), 7), tables.Cache(tmp_path)
    cache.put(job, "digest", [{"f1": [0.1]}, {"f1": [0.4]}], 10.0, "here")
    found = cache.get(job, 3, "digest")
    assert found is not None
    assert found["scores"] == {"f1": [0.4]}
    assert found["seconds"] == 5
    assert cache.get(job, 3, "another") is None
    assert cache.get(job, 1, "digest") is None
    assert cache.get(job._replace(rounds=8), 3, "digest") is None


def test_the_worst_site_is_sought_among_those_with_enough_rows() -> None:
    scores = {m: np.array([[0.9, 0.2, 0.8], [0.7, 0.3, 0.6]]) for m in tables.METRICS}
    result = tables.Result(scores, ["big", "tiny", "middle"], np.array([500, 13, 60]), 1.0, "here")
    assert result.worst("f1") == (pytest.approx(0.7), "middle")
    assert result.worst("f1", 0) == (pytest.approx(0.25), "tiny")
    better = tables.Result({m: v + 0.1 for m, v in scores.items()}, result.names, result.rows, 1.0, "here")
    gap, noise = better.gap(result, tables.ENOUGH)
    assert gap == pytest.approx(0.1)
    assert noise == pytest.approx(0, abs=1e-12)


def test_above_needs_more_than_noise() -> None:
    assert [tables.above(g, 0.02) for g in (0.1, 0.03, -0.1)] == ["yes", "level", "no"]

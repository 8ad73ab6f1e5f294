"""benchmarks/verdicts/agreed_mix.py: whose settings rivals have, who counts as harmed, and what is compared."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.scripts import load_script

load_script("worlds")
load_script("choose")
report = load_script("agreed_mix_report")
bench = load_script("agreed_mix")


def test_rivals_have_the_settings_that_were_found_for_them() -> None:
    for world in bench.LINEAR:
        found = bench.settings_of(world)
        assert found.keys() == report.RIVALS.keys()
        assert set(found["fine_tune"]) == {"lr", "epochs"}


def case() -> dict:
    """Three sites, the last with wrong labels; one start, three shares of one's own."""
    test = np.array([[[0.50, 0.40, 0.45]], [[0.52, 0.42, 0.41]], [[9.0, 9.0, 9.0]]])
    none = np.zeros_like(test)
    return {
        "honest": [True, True, False],
        "rows": [10, 30, 10],
        "local": {"loss": [0.45, 0.41, 9.0], "error": [0.0] * 3},
        "fedavg": {"loss": [0.50, 0.414, 9.0], "error": [0.0, 0.0, 0.0]},
        "fine_tune": {"loss": [0.50, 0.45, 9.0], "error": [0.01, 0.03, 0.0]},
        "test": test.tolist(),
        "test error": none.tolist(),
        "left out": [[[0.6, 0.5, 0.4]], [[0.6, 0.4, 0.5]], [[0.3, 0.5, 0.6]]],
        "agreed": [0.0, 0.1],
        "given": {"tuned": ()},
    }


@pytest.mark.parametrize(
    ("way", "losses", "harmed"),
    [
        ("fedavg", [0.50, 0.414], [1, 0]),  # .004 behind is not more than .005
        ("fine_tune", [0.50, 0.45], [1, 0]),  # within two standard errors
        ("agreed", [0.40, 0.42], [0, 1]),
        ("sum", [0.40, 0.42], [0, 1]),
        ("each", [0.45, 0.42], [0, 1]),
        ("lot", [0.45, 0.45], [1 / 3, 2 / 3]),
    ],
)
def test_who_is_served_how(way: str, losses: list[float], harmed: list[float]) -> None:
    got, harm = report.served(case(), way)
    assert np.allclose(got, losses)
    assert np.allclose(harm, harmed)


def test_a_gain_is_paired_by_seed() -> None:
    result = report.Result("all alike", [case(), case()])
    assert result.best == "local"
    assert np.isclose(result.gain("fedavg")[0], (0.50 + 0.414) / 2 - (0.40 + 0.42) / 2)

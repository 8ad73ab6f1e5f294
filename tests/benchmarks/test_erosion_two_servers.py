"""benchmarks/methods/erosion_two_servers.py: whose updates opened totals give away, and what a round costs."""

from __future__ import annotations

from tests.support.scripts import load_script

bench = load_script("erosion_two_servers")


def test_totals_of_every_user_give_all_updates_away_and_those_of_one_do_not() -> None:
    every, one = bench.solved(1)
    assert every < 1e-4
    assert one > 0.3
    assert bench.gathered(1) > 0.3


def test_bytes_grow_with_sites_and_parameters() -> None:
    small, large = bench.cost(4, 28), bench.cost(8, 56)
    assert small["up"] == 8 * 28 + bench.LETTER
    assert large["between"] == 4 * small["between"]
    assert large["all users"] > 7 * small["all users"]

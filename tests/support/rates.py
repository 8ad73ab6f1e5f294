"""Whether something happens as often as is promised: hits of a simulation against the binomial distribution."""

from __future__ import annotations

from scipy.stats import binom

TAIL = 1e-3  # what keeps its promise is refused for one seed in a thousand on each side, at most


def assert_rate(hits: float, trials: int, low: float, high: float) -> None:
    """So many `hits` can be those of a rate between `low` and `high`."""
    least, most = binom.ppf(TAIL, trials, low), binom.isf(TAIL, trials, high)
    what = f"{hits / trials:.4f} of {trials}, promised {low:g} to {high:g}"
    assert least <= hits <= most, f"{what}: expected {least:.0f} to {most:.0f} hits, got {hits:.0f}"

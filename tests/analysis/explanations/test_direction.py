"""In which direction a feature moves the answer. Rates are of simulated effects whose direction is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitrail.analysis.explanations.direction import BY_LEVEL, FEWEST, UNKNOWN, direction

Floats = NDArray[Any]
Shape = Callable[[Floats], Floats]


def place(x: Floats) -> Floats:
    """[row]: from -1 to 1, in the order of values."""
    return np.searchsorted(np.sort(x), x) / len(x) * 2 - 1


COLUMNS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "even": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: np.exp(rng.normal(size=n)),
    "skewed the other way": lambda rng, n: -np.exp(rng.normal(size=n)),
    "counts": lambda rng, n: rng.poisson(2, n) * 1.0,
}
MONOTONE: dict[str, Shape] = {
    "linear": lambda x: x,
    "step": lambda x: (place(x) > 0.5) * 1.0,
    "levels off": lambda x: np.tanh(3 * place(x)),
    "sets in late": lambda x: np.maximum(place(x) - 0.4, 0),
    "exponential": lambda x: np.exp(2 * place(x)),
}
BENT: dict[str, Shape] = {
    "U": lambda x: place(x) ** 2,
    "J": lambda x: (place(x) + 0.25) ** 2,
    "hump": lambda x: -np.abs(place(x)),
    "hook": lambda x: np.where(place(x) < 0.2, place(x), 0.2 - 0.8 * (place(x) - 0.2)),
}


def by_mean(x: Floats, phi: Floats) -> str:
    """The rule until now."""
    half = 1.96 * phi.std(ddof=1) / np.sqrt(len(phi))
    return "±" if abs(phi.mean()) <= half else "+" if phi.mean() > 0 else "-"


def by_correlation(x: Floats, phi: Floats) -> str:
    """A plain rival: both ways where the correlation is weak."""
    r = np.corrcoef(x, phi)[0, 1]
    return "±" if abs(r) < 0.3 else "+" if r > 0 else "-"


def right(rule: Callable[[Floats, Floats], str], shapes: dict[str, Shape], rows: int, noise: float) -> float:
    """How often a rule is right. The Shapley value is the effect less that of the median, which other features make
    larger or smaller by a third, and noise (in standard deviations of the effect)."""
    rng, found = np.random.default_rng(rows), []
    for _ in range(20):
        for shape in shapes.values():
            for column in COLUMNS.values():
                x, sign = column(rng, rows), rng.choice([-1, 1])
                effect = shape(x) - np.median(shape(x))
                effect = sign * effect / effect.std()
                phi = effect * (1 + 0.3 * rng.normal(size=rows) * (noise > 0)) + noise * rng.normal(size=rows)
                found.append(rule(x, phi) == ("±" if shapes is BENT else "+" if sign > 0 else "-"))
    return float(np.mean(found))


def ours(x: Floats, phi: Floats) -> str:
    return direction(x, phi).sign


@pytest.mark.parametrize(("rows", "noise"), [(100, 0.0), (100, 1.0), (300, 0.0), (300, 1.0), (1000, 2.0)])
def test_a_monotone_effect_has_its_sign_and_does_not_bend(rows: int, noise: float) -> None:
    """Wrong in at most 3 of 100, with as much noise as effect and more."""
    assert right(ours, MONOTONE, rows, noise) >= 0.97
    assert right(by_mean, MONOTONE, rows, noise) < 0.8, "the mean is about skewness"


@pytest.mark.parametrize(
    ("rows", "noise", "least"), [(100, 0.0, 0.85), (300, 0.0, 0.97), (300, 1.0, 0.90), (1000, 1.0, 0.97)]
)
def test_a_bent_effect_goes_both_ways(rows: int, noise: float, least: float) -> None:
    """Positive control: bends are seen, more often the more rows there are."""
    assert right(ours, BENT, rows, noise) >= least
    assert right(by_correlation, BENT, rows, noise) < 0.6, "a bend leaves a correlation where it is not even"


def test_the_plain_correlation_takes_noise_for_a_bend() -> None:
    assert right(by_correlation, MONOTONE, 300, 2.0) < 0.85
    assert right(ours, MONOTONE, 300, 2.0) >= 0.97


def test_a_turn_of_less_than_a_fifth_is_no_bend() -> None:
    x = np.linspace(-1, 1, 500)
    assert ours(x, (x + 0.3) ** 2) == "±"  # falls by .36 of what it rises, in means of groups
    assert ours(x, (x + 0.5) ** 2) == "+"


def test_values_that_only_other_features_decide_have_no_direction() -> None:
    """Pure interaction: as often up as down, whatever the value. Something else is said in at most 4 of 100."""
    rng = np.random.default_rng(1)
    told = [ours(x := rng.normal(size=300), x * rng.choice([-1, 1], 300)) for _ in range(400)]
    assert np.mean([sign == "?" for sign in told]) >= 0.96


def test_of_two_levels_the_second_is_told_whichever_is_the_reference() -> None:
    smokes = np.array(["no", "yes"] * 30, object)
    up = {off: np.where(smokes == "yes", 0.5, 0.0) - 0.5 * (off == "yes") for off in ("no", "yes")}
    assert {off: direction(smokes, phi, ("no", "yes"), off).sign for off, phi in up.items()} == {"no": "+", "yes": "+"}
    for off, phi in up.items():
        assert direction(smokes, phi, ("no", "yes"), off).words == "up for yes, against no"
        assert direction(smokes, -phi, ("no", "yes"), off).words == "down for yes, against no"


def test_a_category_is_told_level_by_level() -> None:
    levels = ("a", "b", "c", "d", "e")
    held = np.array(["a"] * 60 + ["b"] * 20 + ["c"] * 20 + ["d"] * FEWEST + ["e"] * (FEWEST - 1) + [None] * 5, object)
    mean = {"a": 0.0, "b": 0.4, "c": -0.3, "d": 0.0, "e": 9.0, None: 9.0}
    phi = np.array([mean[v] for v in held]) + np.where(held == "d", np.tile([-1, 1], len(held))[: len(held)], 0.0)
    found = direction(held, phi, levels, "a")
    assert found.sign == BY_LEVEL
    assert found.levels == (("b", "+"), ("c", "-"), ("d", "?")), "e has too few rows"
    assert found.words == "up for b, down for c, against a"
    assert direction(held, phi + (held == "d") * 2.0, levels, "a").words == "up for b and d, down for c, against a"


def test_what_few_rows_or_nobody_knows_is_not_told() -> None:
    assert direction(np.full(50, np.nan), np.ones(50)).sign == UNKNOWN
    few = np.repeat([0.0, 1.0], [60, FEWEST - 1])
    assert direction(few, few).sign == UNKNOWN
    more = np.repeat([0.0, 1.0], [60, FEWEST])
    assert direction(more, more).sign == "+"
    gaps = np.where(np.arange(60) % 2, np.nan, np.arange(60.0))
    assert direction(gaps, np.where(np.isnan(gaps), 9.0, -np.arange(60.0))).sign == "-"

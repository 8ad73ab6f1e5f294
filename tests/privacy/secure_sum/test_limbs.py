"""Sums of numbers of any size, exact, of which each part looks like nothing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from vitrail.privacy.secure_sum.limbs import BITS, HIGH, LARGEST, exact_sums, from_limbs, to_limbs


def test_numbers_of_any_size_add_up() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((5, 40)) * 10.0 ** rng.uniform(-30, 30, 40)  # [site, number]
    parts = [to_limbs(v.tolist()) for v in values]
    assert max(np.abs(p).max() for p in parts) <= LARGEST
    np.testing.assert_allclose(list(map(float, from_limbs(np.sum(parts, 0)))), values.sum(0), rtol=1e-12)
    zeros = [0.0] * 3
    assert from_limbs(to_limbs(zeros)) == zeros
    assert to_limbs(zeros).any()  # what is nothing does not look like nothing


def test_a_digit_does_not_show_its_carries() -> None:
    """The same number is written otherwise every time: digit sums tell no more than the sum."""
    digits = np.stack([to_limbs([0.75])[0] for _ in range(200)])
    bases = digits[:, :-1] // 2.0**BITS
    assert (bases.std(0) > 2.0**18).all()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e9])
def test_exact_sums_are_exact(size: float) -> None:
    """Of numbers of any sign and size, and of many."""
    rng = np.random.default_rng(2)
    for values in (
        rng.normal(0.0, size, 300) * 10.0 ** rng.uniform(-9, 9, 300),
        np.full(3000, size * (1 - 2.0**-53)),
        np.zeros(0),
    ):
        total, squares = exact_sums(values)
        assert total == sum(map(Fraction, values.tolist()))
        assert squares == sum(Fraction(value) ** 2 for value in values.tolist())


def test_who_has_which_rows_does_not_show_in_the_sum() -> None:
    """What is opened is the same to the last bit, however rows are spread over sites. Sums that each site rounds by
    itself are the control: their last digits differ."""
    rng = np.random.default_rng(3)
    rows = rng.normal(70.0, 15.0, 90).round(2)

    def opened(cuts: list[int]) -> tuple[list[Fraction], float]:
        parts = np.split(rows, cuts)
        limbs = [to_limbs(exact_sums(part)) for part in parts]
        return from_limbs(np.sum(limbs, 0)), sum(float((part**2).sum()) for part in parts)

    exact, plain = zip(*(opened(cuts) for cuts in ([30, 60], [5, 88], [10, 20, 30, 40], [1, 2])), strict=True)
    assert all(sums == exact[0] for sums in exact)
    assert len(set(plain)) > 1


@pytest.mark.parametrize("value", [2.0 ** (HIGH + 1), -(2.0 ** (HIGH + 1)), np.nan, np.inf])
def test_what_does_not_fit_is_refused(value: float) -> None:
    with pytest.raises((OverflowError, ValueError)):
        to_limbs([value])


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_of_what_is_no_number_there_is_no_sum(value: float) -> None:
    with pytest.raises(OverflowError):
        exact_sums(np.array([1.0, value]))

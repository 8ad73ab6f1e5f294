"""Sums of numbers of any size, exact, of which each part looks like nothing."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.privacy.secure_sum.limbs import BITS, HIGH, LARGEST, from_limbs, to_limbs


def test_numbers_of_any_size_add_up() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((5, 40)) * 10.0 ** rng.uniform(-30, 30, 40)  # [site, number]
    parts = [to_limbs(v) for v in values]
    assert max(np.abs(p).max() for p in parts) <= LARGEST
    np.testing.assert_allclose(from_limbs(np.sum(parts, 0)), values.sum(0), rtol=1e-12)
    zeros = np.zeros(3)
    assert not from_limbs(to_limbs(zeros)).any()
    assert to_limbs(zeros).any()  # what is nothing does not look like nothing


def test_a_digit_does_not_show_its_carries() -> None:
    """The same number is written otherwise every time: digit sums tell no more than the sum."""
    told = np.stack([to_limbs(np.array([0.75]))[0] for _ in range(200)])
    bases = told[:, :-1] // 2.0**BITS
    assert (bases.std(0) > 2.0**18).all()


@pytest.mark.parametrize("value", [2.0 ** (HIGH + 1), -(2.0 ** (HIGH + 1)), np.nan, np.inf])
def test_what_does_not_fit_is_refused(value: float) -> None:
    with pytest.raises((OverflowError, ValueError)):
        to_limbs(np.array([value]))

"""Sums of any size under masks, exact: numbers of columns whose size nobody agreed on.

exact sums   of values and of their squares, without any rounding. What sites' exact sums add up to is the same however
             the rows are spread over the sites, so that its last digits tell nothing of a single site.
v            in steps of 2^-LOW, as a whole number; beyond 2^HIGH nothing is sent
limbs        its digits to the base 2^BITS, all with the sign of v; sums over sites fit into a mask's word
carries      how often a digit's sum went over its base would tell a little more than the sum: so each site moves a
             random number of bases from each digit to the one below it, which changes no sum and hides them
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

LOW, HIGH, BITS, LOTS = 160, 232, 28, 22
LIMBS = (LOW + HIGH) // BITS
LARGEST = 2.0 ** (BITS + LOTS + 1)  # of a limb
MANTISSA, HALF = 53, 27  # bits of a double, and of the lower half of its mantissa
Matrix = NDArray[np.float64]
Whole = NDArray[np.int64]


def exact_sums(values: Matrix) -> tuple[Fraction, Fraction]:
    """The sum of these numbers and that of their squares.

    >>> exact_sums(np.array([0.5, -2.0, 1e-20]))[0] == Fraction(-3, 2) + Fraction(1e-20)
    True
    """
    if not np.isfinite(values).all():
        raise OverflowError("no finite number")
    mantissas, exponents = np.frexp(values)
    steps, total, squares = (mantissas * 2.0**MANTISSA).astype(np.int64), Fraction(0), Fraction(0)
    for exponent in np.unique(exponents).tolist():
        some, step = steps[exponents == exponent], Fraction(2) ** (exponent - MANTISSA)
        high, low = some >> HALF, some & ((1 << HALF) - 1)
        total += _whole_sum(some) * step
        crossed = _whole_sum(high * low) << (HALF + 1)
        squares += ((_whole_sum(high * high) << (2 * HALF)) + crossed + _whole_sum(low * low)) * step**2
    return total, squares


def _whole_sum(numbers: Whole) -> int:
    """Of up to 2^36 numbers below 2^54, in two halves that do not wrap."""
    return (int((numbers >> HALF).sum()) << HALF) + int((numbers & ((1 << HALF) - 1)).sum())


def to_limbs(values: Sequence[Fraction | float]) -> Matrix:
    """[number] -> [number, limb], the smallest first; whole numbers below LARGEST."""
    out = np.zeros((len(values), LIMBS))
    for row, value in zip(out, values, strict=True):
        step = round(Fraction(value) * (1 << LOW))
        sign, left = (-1 if step < 0 else 1), abs(step)
        if left >> (BITS * LIMBS):
            raise OverflowError("a number is too large")
        for i in range(LIMBS):
            row[i] = sign * (left & ((1 << BITS) - 1))
            left >>= BITS
        for i in range(LIMBS - 1):
            moved = secrets.randbelow(1 << LOTS)
            row[i] += moved * 2.0**BITS
            row[i + 1] -= moved
    return out


def from_limbs(total: Matrix) -> list[Fraction]:
    """What to_limbs' numbers add up to: [number, limb] -> [number]."""
    steps = [sum(int(limb) << (BITS * i) for i, limb in enumerate(row)) for row in total.tolist()]
    return [Fraction(step, 1 << LOW) for step in steps]

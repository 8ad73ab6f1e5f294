"""Sums of any size under masks, exact: numbers of columns whose size nobody agreed on.

v            in steps of 2^-LOW, as a whole number; beyond 2^HIGH nothing is sent
limbs        its digits to the base 2^BITS, all with the sign of v; sums over sites fit into a mask's word
carries      how often a digit's sum went over its base would tell a little more than the sum: so each site moves a
             random number of bases from each digit to the one below it, which changes no sum and hides them
"""

from __future__ import annotations

import secrets
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

LOW, HIGH, BITS, LOTS = 160, 120, 28, 22
LIMBS = (LOW + HIGH) // BITS
LARGEST = 2.0 ** (BITS + LOTS + 1)  # of a limb
Matrix = NDArray[np.float64]


def to_limbs(values: Matrix) -> Matrix:
    """[number] -> [number, limb], the smallest first; whole numbers below LARGEST."""
    out = np.zeros((len(values), LIMBS))
    for row, value in zip(out, values.tolist(), strict=True):
        step = round(Fraction(value) * (1 << LOW))
        sign, left = (-1 if step < 0 else 1), abs(step)
        if left >> (BITS * LIMBS):
            raise OverflowError(f"{value:.3g}")
        for i in range(LIMBS):
            row[i] = sign * (left & ((1 << BITS) - 1))
            left >>= BITS
        for i in range(LIMBS - 1):
            moved = secrets.randbelow(1 << LOTS)
            row[i] += moved * 2.0**BITS
            row[i + 1] -= moved
    return out


def from_limbs(total: Matrix) -> Matrix:
    """What to_limbs' numbers add up to: [number, limb] -> [number]."""
    steps = [sum(int(limb) << (BITS * i) for i, limb in enumerate(row)) for row in total.tolist()]
    return np.array([float(Fraction(step, 1 << LOW)) for step in steps])

"""Which numbers are squares modulo p = 2^255 - 19: the Jacobi symbol of many numbers at once.

Python's own `pow` takes 98 us for one number by Euler's criterion, more than two blindings. Here numpy goes the way of
Bernstein, Yang and Hamburg: with f odd (p at first) and g,
    f, g, d <- g, (g + f) / 2, 1 - d    where g is odd and d > 0
    f, g, d <- f, (g + f) / 2, 1 + d    where g is odd otherwise
    f, g, d <- f, g / 2, 1 + d          where g is even
keeps the symbol but for a sign: it turns where both are 3 modulo 4 as they change places, and where f is 3 or 5 modulo
8 as g is halved. At f = 1 the symbol is 1. STEPS of them need the lowest bits alone; then f and g are brought to where
they are by what those steps were together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

P = 2**255 - 19
STEPS = 28  # at a time: the last of them still knows three bits of f, of 32
LIMBS = 10  # of so many bits each
CHUNK = 4096  # numbers at a time: what a core keeps near
FEW = 128  # below, Euler's criterion is quicker


def are_squares(numbers: Sequence[int]) -> np.ndarray:
    """[number] bool, of numbers from 1 to p - 1.

    >>> are_squares([1, 2, 4, P - 1, P - 2]).tolist()
    [True, False, True, True, False]
    """
    if len(numbers) < FEW:
        return np.array([pow(n, (P - 1) // 2, P) == 1 for n in numbers], bool)
    return np.concatenate([_chunk_are_squares(numbers[i : i + CHUNK]) for i in range(0, len(numbers), CHUNK)])


def _chunk_are_squares(numbers: Sequence[int]) -> np.ndarray:
    f, g = _limbs([P] * len(numbers)), _limbs(numbers)
    ahead, turned = np.ones(len(numbers), np.int32), np.zeros(len(numbers), np.uint32)
    out, seen = np.zeros(len(numbers), bool), np.zeros(len(numbers), bool)
    while not seen.all():
        a, b, c, d = _steps(_low(f), _low(g), ahead, turned)
        f, g = _carried(a * f + b * g), _carried(c * f + d * g)
        new = (f[0] == 1) & (f[1:] == 0).all(0) & ~seen
        out[new], seen = (turned[new] & 1) == 0, seen | new
    return out


def _limbs(numbers: Sequence[int]) -> np.ndarray:
    """[limb, number] int64, lowest first."""
    raw = np.frombuffer(b"".join(n.to_bytes(35, "little") for n in numbers), np.uint8).reshape(-1, 35)
    bits = np.unpackbits(raw, axis=1, bitorder="little").reshape(len(raw), LIMBS, STEPS)
    return np.ascontiguousarray((bits @ 2.0 ** np.arange(STEPS)).T).astype(np.int64)


def _low(limbs: np.ndarray) -> np.ndarray:
    low: np.ndarray = (limbs[0] + (limbs[1] << STEPS)).astype(np.uint32)
    return low


def _carried(sums: np.ndarray) -> np.ndarray:
    """Divided by 2^STEPS, of which they are multiples."""
    for i in range(LIMBS - 1):
        sums[i + 1] += sums[i] >> STEPS
    sums[:-1] &= (1 << STEPS) - 1
    return np.concatenate([sums[1:-1], (sums[-1:] & ((1 << STEPS) - 1)), sums[-1:] >> STEPS])


def _steps(f: np.ndarray, g: np.ndarray, ahead: np.ndarray, turned: np.ndarray) -> tuple[np.ndarray, ...]:
    """STEPS steps on the lowest bits; `ahead` (d) and `turned` in place. What they were together, times 2^STEPS."""
    one, none = np.ones_like(f), np.zeros_like(f)
    up, down = np.stack([f, one, none]), np.stack([g, none, one])  # [f a b], [g c d]
    part, odd, swap = np.empty_like(up), np.empty_like(f), np.empty_like(f)
    for _ in range(STEPS):
        np.negative(down[0] & 1, out=odd)  # all bits where g is odd
        np.multiply(odd, ahead > 0, out=swap)
        np.bitwise_xor(up, down, out=part)
        part &= swap
        up ^= part
        down ^= part
        signed = swap.view(np.int32)
        ahead ^= signed
        ahead -= signed
        ahead += 1
        turned ^= ((up[0] & down[0]) >> 1) & swap
        np.bitwise_and(up, odd, out=part)
        down += part
        down[0] >>= 1
        up[1:] <<= 1
        turned ^= (up[0] >> 1) ^ (up[0] >> 2)
    return tuple(row.astype(np.int64) for row in (*up[1:], *down[1:]))

"""A secret in shares, of which so many together tell it and fewer tell nothing (Shamir 1979).

Shares are points of a polynomial over the numbers mod P, a prime just above 2^256; the secret is where it meets 0.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

P = 2**256 + 297
SIZE = 33  # bytes of a share


def split(secret: bytes, places: Sequence[int], needed: int) -> dict[int, bytes]:
    """A share for each place, counted from 1; any `needed` of them tell the secret of 32 bytes."""
    factors = [int.from_bytes(secret, "big"), *(secrets.randbelow(P) for _ in range(needed - 1))]
    out = {}
    for x in places:
        y = 0
        for factor in reversed(factors):
            y = (y * x + factor) % P
        out[x] = y.to_bytes(SIZE, "big")
    return out


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret, from as many shares as are needed; None where they tell none."""
    total = 0
    for x, share in shares.items():
        above = below = 1
        for other in shares:
            if other != x:
                above, below = above * -other % P, below * (x - other) % P
        total = (total + int.from_bytes(share, "big") * above * pow(below, -1, P)) % P
    return total.to_bytes(32, "big") if total < 2**256 else None

"""Ids as points of Curve25519, and locks on them that commute: X25519 with a secret scalar, 35 us a point.

    point(id)         Elligator 2: r = SHA-512(domain, id) mod p; x = -A / (1 + 2 r^2), or -x - A where that is the one
                      on the curve
    lock(x, k)        the x-coordinate of k times the point; lock(lock(x, a), b) = lock(lock(x, b), a)

Nobody knows a point's logarithm to any base, so that a lock without its key tells nothing of the id (Diffie-Hellman's
assumption). X25519 would take any hash for an x-coordinate, half of them on the curve's twist, where locks are as hard.
But a lock keeps a point where it is, on the curve or on the twist, and everyone can see where: one bit of the hash of
the id. Who knows all ids of a list but one could rule out half of the candidates for it. Hence every id is brought to
the curve. Keys are multiples of 8, which take away what is not of prime order.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from itertools import accumulate

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from vitrail.vertical.matching.jacobi import P, are_squares

A = 486662
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the prime subgroup
SIZE = 32  # bytes of a point


def points(ids: Sequence[str], domain: str) -> list[bytes]:
    """Of each id its point; those of another domain have nothing to do with them."""
    start = hashlib.sha512(f"{len(domain.encode())}|{domain}|".encode())
    below, tests = [], []
    for one in ids:
        hashed = start.copy()
        hashed.update(one.encode("utf-8", "surrogatepass"))
        r = int.from_bytes(hashed.digest(), "little") % P
        d = (1 + 2 * r * r) % P  # never 0: -1/2 is no square
        below.append(d)
        tests.append(-A * d * (A * A - A * A * d + d * d) % P)  # x (x^2 + A x + 1), times d^4
    pairs = zip(_inverses(below), are_squares(tests).tolist(), strict=True)
    xs = (-A * inverse % P if on_curve else (A * inverse - A) % P for inverse, on_curve in pairs)
    return [x.to_bytes(SIZE, "little") for x in xs]


def _inverses(numbers: list[int]) -> list[int]:
    """One division for all: of their product."""
    before = list(accumulate(numbers, lambda a, b: a * b % P, initial=1))
    rest, out = pow(before[-1], -1, P), []
    for number, product in zip(reversed(numbers), reversed(before[:-1]), strict=True):
        out.append(rest * product % P)
        rest = rest * number % P
    return out[::-1]


def lock(given: Sequence[bytes], secret: bytes) -> list[bytes]:
    """ValueError for points of small order, which no id has."""
    key, read = X25519PrivateKey.from_private_bytes(secret), X25519PublicKey.from_public_bytes
    return [key.exchange(read(one)) for one in given]


def new_lock() -> tuple[bytes, bytes]:
    """A secret, and the one that takes its lock off again: the inverse modulo ORDER, where X25519 can say it."""
    while True:
        number = secrets.randbelow(2**251) * 8 + 2**254  # as X25519 sets the bits of any
        inverse = pow(number, -1, ORDER)
        inverse += -inverse * pow(ORDER, -1, 8) % 8 * ORDER  # the same modulo ORDER, and a multiple of 8
        if 2**254 <= inverse < 2**255:
            return number.to_bytes(SIZE, "little"), inverse.to_bytes(SIZE, "little")

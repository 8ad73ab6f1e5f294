"""Gaussian noise for privacy: from a cryptographic generator, exact, and on a grid.

Noise in floating point has two weaknesses. A generator that is no cipher can be continued by who sees some of its
output. And the last bits of value + noise tell which values are possible: not every floating-point number is a sum of
this value and a number that the sampler can return (Mironov 2012). Here

    released = h (round(value / h) + k),        h a power of two,        k = round(N(0, (sigma / h)^2))

k is a whole number that is drawn exactly: the quantile function is evaluated in double precision, and where its error
could decide between two whole numbers, in 80 digits. So the release is a rounding of round(value / h) h + N(0, sigma^2)
with real Gaussian noise, and whatever is proved for that holds for its rounding: the budget is that of
privacy/budget.py, and all released numbers are multiples of h, whatever the value.

Rounding a value moves it: of n numbers together by up to h sqrt(n) where a row is taken away. `blurred` makes h so
small that this is at most ROOM of what a row can move, and the noise larger by that. `blurred_report` is for a sum of
several sites' noise: it cuts towards zero, which makes no report longer, and every number that it releases is exact in
single precision, so that sums are, too.

A stream is keyed by the site's secret and by what it is for, so that a site that was started again draws the same noise
for the same question, and nobody else can.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from decimal import Context, Decimal, localcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROOM = 2.0**-11  # by how much rounding may move a sum, in what one row can move
MARGIN = 2.0**-47  # the double-precision quantile is nearer than this, in units of 1 + |quantile|
SMALL = 1 << 10  # a tail of fewer units of 2^-64 is always looked at in more digits
REPORT_BITS = 16  # of a report's noise: the deviation is 2^16 to 2^17 steps of the grid
DIGITS = 80
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")


class Generator:
    """ChaCha20 streams of one site, each by its name."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def words(self, count: int, *name: object) -> NDArray[np.uint64]:
        """So many words of 64 bits from the stream of that name; the same for the same name."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        text = "\x1f".join(["vitrail noise 1", *map(str, name)]).encode()
        key = hmac.new(self._secret, text, hashlib.sha256).digest()
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
        return np.frombuffer(stream, "<u8")

    def whole_normals(self, deviation: float, count: int, *name: object) -> NDArray[np.int64]:
        """round(N(0, deviation^2)), exactly: one word gives the sign and the first 63 bits of the tail."""
        words = self.words(count, *name)
        tails = words >> np.uint64(1)
        middle = (tails.astype(np.float64) + 0.5) * 2.0**-64
        z = -torch.special.ndtri(torch.from_numpy(middle)).numpy()
        whole = np.floor(deviation * z + 0.5)
        unsure = deviation * (MARGIN * (1 + z) + 2 / ((tails + 0.5) * np.maximum(z, 0.797)))
        part = deviation * z + 0.5 - whole
        close = (part < unsure) | (part > 1 - unsure) | (tails < SMALL)
        if close.any():
            more = self.words(count, *name, "more")
            for i in close.nonzero()[0].tolist():
                whole[i] = _nearest_whole(deviation, (int(tails[i]) << 64) + int(more[i]))
        signed: NDArray[np.int64] = np.where(words & np.uint64(1), -whole, whole).astype(np.int64)
        return signed


def _nearest_whole(deviation: float, tail: int) -> int:
    """The whole number next to `deviation` times the quantile at a tail of (tail + 1/2) 2^-128."""
    middle = (tail + 0.5) * 2.0**-128
    nearest = max(
        0, math.floor(-deviation * float(torch.special.ndtri(torch.tensor(middle, dtype=torch.double))) + 0.5)
    )
    with localcontext(Context(prec=DIGITS)):
        p, half, by = (Decimal(tail) + Decimal("0.5")) / (1 << 128), Decimal("0.5"), Decimal(deviation)
        while p < upper_tail((nearest + half) / by):
            nearest += 1
        while nearest and p >= upper_tail((nearest - half) / by):
            nearest -= 1
    return nearest


def upper_tail(x: Decimal) -> Decimal:
    """The chance that a standard normal number exceeds x >= 0, in as many digits as the context has."""
    term = total = x
    factor = 1
    while term > total.scaleb(-DIGITS):
        factor += 2
        term = term * x * x / factor
        total += term
    return Decimal("0.5") - total * (-x * x / 2).exp() / (2 * PI).sqrt()


def grid_of(reach: float, count: int) -> float:
    """The step of a grid on which so many numbers are rounded, of which one row can move at most `reach` together."""
    return float(2.0 ** math.floor(math.log2(reach * ROOM / math.sqrt(max(1, count)))))


def blurred(values: Tensor, reach: float, noise: float, generator: Generator, *name: object) -> Tensor:
    """[number] -> the same on a grid, in double, with noise of `noise` times `reach`: how far (as a length) one row can
    move them together. ROOM is added twice: for rounding, and for the rounding errors of sums in single precision,
    which are at most 2 n^2 2^-24 of what a row can move, for n rows that are added up: that is ROOM for 64 rows."""
    step, count = grid_of(reach, values.numel()), values.numel()
    drawn = generator.whole_normals(noise * reach * (1 + 2 * ROOM) / step, count, *name)
    return ((values.detach().cpu().double().flatten() / step).round() + torch.from_numpy(drawn)).mul_(step)


def report_grid(clip: float, noise: float) -> float:
    """The step of the grid for a change of a site of at most that length."""
    return float(2.0 ** (math.floor(math.log2(noise * clip)) - REPORT_BITS))


def blurred_report(values: Tensor, clip: float, noise: float, generator: Generator, *name: object) -> Tensor:
    """[number], no longer than `clip` together -> the same on a grid, in double, with noise of `noise` times `clip`.
    The grid follows from `clip` and `noise` alone: it is the same at all sites."""
    step, count = report_grid(clip, noise), values.numel()
    drawn = generator.whole_normals(noise * clip / step, count, *name)
    shorter = values.detach().cpu().double().flatten() * (1 - 2.0**-20)  # single precision may have made it longer
    return ((shorter / step).trunc() + torch.from_numpy(drawn)).mul_(step)

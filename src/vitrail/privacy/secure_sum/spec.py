"""What is summed under masks, and how numbers are written for it: all ends know it before the sum.

number     v in steps of 2^-p, as a whole number mod 2^64. The places p are such that all sites at their clip fit into
           62 bits; a value beyond its clip is refused, never wrapped.
zeros      are summed beside the values. Where masks do not cancel (sites saw other keys or lists, a report was changed)
           they are no longer zeros, and nothing is opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from vitrail.core.errors import Problem, SumRefused
from vitrail.privacy.secure_sum.fixed_point import LEAST, ZERO, ZEROS, places

Values = dict[str, NDArray[np.float64]]
Masked = dict[str, NDArray[np.uint64]]
Flat = NDArray[np.uint64]  # all numbers of a report, one after the other


@dataclass(frozen=True)
class SumSpec:
    """What is summed, how large it may be, and of how many sites at most."""

    about: str  # agreement, run and which sum
    shapes: Mapping[str, tuple[int, ...]]
    clip: Mapping[str, float]  # of one site's values, by name
    most: int
    least: int = LEAST

    def places(self, name: str) -> int:
        return places(self.most, self.clip[name])

    def text(self, site: str, key: bytes) -> bytes:
        """What a site signs of its key."""
        return "\0".join(("vitrail masks 1", self.about, site, key.hex())).encode()

    @property
    def summed(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all that a report holds."""
        return {**self.shapes, ZERO: (ZEROS,)}

    @property
    def count(self) -> int:
        """How many numbers a report holds."""
        return sum(map(math.prod, self.summed.values()))

    def encode(self, values: Mapping[str, NDArray[np.float64]]) -> Flat:
        """Values and zeros as whole numbers."""
        if problems := wrong_values(self, values):
            raise SumRefused(problems=problems)
        steps = [np.rint(np.ravel(values[k]) * 2.0 ** self.places(k)) for k in self.shapes]
        return np.concatenate([*steps, np.zeros(ZEROS)]).astype(np.int64).view(np.uint64)

    def decode(self, total: Flat) -> Values:
        """What values add up to; refused where the zeros beside them do not."""
        parts = self.apart(total)
        if parts.pop(ZERO).any():
            what = "the masks do not cancel: a report was changed, or sites were sent different things."
            raise SumRefused("sum", what)
        return {k: v.view(np.int64) / 2.0 ** self.places(k) for k, v in parts.items()}

    def apart(self, flat: Flat) -> Masked:
        """One number after the other, by name."""
        ends = np.cumsum([math.prod(shape) for shape in self.summed.values()])[:-1]
        parts = zip(self.summed.items(), np.split(flat, ends), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}


def wrong_values(terms: SumSpec, values: Mapping[str, NDArray[np.float64]]) -> list[Problem]:
    """All that cannot be summed: other names or shapes, no number, or beyond the clip."""
    out = []
    for name in sorted(values.keys() | terms.shapes.keys()):
        value, shape = values.get(name), terms.shapes.get(name)
        if value is None or shape is None or np.shape(value) != shape:
            what = f"expected the agreed shape {shape}, got {(None if value is None else np.shape(value))}."
            out.append(Problem(name, what))
        elif not np.isfinite(value).all() or np.abs(value).max(initial=0.0) > terms.clip[name]:
            what = f"a value is larger than the agreed limit {terms.clip[name]:g}, or not a finite number."
            out.append(Problem(name, what, "It would overflow and corrupt the sum, so nothing was sent."))
    return out


def draw(key: bytes, count: int) -> Flat:
    """Uniform numbers mod 2^64."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

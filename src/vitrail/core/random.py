"""Randomness from (seed, site, stage, round) and nothing else.

A key is hashed from names; bits are hashed from a key and a counter (splitmix64). No global generator is touched, and
neither the number of sites, their order, the engine nor the device changes what a site draws.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_WEYL, _MIX1, _MIX2 = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def key(*names: object) -> int:
    """A 63-bit key for these names.

    >>> key(1, "cleveland", 0, 3) == key(1, "cleveland", 0, 3) != key(1, "cleveland", 0, 4)
    True
    """
    text = "\x1f".join(str(n) for n in names).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)  # int64's own shift repeats the sign


def mixed(keys: Tensor, counter: Tensor) -> Tensor:
    """The counter-th hash of each key; both int64, broadcast against each other."""
    z = keys + counter * _WEYL
    z = (z ^ _shifted(z, 30)) * _MIX1
    z = (z ^ _shifted(z, 27)) * _MIX2
    return z ^ _shifted(z, 31)


def bits(keys: Tensor, count: int) -> Tensor:
    """[site] int64 keys -> [site, count] int64 hashes."""
    return mixed(keys[:, None], torch.arange(1, count + 1, device=keys.device))


def normals(keys: Tensor, count: int) -> Tensor:
    """[site] keys -> [site, count] double, standard normal (Box and Muller)."""
    u = (_shifted(bits(keys, 2 * count), 11).double() + 0.5) * 2.0**-53
    return (-2 * u[:, :count].log()).sqrt() * (2 * torch.pi * u[:, count:]).cos()


def orders(keys: Tensor, sizes: Tensor, longest: int) -> Tensor:
    """[site] keys -> [site, longest]: each site's rows 0..size-1 shuffled, then the numbers that are no rows."""
    draw = bits(keys, longest)
    beyond = torch.arange(longest, device=keys.device) >= sizes[:, None]
    return draw.masked_fill_(beyond, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)


def odd32(keys: Tensor, count: int) -> Tensor:
    """[site] keys -> [site, count] odd int32, the factors of a dropout mask."""
    return (_shifted(bits(keys, count), 32) | 1).to(torch.int32)


def keep_mask(rows: Tensor, units: Tensor, rate: float, out: Tensor | None = None) -> Tensor:
    """Dropout: int32 -1 (all bits: keep) or 0 (drop), for every row and unit.

    rows * units mod 2^32 is a multiply-shift hash: two rows agree on a unit, or two units on a row, as if drawn apart.
    Comparing whole numbers and applying the result by AND is far cheaper than a Bernoulli draw.
    """
    mask = torch.mul(rows[..., None], units, out=out)
    torch.lt(mask, 2 * round((rate - 0.5) * 2**31), out=mask)  # 1: drop
    mask -= 1
    return mask


def dropped_(x: Tensor, keep: Tensor) -> Tensor:
    """x with dropped units set to zero, in place; not rescaled. A GPU has its masks as numbers 0 and 1."""
    if keep.is_floating_point():
        x.mul_(keep)
    elif x.dtype == torch.float32:
        x.view(torch.int32).bitwise_and_(keep)
    else:
        x.view(torch.int64).bitwise_and_(keep.to(torch.int64))
    return x

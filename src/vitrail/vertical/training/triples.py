"""The product A'g of the guest's columns A and the host's slopes g, of which the guest learns the product alone.

    dealer     masks R (guest), S (host), random mod 2^64; C = R'S = C_host + C_guest
    guest      E = A - R                               -> host
    host       D = g - S,  T = E'S + C_host            -> guest
    guest      A'D + T + C_guest = A'g                 mod 2^64

E, D and T are uniform whatever A and g are. The host learns nothing of A, the dealer neither A nor g; a dealer who
takes sides with the host sees A, one who takes sides with the guest sees g. A batch keeps its rows and its guest's
columns, so that R and E are used again for it: A - R said twice is said once. S and C are new in every step.

Numbers are fixed point: A with 20 binary places, g with 22. What does not fit into 63 bits is refused, not wrapped.
"""

from __future__ import annotations

import secrets

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.vertical.messages import GuestTriple, HostTriple, Masked, Slope
from vitrail.vertical.training.terms import Terms

A_PLACES, G_PLACES = 20, 22
STEEPEST = 64.0  # the largest slope of a row
MOST = 2.0 ** (63 - A_PLACES - G_PLACES) / STEEPEST  # what a column's absolute values may add up to


def random_numbers(seed: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """Uniform in Z_2^64, as int64: AES in counter mode."""
    start = bytes([{"mask": 1, "share": 2}[what]]) + bytes(15)  # the counter grows from the other end
    stream = Cipher(algorithms.AES(bytes(seed.tolist())), modes.CTR(start)).encryptor()
    count = int(np.prod(shape))
    return torch.frombuffer(bytearray(stream.update(bytes(8 * count))), dtype=torch.int64).reshape(shape)


def fixed(x: Tensor, places: int) -> Tensor:
    return (x.double() * 2.0**places).round().to(torch.int64)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a'b mod 2^64. [row, column], [row, answer] -> [column, answer]"""
    return a.T @ b


def mask(columns: Tensor, seed: Tensor) -> Masked:
    """At the guest."""
    if not bool((columns.abs().sum(0) < MOST).all()):
        what = f"the absolute values of a column add up to more than {MOST:g} over a batch of {len(columns)} rows."
        raise VitrailError(
            "these columns are too large for secret sharing", [Problem("guest", what, "Standardise it.")]
        )
    return Masked(fixed(columns, A_PLACES) - random_numbers(seed, tuple(columns.shape), "mask"))


def shared(slope: Tensor, masked: Masked, mine: HostTriple) -> Slope:
    """At the host."""
    if not bool((slope.abs() < STEEPEST).all()):
        what = (
            f"the gradient of an answer is {float(slope.abs().max()):g}; shares can only hold "
            f"values below {STEEPEST:g}."
        )
        raise VitrailError(
            "training diverged", [Problem("host", what, "Use a smaller learning rate, or a standardised outcome.")]
        )
    s = random_numbers(mine.seed, tuple(slope.shape), "mask")
    c = random_numbers(mine.seed, (masked.columns.shape[1], slope.shape[1]), "share")
    return Slope(fixed(slope, G_PLACES) - s, product(masked.columns, s) + c)


def sums(columns: Tensor, slope: Slope, mine: GuestTriple) -> Tensor:
    """At the guest: A'g, [column, answer]."""
    total = product(fixed(columns, A_PLACES), slope.masked) + slope.product + mine.product
    return total.double() / 2.0 ** (A_PLACES + G_PLACES)


class Dealer:
    """Deals triples and sees no rows. A third party: the coordinator."""

    name = "dealer"

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.offers = {o.name: o for o in terms.offers}
        self.seeds: dict[tuple[str, int], Tensor] = {}  # of each guest's masks, by batch

    def deal(self, guest: str, step: int) -> tuple[HostTriple, GuestTriple]:
        offer, batch = self.offers[guest], self.terms.batch_at(step)
        rows = len(self.terms.batches[batch])
        theirs = self.seeds.setdefault((guest, batch), _seed())
        mine = _seed()
        r = random_numbers(theirs, (rows, offer.columns), "mask")
        s = random_numbers(mine, (rows, offer.answer), "mask")
        c = random_numbers(mine, (offer.columns, offer.answer), "share")
        return HostTriple(mine), GuestTriple(theirs, product(r, s) - c)


def _seed() -> Tensor:
    return torch.frombuffer(bytearray(secrets.token_bytes(32)), dtype=torch.uint8)

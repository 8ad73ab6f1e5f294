"""Two servers that do not talk behind our back, and find the liars without reading a report (He, Karimireddy, Jaggi
2020; distances opened once for each site and not once for each pair).

    site i        x_i in fixed point = s_i + t_i mod 2^64; s_i to the first server, t_i to the second: each is uniform
    dealer        a_i uniform, <a_i, a_j>; of each one half to either server. A site drawn by lot; it sees no report
    the servers   open e_i = x_i - a_i, which is uniform, and then know halves of
                      <x_i, x_j> = <e_i, e_j> + <e_i, a_j> + <a_i, e_j> + <a_i, a_j>
                  both halves together are opened: all lengths and distances, and nothing else of a report
                  and <r_k, x_i> for r_k of -1, 0, 1, drawn by both when all halves are there
    both          the same n - f reports by Multi-Krum; each adds up its halves of those; the total is opened

A report longer than the clip shows in <x_i, x_i> and counts for nothing. Mod 2^64 a square can be 0 (2^32 in a place
where all others are 0 is as near to everybody as nothing): that is what the r_k are for. What is told: distances
between reports, TESTS sums of each, and the total of the chosen. What is trusted: that the servers do not put their
halves together, nor one of them and the dealer, and keep to what is written here (semi-honest). A dealer that deals
wrong spoils a round, and is told nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.privacy.secure_sum.spec import draw
from vitrail.privacy.two_server.krum import PLACES, choose_reports

Words = NDArray[np.uint64]
SEED = 32  # bytes that numbers are drawn from
TESTS = 20  # sums of each report with signs drawn by lot: whoever is far longer than the clip passes once in 2^20
WIDE = 7.0  # clips: no such sum of a report within the clip is so large (6 is one in a thousand million)


class Deck(NamedTuple):
    """What the dealer gives to one server."""

    a: Words  # [site, number]
    products: Words  # [site, site]


def shared(x: NDArray[np.float64], clip: float, places: int = PLACES) -> tuple[Words, Words]:
    """At the site: a change [number], no longer than the clip -> one half for either server.

    >>> one, other = shared(np.array([0.25, -0.5]), 1.0)
    >>> ((one + other).view(np.int64) / 2.0**PLACES).tolist()
    [0.25, -0.5]
    """
    half, seed = halves_of(x, clip, places)
    return half, draw(seed, len(x))


def halves_of(x: NDArray[np.float64], clip: float, places: int = PLACES) -> tuple[Words, bytes]:
    """The first server's half, and what the second draws its own from."""
    size = float(np.linalg.norm(x))
    if not size <= clip * (1 + 1e-6):  # false for what is no number
        what = f"the length of the change is {size:.3g}, but the agreed maximum is {clip:g}."
        raise VitrailError("a report was not split between the servers", [Problem("report", what, "Nothing was sent.")])
    seed = secrets.token_bytes(SEED)
    return to_fixed_point(x, clip, places) - draw(seed, len(x)), seed


def to_fixed_point(x: NDArray[np.float64], clip: float, places: int = PLACES) -> Words:
    """In fixed point, in units of the clip."""
    return np.rint(x / clip * 2.0**places).astype(np.int64).view(np.uint64)


def from_fixed_point(x: Words, clip: float, places: int = PLACES) -> NDArray[np.float64]:
    return x.view(np.int64) / 2.0**places * clip


def deal(sites: int, numbers: int) -> tuple[Deck, Deck]:
    """At the dealer, who needs to know no more than how many there are."""
    one, other, table = dealt(sites, numbers)
    return deck_of(one, sites, numbers), deck_of(other, sites, numbers, table)


def dealt(sites: int, numbers: int) -> tuple[bytes, bytes, Words]:
    """The same in few bytes: what either server draws its part from, and the second's products."""
    one, other = secrets.token_bytes(SEED), secrets.token_bytes(SEED)
    first = deck_of(one, sites, numbers)
    a = first.a + deck_of(other, sites, numbers).a
    return one, other, a @ a.T - first.products


def deck_of(seed: bytes, sites: int, numbers: int, products: Words | None = None) -> Deck:
    drawn = draw(seed, sites * (numbers + sites))
    table = drawn[sites * numbers :].reshape(sites, sites)
    return Deck(drawn[: sites * numbers].reshape(sites, numbers), table if products is None else products)


class ShareServer:
    """One of the two. `first` counts <e_i, e_j>, which both know, once."""

    def __init__(self, first: bool, clip: float, deck: Deck) -> None:
        self.first, self.clip, self.deck = first, clip, deck
        self.halves: dict[int, Words] = {}
        self.e: Words | None = None

    def take(self, site: int, half: Words) -> None:
        """What a site said; once."""
        n, d = self.deck.a.shape
        if site in self.halves or not 0 <= site < n or half.shape != (d,) or half.dtype != np.uint64:
            what = f"expected one report of {d} numbers from each of {n} sites."
            raise VitrailError("a report was refused", [Problem(f"site {site}", what, "The report was dropped.")])
        self.halves[site] = half

    def blinded(self, present: list[int]) -> Words:
        """For the other server: its half of x_i - a_i, of those of whom both have a half."""
        return np.stack([self.halves[i] - self.deck.a[i] for i in present])

    def products(self, present: list[int], mine: Words, theirs: Words) -> Words:
        """[site, site]: its half of all inner products."""
        self.e = e = mine + theirs
        a = self.deck.a[present]
        cross = e @ a.T
        gram = e @ e.T if self.first else np.uint64(0)
        out: Words = self.deck.products[np.ix_(present, present)] + cross + cross.T + gram
        return out

    def tested(self, present: list[int], lots: tuple[bytes, bytes]) -> Words:
        """[site, test]: its half of sums with signs that neither server drew alone."""
        signs = signs_of(lots, self.deck.a.shape[1])
        out: Words = np.stack([self.halves[i] for i in present]) @ signs.T
        return out

    def total(self, chosen: list[int]) -> Words:
        """Its half of the total of the chosen."""
        out: Words = np.sum([self.halves[i] for i in chosen], axis=0, dtype=np.uint64)
        return out


def squares(one: Words, other: Words, clip: float) -> NDArray[np.float64]:
    """[site, site]: inner products of the reports, from both halves."""
    return (one + other).view(np.int64) / 4.0**PLACES * clip**2


def signs_of(lots: tuple[bytes, bytes], numbers: int) -> Words:
    """[test, number] of -1, 0, 0, 1; mod 2^64"""
    seed = hashlib.sha256(b"\0".join(lots)).digest()
    bits = draw(seed, TESTS * numbers).reshape(TESTS, numbers)
    return (bits >> np.uint64(63)) - ((bits >> np.uint64(62)) & np.uint64(1))


def within(one: Words, other: Words) -> NDArray[np.bool_]:
    """[site]: whether all sums of a report are as small as a report's within the clip."""
    small = np.abs((one + other).view(np.int64) / 2.0**PLACES) < WIDE
    return np.asarray(small.all(1), dtype=np.bool_)


def opened(halves: list[tuple[Words, Words]], clip: float) -> tuple[NDArray[np.float64], list[int]]:
    """All of it in one place, for a simulation and for tests: the mean of the chosen, and who they are."""
    present, decks = list(range(len(halves))), deal(len(halves), len(halves[0][0]))
    servers = [ShareServer(i == 0, clip, deck) for i, deck in enumerate(decks)]
    for site, pair in enumerate(halves):
        for server, half in zip(servers, pair, strict=True):
            server.take(site, half)
    one, other = (server.blinded(present) for server in servers)
    products = squares(servers[0].products(present, one, other), servers[1].products(present, other, one), clip)
    lots = secrets.token_bytes(16), secrets.token_bytes(16)
    sound = within(*(server.tested(present, lots) for server in servers))
    chosen = choose_reports(products, sound, clip)
    if not chosen:
        return np.zeros(len(halves[0][0])), chosen
    return from_fixed_point(servers[0].total(chosen) + servers[1].total(chosen), clip) / len(chosen), chosen


def distances_to_mean(products: NDArray[np.float64], chosen: list[int]) -> NDArray[np.float64]:
    """[site]: how far each report is from the mean of the chosen, from inner products alone."""
    size, near = np.diag(products), products[:, chosen].mean(1)
    out: NDArray[np.float64] = np.sqrt((size - 2 * near + near[chosen].mean()).clip(min=0))
    return out

"""Two servers that open how far each update is from one user's, and a total weighted by that; no update is read.

For Weight Erosion (methods/weight_erosion.py), whose coordinator otherwise compares all updates itself.

    site i        x_i in fixed point = s_i + t_i mod 2^64, one half to either server (privacy/two_server/protocol.py)
    dealer        a_i uniform, and <a_i, a_i>; of each one half to either server. It sees no update
    the servers   y_0 = x_0 of the user, y_i = x_i - x_0; they open e_i = y_i - a_i, which is uniform, and then know
                  halves of     <y_i, y_i> = <e_i, e_i> + 2 <e_i, a_i> + <a_i, a_i>
                  both halves together are opened: |g_0|^2 and each |g_i - g_0|^2, N numbers; no pair without the user
    both          d_i = |g_i - g_0| / |g_0|, and from them, each for itself, the same weights w_i
                  W_i = w_i / sum w in fixed point; each adds up W_i times its halves; the total is opened

A total is opened only if its weights are worth at least `least` sites, (sum w)^2 / sum w^2: with (1, 0, 0), or
(1, 1e-6, 1e-6), the total would be one site's update. Mod 2^64 a long difference can have a small square; a total that
is longer than the clip, which no weighted mean of updates within the clip is, is not used. That bounds what a site that
lies can do in a round, and does not name it: Weight Erosion is not robust, as its report says.

What is told to both servers: these N numbers a round, the weights, and the total. With one user in a run that is one
total (and that of the model of all sites). With every site a user, the totals of the first round, in which all have the
same model, are as many equations as there are updates: whoever has them solves for each
(benchmarks/methods/erosion_two_servers.py does). What is trusted is as in protocol.py: that servers, and a server and
the dealer, do not put their parts together, and that all keep to what is written here.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.privacy.secure_sum.spec import draw
from vitrail.privacy.two_server.protocol import SEED, Deck, ShareServer, Words, from_fixed_point, shared

Floats = NDArray[np.float64]
# after the point, in units of the clip: the square of a difference, of at most 2 clips, stays below 2^57; a longer one
# can have a small square mod 2^64 only from 32 clips on
PLACES = 27
WEIGHT_PLACES = 30  # of a weight: a total stays below 2^58
LONGER = 1e-5  # share by which a total may be longer than the clip, for rounding


class OpenedDistances(NamedTuple):
    """What both servers know before they weigh."""

    distance: Floats  # [site]: |g_i - g_0| / |g_0|; 0 where the user's update vanished
    vanished: bool  # whether |g_0| is at the level of the fixed point
    error: Floats  # [site]: how far a distance may be from that of the exact updates


class DistanceServer(ShareServer):
    """One of the two, for one user and one round. Of the deck, `products` is [site]: <a_i, a_i>."""

    def __init__(self, first: bool, clip: float, deck: Deck, user: int) -> None:
        super().__init__(first, clip, deck)
        self.user = user

    def blinded(self, present: list[int]) -> Words:
        """For the other server: its half of y_i - a_i."""
        mine = self.halves[self.user]
        y = [self.halves[i] - (mine if i != self.user else np.uint64(0)) for i in present]
        return np.stack(y) - self.deck.a[present]

    def squares(self, present: list[int], mine: Words, theirs: Words) -> Words:
        """[site]: its half of the squares."""
        e = mine + theirs
        gram = (e * e).sum(1, dtype=np.uint64) if self.first else np.uint64(0)
        cross = (e * self.deck.a[present]).sum(1, dtype=np.uint64)
        out: Words = self.deck.products[present] + np.uint64(2) * cross + gram
        return out

    def weighted(self, present: list[int], weights: Words) -> Words:
        """[number]: its half of the weighted total."""
        out = np.zeros(self.deck.a.shape[1], np.uint64)
        for i, weight in zip(present, weights, strict=True):
            out += weight * self.halves[i]
        return out


def dealt_squares(sites: int, numbers: int) -> tuple[bytes, bytes, Words]:
    """At the dealer: what either server draws its part from, and the second's squares."""
    one, other = secrets.token_bytes(SEED), secrets.token_bytes(SEED)
    first = square_deck(one, sites, numbers)
    a = first.a + square_deck(other, sites, numbers).a
    return one, other, (a * a).sum(1, dtype=np.uint64) - first.products


def square_deck(seed: bytes, sites: int, numbers: int, squares: Words | None = None) -> Deck:
    drawn = draw(seed, sites * (numbers + 1))
    return Deck(drawn[sites:].reshape(sites, numbers), drawn[:sites] if squares is None else squares)


def with_shares(x: Floats, present: list[int], user: int, clip: float) -> tuple[DistanceServer, DistanceServer]:
    """Both servers with the halves of updates [site, number], for a simulation and for tests. What is longer than the
    clip is not shared."""
    n, d = x.shape
    one, other, table = dealt_squares(n, d)
    decks = square_deck(one, n, d), square_deck(other, n, d, table)
    first, second = (DistanceServer(i == 0, clip, deck, user) for i, deck in enumerate(decks))
    for i in present:
        for server, half in zip((first, second), shared(x[i], clip, PLACES), strict=True):
            server.take(i, half)
    return first, second


def open_distances(servers: tuple[DistanceServer, DistanceServer], present: list[int]) -> OpenedDistances:
    """Of the sites that are present; the user is one of them."""
    first, second = servers
    one, other = first.blinded(present), second.blinded(present)
    opened = first.squares(present, one, other) + second.squares(present, other, one)
    step, (n, d) = first.clip / 2.0**PLACES, first.deck.a.shape
    square = np.zeros(n)
    square[present] = opened.view(np.int64).astype(np.float64).clip(min=0)
    rounding = np.sqrt(d) / 2  # of a length, in steps: each number is off by half of one at most
    own = float(np.sqrt(square[first.user]))
    if own <= rounding:
        return OpenedDistances(np.zeros(n), True, np.full(n, np.inf))
    square[first.user] = 0.0  # the user's distance to itself; what was opened there is its length
    distance = np.sqrt(square) / own
    return OpenedDistances(distance, False, rounding * (2 + distance) / max(own - rounding, step))


def open_total(
    servers: tuple[DistanceServer, DistanceServer], present: list[int], weights: Floats, least: int
) -> Floats | None:
    """The mean of the updates by these weights [site]; None where it would tell too much of one, or is no mean of
    updates within the clip."""
    first, second = servers
    mine = weights[present]
    if effective_sites(mine) < least:
        return None
    fixed = np.rint(mine / mine.sum() * 2.0**WEIGHT_PLACES).astype(np.int64).view(np.uint64)
    total = first.weighted(present, fixed) + second.weighted(present, fixed)
    mean = from_fixed_point(total, first.clip, PLACES + WEIGHT_PLACES)
    return mean if float(np.linalg.norm(mean)) <= first.clip * (1 + LONGER) else None


def effective_sites(weights: Floats) -> float:
    """How many sites these weights are worth: n of n alike, and 1 where one has all.

    >>> effective_sites(np.array([1.0, 1.0, 1.0])), effective_sites(np.array([1.0, 0.0, 0.0]))
    (3.0, 1.0)
    """
    total = float(weights.sum())
    return total**2 / float((weights**2).sum()) if total > 0 else 0.0

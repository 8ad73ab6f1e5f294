"""How far one site lies from the others, in units of chance; exact where counts are small.

A *z* here is what a normal deviate with the same two-sided probability would be: comparable over all kinds of tests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, gammaincc, ndtr, ndtri, stdtr

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
ROUNDING = 1e-17  # a term that is smaller, as a share of its sum, changes nothing
EXACT = 30.0  # below so many expected in any of four cells, a probability is summed and not approximated


def as_z(p: Numbers, large: Numbers) -> Numbers:
    """A two-sided probability as |z|; `large` where it is too small to be told from nothing."""
    p = np.clip(p, 0.0, 1.0)
    z = -ndtri(np.maximum(p, 1e-15) / 2)
    return np.asarray(np.where(p < 1e-14, np.maximum(large, z), z))


def t_as_z(t: Numbers, df: Numbers) -> Numbers:
    """A |t| with so many degrees of freedom as |z|."""
    df = np.broadcast_to(df, np.shape(t))
    p = np.where(df < 400, 2 * stdtr(np.minimum(df, 400), -np.abs(t)), 2 * ndtr(-np.abs(t)))
    # far out, the tail of t falls by a power: its logarithm, and from that z
    far = np.sqrt(np.maximum(0, 2 * (df + 1) / 2 * np.log1p(t * t / df) - 2 * np.log(np.maximum(np.abs(t), 1))))
    return as_z(p, far)


def skewed_as_z(z: Numbers, skewness: Numbers) -> Numbers:
    """A deviate of a sum that is skewed to the right, as |z|: as if its distribution were a shifted gamma.

    >>> skewed_as_z(np.array([3.0, 3.0]), np.array([0.0, 1.0])).round(2).tolist()
    [3.0, 2.31]
    """
    shape = 4 / np.maximum(skewness, 1e-3) ** 2
    at = shape + np.maximum(z, 0.0) * np.sqrt(shape)
    far = np.sqrt(np.maximum(0.0, 2 * (at - shape - shape * np.log(at / shape))))
    p = np.where(skewness > 0.01, 2 * gammaincc(shape, at), 2 * ndtr(-np.maximum(z, 0.0)))
    return as_z(p, np.where(skewness > 0.01, far, z))


def deviance(a: Numbers, n: Numbers, b: Numbers, m: Numbers) -> Numbers:
    """Root of twice the log likelihood ratio of a of n against b of m."""
    p = (a + b) / np.maximum(n + m, 1)

    def part(x: Numbers, expected: Numbers) -> Numbers:
        with np.errstate(all="ignore"):
            return np.where(x > 0, x * np.log(np.maximum(x, 1e-12) / np.maximum(expected, 1e-12)), 0.0)

    both = part(a, n * p) + part(n - a, n * (1 - p)) + part(b, m * p) + part(m - b, m * (1 - p))
    return np.sqrt(np.maximum(0.0, 2 * both))


def log_choose(k: Numbers, y: Numbers) -> Numbers:
    """The logarithm of the number of ways to take y of k."""
    return np.asarray(-betaln(y + 1, k - y + 1) - np.log(k + 1))


def at_least(x: Numbers, total: Numbers, marked: Numbers, drawn: Numbers) -> Numbers:
    """The probability that among `drawn` of `total`, of which some are marked, x or more are marked (hypergeometric).

    scipy.stats has it too, and takes half a second to load: before the first round of every run.

    >>> at_least(np.array([2.0]), np.array([4.0]), np.array([2.0]), np.array([2.0])).round(6).tolist()
    [0.166667]
    """
    at = np.maximum(x, drawn - (total - marked))
    log = log_choose(marked, at) + log_choose(total - marked, drawn - at) - log_choose(total, drawn)
    term = np.exp(np.where(at <= np.minimum(marked, drawn), log, -np.inf))
    out = term.copy()
    while (term > ROUNDING * out).any():
        term = term * (marked - at) * (drawn - at) / ((at + 1) * (total - marked - drawn + at + 1))
        at = at + 1
        out += term
    return np.minimum(out, 1.0)


def compare_counts(a: Numbers, n: Numbers, b: Numbers, m: Numbers) -> Numbers:
    """|z| of a of n against b of m: Fisher's exact test, twice the smaller tail; 0 where nothing is known."""
    a, n, b, m = (np.asarray(x, np.float64) for x in np.broadcast_arrays(a, n, b, m))
    there = (n >= 1) & (m >= 1)
    p = (a + b) / np.maximum(n + m, 1)
    # half a row closer, as a count has steps
    gap = a - n * p
    nearer = a - np.sign(gap) * np.minimum(0.5, np.abs(gap))
    z = np.where(there, deviance(nearer, n, b + (a - nearer), m), 0.0)
    plain = np.where(there, deviance(a, n, b, m), 0.0)
    least = np.minimum(np.minimum(n, m) * np.minimum(p, 1 - p), np.inf)
    small = there & (least < EXACT) & (plain > 1.5)
    if small.any():
        x, k, y, q = a[small], n[small], b[small], m[small]
        tails = np.minimum(at_least(x, k + q, x + y, k), at_least(k - x, k + q, k + q - x - y, k))
        z[small] = as_z(np.nan_to_num(2 * tails, nan=1.0), plain[small])
    return z


def more_than(a: Numbers, n: Numbers, b: Numbers, m: Numbers, tried: Numbers) -> Numbers:
    """|z| of a of n being more than b of m, where the site chose the best of so many values that it tried."""
    a, n, b, m, tried = (np.asarray(x, np.float64) for x in np.broadcast_arrays(a, n, b, m, tried))
    plain = deviance(a, n, b, m)
    more = (n >= 1) & (m >= 1) & (a * m > b * n) & (plain > 1.5)
    tail = np.ones(a.shape)
    tail[more] = at_least(a[more], n[more] + m[more], a[more] + b[more], n[more]) * tried[more]
    large = np.sqrt(np.maximum(0.0, plain**2 - 2 * np.log(np.maximum(tried, 1))))
    return np.where(more, as_z(np.nan_to_num(tail, nan=1.0), large), 0.0)


def compare_odds(mine: Numbers, others: Numbers) -> float:
    """|z| that two tables (rows, first, second, both) have the same odds ratio: Zelen's exact test."""
    n, r, c, a = mine
    m, p, q, b = others
    both = a + b
    low = max(0.0, r + c - n, both - min(p, q))
    high = min(r, c, both - max(0.0, p + q - m))
    if high <= low:
        return 0.0
    x = np.arange(low, high + 1)
    log = log_choose(c, x) + log_choose(n - c, r - x) + log_choose(q, both - x) + log_choose(m - q, p - both + x)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    at = int(a - low)
    tail = 2 * min(weight[: at + 1].sum(), weight[at:].sum())
    mean, sd = (weight * x).sum(), np.sqrt((weight * x * x).sum() - (weight * x).sum() ** 2)
    return float(as_z(np.array(tail), np.array(abs(a - mean) / max(sd, 1e-9) * 0.8)))


def arcsine(share: Numbers) -> Numbers:
    """Shares, so that chance scatters all of them alike."""
    return np.arcsin(np.sqrt(np.clip(share, 0.0, 1.0)))


def spread_of_others(estimate: Numbers, variance: Numbers, there: Flags, trim: bool) -> tuple[Numbers, Numbers]:
    """[site, test]: how much the *other* sites differ beyond chance (a variance, may be negative), and from how many
    degrees of freedom. `trim`: but for the farthest of them, which may be faulty as well.
    """
    w = np.where(there, 1 / np.maximum(variance, 1e-12), 0.0)
    x = np.where(there, estimate, 0.0)
    # from the middle, so that sums of squares do not cancel
    x = np.where(there, x - (w * x).sum(0) / np.maximum(w.sum(0), 1e-12), 0.0)

    def moments(w: Numbers) -> tuple[Numbers, Numbers]:
        """Of all but each site, from sums over all."""
        k = (w > 0).sum(0) - (w > 0)
        s0, s1, s2, sq = (v.sum(0) - v for v in (w, w * x, w * x * x, w * w))
        q = s2 - s1**2 / np.maximum(s0, 1e-12)
        c = s0 - sq / np.maximum(s0, 1e-12)
        return np.where(k > 1, (q - (k - 1)) / np.maximum(c, 1e-12), 0.0), np.maximum(k - 1, 0)

    t, df = moments(w)
    if trim and len(x) >= 5:
        away = w * x * x
        order = np.argsort(-away, axis=0)
        test = np.arange(x.shape[1])
        first, second = order[0], order[1]
        less = w.copy()
        less[first, test] = 0.0
        t2, _ = moments(less)  # right for all but the farthest itself, whose farthest other is the second
        less2 = w.copy()
        less2[second, test] = 0.0
        t3, _ = moments(less2)
        t2[first, test] = t3[first, test]
        k = (w > 0).sum(0) - 1
        bigger = 1 / (1 - 1.9 / np.maximum(k, 3))
        t = np.where(t > 0, np.minimum(t, np.maximum(t2, 0.0) * bigger), t)
    return t, df.astype(float)


def usual_spread(t: Numbers, df: Numbers) -> Numbers:
    """[site, 1]: the median over tests of how much the other sites differ."""
    out = np.zeros((len(t), 1))
    for i, (some, free) in enumerate(zip(t, df, strict=True)):
        if (free > 0).any():
            out[i] = max(0.0, float(np.median(some[free > 0])))
    return out


def median_known(x: Numbers) -> Numbers:
    """Over the first axis, of what is not NaN; NaN where nothing is. (numpy's own is a hundred times slower.)"""
    x = np.sort(x, axis=0)  # NaN last
    finite = np.isfinite(x).sum(0)
    if not len(x):
        return np.full(x.shape[1:], np.nan)
    low, high = np.maximum(finite - 1, 0) // 2, np.minimum(finite // 2, len(x) - 1)
    both = [np.take_along_axis(x, at[None], 0)[0] for at in (low, high)]
    return np.where(finite > 0, (both[0] + both[1]) / 2, np.nan)

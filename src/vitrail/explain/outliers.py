"""Does one cell of a site x class table stand out? What the others say of it, and how surely.

Each cell has a number y (a log odds or a log) and what chance alone does to it, the variance s^2 (0 where unknown).
Sites and classes differ, and so do cells for no reason that anybody could name:

    y_sc = m + a_s + b_c + g'x_sc + e_sc + chance
    a ~ N(0, A^2),  b ~ N(0, B^2),  e ~ N(0, tau^2),  chance ~ N(0, s^2)

How large A, B and tau are is not known. Each combination of a few sizes is fitted to the *other* cells and weighed by
how well it foretells these (and by what was believed before, `NATURE`), so that no cell is judged by itself, and few
cells give wide expectations. What is expected of a cell is the mixture; the chance of what it shows, or more, is
integrated over it with the exact law of its counts.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

# standard deviations of a log odds, and how likely each was thought before anything was seen
NATURE = ((0.0, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7), (0.2, 0.2, 0.2, 0.17, 0.12, 0.08, 0.03))
EFFECTS = ((0.1, 0.4, 1.0), (0.4, 0.35, 0.25))
SCALES = np.geomspace(0.02, 2.0, 9)  # of tau, where chance is part of it
WIDE, SLOPE = 3.0, 0.5  # standard deviations of what is the same in all cells, and of g
HEAVY = 6.0  # degrees of freedom of tails that no count gives
FEWEST_SITES, FEWEST_CELLS = 3, 5
NORMAL = np.polynomial.hermite_e.hermegauss(25)  # where, and how much each counts
CHUNK = 4 * 10**6  # numbers in the largest array
GRID = np.linspace(-15, 15, 121)  # log odds at which tails of counts are computed
_SINH = np.linspace(-6, 6, 49)
STUDENT = np.sinh(_SINH), stats.t.pdf(np.sinh(_SINH), HEAVY) * np.cosh(_SINH)


class Expected(NamedTuple):
    """Of each known cell, by what the others say under each size of nature's variation: [size, cell]."""

    cells: NDArray[np.bool_]  # [site, class]: which are known
    weight: Floats
    mean: Floats
    spread: Floats  # standard deviation, beside what the cell's own counts do

    def table(self, values: Floats) -> Floats:
        """[cell] as [site, class]."""
        out = np.full(self.cells.shape, np.nan)
        out[self.cells] = values
        return out

    @property
    def middle(self) -> Floats:
        """[site, class]: the mean of the mixture."""
        return self.table((self.weight * self.mean).sum(0))


def expected(y: Floats, s2: Floats | None, beside: tuple[Floats, ...] = ()) -> Expected | None:
    """`y`: [site, class], NaN where unknown; `s2`: the variance that chance gives it, None: part of nature's;
    `beside`: what may explain y as well, [site, class] each. None where too few are known."""
    known = np.isfinite(y)
    site, kind = np.nonzero(known)
    if len(set(site.tolist())) < FEWEST_SITES or len(site) < FEWEST_CELLS:
        return None
    more = [np.where(np.isfinite(x[known]), x[known], 0.0) for x in beside]
    x = np.column_stack([np.ones(len(site)), *more, np.eye(y.shape[0])[site], np.eye(y.shape[1])[kind]])
    z, own = y[known], np.zeros(len(site)) if s2 is None else s2[known]
    natures = NATURE if s2 is not None else (tuple(SCALES), (1 / len(SCALES),) * len(SCALES))
    sizes = np.array(list(product(EFFECTS[0], EFFECTS[0], natures[0])))
    believed = np.array([np.prod(chances) for chances in product(EFFECTS[1], EFFECTS[1], natures[1])])
    counts = [1, len(more), *y.shape]
    sd = np.stack([np.repeat([WIDE, SLOPE, a, b], counts) for a, b, _ in sizes])
    variance = own + sizes[:, 2:] ** 2 + 1e-9
    step = max(1, CHUNK // x.size)
    parts = [_foretell(x, z, variance[i : i + step], sd[i : i + step]) for i in range(0, len(sizes), step)]
    mean, spread, others = (np.concatenate(part) for part in zip(*parts, strict=True))
    log = np.log(believed)[:, None] + others
    weight = np.exp(log - special.logsumexp(log, 0))
    return Expected(known, weight, mean, np.sqrt(np.maximum(spread - own, 1e-12)))


def _foretell(x: Floats, y: Floats, variance: Floats, sd: Floats) -> tuple[Floats, Floats, Floats]:
    """Under each size of variation, [size, cell]: mean and variance of a cell from the others, and the log density of
    all those others. Leave-one-out in closed form, of a linear model with normal coefficients of these `sd`."""
    weight = 1 / variance
    inner = (x.T * weight[:, None]) @ x + np.eye(sd.shape[1]) * sd[:, None] ** -2.0
    root = np.linalg.cholesky(inner)
    right = np.linalg.solve(root, np.broadcast_to(x.T, (len(sd), *x.T.shape)))  # squares: x' (X'WX + prior)^-1 x
    pulled = np.einsum("hpn,hn->hp", right, weight * y)
    room = np.maximum(1 - weight * (right**2).sum(1), 1e-9)
    off = (y - np.einsum("hpn,hp->hn", right, pulled)) / room
    all_together = -0.5 * ((weight * y**2).sum(1) - (pulled**2).sum(1) + np.log(variance).sum(1))
    all_together -= np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1) + np.log(sd).sum(1)
    var = variance / room
    return y - off, var, all_together[:, None] + 0.5 * (off**2 / var + np.log(var))


def chance_of_log(y: Floats, by: Expected) -> Floats:
    """[site, class]: the chance of a number as small as this."""
    tail = stats.t.cdf((y[by.cells] - by.mean) / by.spread, HEAVY)
    return by.table((by.weight * tail).sum(0))


def chance_of_counts(count: Floats, of: Floats, by: Expected) -> Floats:
    """[site, class]: the chance of so many or more of that many, at log odds as expected, with the tails of HEAVY."""
    cells = zip(count[by.cells], of[by.cells], strict=True)
    return by.table(_integrated(by, [_log_tail(np.arange(n + 1), (n,), k) for k, n in cells], STUDENT))


def chance_of_ratio(own: Floats, away: Floats, by: Expected) -> Floats:
    """[site, class]: the chance of so many right at home or more, given how many were right at home and away together,
    at a log odds ratio as expected (Fisher's noncentral hypergeometric law). own, away: [site, class, (right, of)]."""
    tails = []
    for (a, n), (b, m) in zip(own[by.cells], away[by.cells], strict=True):
        tails.append(_log_tail(np.arange(max(0, a + b - m), min(n, a + b) + 1), (n, m), a, a + b))
    return by.table(_integrated(by, tails, NORMAL))


def _log_tail(x: Floats, of: tuple[float, ...], least: float, total: float = 0.0) -> Floats:
    """At each of GRID the log chance of `least` or more, where x of of[0] have C(of[0], x) ways, and the rest of the
    total C(of[1], total - x): a binomial law, or a hypergeometric one."""
    ways = special.gammaln(x + 1) + special.gammaln(of[0] - x + 1)
    for n in of[1:]:
        ways = ways + special.gammaln(total - x + 1) + special.gammaln(n - total + x + 1)
    log = GRID[:, None] * x - ways
    chance = np.exp(log - log.max(1, keepdims=True))
    return np.asarray(np.log(np.maximum(chance[:, x >= least].sum(1) / chance.sum(1), 1e-300)))


def _integrated(by: Expected, tails: list[Floats], nodes: tuple[Floats, Floats]) -> Floats:
    """[cell]: the mean of a tail, its log given at GRID, over what is expected."""
    at, counts = nodes[0], nodes[1] / nodes[1].sum()
    out = np.empty(len(tails))
    for i, tail in enumerate(tails):
        theta = by.mean[:, i, None] + by.spread[:, i, None] * at
        out[i] = by.weight[:, i] @ (np.exp(np.interp(theta, GRID, tail)) @ counts)
    return np.minimum(out, 1)

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
from scipy import special

Floats = NDArray[np.float64]

# standard deviations of a log odds, and how likely each was thought before anything was seen
NATURE = ((0.0, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7), (0.2, 0.2, 0.2, 0.17, 0.12, 0.08, 0.03))
EFFECTS = ((0.1, 0.4, 1.0), (0.4, 0.35, 0.25))
SCALES = np.geomspace(0.02, 2.0, 9)  # of tau, where chance is part of it
WIDE, SLOPE = 3.0, 0.5  # standard deviations of what is the same in all cells, and of g
HEAVY = 6.0  # degrees of freedom of tails that no count gives
FEWEST_SITES, FEWEST_CELLS = 3, 5
NORMAL = np.polynomial.hermite_e.hermegauss(25)  # where, and how much each counts
GRID = np.linspace(-15, 15, 121)  # log odds at which tails of counts are computed


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


def expected(y: Floats, s2: Floats | None, covariates: tuple[Floats, ...] = ()) -> Expected | None:
    """`y`: [site, class], NaN where unknown; `s2`: the variance that chance gives it, None: part of nature's;
    `covariates`: what may explain y as well, [site, class] each. None where too few are known."""
    cells = np.isfinite(y)
    if cells.any(1).sum() < FEWEST_SITES or cells.sum() < FEWEST_CELLS:
        return None
    same = np.stack([np.ones(y.shape), *(np.where(cells & np.isfinite(x), x, 0.0) for x in covariates)])
    own = np.zeros(y.shape) if s2 is None else np.where(cells, s2, 0.0)
    natures = NATURE if s2 is not None else (tuple(SCALES), (1 / len(SCALES),) * len(SCALES))
    sizes = np.array(list(product(EFFECTS[0], EFFECTS[0], natures[0])))
    believed = np.array([np.prod(chances) for chances in product(EFFECTS[1], EFFECTS[1], natures[1])])
    sd = np.stack([np.repeat([WIDE, SLOPE, a, b], [1, len(covariates), *y.shape]) for a, b, _ in sizes])
    variance = own + sizes[:, 2, None, None] ** 2 + 1e-9
    mean, total, others = (part[:, cells] for part in _foretell(np.where(cells, y, 0.0), cells, variance, same, sd))
    log = np.log(believed)[:, None] + others
    weight = np.exp(log - special.logsumexp(log, 0))
    return Expected(cells, weight, mean, np.sqrt(np.maximum(total - own[cells], 1e-12)))


def _foretell(
    y: Floats, cells: NDArray[np.bool_], variance: Floats, same: Floats, sd: Floats
) -> tuple[Floats, Floats, Floats]:
    """Under each size of variation, [size, site, class]: mean and variance of a cell from the others, and the log
    density of all those others. Leave-one-out in closed form, of a linear model with normal coefficients of these `sd`
    [size, coefficient]: first those of `same` [coefficient, site, class], then one of each site, then of each class."""
    many, (sites, classes) = len(same), y.shape
    here, there = slice(many, many + sites), slice(many + sites, None)  # coefficients of sites, and of classes
    weight = np.where(cells, 1 / variance, 0.0)
    inner = np.zeros((len(sd), many + sites + classes, many + sites + classes))
    weighed = weight[:, None] * same
    inner[:, :many, :many] = np.einsum("hisc,jsc->hij", weighed, same)
    for part, axis in ((here, 3), (there, 2)):
        sums = weighed.sum(axis)
        inner[:, :many, part], inner[:, part, :many] = sums, sums.transpose(0, 2, 1)
    inner[:, here, there], inner[:, there, here] = weight, weight.transpose(0, 2, 1)
    whole = np.arange(inner.shape[1])
    inner[:, whole, whole] += sd**-2.0
    inner[:, whole[here], whole[here]] += weight.sum(2)
    inner[:, whole[there], whole[there]] += weight.sum(1)
    pull = np.concatenate([(weighed * y).sum((2, 3)), (weight * y).sum(2), (weight * y).sum(1)], 1)
    inverse = np.linalg.inv(inner)
    fitted = np.einsum("hij,hj->hi", inverse, pull)
    mean = np.einsum("hi,isc->hsc", fitted[:, :many], same) + fitted[:, here, None] + fitted[:, None, there]
    loose = np.einsum("isc,hij,jsc->hsc", same, inverse[:, :many, :many], same) + 2 * inverse[:, here, there]
    for part, axis in ((here, 3), (there, 2)):
        between = np.expand_dims(inverse[:, :many, part], axis)
        loose += 2 * (between * same).sum(1) + np.expand_dims(inverse[:, whole[part], whole[part]], axis - 1)
    room = np.maximum(1 - weight * loose, 1e-9)
    off, total = (y - mean) / room, variance / room
    together = -0.5 * ((weight * y**2).sum((1, 2)) - (pull * fitted).sum(1) + np.log(variance[:, cells]).sum(1))
    together -= 0.5 * np.linalg.slogdet(inner)[1] + np.log(sd).sum(1)
    return y - off, total, together[:, None, None] + 0.5 * (off**2 / total + np.log(total))


def chance_of_log(y: Floats, by: Expected) -> Floats:
    """[site, class]: the chance of a number as small as this."""
    from scipy import stats  # takes half a second to load, and few verbs ask for it

    tail = stats.t.cdf((y[by.cells] - by.mean) / by.spread, HEAVY)
    return by.table((by.weight * tail).sum(0))


def chance_of_ratio(own: Floats, away: Floats, by: Expected) -> Floats:
    """[site, class]: the chance of more right at home, and half that of just as many (Lancaster's mid-p: with few
    pictures the whole promises far less than it keeps), given how many were right at home and away together, at a log
    odds ratio as expected (Fisher's noncentral hypergeometric law). own, away: [site, class, (right, of)]."""
    tails = []
    for (a, n), (b, m) in zip(own[by.cells], away[by.cells], strict=True):
        tails.append(_log_tail(np.arange(max(0, a + b - m), min(n, a + b) + 1), n, m, a, a + b))
    return by.table(_integrated(by, tails))


def _log_tail(x: Floats, n: float, m: float, least: float, total: float) -> Floats:
    """At each of GRID the log chance of more than `least` and half of that of `least`, where x of n have C(n, x) ways
    and the rest of the total C(m, total - x)."""
    ways = special.gammaln(x + 1) + special.gammaln(n - x + 1)
    ways = ways + special.gammaln(total - x + 1) + special.gammaln(m - total + x + 1)
    log = GRID[:, None] * x - ways
    chance = np.exp(log - log.max(1, keepdims=True))
    tail = chance @ np.where(x > least, 1.0, np.where(x == least, 0.5, 0.0))
    return np.asarray(np.log(np.maximum(tail / chance.sum(1), 1e-300)))


def _integrated(by: Expected, tails: list[Floats]) -> Floats:
    """[cell]: the mean of a tail, its log given at GRID, over what is expected."""
    at, counts = NORMAL[0], NORMAL[1] / NORMAL[1].sum()
    out = np.empty(len(tails))
    for i, tail in enumerate(tails):
        theta = by.mean[:, i, None] + by.spread[:, i, None] * at
        out[i] = by.weight[:, i] @ (np.exp(np.interp(theta, GRID, tail)) @ counts)
    return np.minimum(out, 1)

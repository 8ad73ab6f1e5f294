"""Whether a model's risks come true, and whether acting on them does more good than acting on all or on none.

    calibration       of a group of n rows with e events: e / n beside the mean risk; Wilson's interval
    observed/expected events over the sum of risks; 1 is right
    intercept, slope  logit P(event) = a + b logit(risk), by maximum likelihood; a at b = 1. 0 and 1 are right;
                      b < 1: risks too extreme, b > 1: too timid (Cox 1958; Van Calster et al. 2016)
    the test          twice the gain in log likelihood of (a, b) over (0, 1) is chi-squared of 2 under a calibrated
                      model; of counts alone, sum of (events - expected)^2 / (expected (1 - mean risk)), chi-squared of
                      as many as there are groups: the variance in it is too large, so that it alarms less often
    net benefit       at a threshold t: true positives/n - false positives/n t / (1 - t) (Vickers and Elkin 2006);
                      of treating all: the same with every row positive; of treating none: 0
    Brier's parts     (Murphy 1973) over groups: off = sum n (mean risk - share)^2 / N, told apart = sum n (share -
                      all)^2 / N, left = all (1 - all)

Intervals are of the rows alone: 95 %, by drawing rows again (of counts: counts again, which is the same). Where persons
have several rows, counts are brought down to persons before (`RiskCounts.of_persons`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from vitrail.metrics.calibration import Floats, RiskCounts

LEVEL = 0.05  # of being wrong, where a calibrated model is said to be off
DRAWS = 500
Z = 1.959964
CLIP = 1e-6  # risks of 0 and 1 have no logit
FINE = tuple(k / 100 for k in range(1, 100))  # thresholds of a site that looks at its own rows


class RateInterval(NamedTuple):
    value: float
    low: float
    high: float


class CalibrationLine(NamedTuple):
    """Intercept and slope of events over risks."""

    intercept: RateInterval  # with the slope held at 1
    slope: RateInterval
    p: float  # of the test that both are right


class Benefit(NamedTuple):
    """[threshold]: net benefit, and by how much it beats the better of treating all and none."""

    at: Floats
    model: Floats
    low: Floats
    high: Floats
    all: Floats
    gain_low: Floats  # of the gain; all of them hold at once, in 95 of 100 samples

    @property
    def useful(self) -> tuple[float, float] | None:
        """The longest run of thresholds at which the gain's interval lies above nothing."""
        best: tuple[int, int] | None = None
        start = None
        for i, good in enumerate([*(self.gain_low > 0), False]):
            if good and start is None:
                start = i
            elif not good and start is not None:
                if best is None or i - start > best[1] - best[0] + 1:
                    best = (start, i - 1)
                start = None
        return None if best is None else (float(self.at[best[0]]), float(self.at[best[1]]))


class BrierParts(NamedTuple):
    """Of the Brier score over groups."""

    off: float  # how far groups' risks are from what came: 0 is right
    apart: float  # how far groups are told apart: more is better
    left: float  # what no model can explain: of always saying the share


def wilson(events: float, rows: float) -> RateInterval:
    """The share, and its 95 % interval."""
    share = events / rows
    middle, wide = share + Z**2 / (2 * rows), Z * math.sqrt(share * (1 - share) / rows + Z**2 / (4 * rows**2))
    return RateInterval(share, (middle - wide) / (1 + Z**2 / rows), (middle + wide) / (1 + Z**2 / rows))


def observed_expected(counts: RiskCounts) -> RateInterval:
    """Events over those that were expected; the interval by Wilson's of the events."""
    expected = max(float(counts.expected.sum()), 1e-9)
    share = wilson(float(counts.events.sum()), counts.total)
    return RateInterval(*(s * counts.total / expected for s in share))


def counts_test(counts: RiskCounts) -> float:
    """The chance of groups being so far off under a calibrated model, or more; too large, if anything."""
    variance = counts.expected * (1 - counts.expected / counts.rows)
    off = (counts.events - counts.expected) ** 2 / np.maximum(variance, 1e-9)
    return float(chdtrc(len(off), off.sum()))


def fit_line(risk: Floats, event: NDArray[np.bool_], share: float = 1.0) -> CalibrationLine | None:
    """None where all rows have the event, or none, or where risks tell them apart without a mistake. `share`: how many
    persons there are for each row; intervals are then as wide as those of so many rows."""
    y = event.astype(np.float64)
    if len(np.unique(y)) < 2:
        return None
    x = np.log(np.clip(risk, CLIP, 1 - CLIP) / np.clip(1 - risk, CLIP, 1))
    one = _newton(np.ones((len(x), 1)), y, x)
    both = _newton(np.stack([np.ones(len(x)), x], 1), y, np.zeros(len(x)))
    if one is None or both is None:
        return None
    (a, a_sd), (b, b_sd) = (one[0][0], one[1][0]), (both[0][1], both[1][1])
    gain = 2 * (_likelihood(both[0][0] + both[0][1] * x, y) - _likelihood(x, y))
    wide = Z / math.sqrt(share)
    level, slope = (RateInterval(v, v - wide * sd, v + wide * sd) for v, sd in ((a, a_sd), (b, b_sd)))
    return CalibrationLine(level, slope, float(chdtrc(2, max(gain * share, 0.0))))


def _newton(x: Floats, y: Floats, offset: Floats) -> tuple[Floats, Floats] | None:
    """Logistic regression: coefficients and their standard errors; None where it runs away."""
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-(offset + x @ w)))
        curve = (x * (p * (1 - p))[:, None]).T @ x
        if np.linalg.cond(curve) > 1e12:
            return None
        step = np.linalg.solve(curve, x.T @ (y - p))
        w = w + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-9:
            return w, np.sqrt(np.diag(np.linalg.inv(curve)))
    return None


def _likelihood(z: Floats, y: Floats) -> float:
    return float((y * z - np.logaddexp(0, z)).sum())


def net_benefit(counts: RiskCounts, draws: int = DRAWS, seed: int = 38) -> Benefit:
    """At the risks where groups begin, but for the lowest."""
    at = counts.low[1:]
    cells = np.concatenate([counts.events, counts.rows - counts.events])  # [event or not x group]
    n = max(counts.total, 1.0)
    drawn = np.random.default_rng(seed).multinomial(round(n), cells / n, draws).astype(np.float64)
    model, everyone = _benefit(cells[None], at)
    models, alls = _benefit(drawn, at)
    gain = models - np.maximum(alls, 0.0)
    if not len(at):
        return Benefit(at, at, at, at, at, at)
    low, high = np.quantile(models, [0.025, 0.975], axis=0)
    best, spread = model[0] - np.maximum(everyone[0], 0.0), gain.std(0)
    moves = spread > 1e-12  # else no row is treated otherwise, and nothing is gained
    far = ((gain - best)[:, moves] / spread[moves]).max(1, initial=0.0)  # of all thresholds: many are looked at
    surely = np.where(moves, best - max(float(np.quantile(far, 1 - LEVEL)), Z) * spread, 0.0)
    return Benefit(at, model[0], low, high, everyone[0], surely)


def _benefit(cells: Floats, at: Floats) -> tuple[Floats, Floats]:
    """[draw, threshold]: of the model, and of treating all; cells [draw, event or not x group]."""
    events, others = np.split(cells, 2, axis=1)
    n, odds = cells.sum(1)[:, None], at / (1 - at)
    above = [part[:, ::-1].cumsum(1)[:, ::-1][:, 1:] for part in (events, others)]
    everyone = [part.sum(1)[:, None] for part in (events, others)]
    return (above[0] - above[1] * odds) / n, (everyone[0] - everyone[1] * odds) / n


def brier_parts(counts: RiskCounts) -> BrierParts:
    share, n = counts.events / counts.rows, counts.total
    off = float((counts.rows * (counts.expected / counts.rows - share) ** 2).sum() / n)
    apart = float((counts.rows * (share - counts.share) ** 2).sum() / n)
    return BrierParts(off, apart, counts.share * (1 - counts.share))


def is_off(counts: RiskCounts, line: CalibrationLine | None = None) -> bool:
    """Whether risks do not come true; a calibrated model is said to be off about once in twenty times."""
    return (line.p if line else counts_test(counts)) < LEVEL


def judge(counts: RiskCounts, line: CalibrationLine | None = None) -> str:
    """In words whether risks come true."""
    if not is_off(counts, line):
        return "no sign that its risks are off"
    ratio, sentences = observed_expected(counts), []
    if ratio.low > 1:
        sentences.append("its risks are too low")
    elif ratio.high < 1:
        sentences.append("its risks are too high")
    if line and line.slope.high < 1:
        sentences.append(
            "they are too extreme: high risks are too high, low risks too low"
            if sentences
            else "its risks are too extreme"
        )
    elif line and line.slope.low > 1:
        sentences.append(
            "they are too timid: closer to the average than the observed rates"
            if sentences
            else "its risks are too timid"
        )
    return "; ".join(sentences) or "its risks are off in some groups"

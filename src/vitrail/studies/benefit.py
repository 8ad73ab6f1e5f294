"""Is joining worth it? One site's losses on rows that were not trained on, alone and under each federated method.

The gain of a fold is the mean loss of the site's own model less that of the joined one, on the site's rows of the fold;
the gain is the mean over folds and repeats, its interval widened for rows that folds share (stats/intervals.py).

    yes          the interval is above zero
    no harm      it is above -harm: joining may gain or not, but loses no more than that
    no           it is below zero, and reaches below -harm
    cannot tell  it reaches further down

Which method a federation would use is chosen by the rows of the *other* sites: a federation uses one, and a site's own
luck has no part in it. Chosen by the site's own rows outside each fold, many methods that all change nothing made far
too many sites "gain" or "lose" (tests/studies/test_benefit.py). Where there is no other site, that is all there is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from vitrail.stats.intervals import BELOW, LEVEL, interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
YES, NO, NO_HARM, UNSURE = "yes", "no", "no harm", "cannot tell"
SEEN = 0.8  # how often the smallest gain that could be seen would be seen
HARM = 0.03  # the default, a share of the loss of a model that gives the same answer to every row


class SiteLosses(NamedTuple):
    """Of one site's rows, each judged in every repeat by a model that was not trained on it."""

    alone: Floats  # [repeat, row]
    joined: Floats  # [method, repeat, row]
    fold: Ints  # [repeat, row]
    test_share: float  # of the rows, in each fold
    elsewhere: Floats | None = None  # [method]: how each does at the other sites, less is better

    def first(self, repeats: int) -> SiteLosses:
        alone, joined, fold = self.alone[:repeats], self.joined[:, :repeats], self.fold[:repeats]
        return self._replace(alone=alone, joined=joined, fold=fold)


class BenefitAnswer(NamedTuple):
    """A gain is a loss saved; NaN where there is none to tell."""

    verdict: str
    best: int  # the method: that chosen elsewhere, or else the one that does best over all rows
    alone: float  # mean loss
    joined: float  # of what was chosen fold by fold
    gain: float
    low: float
    high: float
    least: float  # the smallest gain that would be seen in four of five studies like this one
    needed: float  # about how many rows it would take to see the gain as it is estimated

    def settled(self, harm: float) -> bool:
        """Whether more repeats could hardly change it: it gains, or loses, or neither by as much as would matter."""
        return self.verdict in (YES, NO) or (self.low > -harm and self.high < harm)


def decide(losses: SiteLosses, harm: float = 0.0, level: float = LEVEL, below: float = BELOW) -> BenefitAnswer:
    """`harm`: the loss that would not matter, in the unit of the losses. `level` of the interval, both sides; `below`:
    its part on the lower one."""
    folds = int(losses.fold.max()) + 1
    inside = losses.fold[..., None] == np.arange(folds)  # [repeat, row, fold]
    chosen, best = _choose(losses.joined, inside)
    if losses.elsewhere is not None:
        best = int(np.where(np.isnan(losses.elsewhere), math.inf, losses.elsewhere).argmin())
        chosen = np.full_like(chosen, best)
    rows = losses.fold.shape[1]
    picked = np.take_along_axis(losses.joined, _by_row(chosen, losses.fold)[None], 0)[0]  # [repeat, row]
    apart = (losses.alone - picked) * (folds / rows)
    gains = np.einsum("ri,rik->rk", apart, inside).ravel()  # [repeat x fold]: their mean is that over all rows
    gain, low, high = interval(gains.tolist(), losses.test_share, level=level, below=below)
    degrees = int(np.isfinite(gains).sum()) - 1
    least = needed = math.nan
    if degrees > 0:
        t = float(stdtrit(degrees, 1 - level * below))
        least = (gain - low) * (1 + float(stdtrit(degrees, SEEN)) / t)
        needed = rows * (least / gain) ** 2 if gain else math.inf
    verdict = UNSURE
    if low > 0:
        verdict = YES
    elif low > -harm:
        verdict = NO_HARM
    elif high < 0:
        verdict = NO
    return BenefitAnswer(verdict, best, _mean(losses.alone), _mean(picked), gain, low, high, least, needed)


def _choose(joined: Floats, inside: NDArray[np.bool_]) -> tuple[Ints, int]:
    """[repeat, fold]: the method that does best on rows outside the fold; and the one that does over all rows."""
    observed = ~np.isnan(joined)
    count = observed.sum(1)  # [method, row]: of repeats
    mean = np.where(observed, joined, 0.0).sum(1) / count.clip(min=1)  # [method, row]
    here = (count > 0).astype(np.float64)

    def ranked(sums: Floats, counts: Floats) -> Floats:
        return np.where(counts > 0, sums / counts.clip(min=1), math.inf)

    total, many = mean.sum(1), here.sum(1)
    over_all = ranked(total, many)  # [method]
    outside = total[:, None, None] - np.einsum("mi,rik->mrk", mean, inside)
    others = many[:, None, None] - np.einsum("mi,rik->mrk", here, inside)
    best = ranked(outside, others)
    best = np.where(np.isfinite(best).any(0), best, over_all[:, None, None])  # a single fold has no others
    return best.argmin(0), int(over_all.argmin())


def _by_row(chosen: Ints, fold: Ints) -> Ints:
    """[repeat, fold] -> [repeat, row]"""
    return np.take_along_axis(chosen, fold, 1)


def _mean(values: Floats) -> float:
    return float(values.mean())


def why(
    answer: BenefitAnswer, title: str, words: str, row: str, rows: int, harm: float, seeds: int, crossed: bool
) -> str:
    """The verdict's reason with its numbers. `title` of the method, `words` of the yardstick; `crossed`: over folds."""
    gain, low, high, least = answer.gain, answer.low, answer.high, answer.least
    over = f"over {seeds} seed{'s' if seeds > 1 else ''}"
    if math.isnan(gain):
        return f"The {words} is not defined at this site."
    if math.isnan(low):
        return "One seed gives no spread. Compare over several seeds."
    if answer.verdict == YES:
        saves = f"{title} saves {gain:.3f} of {words}" if crossed else f"{title} lifts {words} by {gain:.3f}"
        return f"{saves}, at least {low:.3f}, {over}." if crossed else f"{saves}, at least by {low:.3f}, {over}."
    if answer.verdict == NO:
        loses = f"costs {-gain:.3f}" if crossed else f"loses {-gain:.3f}"
        return f"{title if crossed else f'Even {title}'} {loses} of {words}, at least {-high:.3f}, {over}."
    text = f"With {title} the change of {gain:+.3f} lies between {low:+.3f} and {high:+.3f}: "
    if not crossed:
        return text + f"too close to zero to decide from {rows} test {row}s."
    if answer.verdict == NO_HARM:
        gains = "it does not gain" if high < 0 else "it is unclear whether it gains"
        text += f"joining costs less than {harm:.3f}, which counts as no harm; {gains}. "
    else:
        text += f"too close to zero to decide from {rows} {row}s. "
    text += f"Four of five such studies would detect a change of {least:.3f}"
    return text + (
        f"; detecting {abs(gain):.3f}, if that is the true change, takes about {_about(answer.needed)} {row}s."
        if gain
        else "."
    )


def _about(count: float) -> str:
    """Two figures are more than is known.

    >>> _about(1234.0), _about(87.0), _about(4e9)
    ('1200', '87', 'more than a million')
    """
    if count > 1e6:
        return "more than a million"
    digits = max(0, len(str(round(count))) - 2)
    return str(round(round(count), -digits))

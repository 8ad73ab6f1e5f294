"""Time to event: how a row's outcome is written, and how good answers about it are, at every site at once.

An outcome is one number: how long the row was followed, in agreed intervals and parts of them, negative where the
event was not seen until then (as XGBoost writes it). An answer is the share of such rows that would still be free of
the event at the end of each interval. Where an event and the end of follow-up fall together, the event came first.

    hazard      h_k = P(event in interval k | none before);  S_k = prod_{j <= k} (1 - h_j)
    likelihood  event in interval k: S_{k-1} - S_k;  followed through m intervals without: S_m. Half an interval or more
                counts as the whole of it, less as nothing
    Harrell's C shares of the pairs in which the row with the earlier event had the higher risk by the last interval
    Uno's C     the same, pairs weighted by G(T_i-)^-2, where G is the chance of still being followed (Kaplan-Meier)
    Brier       at the end of each interval, rows weighted by 1 / G at the moment until which they are known; their mean
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SOON = 1e-9  # intervals: an event at once is one, and has a sign
SMALLEST = 1e-15  # share, so that its logarithm is a number
GROUPS = ("low", "middle", "high")  # thirds of a site's rows by risk
RISK_NUMBERS = ("free", "left")  # what is told of each third: the share without the event, and rows still followed
NORMAL = 1.959964  # standard errors in half of a 95 % interval
GRID = 10  # parts of the time until the horizon, at whose ends numbers at risk are kept
UNKNOWN = -1.0  # in `periods`: of an interval of which nothing is known


def in_intervals(time: Floats, happened: NDArray[np.bool_], ends: tuple[float, ...]) -> Floats:
    """[row] outcomes; what happens after the last end is not seen.

    >>> in_intervals(np.array([5.0, 15.0, 20.0, 25.0]), np.array([True, False, True, True]), (10.0, 20.0)).tolist()
    [0.5, -1.5, 2.0, -2.5]
    """
    edges = np.array([0.0, *ends])
    k = np.searchsorted(edges[1:-1], time)  # the interval whose end is at or after the time; the last goes on
    units = np.maximum(k + (time - edges[k]) / np.diff(edges)[k], SOON)
    return np.asarray(np.where(happened & (units <= len(ends)), units, -units), np.float64)


def in_days(y: Floats, ends: tuple[float, ...]) -> Floats:
    """[row]: how long each was followed, in the unit of the ends."""
    edges = np.array([0.0, *ends])
    k = np.minimum(np.ceil(np.abs(y)).astype(np.int64) - 1, len(ends) - 1)
    return np.asarray(edges[k] + (np.abs(y) - k) * np.diff(edges)[k])


def lasted(y: Floats) -> Ints:
    """[row]: through how many intervals it is known to have had no event."""
    return np.where(y > 0, np.ceil(y) - 1, np.floor(-y + 0.5)).astype(np.int64)


def periods(y: Floats, intervals: int) -> Floats:
    """[row, interval]: 0 without the event, 1 where it happened, UNKNOWN after that and after the end of follow-up.

    >>> periods(np.array([1.5, -1.5, -1.4, -9.0]), 3).tolist()
    [[0.0, 1.0, -1.0], [0.0, 0.0, -1.0], [0.0, -1.0, -1.0], [0.0, 0.0, 0.0]]
    """
    k, done = np.arange(intervals), lasted(y)[:, None]
    return np.where(k < done, 0.0, np.where((k == done) & (y > 0)[:, None], 1.0, UNKNOWN))


def losses(y: Floats, p: Floats) -> Floats:
    """[row]: minus the logarithm of the likelihood; NaN where the answer is."""
    survival = np.concatenate([np.ones((len(p), 1)), p], 1)  # [row, end]
    row, done = np.arange(len(p)), np.minimum(lasted(y), p.shape[1])
    free = survival[row, done]
    fell = free - survival[row, np.minimum(done + 1, p.shape[1])]
    return np.asarray(-np.log(np.where(y > 0, fell, free).clip(SMALLEST, 1)))


def life_table(y: Floats, intervals: int, w: Floats | None = None) -> Floats:
    """[interval]: the share still free of the event at the end of each, as these rows say: the best single answer.

    >>> life_table(np.array([0.5, -1.0, 1.5, -2.0]), 2).tolist()
    [0.75, 0.375]
    """
    outcomes, weight = periods(y, intervals), np.ones(len(y)) if w is None else w
    events, risk = weight @ (outcomes == 1), weight @ (outcomes != UNKNOWN)
    return np.asarray(np.cumprod(1 - events / np.where(risk > 0, risk, 1)))


def survival_curve(y: Floats, w: Floats | None = None) -> tuple[Floats, Floats]:
    """Kaplan-Meier: the times of events, and the share still free of the event from each on.

    >>> survival_curve(np.array([1.0, -2.0, 3.0]))
    (array([1., 3.]), array([0.66666667, 0.        ]))
    """
    order = _in_time(y)
    t, weight = y[order], (np.ones(len(y)) if w is None else w)[order]
    share = np.cumprod(np.where(t > 0, 1 - weight / _onwards(weight), 1.0))
    last = np.append(t[1:] != t[:-1], True)[: len(t)] & (t > 0)
    return t[last], np.asarray(share[last], np.float64)


def concordance(y: Floats, risk: Floats, w: Floats, uno: bool = False) -> float:
    """Harrell's C of a site's rows, or Uno's; ties of risk count half. NaN where no two rows can be compared."""
    place = 2 * np.unique(np.abs(y), return_inverse=True)[1] + (y < 0)  # an event goes before who leaves at that time
    rank = np.unique(risk, return_inverse=True)[1]
    ranks, happened = len(y) + 1, y > 0
    won, pairs = np.zeros(len(y)), np.zeros(len(y))
    for bit in range(int(place.max(initial=0)).bit_length()):  # of two places the greater has a 1 at the one bit
        later, group = (place >> bit) & 1 == 1, place >> (bit + 1)  # where they part, and the bits before are the same
        key = group * ranks + rank
        after, mine = np.flatnonzero(later), np.flatnonzero(happened & ~later)
        after = after[np.argsort(key[after], kind="stable")]
        keys, up_to = key[after], np.append(0.0, w[after].cumsum())
        first, last = (up_to[np.searchsorted(keys, (group[mine] + k) * ranks)] for k in (0, 1))
        under, level = (up_to[np.searchsorted(keys, key[mine], side)] for side in ("left", "right"))
        won[mine] += (under + level) / 2 - first
        pairs[mine] += last - first
    by = w * followed(y, w) ** -2 if uno else w
    return float((by * won).sum() / (by * pairs).sum())


def brier_at_ends(y: Floats, p: Floats, w: Floats) -> Floats:
    """[interval], of a site's rows; NaN where nobody was followed so long."""
    order, time, out = _in_time(y), np.abs(y), np.full(p.shape[1], np.nan)
    steps, until = _log_left(y[order], w[order]), followed(y, w)
    for k, end in enumerate(range(1, p.shape[1] + 1)):
        free, fell = (time > end) | (y == -end), (y > 0) & (y <= end)
        if free.any() or fell.all():
            left = np.exp(steps[time[order] < end].sum())
            wrong = np.where(fell, p[:, k] ** 2 / until, 0.0) + free * (1 - p[:, k]) ** 2 / left
            out[k] = (w * wrong).sum() / w.sum()
    return out


def integrated_brier(y: Floats, p: Floats, w: Floats) -> float:
    """The mean over the ends of intervals that somebody was followed to."""
    briers = brier_at_ends(y, p, w)
    seen = np.isfinite(briers)
    return float(briers[seen].mean()) if seen.any() else float("nan")


def followed(y: Floats, w: Floats) -> Floats:
    """[row]: the chance of being followed until just before this row's end, as a site's rows say: G(T-)."""
    order = _in_time(y)
    total = np.append(0.0, _log_left(y[order], w[order]).cumsum())
    out = np.empty(len(y))
    out[order] = np.exp(total[np.searchsorted(np.abs(y[order]), np.abs(y[order]))])  # before the first of its time
    return out


def _in_time(y: Floats) -> Ints:
    """Rows by time, events before who leaves then."""
    return np.lexsort((y < 0, np.abs(y)))


def _onwards(w: Floats) -> Floats:
    """[row]: the weights from this row on."""
    return w[::-1].cumsum()[::-1]


def _log_left(y: Floats, w: Floats) -> Floats:
    """[row], in the order of time: what its leaving does to the logarithm of G; of the last row nothing, since nobody
    is there to be weighted by what comes after."""
    left = _onwards(w)
    rest = np.append(left[1:], 0.0)[: len(w)]
    return np.where((y < 0) & (rest > 0), np.log(np.where(rest > 0, rest, 1.0) / left), 0.0)


def risk_names(intervals: int) -> tuple[str, ...]:
    """Of what `by_risk` tells."""
    return tuple(f"{what}@{group}@{k + 1}" for what in RISK_NUMBERS for group in GROUPS for k in range(intervals))


def thirds(rows: int) -> Ints:
    """[place]: the group of each of so many rows, in the order of their risks."""
    return np.arange(rows) * len(GROUPS) // max(rows, 1)


def by_risk(y: Floats, p: Floats, w: Floats, fewest: int) -> Floats:
    """[number x group x interval]: of a site's rows, the third of least, middle and highest risk by the last interval;
    which share of each is still free of the event at the end of each interval (Kaplan-Meier), and how many rows are
    still followed then. NaN where fewer than so many are still followed, or since the last one told so many have not
    had the event or left: no number is about fewer rows, and no two differ by fewer."""
    free, left = np.full((2, len(GROUPS), p.shape[1]), np.nan)
    group = thirds(len(y))[np.argsort(np.argsort(1 - p[:, -1], kind="stable"), kind="stable")]
    for g in range(len(GROUPS)):
        mine = group == g
        at, share = survival_curve(y[mine], w[mine])
        before = int(mine.sum())
        for k in range(p.shape[1]):
            still = int((np.abs(y[mine]) > k + 1).sum() + (y[mine] == -(k + 1)).sum())
            if still >= fewest and before - still >= fewest:
                free[g, k] = np.append(1.0, share)[np.searchsorted(at, k + 1, "right")]
                before = left[g, k] = still
    return np.concatenate([free.ravel(), left.ravel()])


class KaplanMeier(NamedTuple):
    """A curve with its 95 % intervals (Greenwood's variance, on the scale of log(-log)), and numbers at risk."""

    rows: int
    times: Floats  # of events; the last one is until when somebody was followed
    free: Floats  # the share without the event from each time on
    low: Floats  # NaN where rows stand for several
    high: Floats
    at: Floats  # some times
    left: Floats  # rows whose end is at these or later

    def at_time(self, time: float) -> tuple[float, float, float]:
        """The share, and its interval; 1 before the first event."""
        k = int(np.searchsorted(self.times, time, "right")) - 1
        return (1.0, 1.0, 1.0) if k < 0 else (float(self.free[k]), float(self.low[k]), float(self.high[k]))


def kaplan_meier(time: Floats, happened: NDArray[np.bool_], until: float, w: Floats | None = None) -> KaplanMeier:
    """From rows, [row]; nothing after `until` counts. `w`: for how many each stands."""
    time, happened = np.minimum(time, until), happened & (time <= until)
    weight = np.ones(len(time)) if w is None else w
    at = np.unique(time[happened])
    risk = np.array([weight[time >= t].sum() for t in at])
    events = np.array([weight[happened & (time == t)].sum() for t in at])
    free = np.cumprod(1 - events / risk) if len(at) else np.empty(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = NORMAL * np.sqrt(np.cumsum(events / (risk * (risk - events)))) / np.abs(np.log(free))
        low, high = free ** np.exp(half), free ** np.exp(-half)
    none = free <= 0  # nobody is left: the variance is not defined
    low, high = np.where(none, 0.0, low), np.where(none, np.append(1.0, high)[: len(high)], high)
    if w is not None:
        low, high = np.full((2, len(at)), np.nan)
    last = float(time.max(initial=0.0))
    if len(at) and at[-1] < last:  # the curve goes on until then
        at, free, low, high = np.append(at, last), *(np.append(v, v[-1]) for v in (free, low, high))
    elif not len(at):
        at, free, low, high = np.array([last]), *np.ones((3, 1))
    grid = np.linspace(0.0, until, GRID + 1)
    left = np.array([float((time >= t).sum()) for t in grid])
    return KaplanMeier(len(time), at, free, low, high, grid, left)


def curves_by_risk(y: Floats, p: Floats, ends: tuple[float, ...], w: Floats | None = None) -> list[KaplanMeier]:
    """Of the thirds by risk, low first; times in the unit of the ends."""
    group = thirds(len(y))[np.argsort(np.argsort(1 - p[:, -1], kind="stable"), kind="stable")]
    time, own = in_days(y, ends), np.ones(len(y)) if w is None else w
    parts = [group == g for g in range(len(GROUPS))]
    return [kaplan_meier(time[g], y[g] > 0, ends[-1], None if w is None else own[g]) for g in parts]


def limits(share: Floats, left: Floats, rows: int) -> tuple[Floats, Floats]:
    """[point]: the 95 % interval of a Kaplan-Meier curve from what is known of it at some times: the share free of the
    event, and how many of so many `rows` are still followed. Greenwood's variance with the events between two times
    taken as spread over them (as in a life table), on the scale of log(-log); where nobody had the event, the exact
    binomial limit of those still followed."""
    share, left = np.asarray(share, np.float64), np.asarray(left, np.float64)
    part = share / np.append(1.0, share)[:-1] if len(share) else share
    before = np.append(float(rows), left)[: len(left)]
    exposed = np.maximum((before + left) / (1 + part), 1.0)  # at risk, on average: who left counts half
    error = np.sqrt(np.cumsum((1 - part) / (part * exposed)))
    some = share < 1
    log = np.log(np.where(some, share, 0.5))
    half = NORMAL * error / np.abs(log)
    low = np.where(some, np.exp(log * np.exp(half)), 0.025 ** (1 / np.maximum(left, 1)))
    return np.asarray(low), np.asarray(np.where(some, np.exp(log * np.exp(-half)), 1.0))


def difference(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    """one - other with its 95 % interval, of two estimates with theirs that have nothing to do with each other
    (Newcombe's hybrid, MOVER): each end of the interval is as far as the ends of the two that lie that way."""
    gap = one[0] - other[0]
    down = float(np.hypot(one[0] - one[1], other[2] - other[0]))
    up = float(np.hypot(one[2] - one[0], other[0] - other[1]))
    return gap, gap - down, gap + up


def end_words(ends: tuple[float, ...], unit: str) -> list[str]:
    """The ends as a person writes them.

    >>> end_words((30.0, 365.0), "days")
    ['30 days', '365 days']
    """
    return [f"{end:g} {unit}".strip() for end in ends]

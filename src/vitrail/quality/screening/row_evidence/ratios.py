"""Do a column's values belong to their rows? At a site, row by row, against what the other sites' rows predict.

For each row: how much likelier its value is if a third of the column's values were drawn from the column as a whole,
whatever row they stand in, than if each belongs to its row. What is published is the mean of its logarithm over the
site's rows, what it would be if all values stood in other rows, its variance and third moment; and for a feature the
first three once more from the other features alone, for the outcome may be what is wrong. Each row's part is bounded
(LEAST to MOST).
"""

from __future__ import annotations

import numpy as np

from vitrail.quality.screening.request_validation import clip_guesses
from vitrail.quality.screening.schema import FLOOR, MOMENTS, Flags, Numbers, Places

PART = 1 / 3  # of the values are another row's, as the ratio supposes
FURTHEST = 1.5  # of a row's log ratio
LEAST, MOST = np.log(1 - PART + PART * np.exp([-FURTHEST, FURTHEST]))  # what a row may add
LEAST_SHARE = 0.1  # of a level's own share: no row's level is held to be rarer
LEAST_VARIANCE = 0.05  # of a number, given the other columns


def row_ratios(
    z: Numbers,
    observed: Flags,
    column: Places,
    is_number: Flags,
    products: Numbers,
    size: Numbers,
    ridge: float,
    outcomes: int,
) -> dict[int, Numbers]:
    """{column: (mean, mean if all were another row's, variance, third moment, and the first three without the
    outcome)}. z [row, variable]: scores, 0 where missing; the outcome's last. `products`: of the other sites' rows;
    `size`: by which they are divided to be correlations."""
    rows = max(1.0, float(np.diag(products).max(initial=1.0)))
    scale = np.sqrt(rows) / size  # 0 for what nobody else has
    r = products * scale[:, None] * scale / rows
    d = len(r) - outcomes
    inverse = np.linalg.inv(r + ridge * np.eye(len(r)))
    among = np.zeros_like(r)  # features alone
    among[:d, :d] = np.linalg.inv(r[:d, :d] + ridge * np.eye(d))
    x = z * scale
    whole, part = x @ inverse, x @ among
    ready = {0: _at_once(x, whole, inverse, scale), 4: _at_once(x, part, among, scale)}
    out: dict[int, Numbers] = {}
    for c in dict.fromkeys(int(v) for v in column):
        here = np.flatnonzero(column == c)
        ok = observed[:, here].all(1)
        if ok.sum() < FLOOR or (scale[here] == 0).any():
            continue
        own, number = z[np.ix_(ok, here)], bool(is_number[here[0]])
        out[c] = np.full(MOMENTS, np.nan)
        for start, used, by in ((0, inverse, whole), (4, among, part)):
            if start and here[0] >= d:
                continue
            rest = np.linalg.inv(used[np.ix_(here, here)])
            guess = ready[start][:, here]
            if len(here) > 1 or not ok.all():
                guess = clip_guesses((x[:, here] - by[:, here] @ rest)[ok] / scale[here])
            row, moved = (_rows(v, guess, number, float(rest[0, 0])) for v in (own, _other_rows(own)))
            away = row - row.mean()
            reported = [row.mean(), moved.mean(), (away**2).mean(), (away**3).mean()]
            out[c][start : start + 4] = reported[: MOMENTS - start]
    return out


def _at_once(x: Numbers, by: Numbers, used: Numbers, scale: Numbers) -> Numbers:
    """[row, variable]: guesses, as if each column were one variable with a value in each row; most are."""
    with np.errstate(all="ignore"):
        return clip_guesses(np.nan_to_num((x - by / np.diag(used)) / scale, posinf=0.0, neginf=0.0))


def _rows(values: Numbers, guess: Numbers, number: bool, variance: float) -> Numbers:
    return _of_number(values[:, 0], guess[:, 0], variance) if number else _of_levels(values > 0, guess)


def _other_rows(values: Numbers) -> Numbers:
    return np.roll(values, len(values) // 2, axis=0)


def _bounded(ratio: Numbers) -> Numbers:
    return np.asarray(np.log(1 - PART + PART * np.exp(np.clip(ratio, -FURTHEST, FURTHEST))))


def _of_number(value: Numbers, guess: Numbers, variance: float) -> Numbers:
    """[row]: log density as a score of its own less that around the guess."""
    v = min(1.0, max(LEAST_VARIANCE, variance))
    return _bounded((value - guess) ** 2 / (2 * v) + np.log(v) / 2 - value**2 / 2)


def _of_levels(yes: Flags, guess: Numbers) -> Numbers:
    """[row]: log share of the row's level less that among rows alike; both [row, level]."""
    share = yes.mean(0)
    p = share + guess * np.sqrt(share * (1 - share))
    if len(share) == 1:
        share, p, yes = np.append(1 - share, share), np.column_stack([1 - p, p]), np.column_stack([~yes, yes])
    p = np.maximum(p, LEAST_SHARE * np.maximum(share, 1e-3))
    p /= p.sum(1, keepdims=True)
    level, row = yes.argmax(1), np.arange(len(yes))
    return _bounded(np.log(np.maximum(share[level], 1e-3) / p[row, level]))

"""Do a column's values belong to their rows? At a site, row by row, against what the other sites' rows predict.

For each row: how much likelier its value is if a third of the column's values were drawn from the column as a whole,
whatever row they stand in, than if each belongs to its row. What is published is the mean of its logarithm over the
site's rows, how it scatters, and what the mean would be if all values stood in other rows. Each row's part is bounded.
"""

from __future__ import annotations

import numpy as np

from vitrail.quality.screening.request_validation import clip_predictions
from vitrail.quality.screening.schema import FLOOR, Flags, Numbers, Places

PART = 1 / 3  # of the values are another row's, as the ratio supposes
FURTHEST = 3.0  # of a row's log ratio
LEAST_SHARE = 0.1  # of a level's own share: no row's level is held to be rarer
LEAST_VARIANCE = 0.05  # of a number, given the other columns


def row_ratios(
    z: Numbers,
    known: Flags,
    column: Places,
    is_number: Flags,
    products: Numbers,
    outcomes: int,
    ridge: float,
    size: Numbers,
) -> dict[int, Numbers]:
    """{column: (mean, scatter, mean if all were another's)}. z [row, variable]: scores, 0 where missing; the outcome's
    variables last. `products`: of the other sites' rows; `size`: of each variable there."""
    d = z.shape[1] - outcomes
    rows = max(1.0, float(np.diag(products).max(initial=1.0)))
    scale = np.sqrt(rows) / size  # 0 for what nobody else has
    r = products * scale[:, None] * scale / rows
    inputs = np.arange(d)
    inverse = np.linalg.inv(r[:d, :d] + ridge * np.eye(d)) if d else np.zeros((0, 0))
    x = z * scale
    whole = x[:, :d] @ inverse
    out: dict[int, Numbers] = {}
    for c in dict.fromkeys(int(v) for v in column):
        here = np.flatnonzero(column == c)
        ok = known[:, here].all(1)
        if ok.sum() < FLOOR or (scale[here] == 0).any():
            continue
        if here[0] < d:  # from the other columns, without the outcome, which may be what is wrong
            block = inverse[np.ix_(here, here)]
            away = np.linalg.solve(block, whole[:, here].T).T
            variance = np.diag(np.linalg.inv(block))
            guess = (x[:, here] - away) / scale[here]
        else:
            weight = inverse @ r[:d, here]
            guess = x[:, inputs] @ weight / scale[here]
            variance = 1 - np.einsum("ik,ik->k", weight, r[:d, here])
        guess = clip_predictions(guess[ok])
        own, other = z[np.ix_(ok, here)], np.roll(z[np.ix_(ok, here)], int(ok.sum()) // 2, axis=0)
        ratio = _of_number if is_number[here[0]] else _of_levels
        row, moved = (_bounded(ratio(values, guess, variance)) for values in (own, other))
        out[c] = np.array([row.mean(), row.var(), moved.mean()])
    return out


def _bounded(ratio: Numbers) -> Numbers:
    return np.asarray(np.log(1 - PART + PART * np.exp(np.clip(ratio, -FURTHEST, FURTHEST))))


def _of_number(value: Numbers, guess: Numbers, variance: Numbers) -> Numbers:
    """[row]: log density as a score of its own less that around the guess."""
    v = np.clip(variance, LEAST_VARIANCE, 1.0)[0]
    a, f = value[:, 0], guess[:, 0] * np.sqrt(1 - v) / max(1e-9, float(guess[:, 0].std()) or 1.0)
    f = np.where(np.abs(f) < np.abs(guess[:, 0]), f, guess[:, 0])  # no surer than the variance allows
    return np.asarray(-a * a / 2 + (a - f) ** 2 / (2 * v) + np.log(v) / 2)


def _of_levels(value: Numbers, guess: Numbers, variance: Numbers) -> Numbers:
    """[row]: log share of the row's level less that among rows alike. value [row, level]: scores of yes or no."""
    yes = value > 0
    share = yes.mean(0)
    p = share + guess * np.sqrt(share * (1 - share))
    if value.shape[1] == 1:
        share, p = np.stack([1 - share[0], share[0]])[None], np.column_stack([1 - p, p])  # type: ignore[assignment]
        yes = np.column_stack([~yes, yes])
    p = np.maximum(p, LEAST_SHARE * np.maximum(share, 1e-3))
    p /= p.sum(1, keepdims=True)
    mine = np.broadcast_to(share, p.shape)
    level = yes.argmax(1)[:, None]
    return np.asarray(
        np.log(np.take_along_axis(mine, level, 1) / np.take_along_axis(p, level, 1))[:, 0]
    )

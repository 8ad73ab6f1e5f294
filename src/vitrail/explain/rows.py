"""Why a model says of a row what it says: Shapley values of features that are on (as in the row) or off (as in the
reference). Exact up to 16 features; above, of sampled coalitions with an interval for each value.

    v(S) = f(row where S, else reference), averaged over the reference's rows;     sum of values = f(row) - f(reference)

A reference is one row (the median; or NaN where the model takes missing values), or several (background).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from vitrail.core.problems import Problem, VitrailError
from vitrail.explain.shapley import Floats, Masks, Worth, exact, paired

MOST_EXACT = 16  # features
ASKED = 2048  # coalitions, above that
MEDIAN = "the median of the training rows"
NOTHING = "a missing value"
Answers = Callable[[NDArray[Any]], NDArray[Any]]  # [row, column] -> [row]
AT_ONCE = 1 << 20  # numbers given to the model at a time


@dataclass(frozen=True)
class Explanation:
    """What shap.plots need (`for_shap`), with what they do not say: the reference, intervals, who hides what."""

    values: Floats  # [row, feature]
    base_values: Floats  # [row]: f with all features off
    data: NDArray[Any]  # [row, feature]: NaN where a guest hides it
    feature_names: list[str]
    half: Floats  # [row, feature]: half of the 95 % interval of each value; 0 where exact
    reference: str  # what "off" means
    united: tuple[str, ...] = ()  # features that stand for all columns of a guest
    asked: int = 0  # coalitions for each row

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Explanation:
        at = np.atleast_1d(np.arange(len(self))[rows])
        parts = self.values[at], self.base_values[at], self.data[at], self.feature_names, self.half[at]
        return Explanation(*parts, self.reference, self.united, self.asked)

    def importance(self) -> list[dict[str, Any]]:
        """Of each feature: mean |value| with a 95 % interval over rows, and the mean value; the largest first."""
        n, size = len(self), np.abs(self.values)
        spread = size.std(0, ddof=1) / np.sqrt(n) * stdtrit(n - 1, 0.975) if n > 1 else np.full(size.shape[1], np.nan)
        rows = [
            {"feature": name, "size": float(s), "low": float(s - h), "high": float(s + h), "mean": float(m)}
            for name, s, h, m in zip(self.feature_names, size.mean(0), spread, self.values.mean(0), strict=True)
        ]
        return sorted(rows, key=lambda r: -r["size"])

    def for_shap(self) -> Any:
        """A shap.Explanation; shap is not needed for anything else."""
        try:
            import shap
        except ImportError:
            hint = "pip install shap"
            raise VitrailError(
                "shap is not installed", [Problem("for_shap", "it needs the package shap.", hint)]
            ) from None
        return shap.Explanation(self.values, self.base_values, self.data, feature_names=self.feature_names)


def explain_rows(
    f: Answers,
    rows: NDArray[Any],
    reference: NDArray[Any],
    names: Sequence[str],
    groups: Sequence[Sequence[int]] | None = None,
    *,
    first: NDArray[Any] | None = None,
    data: NDArray[Any] | None = None,
    means: str = MEDIAN,
    united: Sequence[str] = (),
    asked: int = ASKED,
    sizes: Literal["kernel", "leverage"] = "leverage",
    seed: int = 1,
) -> Explanation:
    """rows [row, column]; reference [column] or [row, column]; groups: the columns of each feature (else one each).
    `first` [column, unit]: a linear layer that the model begins with; f is then given what comes out of it, which is
    worked out for all coalitions at once.

    >>> e = explain_rows(lambda x: x[:, 0] + 2 * x[:, 1], np.array([[1.0, 1.0]]), np.zeros(2), ["a", "b"])
    >>> e.values.tolist(), e.base_values.tolist()
    ([[1.0, 2.0]], [0.0])
    """
    groups = [[i] for i in range(rows.shape[1])] if groups is None else groups
    back = np.atleast_2d(reference)
    owner = _owners(rows, back, names, groups)
    players = len(names)
    width = rows.shape[1] if first is None else first.shape[1]

    def worth_of(x: NDArray[Any]) -> Worth:
        def worth(masks: Masks) -> Floats:
            out, step = np.zeros((len(masks), len(x))), max(1, AT_ONCE // max(1, len(x) * width))
            for ref in back.astype(x.dtype):
                more = None if first is None else _added(x - ref, first, groups)  # [feature, row * unit]
                for k in range(0, len(masks), step):
                    some = masks[k : k + step]
                    if first is None or more is None:
                        mixed = np.where(some[:, None, owner], x, ref)
                    else:
                        mixed = some.astype(x.dtype) @ more + np.tile(ref @ first, len(x))
                    out[k : k + step] += np.asarray(f(mixed.reshape(-1, width))).reshape(-1, len(x))
            return out / len(back)

        return worth

    if data is None:
        data = np.stack([rows[:, g[0]] if len(g) == 1 else np.full(len(rows), np.nan) for g in groups], 1)
    block = max(1, AT_ONCE // (width * min(2**players, asked)))
    parts = [worth_of(rows[k : k + block]) for k in range(0, len(rows), block)]
    return explain_worths(parts, data, names, means, united, asked=asked, sizes=sizes, seed=seed)


def explain_worths(
    parts: Sequence[Worth],
    data: NDArray[Any],
    names: Sequence[str],
    means: str = MEDIAN,
    united: Sequence[str] = (),
    *,
    asked: int = ASKED,
    sizes: Literal["kernel", "leverage"] = "leverage",
    seed: int = 1,
) -> Explanation:
    """The same from what coalitions are worth, block by block of rows."""
    players, found, base = len(names), [], []
    for worth in parts:
        rng = np.random.default_rng(seed)  # the same coalitions for all rows
        found.append(exact(worth, players) if players <= MOST_EXACT else paired(worth, players, asked, rng, sizes))
        base.append(worth(np.zeros((1, players), dtype=bool))[0])
    values = np.concatenate([v.rows.T for v in found])
    if not np.isfinite(values).all():
        what = "the model answers with no number for some coalition."
        hint = "A model that takes no missing values needs the median or background rows as reference."
        raise VitrailError("the rows cannot be explained", [Problem("reference", what, hint)])
    half = np.concatenate([v.half.T if v.half.ndim > 1 else np.zeros(v.rows.T.shape) for v in found])
    return Explanation(values, np.concatenate(base), data, list(names), half, means, tuple(united), found[0].asked)


def _added(change: NDArray[Any], first: NDArray[Any], groups: Sequence[Sequence[int]]) -> NDArray[Any]:
    """[feature, row * unit]: what each feature adds to the first layer's output when it is on."""
    return np.stack([(change[:, list(g)] @ first[list(g)]).ravel() for g in groups])


def _owners(
    rows: NDArray[Any], back: NDArray[Any], names: Sequence[str], groups: Sequence[Sequence[int]]
) -> NDArray[np.int64]:
    """[column]: the feature that each column belongs to."""
    problems = []
    if not len(rows):
        problems.append(Problem("rows", "there are none to explain."))
    if len(names) != len(groups):
        problems.append(Problem("groups", f"{len(groups)} groups of columns for {len(names)} names."))
    if sorted(c for g in groups for c in g) != list(range(rows.shape[1])):
        problems.append(Problem("groups", f"each of the {rows.shape[1]} columns must belong to one feature."))
    if back.shape[1] != rows.shape[1] or not len(back):
        problems.append(Problem("reference", f"expected {rows.shape[1]} columns, got {back.shape[1]}."))
    if problems:
        raise VitrailError("the rows cannot be explained", problems)
    owner = np.empty(rows.shape[1], dtype=np.int64)
    for i, g in enumerate(groups):
        owner[list(g)] = i
    return owner

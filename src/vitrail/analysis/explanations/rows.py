"""Why a model says of a row what it says: Shapley values of features that are on (as in the row) or off (as in the
reference). Exact up to 16 features; above, of sampled coalitions with an interval for each value.

    v(S) = f(row where S, else reference), averaged over the reference's rows;     sum of values = f(row) - f(reference)

A feature that is in the row as in the reference adds nothing to any coalition: its value is 0, and it is not counted
among the 16, so that a row with k others takes 2^k answers of the model.

A reference is one row (the median; or NaN where the model declares that it takes missing values), or several
(background).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from vitrail.analysis.explanations.direction import Direction, direction
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.losses import Hazard, Loss, log_hazard, log_shares, with_constant
from vitrail.data.encoding import rows_as_text
from vitrail.data.schema import TableSchema
from vitrail.stats.shapley import Floats, Masks, Worth, exact, paired

MOST_EXACT = 16  # features
ASKED = 2048  # coalitions, above that
MEDIAN = "the median of the training rows"
NOTHING = "a missing value"
Answers = Callable[[NDArray[Any]], NDArray[Any]]  # [row, column] -> [row]
Scale = Literal["number", "share", "odds", "hazard"]
AT_ONCE = 1 << 17  # numbers given to the model at a time: what lies between its layers should stay in the cache


@runtime_checkable
class TakesMissing(Protocol):
    """A model that says of itself whether missing values mean something to it: of such a one they are the reference."""

    takes_missing: bool


def takes_missing(model: object) -> bool:
    return isinstance(model, TakesMissing) and model.takes_missing


class FeatureLabel(NamedTuple):
    """What a page says of a feature."""

    unit: str = ""
    levels: tuple[str, ...] = ()  # none: a number
    off: float | str | None = None  # its value in the reference


def columns_of(off: pd.DataFrame, table: TableSchema) -> tuple[FeatureLabel, ...]:
    """Of a table's features, whose reference is this row, as `clean` gives it."""
    (shown,) = rows_as_text(off, table)
    return tuple(FeatureLabel(f.unit, f.levels, v) for f, v in zip(table.features.values(), shown, strict=True))


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
    answer: str = field(default="answer", compare=False)  # what f is about, in words
    scale: Scale = field(default="number", compare=False)  # f is the answer, or the logarithm of its odds or hazard
    chance: str = field(default="probability", compare=False)  # what a share is called: risk, of an event
    rows: tuple[str, ...] = field(default=(), compare=False)  # their names
    columns: tuple[FeatureLabel, ...] = field(default=(), compare=False)  # [feature]
    each: str = field(default="", compare=False)  # "patient", where the rows were drawn so that none has two
    whole: WholeSpace | None = field(default=None, compare=False)  # the same rows by the columns of all parties

    def __len__(self) -> int:
        return len(self.values)

    @property
    def counted(self) -> str:
        """How many rows, in words."""
        return f"{len(self)} rows" + (f", one of each {self.each}" if self.each else "")

    def __getitem__(self, rows: Any) -> Explanation:
        at = np.atleast_1d(np.arange(len(self))[rows])
        parts = {k: getattr(self, k)[at] for k in ("values", "base_values", "data", "half")}
        whole = None if self.whole is None else replace(self.whole, explanation=self.whole.explanation[rows])
        return replace(self, **parts, rows=tuple(self.rows[i] for i in at) if self.rows else (), whole=whole)

    def column(self, feature: int) -> FeatureLabel:
        return self.columns[feature] if self.columns else FeatureLabel()

    @property
    def measure(self) -> str:
        """f, in words."""
        return f"log {self.moved}" if self.scale in ("odds", "hazard") else self.moved

    @property
    def moved(self) -> str:
        """What features move, in words: the odds or the hazard of the answer, or the answer itself."""
        if self.scale == "share":
            return f"{self.chance} of {self.answer}"
        return self.answer if self.scale == "number" else f"{self.scale} of {self.answer}"

    @property
    def total(self) -> Floats:
        """[row]: f of each."""
        return np.asarray(self.base_values + self.values.sum(1))

    def directions(self) -> list[Direction]:
        """[feature]: in which direction each moves the answer (analysis/explanations/direction.py); not known of a
        guest's."""
        columns = (self.column(i) for i in range(len(self.feature_names)))
        return [
            direction(self.data[:, i], self.values[:, i], column.levels, column.off) for i, column in enumerate(columns)
        ]

    def importance(self) -> list[dict[str, Any]]:
        """Of each feature: mean |value| with a 95 % interval over rows, the mean value, and the direction as a sign and
        in words; the largest first."""
        n, size = len(self), np.abs(self.values)
        spread = size.std(0, ddof=1) / np.sqrt(n) * stdtrit(n - 1, 0.975) if n > 1 else np.full(size.shape[1], np.nan)
        rows = [
            {"feature": name, "size": float(s), "low": float(s - h), "high": float(s + h), "mean": float(m)}
            | {"sign": way.sign, "moves": way.words}
            for name, s, h, m, way in zip(
                self.feature_names, size.mean(0), spread, self.values.mean(0), self.directions(), strict=True
            )
        ]
        return sorted(rows, key=lambda r: -r["size"])

    def for_shap(self) -> Any:
        """A shap.Explanation; shap is not needed for anything else."""
        try:
            import shap
        except ImportError:
            hint = "pip install shap"
            raise VitrailError(
                "shap is not installed", [Problem("for_shap", "the package shap is needed for this.", hint)]
            ) from None
        return shap.Explanation(self.values, self.base_values, self.data, feature_names=self.feature_names)


@dataclass(frozen=True)
class WholeSpace:
    """Values of every column of every party, which a simulation alone can know."""

    explanation: Explanation
    owners: tuple[str, ...]  # [feature]: the guest whose it is; nothing of the host's


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
    rows, back = np.asarray(rows), np.atleast_2d(reference)
    owner = _owners(rows, back, names, groups)
    back = back.astype(rows.dtype)
    if data is None:
        data = np.stack([rows[:, g[0]] if len(g) == 1 else np.full(len(rows), np.nan) for g in groups], 1)
    other = np.any([(rows != ref) & ~(np.isnan(rows) & np.isnan(ref)) for ref in back], axis=0)  # [row, column]
    other = np.stack([other[:, list(g)].any(1) for g in groups], 1)  # [row, feature]
    many, width = other.sum(1).clip(min=1), rows.shape[1] if first is None else first.shape[1]

    def blocks() -> Iterator[Block]:
        for k in np.unique(many):
            alike = np.flatnonzero(many == k)
            step = max(1, AT_ONCE * 8 // (width * min(2**k, asked)))
            for at in np.split(alike, range(step, len(alike), step)):
                who = np.argsort(~other[at], axis=1, kind="stable")[:, :k]
                yield Block(_worth(f, rows[at], back, who, owner, first), at, who)

    return _explain(blocks(), data, names, means, united, asked, sizes, seed)


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
    players, done, blocks = len(names), 0, []
    for worth in parts:
        count = worth(np.zeros((1, players), dtype=bool)).shape[1]
        at = np.arange(done, done + count)
        blocks.append(Block(worth, at, np.tile(np.arange(players), (count, 1))))
        done += count
    return _explain(blocks, data, names, means, united, asked, sizes, seed)


class Block(NamedTuple):
    """Rows with equally many players."""

    worth: Worth
    at: NDArray[np.int64]  # [row]: their places
    who: NDArray[np.int64]  # [row, player]: the feature that each player is


def _worth(
    f: Answers,
    x: NDArray[Any],
    back: NDArray[Any],
    who: NDArray[np.int64],
    owner: NDArray[np.int64],
    first: NDArray[Any] | None,
) -> Worth:
    k, width = who.shape[1], x.shape[1] if first is None else first.shape[1]
    player = np.full((len(x), int(owner.max()) + 1), k)  # [row, feature]; k: none, it is off in both
    np.put_along_axis(player, who, np.arange(k)[None], 1)
    place = player[:, owner]  # [row, column]

    def worth(masks: Masks) -> Floats:
        out, step = np.zeros((len(masks), len(x))), max(1, AT_ONCE // max(1, len(x) * width))
        on = np.pad(masks, ((0, 0), (0, 1)))
        for ref in back:
            added = None if first is None else _added(x - ref, place, first, k)
            for i in range(0, len(masks), step):
                if first is None or added is None:
                    mixed = np.where(on[i : i + step][:, place], x, ref)
                else:
                    mixed = masks[i : i + step].astype(x.dtype) @ added + np.tile(ref @ first, len(x))
                out[i : i + step] += np.asarray(f(mixed.reshape(-1, width))).reshape(-1, len(x))
        return out / len(back)

    return worth


def _added(change: NDArray[Any], place: NDArray[np.int64], first: NDArray[Any], players: int) -> NDArray[Any]:
    """[player, row * unit]: what each adds to the first layer's output when it is on."""
    return np.stack([(np.where(place == p, change, 0) @ first).ravel() for p in range(players)])


def _explain(
    blocks: Iterable[Block],
    data: NDArray[Any],
    names: Sequence[str],
    means: str,
    united: Sequence[str],
    asked: int,
    sizes: Literal["kernel", "leverage"],
    seed: int,
) -> Explanation:
    values, half, base, most = np.zeros(data.shape), np.zeros(data.shape), np.zeros(len(data)), 0
    for worth, at, who in blocks:
        k, rng = who.shape[1], np.random.default_rng(seed)  # rows with as many players have the same coalitions
        shapley = exact(worth, k) if k <= MOST_EXACT else paired(worth, k, asked, rng, sizes)
        values[at[:, None], who] = shapley.rows.T
        half[at[:, None], who] = shapley.half.T if shapley.half.ndim > 1 else 0.0
        base[at] = worth(np.zeros((1, k), dtype=bool))[0]
        most = max(most, shapley.asked)
    if not np.isfinite(values).all():
        what = "for some combination of features, the model does not answer with a finite number."
        hint = "A model that accepts no missing values needs the median or background rows as its reference."
        raise VitrailError("the rows cannot be explained", [Problem("reference", what, hint)])
    return Explanation(values, base, data, list(names), half, means, tuple(united), most)


def answers_of(
    scores: Callable[[Tensor], Tensor], loss: Loss, output: int = -1, of: Literal["odds", "share"] = "odds"
) -> Answers:
    """What is explained of a model's scores: the number; of classes that of `output`, its log odds or its share."""

    def f(x: NDArray[Any]) -> NDArray[Any]:
        z = scores(torch.from_numpy(x))
        if isinstance(loss, Hazard):
            return log_hazard(with_constant(loss, z)).numpy()
        if z.shape[1] == 1:  # a number
            return with_constant(loss, z)[:, 0].numpy()
        if of == "share":
            return loss.predictions(z)[:, output].numpy()
        logs = log_shares(loss, z)
        others = torch.cat([logs[:, : output % z.shape[1]], logs[:, output % z.shape[1] + 1 :]], 1)
        return np.asarray((logs[:, output] - others.logsumexp(1)).numpy())

    return f


def _owners(
    rows: NDArray[Any], back: NDArray[Any], names: Sequence[str], groups: Sequence[Sequence[int]]
) -> NDArray[np.int64]:
    """[column]: the feature that each column belongs to."""
    problems = []
    if not len(rows):
        problems.append(Problem("rows", "expected at least one row to explain, got none."))
    if len(names) != len(groups):
        problems.append(
            Problem(
                "groups",
                f"expected as many groups of columns as names, got {len(groups)} groups for {len(names)} names.",
            )
        )
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

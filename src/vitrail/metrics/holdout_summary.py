"""What the figures of a run need of a site's hold-out rows, worked out where the rows are: counts, means and intervals.

    scores     each with its 95 % interval and what one answer to every row comes to
    risks      rows by risk (metrics/calibration.py), cut at every per cent
    confusion  rows by their class and the one that was predicted, by the site's own thresholds
    groups     of a number: rows in the order of what was predicted, in up to ten equal parts
    expected   of a time: the mean risk until the horizon of the thirds by risk
    curves     of a time: how these thirds fared (Kaplan-Meier)
    effects    what the model answers, on average, when a feature is given other values (`FeatureEffect`)

A simulation has the rows of all sites and can say all of this. Between machines a site can say it to itself; what it
tells others is the study's matter ([bedside]), and is less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.metrics.calibration import Floats, RiskCounts, counted, risks
from vitrail.metrics.scores import FEWEST, decide
from vitrail.metrics.survival import GROUPS, KaplanMeier, thirds

PER_CENT = tuple(k / 100 for k in range(1, 100))  # edges of the counts by risk
PARTS = 10  # of the rows in the order of what was predicted


class HeldOutAnswers(NamedTuple):
    """A site's hold-out rows with what its model answers. Stays in the memory of the process that has the rows."""

    y: NDArray[Any]
    p: Floats  # [row, class], or [row, 1]
    persons: NDArray[np.int64] | None  # [row]: whose each is
    weights: Floats | None  # [row]: for how many each stands
    thresholds: Floats | None  # [class]
    x: NDArray[Any]  # [row, column]: some of the rows as the network takes them; none of pictures
    predict: Callable[[NDArray[Any]], Floats]  # [row, column] -> [row, class] or [row, 1], as `p`


class SummaryScore(NamedTuple):
    value: float
    low: float
    high: float
    baseline: float


class ValueGroups(NamedTuple):
    """Rows of a numeric target by what was predicted, from the lowest: [group]."""

    rows: Floats
    expected: Floats  # mean of what was predicted
    observed: Floats  # mean of what was true
    spread: Floats  # standard deviation of what was true


class FeatureEffect(NamedTuple):
    """What the model answers, on average over a site's rows, when this feature is given each of these values."""

    feature: str
    values: tuple[str, ...]  # in the feature's own unit, from low to high; or its levels
    answers: tuple[float, ...]
    ordered: bool  # whether the values are numbers, and have a direction


class HoldOutSummary(NamedTuple):
    rows: int
    scores: dict[str, SummaryScore]
    risks: RiskCounts | None = None
    confusion: tuple[tuple[int, ...], ...] | None = None  # [true][predicted]
    groups: ValueGroups | None = None
    expected: tuple[float, ...] = ()
    curves: tuple[KaplanMeier, ...] = ()
    effects: tuple[FeatureEffect, ...] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """As a JSON file holds it."""
        tables = {
            name: {k: v.tolist() for k, v in table._asdict().items()}
            for name, table in (("risks", self.risks), ("groups", self.groups))
            if table is not None
        }
        return {
            "rows": self.rows,
            "scores": {metric: [_known(v) for v in score] for metric, score in self.scores.items()},
            **tables,
            **({"confusion": self.confusion} if self.confusion else {}),
            **({"expected": [_known(v) for v in self.expected]} if self.expected else {}),
            **({"curves": [_plain_curve(curve) for curve in self.curves]} if self.curves else {}),
            "effects": [[e.feature, e.values, [_known(v) for v in e.answers], e.ordered] for e in self.effects],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> HoldOutSummary:
        """Of what `plain` gave."""
        tables = {
            name: {k: np.array(v, np.float64) for k, v in plain[name].items()}
            for name in ("risks", "groups")
            if name in plain
        }
        confusion = plain.get("confusion")
        return cls(
            int(plain["rows"]),
            {str(metric): SummaryScore(*map(_number, score)) for metric, score in plain["scores"].items()},
            RiskCounts(**tables["risks"]) if "risks" in tables else None,
            tuple(tuple(map(int, row)) for row in confusion) if confusion else None,
            ValueGroups(**tables["groups"]) if "groups" in tables else None,
            tuple(map(_number, plain.get("expected", ()))),
            tuple(
                KaplanMeier(int(rows), *(np.array(list(map(_number, part))) for part in parts))
                for rows, *parts in plain.get("curves", ())
            ),
            tuple(
                FeatureEffect(str(name), tuple(map(str, values)), tuple(map(_number, answers)), bool(ordered))
                for name, values, answers, ordered in plain["effects"]
            ),
        )


def _plain_curve(curve: KaplanMeier) -> list[Any]:
    return [curve.rows, *([_known(v) for v in part.tolist()] for part in curve[1:])]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def count_risks(answers: HeldOutAnswers, share: float = 1.0) -> RiskCounts | None:
    """None where the model gave no numbers. `share`: persons for each row."""
    if not np.isfinite(answers.p).all():
        return None
    return counted(*risks(answers.y, answers.p), PER_CENT).of_persons(share)


def confusion_of(answers: HeldOutAnswers) -> tuple[tuple[int, ...], ...] | None:
    """[true][predicted], by the site's own thresholds."""
    classes = answers.p.shape[1]
    if not np.isfinite(answers.p).all():
        return None
    cells = np.bincount(answers.y * classes + decide(answers.p, answers.thresholds), minlength=classes**2)
    return tuple(tuple(map(int, row)) for row in cells.reshape(classes, classes))


def group_values(y: Floats, p: Floats, fewest: int = FEWEST) -> ValueGroups | None:
    """None of fewer rows than one group has, and where the model gave no numbers."""
    parts = min(PARTS, len(y) // fewest)
    if not parts or not np.isfinite(p).all():
        return None
    order = np.argsort(p, kind="stable")
    groups = [np.asarray(group) for group in np.array_split(order, parts)]
    columns: Sequence[list[float]] = [
        [float(len(g)) for g in groups],
        [float(p[g].mean()) for g in groups],
        [float(y[g].mean()) for g in groups],
        [float(y[g].std(ddof=1)) if len(g) > 1 else math.nan for g in groups],
    ]
    return ValueGroups(*(np.array(column, np.float64) for column in columns))


def expected_risks(p: Floats) -> tuple[float, ...]:
    """The mean risk until the horizon of those at low, middle and high risk, as `survival.by_risk` parts them."""
    risk = np.sort(1 - p[:, -1])
    group = thirds(len(risk))
    return tuple(float(risk[group == g].mean()) if (group == g).any() else math.nan for g in range(len(GROUPS)))

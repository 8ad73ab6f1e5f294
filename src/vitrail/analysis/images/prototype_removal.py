"""A site takes prototypes out of its model by hand: what that does to the model's answers on the site's own pictures.

A prototype is taken out by writing 0 for its weights in the last layer, for all classes; a constant keeps the mean of
what it added (runs/site/prototype_removal.py). What the rest of the model makes of a mark stays, and so does what other
prototypes make of it; hence each class is looked at by occlusion, before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.analysis.images.occlusion_map import OcclusionMap
from vitrail.analysis.images.prototype_evidence import PrototypeEvidence
from vitrail.core.text import number
from vitrail.metrics.score_intervals import ScoreInterval
from vitrail.metrics.scores import metric_name

SHOWN = 24  # changed predictions, at most
NOW_RIGHT, NOW_WRONG, STILL_WRONG = "now right", "now wrong", "wrong as before"
CANNOT = (
    "The scores are those on your own pictures. If these carry the mark too, a model that no longer relies on it can "
    "score lower here although it is better elsewhere. A class that loses a prototype also loses evidence on pictures "
    "without any mark. No layer was trained again."
)


class RemovedPrototype(NamedTuple):
    label: str
    number: int  # among those of its class, from 1, as the page counts
    of: int  # how many the class has


def name_prototypes(removed: Sequence[RemovedPrototype]) -> str:
    """
    >>> name_prototypes([RemovedPrototype("ill", 3, 9), RemovedPrototype("ill", 1, 9), RemovedPrototype("well", 2, 9)])
    'prototypes 1 and 3 of ill, prototype 2 of well'
    """
    numbers: dict[str, list[int]] = {}
    for one in removed:
        numbers.setdefault(one.label, []).append(one.number)
    named = {label: [str(n) for n in sorted(some)] for label, some in numbers.items()}
    return ", ".join(
        f"prototype{'s' * (len(some) > 1)} {' and '.join([*filter(None, [', '.join(some[:-1])]), some[-1]])} of {label}"
        for label, some in named.items()
    )


class ChangedPrediction(NamedTuple):
    """A picture of which the model says something else."""

    name: str
    picture: NDArray[np.uint8]  # [channel, height, width]
    label: str
    before: str
    after: str
    share_before: float  # the probability of the class that is predicted
    share_after: float

    @property
    def verdict(self) -> str:
        if self.after == self.label:
            return NOW_RIGHT
        return NOW_WRONG if self.before == self.label else STILL_WRONG


class PrototypeRemoval(NamedTuple):
    removed: tuple[RemovedPrototype, ...]
    pictures: int  # that were predicted
    held_out: bool  # whether no training saw them; else these are other pictures than the run's
    fitted: bool  # whether the model's constant was fitted again
    scores: dict[str, tuple[ScoreInterval, ScoreInterval]]  # metric -> before, after
    changed: tuple[ChangedPrediction, ...]

    @property
    def title(self) -> str:
        """Of the model without them."""
        return "your model without the removed prototypes"

    @property
    def left(self) -> dict[str, int]:
        """By class that lost some: how many prototypes it has left."""
        lost = [one.label for one in self.removed]
        return {one.label: one.of - lost.count(one.label) for one in self.removed}

    @property
    def words(self) -> str:
        return name_prototypes(self.removed)

    def counts(self) -> dict[str, int]:
        verdicts = [c.verdict for c in self.changed]
        return {v: verdicts.count(v) for v in (NOW_RIGHT, NOW_WRONG, STILL_WRONG)}

    def sentences(self, seen: PrototypeEvidence) -> list[str]:
        which = "that were not used in training" if self.held_out else "here"
        of_all = f"of {self.pictures} predictions on pictures {which}"
        counts = ", ".join(f"{n} {v}" for v, n in self.counts().items() if n)
        change = f"{len(self.changed)} {of_all} change{'s' * (len(self.changed) == 1)}: {counts}."
        out = [f"Without {self.words}, {change if self.changed else f'none {of_all} changes.'}"]
        if not self.fitted:
            out.append(
                "The model's constant could not be fitted again, since these are not the pictures that it was trained "
                "on: a class that lost a prototype may be predicted too rarely."
            )
        out += [f"Class {name} has no prototype left." for name, left in self.left.items() if not left]
        return out + [line for name in self.left if (line := self._place(seen, name))]

    def score_texts(self) -> list[tuple[str, str, str]]:
        """Metric, before, after; with 95 % intervals."""
        return [(metric_name(m), _interval(before), _interval(after)) for m, (before, after) in self.scores.items()]

    def _place(self, seen: PrototypeEvidence, name: str) -> str:
        """Whether what decided on the class still decides."""
        views = seen.views.get(name, ())
        after = next((v.hidden for v in views if v.model == self.title), None)
        if after is None:
            return ""
        before = views[0].hidden
        falls = f"Hidden, the log-odds fall {_fall(before)} before, and {_fall(after)} after."
        if after.whole <= 0:
            return (
                f"On most pictures of class {name} the model now predicts another class, so that no place can decide "
                f"on it. {falls}"
            )
        if before.decides and after.decides:
            return (
                f"One place still decides on class {name}: other prototypes go by it, too, or the place belongs to "
                f"the class. {falls}"
            )
        if before.decides:
            return f"No single place decides on class {name} any more. {falls}"
        now = "a single place decides now" if after.decides else "none does now"
        return f"No single place decided on class {name} before, and {now}. {falls}"


def _fall(hidden: OcclusionMap) -> str:
    return f"from {number(hidden.whole, 1)} to {number(hidden.whole - float(hidden.fall.max()), 1)}"


def _interval(score: ScoreInterval) -> str:
    if not np.isfinite(score.low):
        return number(score.value)
    return f"{number(score.value)} ({number(score.low)} to {number(score.high)})"

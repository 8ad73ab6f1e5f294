"""How good predictions are, on the rows of every site at once. Checked against scikit-learn in the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.metrics import survival

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NAN = float("nan")
SUREST = tuple(range(100, 0, -10))  # per cent of a site's rows, those of which its model is surest
FEWEST = 10  # rows behind a number about doubt, or the difference of two: fewer would be about single rows
STEPS = (10, 20, 40, 80)  # between the shares of which a site tells; all of a coarser step are shares of a finer one
FEW, RARE = 50, 10  # fewer hold-out rows, or fewer of their rarest class: scores stand on few rows
DOUBT = (*(f"accuracy@{share}" for share in SUREST), "doubt", "auroc")  # what `score_uncertainty` tells


@dataclass(frozen=True)
class Answers:
    """The rows of all sites that can be scored, one site after the other: no padding between them, so that a site's
    scores are the same, bit for bit, whoever else is scored."""

    y: NDArray[Any]  # [row]: class, number, or the time to an event as metrics/survival.py writes it
    p: Floats  # [row, class]
    site: Ints  # [row], never falling
    sites: int
    weights: Floats | None = None  # [row], more than 0: for how many a row stands; None: each for one
    least: float = 1e-15  # probability: a loss takes no answer to have given less to what came true
    thresholds: Floats | None = None  # [site, class]: see `decide`; None: the most probable class

    def total(self, values: NDArray[Any]) -> Floats:
        """[row] -> [site]"""
        return np.asarray(np.bincount(self.site, values * self.w, self.sites), np.float64)

    def mean(self, values: NDArray[Any]) -> Floats:
        """[row] -> [site]"""
        return self.total(values) / self.weight

    def sort(self, values: Floats) -> Ints:
        """Row numbers, each site's own rows by value. Sites side by side: seven times as fast as np.lexsort."""
        inside = np.arange(int(self.rows.max(initial=0))) < self.rows[:, None]  # [site, place]
        grid = np.full(inside.shape, np.inf)
        grid[inside] = values
        first = (self.rows.cumsum() - self.rows).astype(np.int64)
        return (grid.argsort(1) + first[:, None])[inside]

    def count(self, of: NDArray[Any], where: NDArray[np.bool_] | slice = slice(None)) -> Floats:
        """How often each class comes among `of`: [row] -> [site, class]"""
        classes = self.p.shape[1]
        flat = np.bincount(self.site[where] * classes + of[where], self.w[where], self.sites * classes)
        return flat.reshape(self.sites, classes).astype(np.float64)

    def each(self, of: Callable[[Floats, Floats, Floats], float]) -> Floats:
        """Of every site's own rows, outcomes, answers and weights: -> [site]"""
        ends = np.searchsorted(self.site, np.arange(self.sites + 1))
        parts = (slice(a, b) for a, b in pairwise(ends))
        return np.array([of(self.y[at], self.p[at], self.w[at]) if at.stop > at.start else NAN for at in parts])

    @cached_property
    def rows(self) -> Floats:
        return np.bincount(self.site, minlength=self.sites).astype(np.float64)

    @cached_property
    def w(self) -> Floats:
        return np.ones(len(self.y)) if self.weights is None else self.weights

    @cached_property
    def weight(self) -> Floats:
        """For how many the rows of each site stand."""
        return np.asarray(np.bincount(self.site, self.w, self.sites), np.float64)

    @cached_property
    def guess(self) -> Ints:
        return decide(self.p, None if self.thresholds is None else self.thresholds[self.site])

    @cached_property
    def true(self) -> Floats:
        return self.count(self.y)

    @cached_property
    def hits(self) -> Floats:
        return self.count(self.y, self.guess == self.y)


def decide(p: Floats, thresholds: Floats | None = None) -> Ints:
    """[..., class] -> [...]: the class whose probability exceeds its threshold by the largest factor.

    >>> decide(np.array([[0.9, 0.1], [0.7, 0.3]]), np.array([0.8, 0.2])), decide(np.array([[0.7, 0.3]]))
    (array([0, 1]), array([0]))
    """
    return np.asarray((p if thresholds is None else p / thresholds).argmax(-1), np.int64)


def _over_classes(values: NDArray[Any]) -> Floats:
    """[site, class] -> [site]"""
    return np.asarray(values.sum(1), np.float64)


def accuracy(a: Answers) -> Floats:
    return _over_classes(a.hits) / a.weight


def balanced_accuracy(a: Answers) -> Floats:
    """Mean recall over the classes that occur."""
    return _over_classes(a.hits / np.where(a.true > 0, a.true, 1)) / _over_classes(a.true > 0)


def f1(a: Answers) -> Floats:
    """F1 of each class, weighted by how often it occurs."""
    named = a.count(a.guess) + a.true
    return _over_classes(a.true * 2 * a.hits / np.where(named > 0, named, 1)) / a.weight


def f1_event(a: Answers) -> Floats:
    """F1 of the event, which is the second of two classes; NaN where nobody had it, or with more classes."""
    if a.p.shape[1] != 2:
        return np.full(a.sites, NAN)
    true = a.true[:, 1]
    return np.where(true > 0, 2 * a.hits[:, 1] / (a.count(a.guess)[:, 1] + true), NAN)


def auc(a: Answers) -> Floats:
    """Area under the ROC curve: the chance that a row of one class scores above a row of another, ties counted half.
    With more than two classes the mean over pairs that occur (one against one), each by both classes' scores."""
    classes, before = a.p.shape[1], a.true.cumsum(0) - a.true  # [site, class]: rows at earlier sites
    hot, site = np.eye(classes)[a.y] * a.w[:, None], a.site
    total, pairs = np.zeros(a.sites), np.zeros(a.sites)
    for k in range(classes) if classes != 2 else (1,):
        order = a.sort(a.p[:, k])
        scores = a.p[order, k]
        ends = np.flatnonzero(np.append((scores[1:] != scores[:-1]) | (site[1:] != site[:-1]), True)[: len(site)])
        seen = hot.take(order, 0).cumsum(0).take(ends, 0)  # [tie, class]: rows up to the tie's last
        tied = np.diff(seen, axis=0, prepend=0)
        ours = np.flatnonzero(tied[:, k])
        at, many = site[ends[ours]], tied[ours, k]
        below = seen[ours] - tied[ours] / 2 - before[at]  # [tie, class]
        flat = (at[:, None] * classes + np.arange(classes)).ravel()
        above = np.bincount(flat, (many[:, None] * below).ravel(), a.sites * classes).reshape(a.sites, classes)
        both = a.true[:, [k]] * a.true * (np.arange(classes) != k)  # [site, class]: pairs of rows
        total += _over_classes(np.where(both > 0, above / both, 0.0))
        pairs += _over_classes(both > 0)
    return total / pairs


def log_loss(a: Answers) -> Floats:
    return a.mean(-np.log(np.clip(a.p[np.arange(len(a.y)), a.y], a.least, 1)))


def brier(a: Answers) -> Floats:
    """The squared distance of the answer from the truth, half of the sum over classes: of two classes (p - y)^2."""
    return a.mean(np.square(a.p - np.eye(a.p.shape[1])[a.y]).sum(1) / 2)


def rmse(a: Answers) -> Floats:
    return np.sqrt(a.mean((a.p[:, 0] - a.y) ** 2))


def mae(a: Answers) -> Floats:
    return a.mean(np.abs(a.p[:, 0] - a.y))


def r2(a: Answers) -> Floats:
    varied = a.total(a.y != a.y[np.searchsorted(a.site, a.site)]) > 0  # from the site's first row
    spread = a.total((a.y - a.mean(a.y)[a.site]) ** 2)
    return np.where(varied, 1 - a.total((a.p[:, 0] - a.y) ** 2) / spread, NAN)


def c_index(a: Answers) -> Floats:
    """Harrell's, of the risk by the last interval."""
    return a.each(lambda y, p, w: survival.concordance(y, 1 - p[:, -1], w))


def uno_c(a: Answers) -> Floats:
    return a.each(lambda y, p, w: survival.concordance(y, 1 - p[:, -1], w, uno=True))


def integrated_brier(a: Answers) -> Floats:
    return a.each(survival.integrated_brier)


def time_log_loss(a: Answers) -> Floats:
    return a.mean(np.minimum(survival.losses(a.y, a.p), -np.log(a.least)))


OF_CLASSES = (balanced_accuracy, accuracy, f1, auc, log_loss, brier, f1_event)
OF_NUMBERS = (rmse, mae, r2)
OF_TIMES = (c_index, uno_c, integrated_brier, time_log_loss)
TABLE: dict[str, Callable[[Answers], Floats]] = {f.__name__: f for f in (*OF_CLASSES, *OF_NUMBERS, *OF_TIMES)}

NAMES = {"f1": "F1 (weighted over classes)", "f1_event": "F1 of the event"}


def metric_name(metric: str) -> str:
    """What a metric is called in a line of text or above a column.

    >>> metric_name("balanced_accuracy"), metric_name("f1"), metric_name("f1_event")
    ('balanced accuracy', 'F1 (weighted over classes)', 'F1 of the event')
    """
    return NAMES.get(metric, metric.replace("_", " "))


def score_all(
    names: tuple[str, ...],
    y: NDArray[np.generic],
    p: Floats,
    real: NDArray[np.bool_],
    weights: Floats | None = None,
    least: float = Answers.least,
    thresholds: Floats | None = None,
) -> dict[str, Floats]:
    """The named metrics of every site, [site]; NaN where there are no rows, the model has diverged, or the metric has
    no meaning (AUC of a single class). y, weights [site, row], p [site, row, class], thresholds [site, class]; padding
    is where `real` is False."""
    used = _usable(p, real)
    mine = None if weights is None else weights[used]
    answers = Answers(y[used], p[used], np.nonzero(used)[0], len(y), mine, least, thresholds)
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing of nothing is NaN
        return {n: TABLE[n](answers) for n in names}


def score_uncertainty(
    y: NDArray[np.generic],
    p: Floats,
    uncertainty: Floats,
    real: NDArray[np.bool_],
    thresholds: Floats | None = None,
    least: Sequence[int] | None = None,
) -> dict[str, Floats]:
    """What a model's doubt [site, row] is worth at every site, [site]: how often it is right in the surest so many per
    cent of the rows, the mean doubt, and the chance that doubt is larger at a mistake than at a row it got right. NaN
    where fewer than FEWEST rows stand behind the number, or behind its difference to the next; `least` [site]: rows in
    place of FEWEST, at a site where a person has several."""
    fewest = np.full(len(y), FEWEST) if least is None else np.asarray(least)
    used = _usable(np.dstack([p, uncertainty]), real)
    a, unsure = Answers(y[used], p[used], np.nonzero(used)[0], len(y), thresholds=thresholds), uncertainty[used]
    right, ends = a.guess == a.y, a.rows.cumsum().astype(np.int64)[:-1]
    pairs = zip(np.split(right, ends), np.split(unsure, ends), fewest.tolist(), strict=True)
    points = np.array([_of_the_surest(*pair) for pair in pairs]).reshape(a.sites, len(SUREST))
    mistakes = Answers((~right).astype(np.int64), np.stack([-unsure, unsure], 1), a.site, a.sites)
    with np.errstate(divide="ignore", invalid="ignore"):
        both = [np.where(a.rows >= fewest, values, NAN) for values in (a.mean(unsure), auc(mistakes))]
    return dict(zip(DOUBT, [*points.T, *both], strict=True))


def surest(rows: int, share: int) -> int:
    """How many rows are the surest so many per cent: at least that many.

    >>> surest(61, 90), surest(10, 100)
    (55, 10)
    """
    return -(-rows * share // 100)


def surest_shares(rows: int, fewest: int = FEWEST) -> tuple[int, ...]:
    """Those of SUREST of which a site with so many rows tells a number: from 100 down in the finest of STEPS by which
    two neighbours, and so any two, are that many rows apart.

    >>> surest_shares(100) == SUREST, surest_shares(61), surest_shares(25), surest_shares(24), surest_shares(9)
    (True, (100, 80, 60, 40, 20), (100, 60), (100,), ())
    """
    for step in STEPS:
        shares = tuple(share for share in SUREST[:: step // 10] if surest(rows, share) >= fewest)
        counts = [surest(rows, share) for share in shares]
        if all(more - fewer >= fewest for more, fewer in pairwise(counts)):
            break
    return shares


def score_risk(
    y: NDArray[np.generic],
    p: Floats,
    real: NDArray[np.bool_],
    weights: Floats | None,
    least: Sequence[int] | None = None,
) -> dict[str, Floats]:
    """How rows of low, middle and high risk fare at every site, [site], by the names of `times.risk_names`. `least`
    [site]: rows in place of FEWEST."""
    used = _usable(p, real)
    scores = []
    for i, mine in enumerate(used):
        w = np.ones(int(mine.sum())) if weights is None else weights[i, mine]
        scores.append(
            survival.by_risk(np.asarray(y[i, mine], np.float64), p[i, mine], w, FEWEST if least is None else least[i])
        )
    return dict(zip(survival.risk_names(p.shape[2]), np.array(scores).reshape(len(y), -1).T, strict=True))


def _of_the_surest(right: NDArray[np.bool_], unsure: Floats, fewest: int) -> list[float]:
    """Accuracy for each of SUREST. Rows of the same doubt share their hits: their order says nothing."""
    group = np.unique(unsure, return_inverse=True)[1]
    hits = (np.bincount(group, right) / np.bincount(group))[np.sort(group)]
    shares = surest_shares(len(right), fewest)
    return [float(hits[: surest(len(right), share)].mean()) if share in shares else NAN for share in SUREST]


def _usable(p: Floats, real: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """All rows of a site, or none."""
    return np.asarray(real & (np.isfinite(p).all(2) | ~real).all(1, keepdims=True))


def score(
    names: tuple[str, ...],
    y: NDArray[np.generic],
    p: Floats,
    weights: Floats | None = None,
    thresholds: Floats | None = None,
) -> dict[str, float]:
    """The named metrics of one site."""
    of, cut = (None if values is None else values[None] for values in (weights, thresholds))
    scores = score_all(names, y[None], p[None], np.ones((1, len(y)), dtype=bool), of, thresholds=cut)
    return {n: float(v[0]) for n, v in scores.items()}


def baseline_scores(
    names: tuple[str, ...], y: NDArray[Any], classes: int, weights: Floats | None = None, intervals: int = 0
) -> dict[str, float]:
    """What always giving the same answer comes to on these rows: the share of each class among them, so that the most
    common one is named; their mean, where there are no classes; their life table, where there are intervals.

    >>> baseline_scores(("accuracy", "balanced_accuracy", "auc"), np.array([0, 0, 0, 1]), 2)
    {'accuracy': 0.75, 'balanced_accuracy': 0.5, 'auc': 0.5}
    >>> baseline_scores(("rmse", "r2"), np.array([1.0, 3.0]), 0)
    {'rmse': 1.0, 'r2': 0.0}
    >>> baseline_scores(("c_index",), np.array([1.0, -2.0, 3.0]), 0, intervals=3)
    {'c_index': 0.5}
    """
    w = np.ones(len(y)) if weights is None else weights
    if intervals:
        answer = survival.life_table(y, intervals, w)
    else:
        whole = np.bincount(y, w, classes) if classes else np.array([(y * w).sum()])
        answer = whole / (w.sum() or 1)
    return score(names, y, np.tile(answer, (len(y), 1)), weights)


def events(y: NDArray[Any]) -> int:
    """Rows whose event was seen, of times to it."""
    return int((y > 0).sum())


def rarest(y: Ints) -> int:
    """Rows of the class that is rarest among those that occur."""
    return int(np.unique(y, return_counts=True)[1].min(initial=len(y)))


def small_sample(rows: int, rare: int | None = None, word: str = "row", event: bool = False) -> str:
    """Of so many hold-out rows, of classes so many of the rarest one, or with the event: nothing, or on how few a score
    stands.

    >>> small_sample(46, 3), small_sample(80, 9), small_sample(80, 10), small_sample(13, 13), small_sample(13)
    ('46 rows, 3 of the rarest class', '80 rows, 9 of the rarest class', '', '13 rows, all of one class', '13 rows')
    >>> small_sample(90, 4, event=True), small_sample(13, 13, event=True)
    ('90 rows, 4 with the event', '13 rows, 13 with the event')
    """
    if rows >= FEW and (rare is None or rare >= RARE):
        return ""
    words = f"{rows} {word}{'s' * (rows != 1)}"
    if rare is None or not rows:
        return words
    if event:
        return f"{words}, {rare} with the event"
    return f"{words}, all of one class" if rare == rows else f"{words}, {rare} of the rarest class"

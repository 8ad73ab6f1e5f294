"""Which site's class stands out, as if its model had learned a shortcut there: facts in, one calibrated rule out.

Signals, each of one site and class against all other cells (outliers.py says how):

    travel       is the site's model much better at home than away? Right at home, of so many, against right at all
                 others together, beside how much easier the site's pictures of the class are for the others' models
    margin       is the site's model surer of the class at home than elsewhere, by more than the others' models find it
                 easier there? From log-odds, cut at CUT: what travel counts as right or wrong, this weighs
    piece        does a piece of the site's pictures convince its own model far more than the others' models?
    easy         was it learned with less loss, for so many pictures, than elsewhere?

A cell's chance is the smallest of its signals' chances, each over its weight (Bonferroni), among them `together`:
Fisher's product of the TOGETHER, with Brown's correction for signals that are correlated by RELATED. It is flagged
where that chance, times the number of cells looked at, is at most `level`: so often, at most, shall a clean federation
raise an alarm. No threshold was tuned on data; whether the promise holds is measured on made-up ones
(benchmarks/pictures/planted_bias_rule.py).

What is assumed. A site's pictures of a class are independent of each other; what differs between clean sites and
classes has the shape of outliers.py (also in its tails); signals of a clean cell are no more correlated than RELATED.
At least three sites. A site that differs as a whole (another device) is told from a mark on one class only by its other
classes: with two classes it may look like one. A mark that sits at several sites in the same class hides itself.

Rivals: the prototypes' distance scaled from its least to its largest always names somebody.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from vitrail.analysis.shortcuts.outliers import FEWEST_SITES, Floats, chance_of_log, chance_of_ratio, expected
from vitrail.core import facts as means
from vitrail.core.facts import Facts, find_value

LEVEL = 0.05  # of clean federations raise an alarm, at most
WEIGHTS = {"piece": 0.5, "margin": 0.2, "travel": 0.03, "easy": 0.02, "together": 0.25}
TOGETHER = ("piece", "margin", "travel")
RELATED = 0.3  # correlation of two signals in a clean cell
FEWEST_ROWS = 5


class ShortcutFinding(NamedTuple):
    """A site's class that stands out."""

    site: int
    label: int
    chance: float  # that a clean federation shows somewhere what this cell shows, or more
    by: tuple[str, ...]  # signals that would have said so alone, the surest first; else those behind `together`


class ShortcutSignals(NamedTuple):
    """What is known of each cell; all tables [site, class], NaN where nothing is."""

    home: Floats  # share that the site's model gets right there
    away: Floats  # and elsewhere
    piece: Floats  # how much further the piece convinces the site's model, in log-odds, than the others' in the mean
    margin: Floats  # how much surer the site's model is at home than elsewhere, beside the others' models, in log-odds
    easy: Floats
    distance: Floats
    usual: dict[str, Floats]  # by signal, what the other cells make one expect; of travel: right at home
    chances: dict[str, Floats]  # by signal; that of the distance is no part of the rule
    chance: Floats  # of all signals, of one cell
    found: list[ShortcutFinding]
    level: float

    @property
    def cells(self) -> int:
        """How many were looked at."""
        return int(np.isfinite(self.chance).sum())

    @property
    def travel(self) -> Floats:
        return np.asarray(self.home - self.away)


def judge(
    travel: Floats | None = None,
    piece: Floats | None = None,
    easy: Floats | None = None,
    distance: Floats | None = None,
    margin: Floats | None = None,
    level: float = LEVEL,
) -> ShortcutSignals | None:
    """`travel`, `margin`: [user, site, class, (right or how sure, rows)]; `piece`: [site, user, class], rises; `easy`,
    `distance`: [site, class]. NaN, counts of nothing, and rises and losses of just 0 are not told. None where nothing
    is."""
    shapes = [t.shape[1:3] for t in (travel, margin) if t is not None] + [
        t.shape[1:] for t in (piece,) if t is not None
    ]
    shapes += [t.shape for t in (easy, distance) if t is not None]
    if not shapes:
        return None
    nothing = np.full(shapes[0], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        home, away, others, elsewhere = (_pair(nothing),) * 4 if travel is None else _sides(travel)
        lead = nothing if piece is None else _lead(np.where(piece == 0, np.nan, piece))
        size = np.log(home[..., 1])
        size = size - (np.nanmean(size) if np.isfinite(size).any() else 0.0)
        loss, far = (nothing if t is None else np.where(t > 0, t, np.nan) for t in (easy, distance))
        surer = nothing if margin is None else _surer(margin)
        seen = {
            "margin": _small(-surer, size),
            "travel": _travel(home, away, others, elsewhere),
            "piece": _small(-lead, size),
            "easy": _small(np.log(loss), size),
            "distance": _small(-np.log(far), size),
        }
        usual = {name: signal[1] for name, signal in seen.items() if signal is not None}
        usual |= {name: -middle for name, middle in usual.items() if name in ("piece", "margin", "distance")}
        usual |= {name: np.exp(middle) for name, middle in usual.items() if name in ("easy", "distance")}
    chances = {name: signal[0] for name, signal in seen.items() if signal is not None}
    signals = {name: p for name, p in chances.items() if name in WEIGHTS}
    chance = _fused(signals, nothing.shape)
    out = ShortcutSignals(_share(home), _share(away), lead, surer, loss, far, usual, chances, chance, [], level)
    return out._replace(found=_find_shortcuts(out, signals))


def read_standing(facts: Facts, level: float = LEVEL) -> ShortcutSignals | None:
    """From the facts of a run, any of which may be missing; None where all are."""
    wanted = (means.TRAVEL, means.PIECE, means.EASY, means.PROTOTYPE_DISTANCE, means.MARGIN)
    travel, piece, easy, far, margin = (
        None if (t := find_value(facts, what)) is None else t.double().numpy() for what in wanted
    )
    return judge(travel, piece, easy, far, margin, level)


def too_few(standing: ShortcutSignals) -> bool:
    """Whether so few sites told anything that nobody can say who is odd."""
    tables = (standing.home, standing.piece, standing.margin, standing.easy, standing.distance)
    return int(np.isfinite(np.stack(tables)).any((0, 2)).sum()) < FEWEST_SITES


def least_to_largest(distance: Floats) -> Floats:
    """The paper's scale: 0 for the smallest of all cells, 1 for the largest, which is named."""
    low, high = np.nanmin(distance), np.nanmax(distance)
    return np.asarray((distance - low) / ((high - low) or 1.0))


# the signals


def _pair(nothing: Floats) -> Floats:
    return np.stack([nothing, nothing], -1)


def _enough_counts(counts: Floats) -> Floats:
    """[..., (count, of)] with NaN where there are too few."""
    return np.where(counts[..., 1:] >= FEWEST_ROWS, counts, np.nan)


def _share(counts: Floats) -> Floats:
    return np.asarray(counts[..., 0] / counts[..., 1])


def _log_odds(counts: Floats) -> Floats:
    return np.asarray(np.log((counts[..., 0] + 0.5) / (counts[..., 1] - counts[..., 0] + 0.5)))


def _sides(travel: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """[site, class, (right, rows)] each: its model at home; its model away; the others' models at this site; and at the
    others' sites, where none is at home."""
    counts = _enough_counts(travel)
    sites = np.arange(len(counts))
    home, abroad = counts[sites, sites], np.where(np.eye(len(counts), dtype=bool)[:, :, None, None], 0.0, counts)
    abroad = np.nan_to_num(abroad)
    away, others = abroad.sum(1), abroad.sum(0)
    elsewhere = away.sum(0) - away - others  # models away, less this model's and less those at this site
    both = np.isfinite(home) & (away[..., 1:] > 0)
    return np.where(both, home, np.nan), np.where(both, away, np.nan), others, elsewhere


def _travel(home: Floats, away: Floats, others: Floats, elsewhere: Floats) -> tuple[Floats, Floats] | None:
    """Chances, and how many one would expect to be right at home."""
    right = (home[..., 0] + away[..., 0] + 0.5) / (home[..., 1] + away[..., 1] + 1)
    chance = (1 / home[..., 1] + 1 / away[..., 1]) / (right * (1 - right))
    easier = np.where((others[..., 1] > 0) & (elsewhere[..., 1] > 0), _log_odds(others) - _log_odds(elsewhere), 0.0)
    prior = 0.5 * easier  # g is around a half: part of what the others' models find easier is luck of the draw
    by = expected(_log_odds(home) - _log_odds(away) - prior, chance, (easier,))
    if by is None:
        return None
    by = by._replace(mean=by.mean + prior[by.cells])
    return chance_of_ratio(home, away, by), special.expit(_log_odds(away) + by.middle)


def _lead(rises: Floats) -> Floats:
    """[site, user, class] -> [site, class]: under the site's own model, less the mean of the others'."""
    sites = np.arange(len(rises))
    own, others = rises[sites, sites], np.where(np.eye(len(rises), dtype=bool)[:, :, None], np.nan, rises)
    many = np.isfinite(others).sum(1)
    return np.asarray(np.where(many > 0, own - np.nansum(others, 1) / many, np.nan))


def _surer(margin: Floats) -> Floats:
    """[user, site, class, 2] -> [site, class], in log-odds: how far the site's model is above the mean of the others'
    at home, less how far it is above the mean of those that are not at home elsewhere. Of each picture the others'
    models say how hard it is, so that a site with easy pictures does not stand out."""
    sure = 2 * means.CUT * _share(_enough_counts(margin))  # [user, site, class]
    many = len(sure)
    at_home = np.eye(many, dtype=bool)[:, :, None]
    abroad, available = np.where(at_home, 0.0, np.nan_to_num(sure)), np.isfinite(sure) & ~at_home
    total, of = abroad.sum(0), available.sum(0)  # [site, class]: the models that are not at home there
    home = sure[np.arange(many), np.arange(many)] - total / of
    others = (total - abroad) / (of - available)  # [user, site, class]: without this model
    above = np.where(available & (of - available > 0), sure - others, np.nan)
    elsewhere = np.isfinite(above).sum(1)
    out = home - np.nansum(above, 1) / elsewhere
    return np.asarray(np.where(np.isfinite(out), out, np.nan))


def _small(log: Floats, size: Floats) -> tuple[Floats, Floats] | None:
    """Chances of logs as small as these, and what is expected of them."""
    by = expected(log, None, (size,))
    return None if by is None else (chance_of_log(log, by), by.middle)


# all together


def _product(chances: Floats) -> Floats:
    """Of signals that are correlated by RELATED, over the first axis (Brown 1975, with his polynomial)."""
    from scipy import stats  # takes half a second to load, and few verbs ask for it

    present = np.isfinite(chances)
    many = present.sum(0)
    mean, pairs = 2.0 * many, many * (many - 1)
    variance = 4.0 * many + pairs * (3.263 * RELATED + 0.710 * RELATED**2 + 0.027 * RELATED**3)
    total = -2 * np.log(np.maximum(np.where(present, chances, 1.0), 1e-300)).sum(0)
    several = many > 1
    scale = np.where(several, variance / np.maximum(2 * mean, 1), 1.0)
    out = stats.chi2.sf(total / scale, np.where(several, 2 * mean**2 / np.maximum(variance, 1), 1.0))
    return np.asarray(np.where(several, out, np.nan))


def _weighed(signals: dict[str, Floats]) -> dict[str, Floats]:
    """Each signal's chance over its weight among those that are known of the cell."""
    several = [p for name, p in signals.items() if name in TOGETHER]
    if len(several) > 1:
        signals = {**signals, "together": _product(np.stack(several))}
    total = sum(np.where(np.isfinite(p), WEIGHTS[name], 0.0) for name, p in signals.items())
    return {name: p * total / WEIGHTS[name] for name, p in signals.items()}


def _fused(signals: dict[str, Floats], shape: tuple[int, ...]) -> Floats:
    if not signals:
        return np.full(shape, np.nan)
    return np.asarray(np.fmin.reduce([np.minimum(p, 1.0) for p in _weighed(signals).values()]))


def _find_shortcuts(standing: ShortcutSignals, signals: dict[str, Floats]) -> list[ShortcutFinding]:
    many, weighed, out = standing.cells, _weighed(signals) if signals else {}, []
    for site, label in np.argwhere(standing.chance * many <= standing.level).tolist():
        chances = {n: float(p[site, label]) for n, p in signals.items() if np.isfinite(p[site, label])}
        order = sorted(chances, key=lambda n: weighed[n][site, label])
        by = [n for n in order if weighed[n][site, label] * many <= standing.level]
        by = by or [n for n in order if chances[n] <= standing.level]  # only together: those that were small at all
        out.append(ShortcutFinding(site, label, float(standing.chance[site, label]) * many, tuple(by)))
    return sorted(out, key=lambda finding: finding.chance)

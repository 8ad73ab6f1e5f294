"""What a model's probabilities are worth, as counts of rows: how many lie between two risks, how many of those had the
event, and how many the model expected. Calibration and net benefit are both made of them.

    of two classes      the risk is the share of the positive class, the event that it came true
    of more than two    the share of the class that is named, and the event that it was right

What leaves a site is cut at EDGES, of which only those are used between which FEWEST rows or more lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.metrics.scores import FEWEST

Floats = NDArray[np.float64]
EDGES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # risks at which people decide
KINDS = ("rows", "events", "expected")
BEDSIDE = tuple(f"{kind}@{100 * edge:g}" for edge in (0.0, *EDGES) for kind in KINDS)  # what `score_bedside` tells


class RiskCounts(NamedTuple):
    """A site's rows by the risk that its model says, from the lowest: [group]."""

    low: Floats  # risk from which the group begins; the last ends at 1
    rows: Floats
    events: Floats
    expected: Floats  # the sum of the risks

    @property
    def total(self) -> float:
        return float(self.rows.sum())

    def of_persons(self, share: float) -> RiskCounts:
        """The same shares, with so many persons for each row: several rows of one person say no more than one."""
        return RiskCounts(self.low, self.rows * share, self.events * share, self.expected * share)

    @property
    def share(self) -> float:
        """How often the event came."""
        return float(self.events.sum() / max(self.total, 1))


def risks(y: NDArray[Any], p: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Of rows y [row] and shares p [row, class]: the risk, and whether the event came."""
    if p.shape[1] == 2:
        return p[:, 1], y == 1
    return p.max(1), p.argmax(1) == y


def counted(risk: Floats, event: NDArray[np.bool_], edges: tuple[float, ...]) -> RiskCounts:
    """Cut at every edge, also where few rows lie between."""
    at = np.searchsorted(np.array(edges), risk, side="right")
    many = len(edges) + 1
    sums = [np.bincount(at, w, many).astype(np.float64) for w in (np.ones(len(risk)), event, risk)]
    return RiskCounts(np.array([0.0, *edges]), *sums)


def recut(counts: RiskCounts, edges: tuple[float, ...]) -> RiskCounts:
    """The same rows in groups that begin at 0 and at these edges alone; each of them is one of the counts' own."""
    group = np.searchsorted(np.array(edges), counts.low + 1e-9, side="right")
    sums = [np.bincount(group, values, len(edges) + 1).astype(np.float64) for values in counts[1:]]
    return RiskCounts(np.array([0.0, *edges]), *sums)


def merged(counts: RiskCounts, least: int = FEWEST) -> RiskCounts:
    """Neighbours put together, from the lowest risk up, until each group has so many rows; nothing where all have
    fewer."""
    groups: list[list[int]] = [[]]
    for k in range(len(counts.low)):
        if groups[-1] and counts.rows[groups[-1]].sum() >= least:
            groups.append([])
        groups[-1].append(k)
    if len(groups) > 1 and counts.rows[groups[-1]].sum() < least:
        last = groups.pop()
        groups[-1] += last
    if counts.total < least:
        groups = []
    sums = [np.array([values[g].sum() for g in groups], np.float64) for values in counts[1:]]
    return RiskCounts(np.array([counts.low[g[0]] for g in groups], np.float64), *sums)


def score_bedside(
    y: NDArray[Any], p: Floats, real: NDArray[np.bool_], least: Sequence[int] | None = None
) -> dict[str, Floats]:
    """[site] for each of BEDSIDE: the counts of the group that begins at that risk; NaN where none begins there.
    `least` [site]: rows in place of FEWEST."""
    out = np.full((len(y), len(BEDSIDE)), np.nan)
    for i in range(len(y)):
        shares = p[i][real[i]]
        if np.isfinite(shares).all():
            fewest = FEWEST if least is None else least[i]
            out[i] = pack_counts(merged(counted(*risks(y[i][real[i]], shares), EDGES), fewest))
    return dict(zip(BEDSIDE, out.T, strict=True))


def pack_counts(counts: RiskCounts) -> Floats:
    """[BEDSIDE]"""
    out = np.full((len(EDGES) + 1, len(KINDS)), np.nan)
    out[np.searchsorted(np.array([0.0, *EDGES]), counts.low)] = np.stack(counts[1:], 1)
    return out.ravel()


def read_counts(values: dict[str, float]) -> RiskCounts | None:
    """What a site told, by the names of BEDSIDE; None where it told nothing, or what no rows can be."""
    grid = np.array([values.get(name, np.nan) for name in BEDSIDE]).reshape(-1, len(KINDS))
    used = np.isfinite(grid).all(1)
    rows, events, expected = grid[used].T
    low = np.array([0.0, *EDGES])[used]
    ends = np.array([high for _, high in pairwise([*low, 1.0])])
    fine = (rows >= 1) & (events >= 0) & (events <= rows) & (expected >= low * rows - 1e-6)
    fine &= expected <= ends * rows + 1e-6
    half = np.isfinite(grid).any(1) != used
    if not used.any() or half.any() or not fine.all() or low[0] != 0:
        return None
    return RiskCounts(low, rows, events, expected)

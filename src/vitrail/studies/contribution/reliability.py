"""When not to rely on the sizes of values that were rebuilt: a signal, its limit, and how often it was wrong.

Rebuilt values are off by the sum over sites of |rebuilt - trained again|, as a share of the sum of |trained again|.
Values count from the first model here. Limits were set on federations of three tables, and rates counted on others
(benchmarks/verdicts/contribution.py).

    strain = apart * (0.2 + unlike)
    apart    how far the sites' reports lead from where the run went: root mean square over sites of
             |sum over t of m_it - (w_T - w_0)| / |w_T - w_0|, with m_it what site i's report alone changes at w_t
    unlike   whether the user's rows stand for the others': mean over sites of |log(bend_i / bend_user)|, where
             bend_i = - sum over t of <m_i,t+1 - m_it, w_t+1 - w_t> is how reports give way as the model moves
    spot     with all tables at hand: every site trained alone (as many models as sites, in one stack);
             mean over the other sites of |rebuilt - trained| worth alone, over the sum of the values' sizes
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitrail.core.tensors import flatten
from vitrail.stats.shapley import Floats
from vitrail.studies.contribution.replay import UpdateReplay
from vitrail.studies.contribution.retraining import CoalitionRetraining

OFF = 0.4  # of the values' size: more is called wrong
MOST = 3.0  # a logarithm of two bends that says no more than "quite unlike"


class ReliabilityRule(NamedTuple):
    """A limit, and what was counted with it on the test federations of benchmarks/verdicts/contribution.py."""

    limit: float
    silent: int  # cases below it
    silent_off: int  # of these: off by more than OFF
    warned: int
    warned_off: int

    def said(self, warns: bool) -> str:
        off, cases = (self.warned_off, self.warned) if warns else (self.silent_off, self.silent)
        with_ = "with" if warns else "without"
        return (
            f"of {cases} test cases {with_} this warning, {off} ({100 * off / cases:.0f} %) differed by "
            f"more than {100 * OFF:.0f} % from retraining with the same seed, counted from the first model"
        )


STRAIN = ReliabilityRule(0.7, 179, 9, 181, 86)
SPOT = ReliabilityRule(0.24, 244, 13, 116, 82)
SEED_NOISE = 0.34  # the median of how far values of another seed were off, by the same measure
AS_GIVEN = ReliabilityRule(0.0, 0, 0, 360, 259)  # reports taken as they were given: always warned of


def strain(record: UpdateReplay) -> float:
    """0 where there is one round only: then nothing is rebuilt."""
    n = len(record.names)
    before, previous, moved = np.zeros(0), np.zeros(0), np.zeros(0)
    total, bend, here = np.zeros(0), np.zeros(n), np.zeros(n, dtype=bool)
    for recorded in record.rounds():
        at = _flat(record, recorded.coord)
        alone = (
            np.stack([_flat(record, c) for c in record.merged(recorded, np.eye(n, dtype=bool))]) - at
        )  # [site, number]
        if not total.size:
            total, start = np.zeros_like(alone), at
        else:
            moved = at - before
            bend -= np.where(here & recorded.present, (alone - previous) @ moved, 0.0)
        total, previous, before, here = total + alone, alone, at, recorded.present
    way = _flat(record, record.final) - start
    took = record.took_part > 0
    apart = np.sqrt(((total[took] - way) ** 2).sum(1).mean() / max((way**2).sum(), 1e-30))
    others = took & (np.arange(n) != record.at)
    if not moved.size or not others.any():
        return 0.0
    unlike = np.log(np.maximum(bend[others], 1e-30) / max(bend[record.at], 1e-30))
    return float(apart * (0.2 + np.abs(unlike.clip(-MOST, MOST)).mean()))


def _flat(record: UpdateReplay, coord: object) -> Floats:
    shared = record.run.method.shared(coord)
    return np.concatenate([t.flatten().numpy() for _, t in flatten(shared)])


def spot(record: UpdateReplay, again: CoalitionRetraining, size: float) -> float:
    """`size`: the sum of the values' sizes, counted from the first model."""
    n = len(record.names)
    masks = np.eye(n, dtype=bool)
    order = [record.names.index(name) for name in again.names]
    rebuilt = -record.losses(record.carried(masks)).mean(1)
    trained = again.worth(masks[:, order], again.seeds[0]).mean(1)
    off = np.delete(np.abs(rebuilt - trained), record.at)
    return float(off.mean() / max(size, 1e-30))

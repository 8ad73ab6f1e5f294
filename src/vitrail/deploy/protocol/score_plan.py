"""When a site tells how good its model is, between machines; both ends work it out, and a site answers nothing else.

    during training    at most POINTS times, on held-out rows: the agreed start, and then models that continue the one
                       that the site last trained on. In a study under masks the first metric alone, and only its sum
                       over sites can be opened.
                       Where noise is added for rows, and with two servers: never.
    at the end         once, on held-out and on training rows, of each site. Where noise is added for rows: on held-out
                       rows, under noise that is part of the budget. Where it is added for sites, a score would tell
                       all of one site: never.

Numbers leave as counts of patients rounded to tens by chance (privacy/score_rounding.py), unless the study says
`scores = "exact"` under [protect].
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vitrail.engine.contract import Spec, WireEntry
from vitrail.privacy.score_rounding import score_of
from vitrail.privacy.secure_sum.fixed_point import ZERO
from vitrail.runs.result import ALL_SITES
from vitrail.runs.setup import last_splits

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

POINTS = 5  # during training
SUMMED = "summed/scores"  # in a report under masks: [2, number], counts of patients, and of how many patients
TRAINING, END = "scores in training", "scores"  # stages of what crosses


def clock(agreed: Agreement, s: int, r: int) -> int:
    """Rounds of the whole run before that one."""
    return sum(t.stage.rounds for t in agreed.stages[:s]) + r


def planned(agreed: Agreement, kind: str, s: int, r: int, place: int) -> list[str]:
    """What is scored with that question: splits, or nothing."""
    if agreed.study.protect.scores == "none" or agreed.study.protect.sites:
        return []
    stage, ends = agreed.stages[s].stage, s + 1 == len(agreed.stages)
    if kind == "settle":
        if r != stage.rounds:
            return []
        return list(last_splits(agreed.task, agreed.study)) if ends else ["test"] * _is_point(agreed, s, r, None)
    first = place == stage.turns(r)[0] and bool(r or not s)
    return ["test"] * (first and _is_point(agreed, s, r, place))


def is_summed(agreed: Agreement, s: int, r: int, place: int) -> bool:
    """Whether scores are part of the report under masks of that exchange."""
    return agreed.masked(s, place) and bool(planned(agreed, "round", s, r, place))


def summed_scores(agreed: Agreement) -> list[tuple[str, str]]:
    """Split and metric of what is told under masks during training: the study's first metric, of each model."""
    return [about for about in agreed.scored(["test"]) if about[1] == agreed.study.metrics[0]]


def report_spec(agreed: Agreement, s: int, r: int, place: int) -> Spec:
    """What leaves in that exchange under guards, with the scores where they are part of a masked report."""
    crosses = agreed.contracts[s][place].crosses or {}
    if not is_summed(agreed, s, r, place):
        return crosses
    scores = (2, len(summed_scores(agreed))), torch.int64
    rest = {k: v for k, v in crosses.items() if k != ZERO}
    return {**rest, SUMMED: scores, ZERO: crosses[ZERO]}


def score_lines(agreed: Agreement) -> list[WireEntry]:
    """Every score that leaves a site, for the table of what crosses."""
    during = Counter[str]()
    for s, t in enumerate(agreed.stages):
        for r in range(t.stage.rounds):
            place = t.stage.turns(r)[0]
            if planned(agreed, "round", s, r, place):
                during["masked" if agreed.masked(s, place) else "each"] += 1
        if s + 1 < len(agreed.stages):
            during["each"] += bool(planned(agreed, "settle", s, t.stage.rounds, 0))
    out = []
    for seen, times in ((seen, times) for seen, times in during.items() if times):
        for split, metric in summed_scores(agreed) if seen == "masked" else agreed.scored(["test"]):
            name = metric + (f", {split.partition(':')[2]}" if ":" in split else "")
            size = 16 if seen == "masked" else 8
            out.append(WireEntry(TRAINING, "from site", name, (2,) * (seen == "masked"), "float64", size, times, seen))
    last = agreed.stages[-1].stage
    for split, metric in agreed.scored(planned(agreed, "settle", len(agreed.stages) - 1, last.rounds, 0)):
        name = metric if split == "test" else f"{metric}, {split.removeprefix('test:')}"
        out.append(WireEntry(END, "from site", name, (), "float64", 8, 1, "each"))
    return out


def mean_scores(agreed: Agreement, s: int, r: int, sums: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows of HISTORY: the mean over all patients of what sites told under masks; `sums`: [2, number] of each sum."""
    if not sums:
        return []
    counts, many = np.sum(sums, axis=0)
    scored = zip(summed_scores(agreed), counts, many, strict=True)
    scale = float(agreed.study.target.scale)
    return [(s, r, ALL_SITES, *about, score_of(about[1], float(n), float(of), scale)) for about, n, of in scored]


def settling_lines(agreed: Agreement) -> list[WireEntry]:
    """All that comes in to score a model and is no part of the word of its exchange."""
    times: Counter[tuple[int, int]] = Counter()
    for s, t in enumerate(agreed.stages):
        for r in range(t.stage.rounds):
            place = t.stage.turns(r)[0]
            times[s, place] += bool(planned(agreed, "round", s, r, place))
    out = []
    for (s, place), count in times.items():
        words = agreed.contracts[s][-1].words
        for name, (shape, kind) in agreed.settling(s, place).items() if count else ():
            sentence = words.get(f"to site/{name.partition('/')[2]}")
            sentence = f"to score your model before a round: {sentence}" if sentence else ""
            size, dtype = math.prod(shape) * kind.itemsize, str(kind).removeprefix("torch.")
            out.append(WireEntry(TRAINING, "to site", name, shape, dtype, size, count, "each", words=sentence))
    return out


def _is_point(agreed: Agreement, s: int, r: int, place: int | None) -> bool:
    """Whether scores are told after so many rounds; `place`: of the exchange that carries them, where there is one."""
    protect, total = agreed.study.protect, clock(agreed, len(agreed.stages), 0)
    if protect.rows or protect.second:
        return False
    if protect.sum != "plain" and (place is None or not agreed.masked(s, place)):
        return False
    done = clock(agreed, s, r)
    return done < total and done % max(1, total // POINTS) == 0

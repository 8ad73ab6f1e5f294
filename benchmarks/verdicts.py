"""Is joining worth it? How often the verdict is right where the truth is known, and what it says of real tables.

    python benchmarks/verdicts.py worlds   # made-up hospitals (verdict_worlds.py); what was stopped goes on
    python benchmarks/verdicts.py tables   # heart, GUSTO, HAR, Titanic: before and after; needs VITRAIL_DATA
    python benchmarks/verdicts.py time     # the demo's study: five hold-outs against five times ten folds, one thread
    python benchmarks/verdicts.py report   # results/verdicts.md from results/verdicts/*.csv

Before: five hold-outs of a third of the rows, balanced accuracy, an interval over the five. After: what `vt.compare`
does. Both by the product's own code (studies/joining.py, studies/intervals.py). In the made-up worlds linear models
stand for networks. The rule was chosen on data sets of seed 5; those here are of seeds from 1000 on. Beside them a
simple rival with the same losses: a t test over rows, as if they were judged by independent models.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from verdict_worlds import CASES, Case, draw, held_out, of_all_rows, out_of_fold, truth

from vitrail.studies.compare import FIRST_LOOK, FOLDS
from vitrail.studies.intervals import LEVEL, level_of
from vitrail.studies.joining import HARM, NO, UNSURE, YES, Losses, decide

RESULTS = Path(__file__).parent / "results"
CACHE = RESULTS / "verdicts"
SETS, SEEDS, AT_ONCE = 300, 5, 50
RULES = {"before": "before: 5 hold-outs", "after": "after: 5 x 10 folds", "rows": "rival: t test over rows"}


# made-up hospitals


def judge_sets(case: Case, first: int, sets: int) -> list[dict[str, Any]]:
    """A line for each data set."""
    world = draw(case, sets, 1000 + first)
    whole = of_all_rows(world, case.kind)
    accuracy, loss = truth(world, whole)
    repeats = [out_of_fold(world, case.kind, whole, FOLDS, 7919 * (first + 1) + 100 * r) for r in range(SEEDS)]
    holds = [held_out(world, case.kind, whole, 104729 * (first + 1) + 100 * s) for s in range(SEEDS)]
    out = []
    for b in range(sets):
        alone, joined, fold = (np.stack([r[i][b] for r in repeats], int(i == 1)) for i in range(3))
        losses = Losses(alone, joined, fold, 1 / FOLDS)
        share = float(world.y[b].mean())
        harm = -HARM * (share * math.log(share) + (1 - share) * math.log(1 - share))
        looks = (FIRST_LOOK, SEEDS)
        for look, used in enumerate(looks, 1):
            after = decide(losses.first(used), harm, level_of(look, len(looks)))
            if after.settled(harm):
                break
        own = -np.array([[alone for alone, _ in holds]])[..., b]
        both = -np.stack([joined[b] for _, joined in holds], 1)[:, None]
        before = decide(Losses(own, both, np.arange(SEEDS)[None], 1 / 3))
        best = losses.joined.mean((1, 2)).argmin()
        t = stats.ttest_1samp((losses.alone - losses.joined[best]).mean(0), 0.0)
        rival = UNSURE if t.pvalue > LEVEL else YES if t.statistic > 0 else NO
        line = {"kind": case.kind, "n": case.rows, "set": first + b, "accuracy": float(accuracy[b])}
        line |= {"loss": float(loss[b]), "before": before.verdict, "after": after.verdict, "rows": rival}
        out.append(line | {"seeds": used, "low": after.low, "high": after.high, "harm": harm})
    return out


def worlds() -> None:
    CACHE.mkdir(exist_ok=True)
    place = CACHE / "worlds.csv"
    lines = pd.read_csv(place).to_dict("records") if place.exists() else []
    for first in range(0, SETS, AT_ONCE):
        for case in CASES:
            if any((x["kind"], x["n"], x["set"]) == (*case, first) for x in lines):
                continue
            began = time.process_time()
            lines += judge_sets(case, first, AT_ONCE)
            pd.DataFrame(lines).to_csv(place, index=False, float_format="%.5f")
            print(*case, first, f"{time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("worlds", "tables", "time", "report"))
    {"worlds": worlds}[parser.parse_args().verb]()

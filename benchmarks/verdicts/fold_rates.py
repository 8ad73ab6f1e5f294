"""Is joining worth it, asked between machines: how often a site's verdict is right, by how many folds and seeds.

    python benchmarks/verdicts/fold_rates.py           # results/fold_rates.csv; what is there is not done again
    python benchmarks/verdicts/fold_rates.py report    # results/fold_rates.md

`[verdict]` in a study trains folds x seeds federations between machines, and each costs what the run costs; the
default is 5 x 2, `vitrail compare` simulates 10 x 4. The made-up hospitals are those of verdict_worlds.py, one method
(a site between machines has no other to choose from), the product's own rule (studies/benefit.py). Nothing was tuned
here: the rule is as it was; data sets are of seeds from 90000 on, which nothing was chosen on. Beside it a simple rival
with the same losses: a t test over rows, as if they were judged by independent models.

    nothing   neither is better, on average, by symmetry: each "yes" and each "no" is wrong
    gain      joining gains;  loss    joining costs
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
from verdict_worlds import CASES, Case, draw, of_all_rows, out_of_fold

from vitrail.studies.benefit import HARM, NO, NO_HARM, UNSURE, YES, SiteLosses, decide

RESULTS = Path(__file__).parent / "results"
PLACE, TABLE = RESULTS / "fold_rates.csv", RESULTS / "fold_rates.md"
CUTS = ((5, 1), (5, 2), (10, 1), (5, 4))  # folds, seeds
SETS, AT_ONCE, FIRST = {"nothing": 600}, 100, 90000
FEW = 200  # data sets of all others


def judge_sets(case: Case, first: int, sets: int) -> list[dict[str, Any]]:
    """A line for each data set and each way to cut."""
    world = draw(case, sets, FIRST + first)
    whole = of_all_rows(world, case.kind)
    shares = world.y.mean(1).cpu().numpy()
    harms = -HARM * (shares * np.log(shares) + (1 - shares) * np.log(1 - shares))
    out = []
    for folds, seeds in CUTS:
        given = [(world, case.kind, whole, folds, 7919 * (FIRST + first) + 100 * r + folds) for r in range(seeds)]
        repeats = [out_of_fold(*one) for one in given]
        for b in range(sets):
            alone, joined, fold = (np.stack([r[i][b] for r in repeats], int(i == 1)) for i in range(3))
            said = decide(SiteLosses(alone, joined[:1], fold, 1 / folds), float(harms[b]))
            t = stats.ttest_1samp((alone - joined[0]).mean(0), 0.0)
            rival = UNSURE if t.pvalue > 0.05 else YES if t.statistic > 0 else NO
            line = {"kind": case.kind, "n": case.rows, "set": first + b, "folds": folds, "seeds": seeds}
            out.append(line | {"verdict": said.verdict, "rows": rival})
    return out


def worlds() -> None:
    lines = pd.read_csv(PLACE).to_dict("records") if PLACE.exists() else []
    for case in (c for c in CASES if c.kind in ("nothing", "gain", "loss")):
        for first in range(0, SETS.get(case.kind, FEW), AT_ONCE):
            if any((x["kind"], x["n"], x["set"]) == (*case, first) for x in lines):
                continue
            began = time.process_time()
            lines += judge_sets(case, first, AT_ONCE)
            pd.DataFrame(lines).to_csv(PLACE, index=False)
            print(*case, first, f"{time.process_time() - began:.0f} s", flush=True)


def share(found: pd.Series) -> str:
    """In per cent, with a 95 % interval (Wilson)."""
    n, p, z = len(found), float(found.mean()), 1.96
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (100 * (middle + s * half) / (1 + z * z / n) for s in (-1, 1))
    return f"{100 * p:.1f} ({low:.1f} to {high:.1f})"


def report() -> None:
    found = pd.read_csv(PLACE)
    heads = ["case", "rows", "sets", "folds x seeds", "yes %", "no harm %", "no %", "rival: yes %", "rival: no %"]
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for (kind, n, folds, seeds), part in found.groupby(["kind", "n", "folds", "seeds"], sort=False):
        cells = [kind, n, len(part), f"{folds} x {seeds}"]
        cells += [share(part.verdict == v) for v in (YES, NO_HARM, NO)] + [share(part["rows"] == v) for v in (YES, NO)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for (folds, seeds), part in found[found.kind == "nothing"].groupby(["folds", "seeds"], sort=False):
        cells = ["nothing, all", "", len(part), f"{folds} x {seeds}"]
        cells += [share(part.verdict == v) for v in (YES, NO_HARM, NO)] + [share(part["rows"] == v) for v in (YES, NO)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    told = (__doc__ or "").split("\n\n", 2)[2].strip()
    TABLE.write_text("# How often a site's own verdict is right\n\n" + told + "\n\n" + "\n".join(lines) + "\n")
    print(TABLE.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("worlds", "report"), default="worlds")
    torch.set_num_threads(1)
    if parser.parse_args().what == "worlds":
        worlds()
    report()

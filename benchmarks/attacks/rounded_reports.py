"""What it would cost to round the losses by which sites agree on a mix, as scores are rounded.

    python benchmarks/attacks/rounded_reports.py            # about five minutes on two busy cores

Agreed mix on heart disease, four hospitals, the packaged study. In its stage "choice" each site reports what every one
of 55 mixes costs it. A site's total, with no patient's loss above 3.9, is a count of patients; it is told

    exact     as it is: the program
    tens      rounded by chance to a multiple of ten patients or more, each number by itself. That is no protection: one
              patient changes all 55 numbers, and each of them in one case of ten
    safe      with steps 55 times as long, so that one patient changes all of them together as a single score is changed

The squared errors that are reported beside the totals stay exact, which favours the rounded ways.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import vitrail as vt
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.methods.blocks.mix_choice import ChooseMix, MixCosts
from vitrail.privacy.score_rounding import LARGEST_LOSS, step_of
from vitrail.runs.setup import resolve

RESULTS = Path(__file__).parent / "results" / "rounded_reports.md"
WAYS = ("exact", "tens", "safe")
METRICS = ("log_loss", "balanced_accuracy")


@contextmanager
def rounding(way: str, seed: int) -> Iterator[None]:
    """Sites tell their totals so."""
    report, draw = ChooseMix.report, torch.Generator().manual_seed(seed)

    def coarse(self: Any, *given: Any) -> tuple[Any, MixCosts]:
        state, told = report(self, *given)
        out = [_coarse(told.costs[i], float(told.rows[i]), way, draw) for i in range(len(told.rows))]
        costs = torch.stack(out)
        per_row = (costs - told.costs) / told.rows[:, None, None]
        more = told.against[:, 1] + per_row
        return state, MixCosts(
            costs, told.rows, torch.stack([told.against[:, 0], more, more**2, told.against[:, 3]], 1)
        )

    ChooseMix.report = coarse if way != "exact" else report  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ChooseMix.report = report  # type: ignore[method-assign]


def _coarse(costs: Tensor, rows: float, way: str, draw: torch.Generator) -> Tensor:
    """One site's, of so many rows."""
    step = LARGEST_LOSS * step_of(rows / LARGEST_LOSS, costs.numel() if way == "safe" else 1)
    chance = torch.rand(costs.shape, generator=draw, dtype=costs.dtype)
    return step * (costs.clamp(0, rows * LARGEST_LOSS) / step + chance).floor()


def scores_of(way: str, seed: int) -> dict[str, Any]:
    heart = vt.Study.load(packaged("heart_disease.toml"))
    study, _ = resolve(heart.with_changes(screen={"ask": False}, metrics=METRICS), "agreed_mix", None)
    with rounding(way, seed):
        run = vt.federate(study, heart_disease(), seed=seed, engine="looped")
    found = run.history[run.history.split == "test"]
    last = found[found.stage == found.stage.max()].sort_values("round").groupby(["site", "metric"]).value.last()
    means = {metric: float(last.xs(metric, level="metric").mean()) for metric in METRICS}
    epochs, own = run.facts["choice"].value.flatten().tolist()[-2:]
    return {"way": way, "seed": seed, **means, "epochs": epochs, "own": own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(1, args.seeds + 1):
        for way in WAYS:
            rows.append(scores_of(way, seed))
            print(rows[-1], flush=True)
    found = pd.DataFrame(rows)
    lines = [
        "# An agreed mix with rounded losses",
        "",
        f"Printed by `python benchmarks/attacks/rounded_reports.py --seeds {args.seeds}`: heart disease, means over four "
        "hospitals and seeds on held-out patients, and the largest difference to exact in a single seed. What the ways "
        "are: see the script.",
        "",
        "| losses are told | log loss | balanced accuracy | more log loss than exact: mean, largest | mixes chosen |",
        "| --- | --- | --- | --- | --- |",
    ]
    exact = found[found.way == "exact"].log_loss.to_numpy()
    for way in WAYS:
        mine = found[found.way == way]
        more = mine.log_loss.to_numpy() - exact
        mixes = len(set(zip(mine.epochs, mine.own.round(3), strict=True)))
        lines.append(
            f"| {way} | {mine.log_loss.mean():.3f} | {mine.balanced_accuracy.mean():.3f} | {np.mean(more):+.3f}, "
            f"{np.max(more):+.3f} | {mixes} different ones in {len(mine)} runs |"
        )
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""What a screening gives away about who is in a site's rows, and how long one takes.

    VITRAIL_DATA=... python benchmarks/faults/fault_leaks.py    # writes benchmarks/faults/results/planted_faults/leaks.md

The attacker is the coordinator: it has what the site publishes under its budget in all three legs (not the products,
of which only the total over sites is seen), the whole row of a person, and other rows of the same population. From
these it draws sites of the same size, and scores a person by the linear discriminant: how what is published lies along
the direction in which this person would move it, against what chance would do. AUC of members against others.
Controls: all that a site of 100,000 rows would publish (no budget); the site's products in clear (what the total
hides); and what another site publishes, in which neither was (must be one half).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import fault_tables as tables
import numpy as np
import pandas as pd

from vitrail.core.random import key
from vitrail.quality.screening import ScreeningCoordinator, ScreeningSite, screen

SIZES = (15, 20, 50, 100)
NAMES = ("heart",)
CONTROLS = (20, 100)  # rows: the controls need no more
WORLDS, MOVES, EACH = 80, 4, 12  # drawn sites, of which some are moved by a person; members and others of a trial
PLACE = Path(__file__).parent / "results" / "planted_faults" / "leaks.md"


class Talk:
    """One federation's questions; any rows can be put in the place of one more site."""

    def __init__(self, rows: tables.Rows, table: Any) -> None:
        self.table, desk = table, ScreeningCoordinator(table)
        seats = {k: ScreeningSite(v, table) for k, v in rows.items()}
        self.everything = ScreeningSite(pd.concat([rows["s0"]] * (100_000 // len(rows["s0"]))), table).share
        self.cuts = desk.hear_sketch({k: s.sketch() for k, s in seats.items()})
        said = {k: s.counts(self.cuts) for k, s in seats.items()}
        self.rest = {"products": sum(total["products"] for _, total in said.values())}
        self.ties = desk.hear_counts({k: own for k, (own, _) in said.items()}, self.rest)

    def hear(self, rows: pd.DataFrame, shown: str) -> np.ndarray:
        """[number]: what the coordinator sees of these rows."""
        seat = ScreeningSite(rows, self.table)
        if shown == "no budget":
            seat.share = self.everything
        own, total = seat.counts(self.cuts)
        if shown == "products":
            return np.asarray(total["products"])[np.triu_indices(len(total["products"]))]
        asked = self.ties | {"products": self.rest["products"] + total["products"]}
        ties = seat.ties(asked)
        if shown == "without ratios":  # as before the third form
            ties["ratios"] = ties["ratios"] * np.nan
        legs = (seat.sketch(), own, ties)
        return np.concatenate([np.ravel(v) for leg in legs for v in leg.values()])


def attack(name: str, size: int, shown: str, trials: int) -> tuple[float, float, int]:
    """AUC, its standard error over trials, and how many numbers are seen."""
    table, every = tables.study_of(name), tables.cleaned(name).drop(columns="_site", errors="ignore")
    aucs, seen = [], 0
    for trial in range(trials):
        rng = np.random.default_rng(key(trial, name, size, "leak"))
        order = rng.permutation(len(every))
        site, others, pool = order[:size], order[size : size + EACH], order[size + EACH :]
        talk = Talk({f"s{i}": every.iloc[rng.choice(pool, max(size, 40), replace=False)] for i in range(5)}, table)
        worlds = [rng.choice(pool, size, replace=False) for _ in range(WORLDS)]
        said = np.array([talk.hear(every.iloc[w], shown) for w in worlds])
        usual = pd.DataFrame(said).mean().to_numpy()
        kept = np.isfinite(said).mean(0) > 0.5
        kept &= np.nanstd(said, 0) > 1e-9
        seen = max(seen, int(kept.sum()))
        spread = np.nanstd(said[:, kept], 0)

        def plain(v: np.ndarray, kept: Any = kept, usual: Any = usual, spread: Any = spread) -> np.ndarray:
            return np.nan_to_num((v[..., kept] - usual[kept]) / spread)

        z = plain(said)
        cov = z.T @ z / len(z)
        shrink = min(0.9, max(0.1, kept.sum() / (kept.sum() + len(z))))
        weigh = np.linalg.inv((1 - shrink) * cov + shrink * np.eye(len(cov)))
        target = worlds[-1] if shown == "another site" else site  # nobody asked about is in the former
        heard = plain(talk.hear(every.iloc[target], shown))
        scores = []
        for person in [*rng.choice(site, EACH, replace=False), *others]:
            moved = [talk.hear(every.iloc[np.append(w[1:], person)], shown) for w in worlds[:MOVES]]
            step = (plain(np.array(moved)) - z[:MOVES]).mean(0)
            scores.append(float(step @ weigh @ heard) - float(step @ weigh @ step) / 2)
        a, b = np.array(scores[:EACH])[:, None], np.array(scores[EACH:])
        aucs.append(float((a > b).mean() + 0.5 * (a == b).mean()))
    return float(np.mean(aucs)), float(np.std(aucs, ddof=1) / trials**0.5), seen


def leaks(trials: int) -> list[str]:
    lines = ["| data | shown | " + " | ".join(f"{n} rows" for n in SIZES) + " |", "| --- " * (2 + len(SIZES)) + "|"]
    jobs = [(n, "published", trials) for n in NAMES]
    jobs += [(NAMES[0], shown, max(3, trials // 2)) for shown in ("no budget", "products", "another site")]
    for name, shown, many in jobs:
        cells = []
        for size in SIZES:
            if shown != "published" and size not in CONTROLS:
                cells.append("-")
                continue
            auc, se, numbers = attack(name, size, shown, many)
            cells.append(f"{auc:.2f} +- {1.96 * se:.2f} ({numbers})")
            print(name, shown, size, cells[-1], flush=True)
        lines.append(f"| {name} | {shown} | {' | '.join(cells)} |")
    return lines


def timing(times_measured: int = 2) -> list[str]:
    """30 sites, 561 columns: HAR's own, and more made by adding pairs of them."""
    rows = tables.natural("har")
    table, rng = tables.study_of("har"), np.random.default_rng(0)
    names, more = list(table.features), 561 - len(table.features)
    pairs = [rng.choice(names, 2, replace=False) for _ in range(more)]
    added = {k: pd.DataFrame({f"more{i}": v[a] + v[b] for i, (a, b) in enumerate(pairs)}) for k, v in rows.items()}
    wide = {k: pd.concat([v, added[k]], axis=1) for k, v in rows.items()}
    plain = {n: f.model_dump() for n, f in table.features.items()}
    table = table.with_changes(features=plain | {f"more{i}": {"kind": "numeric"} for i in range(more)})
    times = []
    for _ in range(times_measured):
        began, used = time.perf_counter(), time.process_time()
        screen(wide, table)
        times.append((time.perf_counter() - began, time.process_time() - used))
    wall, cpu = min(times)
    busy = os.getloadavg()[0]
    said = f"{len(wide)} sites x {len(table.features)} columns, {sum(map(len, wide.values()))} rows"
    return [
        f"{said}: {wall:.1f} s ({cpu:.1f} s of processor time), best of {times_measured}, on {os.cpu_count()} cores, load {busy:.1f}."
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4)
    args = parser.parse_args()
    told = (__doc__ or "").split("\n\n", 2)[2].strip().split("\n")
    text = ["## What is given away", "", *told, ""]
    text += [
        "AUC with a 95 % interval over trials; in brackets how many published numbers vary.",
        "",
        *leaks(args.trials),
    ]
    text += ["", "## Time", "", *timing()]
    PLACE.write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()

"""Who is like whom: how far four measures agree, and how far each ranks sites as training with them does.

    python benchmarks/verdicts/likeness.py measure TABLE    # results/likeness/TABLE.csv: heart, titanic, ...
    python benchmarks/verdicts/likeness.py report           # results/likeness.md

The measures are those of `vitrail alike` (studies/likeness.py), and beside them the loss of a site's own model on the
user's rows, which is the transfer loss without what the site says of itself. Their agreement is the rank correlation over the other
sites of a user. The yardstick is what each other site does for the user: FedAvg is trained by the two of them alone, and
the user's rows are judged out of fold; the more loss that saves, the higher the site. Nothing was chosen on any table.
Needs VITRAIL_DATA for gusto, impact and adult.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import stdtrit

sys.path.append(str(Path(__file__).parent))

from missing_column import SOURCES

import vitrail as vt
from vitrail.data.encoding import clean_sites
from vitrail.runs.setup import resolve
from vitrail.studies.likeness import MEASURES, likeness
from vitrail.studies.missing_columns import ColumnTrial

RESULTS = Path(__file__).parent / "results"
FOLDER, PAGE = RESULTS / "likeness", RESULTS / "likeness.md"
SEED, FOLDS, MOST, SITES = 5, 5, 300, 8
TRAINING = {"rounds": 15, "batch": 32, "lr": 0.02}
TABLES = ("heart", "titanic", "adult", "gusto", "impact")
SAVED, PLAIN = "saved", "loss on user"
RANKED = (*MEASURES, PLAIN)  # the last: the transfer loss without the site's own cross-validated loss


def load(name: str) -> tuple[vt.Study, dict[str, pd.DataFrame]]:
    """Of the Titanic the four groups by age of the report; elsewhere the largest sites, with up to so many rows each."""
    if name == "titanic":
        sites, target = vt.partition.age_strict(vt.datasets.titanic()), "survived"
    else:
        target = SOURCES[name].target
        largest = sorted(SOURCES[name].make().items(), key=lambda item: (-len(item[1]), item[0]))[:SITES]
        sites = {
            site: frame.sample(min(len(frame), MOST), random_state=SEED).reset_index(drop=True)
            for site, frame in sorted(largest)
        }
    study = vt.Study.infer(sites, target, network={"kind": "linear"}, training=TRAINING, standardise="global")
    return study.with_changes(screen={"ask": False}, method={"name": vt.methods.DEFAULT}), sites


def measure(name: str) -> None:
    study, sites = load(name)
    began = time.process_time()
    table = likeness(study, sites, seed=SEED).table
    agreed, method = resolve(study, study.build_method(), None)
    trial = ColumnTrial(agreed, clean_sites(sites, agreed), method, SEED, FOLDS)
    features, loss = list(study.features), {}
    for u, i in itertools.combinations(sites, 2):
        losses = trial.losses(features, [u, i])
        loss |= {(u, i): losses[u].mean(), (i, u): losses[i].mean()}
        print(name, u, i, f"{loss[u, i]:.4f} {loss[i, u]:.4f}", flush=True)
    table[PLAIN] = -vt.transfer(study, sites, seed=SEED).table.loss_on_user
    table[SAVED] = [-loss[u, i] for u, i in zip(table.user, table.site, strict=True)]
    FOLDER.mkdir(exist_ok=True)
    table = table.assign(table=name, seconds=round(time.process_time() - began))
    table.round(6).to_csv(FOLDER / f"{name}.csv", index=False)


def correlations(t: pd.DataFrame) -> pd.DataFrame:
    """[user]: rank correlations of each two columns over the user's other sites."""
    names = [*RANKED, SAVED]
    rows = []
    for at, part in t.groupby(["table", "user"]):
        ranks = part[names].corr("spearman")
        rows.append(
            {"table": at[0], "user": at[1], **{(a, b): ranks.loc[a, b] for a, b in itertools.combinations(names, 2)}}
        )
    return pd.DataFrame(rows)


def interval(values: pd.Series) -> str:
    """A mean over users with its 95 % interval."""
    known = values.dropna()
    half = stdtrit(len(known) - 1, 0.975) * known.std(ddof=1) / np.sqrt(len(known))
    return f"{known.mean():+.2f} ({known.mean() - half:+.2f} to {known.mean() + half:+.2f})"


def report() -> None:
    t = pd.concat([pd.read_csv(FOLDER / f"{name}.csv") for name in TABLES if (FOLDER / f"{name}.csv").exists()])
    c = correlations(t)
    lines = [
        "# Who is like whom",
        "",
        f"{time.strftime('%Y-%m-%d')}.",
        *(__doc__ or "").strip().split("\n\n")[2].splitlines(),
    ]
    lines += [
        "",
        f"{len(c)} users in {c.table.nunique()} tables. Mean rank correlation over users, with its 95 % interval as if users",
    ]
    lines += ["were independent; users of one table are not.", "", "## How far the measures agree", ""]
    lines += ["| | " + " | ".join(MEASURES) + " |", "| --- |" + " ---: |" * len(MEASURES)]
    for a in MEASURES:
        cells = ["" if a == b else interval(c[(a, b)] if (a, b) in c else c[(b, a)]) for b in MEASURES]
        lines.append(f"| {a} | " + " | ".join(cells) + " |")
    lines += ["", "## How far each ranks sites as training with them does", ""]
    lines += ["| table | users | " + " | ".join(RANKED) + " |", "| --- | ---: |" + " ---: |" * len(RANKED)]
    for name, part in [*c.groupby("table", sort=False), ("all", c)]:
        cells = [interval(part[(m, SAVED)]) for m in RANKED]
        lines.append(f"| {name} | {len(part)} | " + " | ".join(cells) + " |")
    firsts = []
    for m in RANKED:
        hits = [g[m].idxmax() == g[SAVED].idxmax() for _, g in t.reset_index(drop=True).groupby(["table", "user"])]
        firsts.append(f"{m} {sum(hits)}")
    guessed = sum(1 / len(g) for _, g in t.groupby(["table", "user"]))
    lines += [
        "",
        f"The site that a measure names first is the best one for: {', '.join(firsts)} of {len(c)} users; guessing {guessed:.1f}.",
    ]
    seconds = t.drop_duplicates("table").set_index("table").seconds
    lines += ["", "Processor seconds: " + ", ".join(f"{name} {s}" for name, s in seconds.items()) + "."]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "report"))
    parser.add_argument("table", nargs="?", choices=TABLES)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "measure":
        measure(given.table)
    else:
        report()

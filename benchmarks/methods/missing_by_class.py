"""A column that one site records for the sick alone: which marks does the page draw, and how many without that?

    python benchmarks/methods/missing_by_class.py                  # minutes on one core
    python benchmarks/methods/missing_by_class.py --page PAGE.html # one of these runs as a page with its heatmaps

The iFedAvg paper's case (figures 4 and 17): the centre Foya recorded diarrhoea and malaria for patients with Ebola alone.
Here `vt.shift(..., "missing", label=0)` empties one column of one site in the rows of the well. Heart disease as the four
hospitals it comes from, and dealt at random to 12 sites that are alike (the paper has 12 centres). Each of three columns in
turn: exang (yes or no), oldpeak and thalach (numbers). iFedAvg under the paper's protocol, in which a missing value is
0.5 or the mean, and a drafted study, which gives the model a further column that says where the value is missing.

O: a site's value in w_in or b_in is more than 2 SD from the mean over sites. x: a column's SD is more than 2 SD above
that of the columns. Dot: likely wrong, by what sites published before the first round (the screening).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import vitrail as vt
from vitrail.report.pages.builder import write_report

SEEDS = (2934384, 10231938, 8273, 2019231, 62739)
COLUMNS = ("exang", "oldpeak", "thalach")
WORLDS = {"12 alike": "site-01", "4 hospitals": "cleveland"}  # and where the column is emptied
SETTINGS = {"the paper's protocol": "ifedavg", "drafted study": ""}
ROUNDS = {"the paper's protocol": 300, "drafted study": 100}
TARGET, WELL = "disease", 0
RESULTS = Path(__file__).parent / "results" / "missing_by_class.md"


def sites_of(world: str, seed: int) -> dict[str, pd.DataFrame]:
    hospitals = vt.datasets.heart_disease()
    if world == "4 hospitals":
        return hospitals
    return vt.partition.iid(pd.concat(hospitals.values(), ignore_index=True), 12, seed)


def run_of(world: str, setting: str, seed: int, column: str) -> vt.Run:
    """`column` is emptied in the rows of the well; "": in none."""
    sites = sites_of(world, seed)
    study = vt.Study.infer(sites, TARGET, paper=SETTINGS[setting])
    features = {
        name: {**f.model_dump(), "indicator": not setting.startswith("the paper")} for name, f in study.features.items()
    }
    study = study.with_changes(training={"rounds": ROUNDS[setting]}, features=features, metrics=["auc"])
    if column:
        sites = vt.shift(sites, "missing", target=TARGET, site=WORLDS[world], column=column, label=WELL).sites
    return vt.federate(study, sites, method="ifedavg", seed=seed)


def measured(run: vt.Run, world: str) -> dict[str, Any]:
    site, table = WORLDS[world], run.shifts()
    cells = table.assign(mark=table.flagged_paper.astype(str), of=table.feature.map(column_of))
    there = cells[cells.site == site]
    wrong, other = ([(f.site, f.feature) for f in run.findings() if f.wrong == is_wrong] for is_wrong in (True, False))
    auc = run.scores().set_index("site")["value"]
    return {
        "there": {
            column: {
                f"{mark} {layer}": bool(here[here.layer == layer].mark.str.contains(mark).any())
                for mark in "Ox"
                for layer in ("w_in", "b_in")
            }
            | {"dot": (site, column) in wrong, "differs": (site, column) in other}
            for column in COLUMNS
            for here in [there[there.of == column]]
        },
        "O": int(cells.mark.str.contains("O").sum()) / 2,
        "x": len(cells[cells.mark.str.contains("x")][["layer", "feature"]].drop_duplicates()) / 2,
        "cells": len(cells) // 2,
        "columns": int(cells.feature.nunique()),
        "dots": len(wrong),
        "auc": {"there": float(auc[site]), "others": float(auc.drop(site).mean())},
    }


def column_of(name: str) -> str:
    """The column of the table that a column of the network is made of."""
    return name.split("=")[0].removesuffix(" is missing")


def runs_of() -> Iterator[dict[str, Any]]:
    for setting in SETTINGS:
        for world in WORLDS:
            for seed in SEEDS:
                for column in ("", *COLUMNS):
                    about = {"setting": setting, "world": world, "seed": seed, "column": column}
                    yield {**about, **measured(run_of(world, setting, seed, column), world)}


def rows(runs: list[dict[str, Any]], setting: str) -> Iterator[str]:
    for world in WORLDS:
        every = [run for run in runs if (run["setting"], run["world"]) == (setting, world)]
        clean = [run for run in every if not run["column"]]
        for column in ("", *COLUMNS):
            mine = [run for run in every if run["column"] == column]
            cells = [world, column or "none"]
            for mark in ("O w_in", "O b_in", "x w_in", "x b_in", "dot", "differs"):
                planted, before = (
                    sum(run["there"][column][mark] for run in of) if column else 0 for of in (mine, clean)
                )
                cells.append(f"{planted} of {len(mine)} ({before})" if column else "-")
            for mark, of_all in (("O", "cells"), ("x", "columns")):
                cells.append(f"{np.mean([run[mark] for run in mine]):.1f} of {mine[0][of_all]}")
            cells.append(f"{np.mean([run['dots'] for run in mine]):.1f}")
            cells += [f"{np.mean([run['auc'][part] for run in mine]):.3f}" for part in ("there", "others")]
            yield f"| {' | '.join(cells)} |"


def report(runs: list[dict[str, Any]], seconds: float) -> str:
    lines = [f"# A column recorded for the sick alone, {time.strftime('%Y-%m-%d')}", ""]
    _, _, about, key = str(__doc__).split("\n\n")
    lines += [" ".join(about.split()), "", " ".join(key.split()), ""]
    lines += [f"CPU, torch {torch.__version__}; {len(SEEDS)} seeds (split, start, batches, and who is dealt "
              f"to which site); {len(runs)} runs in {seconds / 60:.0f} minutes on one core of a busy machine. The column is "
              f"emptied at {' and '.join(f'{site} ({world})' for world, site in WORLDS.items())}. There: at this site and "
              "column, or at one of the columns made of it; in brackets how often the same mark stands there when nothing is "
              "emptied. Marks in all: mean over seeds and both layers. AUC there: on the site's own rows, in which the empty "
              "cells tell the outcome."]  # fmt: skip
    head = ["sites", "emptied", "O there, w_in", "O there, b_in", "x there, w_in", "x there, b_in", "dot there"]
    head += ["differs there", "O in all", "x in all", "dots in all", "AUC there", "AUC at the others"]
    for setting in SETTINGS:
        lines += ["", f"## {setting[0].upper()}{setting[1:]}, {ROUNDS[setting]} rounds", "", f"| {' | '.join(head)} |"]
        lines += [f"| --- | --- |{' ---: |' * (len(head) - 2)}", *rows(runs, setting)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.page:
        write_report(run_of("12 alike", "the paper's protocol", SEEDS[2], "exang"), args.page)
        return
    began, runs = time.perf_counter(), []
    for run in runs_of():
        runs.append(run)
        words = f"{run['setting']}, {run['world']}, {run['seed']}, {run['column'] or 'nothing'} emptied"
        print(f"{time.perf_counter() - began:6.0f} s: {len(runs)}, {words}", flush=True)
    RESULTS.write_text(report(runs, time.perf_counter() - began))
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()

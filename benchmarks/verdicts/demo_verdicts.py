"""The demo's three clinics: how often which verdict comes out when the patients are dealt anew.

    python benchmarks/verdicts/demo_verdicts.py           # results/demo_verdicts.csv, and the report; about seven minutes
    python benchmarks/verdicts/demo_verdicts.py report    # results/demo_verdicts.md

`vitrail demo` shows one dealing of the 920 heart patients to three clinics (vitrail/data/datasets/clinics.py), that of
seed 1. Here are thirty others, seeds 200 to 229, on which nothing was chosen: the numbers of patients were chosen on
seeds 0 to 179, and the dealing that is shown among seeds 0 to 2. The verdicts are those of `vt.compare`, unchanged.

    shown           as the demo: training alone against one shared model, 4 seeds
    three times     the first ten with three times as many rounds: does a small clinic only train too little alone?
    short list      the first ten with all methods of a short comparison: the rule takes, for each clinic, the one that
                    does best at the other two
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import torch

import vitrail as vt
from vitrail.cli.demo import pair_of_methods
from vitrail.cli.options import parse_methods
from vitrail.data.datasets.clinics import CLINICS, three_clinics
from vitrail.studies.compare.execution import SEEDS, seeds_of

RESULTS = Path(__file__).parent / "results"
TABLE, PAGE = RESULTS / "demo_verdicts.csv", RESULTS / "demo_verdicts.md"
SHOWN, DEALT, FEWER = 1, range(200, 230), range(200, 210)
EXPECTED = dict(zip(CLINICS, ("yes", "no", "cannot tell"), strict=True))


def measure() -> None:
    study = vt.Study.load(vt.datasets.packaged("clinics.toml"))
    longer = study.with_changes(training={"rounds": 3 * study.training.rounds})
    ways = {
        "shown": (study, pair_of_methods(), DEALT),
        "three times": (longer, pair_of_methods(), FEWER),
        "short list": (study, parse_methods(None), FEWER),
    }
    parts = []
    for way, (used, methods, others) in ways.items():
        for dealt in (SHOWN, *others):
            began = time.process_time()
            result = vt.compare(used, three_clinics(dealt), methods, seeds_of(used, SEEDS))
            seconds = time.process_time() - began
            wrong = [f"{finding.site}, {finding.feature}" for finding in result.screening.wrong]
            about = {"way": way, "dealt": dealt, "seconds": round(seconds, 1), "screening": "; ".join(wrong)}
            parts.append(result.verdicts().assign(**about))
            print(way, dealt, dict(zip(parts[-1].site, parts[-1].verdict, strict=True)), f"{seconds:.0f} s", flush=True)
    columns = ["way", "dealt", "site", "verdict", "method", "alone", "joined", "gain", "low", "high", "seconds"]
    columns += ["screening"]
    pd.concat(parts)[columns].round(4).to_csv(TABLE, index=False)


def report() -> None:
    table = pd.read_csv(TABLE)
    lines = ["# The demo's three clinics, dealt anew", "", *(__doc__ or "").strip().split("\n\n", 2)[2].splitlines()]
    for way, part in table[table.dealt != SHOWN].groupby("way", sort=False):
        count = part.dealt.nunique()
        lines += ["", f"## {str(way).capitalize()}: {count} other dealings", ""]
        lines += ["| clinic | verdicts | as in the demo | mean gain |", "| --- | --- | ---: | ---: |"]
        for site, mine in part.groupby("site", sort=False):
            counts = "; ".join(f"{verdict} {n}" for verdict, n in Counter(mine.verdict).most_common())
            same = int((mine.verdict == EXPECTED[str(site)]).sum())
            lines.append(f"| {site} | {counts} | {same} of {count} | {mine.gain.mean():+.3f} |")
        right = part.verdict == part.site.map(EXPECTED)
        lines += ["", f"All three as in the demo: {int(right.groupby(part.dealt).all().sum())} of {count}."]
    dealings = table[(table.way == "shown") & (table.dealt != SHOWN)].drop_duplicates("dealt").screening.fillna("")
    lines += ["", "## The screening, before any training", ""]
    lines += ["| likely wrong | dealings |", "| --- | ---: |"]
    lines += [f"| {cells or 'nothing'} | {n} of {len(dealings)} |" for cells, n in Counter(dealings).most_common()]
    lines += ["", "## The dealing that the demo shows", ""]
    lines += ["| way | clinic | verdict | gain | 95 % interval | method |", "| --- | --- | --- | ---: | --- | --- |"]
    for row in table[table.dealt == SHOWN].itertuples():
        interval = f"{row.low:+.3f} to {row.high:+.3f}"
        lines.append(f"| {row.way} | {row.site} | {row.verdict} | {row.gain:+.3f} | {interval} | {row.method} |")
    once = table.drop_duplicates(["way", "dealt"])
    seconds = once.groupby("way", sort=False).seconds.median()
    lines += ["", f"Processor seconds for a dealing: {', '.join(f'{way} {s:.1f}' for way, s in seconds.items())}."]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "report"), default="measure")
    torch.set_num_threads(1)
    if parser.parse_args().what == "measure":
        measure()
    report()

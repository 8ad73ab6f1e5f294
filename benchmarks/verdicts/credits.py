"""Who is paid: a site with permuted, copied or half-wrong outcomes beside honest ones, by the rule for credits.

    python benchmarks/verdicts/credits.py           # results/credits.csv, and the report; resumes
    python benchmarks/verdicts/credits.py report    # results/credits.md

Groups of sites are trained again, from three seeds. The user is the first site, the changed site is the last one. Values
count from the baseline, and a site is paid if the whole 95 % interval of its Shapley value is above zero
(studies/contribution/ledger.py). The simple rival has the same values and pays every positive one. Nothing was tuned on
these federations.

    heart alike   the heart patients dealt to five sites, anew with each seed
    hospitals     the four heart hospitals; the user is Cleveland, the changed site Long Beach
    titanic       400 passengers, drawn and dealt to four sites anew with each seed

    permuted   its outcomes are shuffled among its rows: no site can learn anything from it
    half       half of its outcomes are shuffled
    copied     it sends the rows of the site before it
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats

import vitrail as vt

RESULTS = Path(__file__).parent / "results"
TABLE, PAGE = RESULTS / "credits.csv", RESULTS / "credits.md"
SEEDS, AGAIN, ROUNDS, PASSENGERS = range(20), 3, 30, 400
KINDS = ("honest", "permuted", "half", "copied")
Tables = dict[str, pd.DataFrame]


def federations(seed: int) -> Iterator[tuple[str, vt.Study, Tables]]:
    heart, study = vt.datasets.heart_disease(), vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    yield "heart alike", study, vt.partition.iid(pd.concat(heart.values(), ignore_index=True), 5, seed)
    yield "hospitals", study, heart
    rows = vt.datasets.titanic().sample(PASSENGERS, random_state=seed).reset_index(drop=True)
    sites = vt.partition.iid(rows, 4, seed)
    yield "titanic", vt.Study.infer(sites, "survived"), sites


def changed(sites: Tables, kind: str, outcome: str, seed: int) -> Tables:
    """The last site's rows, with what was done to them."""
    *_, before, last = sites
    frame, rng = sites[last], np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "copied":
        return sites | {last: sites[before].copy()}
    if kind == "honest":
        return sites
    some = rng.permutation(len(frame))[: len(frame) // (2 if kind == "half" else 1)]
    values = frame[outcome].to_numpy().copy()
    values[some] = values[rng.permutation(some)]
    return sites | {last: frame.assign(**{outcome: values})}


def measure() -> None:
    lines = pd.read_csv(TABLE).to_dict("records") if TABLE.exists() else []
    done = {(line["federation"], line["seed"], line["kind"]) for line in lines}
    for seed in SEEDS:
        for name, study, honest in federations(seed):
            agreed = study.with_changes(method={"name": "fedavg"}, training={"rounds": ROUNDS}, screen={"ask": False})
            for kind in KINDS:
                if (name, seed, kind) in done:
                    continue
                sites = changed(honest, kind, study.target.column, seed)
                with tempfile.TemporaryDirectory() as folder:
                    vt.federate(agreed, sites, seed=1000 + seed, out=f"{folder}/run")
                    found = vt.contribution(f"{folder}/run", next(iter(sites)), sites, retrain=True, seeds=AGAIN)
                credits = found.ledger.set_index("site").credit if len(found.ledger) else pd.Series(dtype=float)
                for site, row in found.main().iterrows():
                    who = {"federation": name, "seed": seed, "kind": kind, "site": site}
                    part = {
                        "last": site == [*sites][-1],
                        "user": site == found.user,
                        "value": row.value,
                        "low": row.low,
                    }
                    part |= {"gain": found.gain, "credit": float(credits.get(site, 0.0))}
                    lines.append({**who, **part})
                pd.DataFrame(lines).to_csv(TABLE, index=False, float_format="%.6g")
            print(name, seed, flush=True)


def rate(hits: pd.Series) -> str:
    """A share with its 95 % interval (Clopper and Pearson)."""
    ends = stats.binomtest(int(hits.sum()), len(hits)).proportion_ci()
    return f"{hits.mean():.2f} ({ends.low:.2f} to {ends.high:.2f})"


def row_of(kind: str, name: str, part: pd.DataFrame) -> str:
    last, others = part[part["last"]], part[~part["last"] & ~part.user]
    cells = [kind, name, str(len(last)), rate(last.credit > 0), rate((last.value > 0) & (last.gain > 0))]
    cells += [rate(others.credit > 0), rate((others.value > 0) & (others.gain > 0)), f"{last.value.mean():+.4f}"]
    return "| " + " | ".join(cells) + " |"


def report() -> None:
    told = pd.read_csv(TABLE)
    heads = ["last site", "federation", "federations", "last site is paid", "rival: last site", "others are paid"]
    heads += ["rival: others", "mean value of the last site"]
    lines = ["# Who is paid", "", *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(), ""]
    lines += [f"{told.seed.nunique()} seeds. In parentheses 95 % intervals.", ""]
    lines += ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for kind in KINDS:
        some = told[told.kind == kind]
        lines += [row_of(kind, name, part) for name, part in some.groupby("federation", sort=False)]
        lines.append(row_of(kind, "all", some))
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "report"), default="measure")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.process_time()
    if parser.parse_args().what == "measure":
        measure()
        print(f"{time.process_time() - began:.0f} s of one core")
    report()

"""What guards cost in scores and bytes: row-level noise at several budgets, and reports in fewer bytes.

    VITRAIL_DATA=... python benchmarks/attacks/privacy.py                   # resumes: finished cases lie in --cache
    python benchmarks/attacks/privacy.py --report                           # the tables from what is there

`epsilon`: FedAvg with `[protect] rows`, each as a user would run it: class weights and means counted under noise, from
the same budget. One setting for each table, taken from an earlier trial and not tuned here: 20 rounds, a clip of 0.5,
no dropout, batches of 64 (heart) or 128, a rate of 0.02; delta is a tenth of one over the rows of the smallest site.
`no noise`: 20 rounds with the study's own setting and without [protect]. `compress`: 30 rounds with the study's own
setting. Score: AUC (of several classes balanced accuracy) of each site on its own hold-out rows, mean and worst over
sites; intervals over seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from guard_worlds import WORLDS, interval, world_of
from kept_cases import Cases, run_cases

import vitrail as vt

EPSILONS = ("no noise", "10", "3", "1")
SHORT = ("no", "int8", "rank")
STAGES = ("epsilon", "compress")


def scored(run: vt.Run, metric: str) -> dict[str, float]:
    told = run.scores()
    values = told[told.metric == metric].value
    return {"mean": float(values.mean()), "worst": float(values.min())}


def metric_of(study: vt.Study) -> str:
    return "auc" if len(study.target.levels) == 2 else "balanced_accuracy"


def epsilon(world: str, budget: str, seed: int) -> dict[str, float]:
    study, frames = world_of(world, seed)
    study = study.with_changes(training={"rounds": 20})
    if budget != "no noise":
        training = {"batch": 64 if world == "heart" else 128, "lr": 0.02}
        delta = 0.1 / min(len(f) for f in frames.values())
        protect = {"rows": {"epsilon": float(budget), "delta": delta}, "clip": 0.5}
        study = study.with_changes(network={"dropout": 0.0}, training=training, protect=protect)
    return scored(vt.federate(study, frames, "fedavg", seed=seed), metric_of(study))


def compress(world: str, how: str, seed: int) -> dict[str, float]:
    study, frames = world_of(world, seed)
    study = study.with_changes(training={"rounds": 30}, protect={"compress": how})
    run = vt.federate(study, frames, "fedavg", seed=seed)
    rows = run.ledger[(run.ledger.stage == "train") & (run.ledger.direction == "from site")]
    return scored(run, metric_of(study)) | {"bytes": float(rows.bytes.sum() / rows.messages.sum())}


def wanted(stage: str, seeds: int) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for seed in range(1, 1 + seeds):
        if stage == "epsilon":
            for world in WORLDS:
                for b in EPSILONS:
                    out.append((f"epsilon|{world}|{b}|{seed}", lambda w=world, e=b, s=seed: epsilon(w, e, s)))
        else:
            for world in ("gusto", "har"):
                for h in SHORT:
                    out.append((f"compress|{world}|{h}|{seed}", lambda w=world, k=h, s=seed: compress(w, k, s)))
    return out


def report(cases: Cases) -> str:
    out = ["# What guards cost", "", *str(__doc__).split("\n\n", 2)[2].strip().splitlines()]
    out += ["", "Printed by `benchmarks/attacks/privacy.py`."]
    for stage, first in (("epsilon", "epsilon"), ("compress", "reports")):
        heads = f"| table | {first} | seeds | mean over sites | worst site |"
        out += ["", heads + (" bytes of a report |" if stage == "compress" else "")]
        out += ["| --- | --- | ---: | ---: | ---: |" + (" ---: |" if stage == "compress" else "")]
        found: dict[str, list[dict[str, float]]] = {}
        for key, case in sorted(cases.items()):
            if key.startswith(f"{stage}|"):
                found.setdefault(key.split("|", 1)[1].rpartition("|")[0], []).append(case)
        order = EPSILONS if stage == "epsilon" else SHORT
        for world in WORLDS:
            for kind in order:
                if told := found.get(f"{world}|{kind}"):
                    numbers = " | ".join(interval([c[k] for c in told]) for k in ("mean", "worst"))
                    size = f" {np.mean([c['bytes'] for c in told]):.0f} |" if stage == "compress" else ""
                    out.append(f"| {world} | {kind} | {len(told)} | {numbers} |{size}")
                else:
                    out += [f"| {world} | {kind} | not run | | |"] if stage == "epsilon" else []
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    run_cases("privacy", __doc__, STAGES, 5, wanted, report)

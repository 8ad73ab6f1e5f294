"""Columns without a common scale: would a site that looks for its rows in its own reports stop an honest run, and does
its first report tell that beforehand?

    VITRAIL_DATA=... python benchmarks/attacks/unscaled.py

FedAvg, 30 rounds, `standardise = "none"`: columns as they are (`raw`), and each brought to mean 0 and spread 1 by its
site before (`scaled`). `told before`: sites with more rows in their first report than deploy/site/unscaled_columns.py
lets through; `stopped`: sites that deploy/site/safeguards.py would stop, by its bounds. The bound on the first report
was set after looking at heart and GUSTO; Adult and HAR were looked at afterwards.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from guard_worlds import WORLDS, world_of

import vitrail as vt
from vitrail import methods
from vitrail.core.tensors import flatten
from vitrail.data.encoding import numeric, prepare
from vitrail.deploy.site.safeguards import FREE_ROWS, ROWS_EACH, TOLD_ROWS, rows_disclosed
from vitrail.deploy.site.unscaled_columns import MOST_FIRST
from vitrail.engine.local import Engine
from vitrail.runs.setup import build_task, training_of, training_rows

ROUNDS = 30


def scaled(frames: dict[str, Any], study: vt.Study) -> tuple[vt.Study, dict[str, Any]]:
    out = {}
    for site, frame in frames.items():
        out[site] = frame.copy()
        for name in numeric(study):
            v = frame[name].astype(float)
            out[site][name] = (v - v.mean()) / (v.std() or 1)
    again = vt.Study.infer(out, study.target.column, name=study.name, screen={"ask": False})
    return again.with_changes(training={"lr": study.training.lr}), out


def looked_at(study: vt.Study, frames: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Rows in each site's first report, and the round in which it would stop."""
    study, method = study.with_changes(standardise="none", training={"rounds": ROUNDS}), methods.build("fedavg")
    data = prepare(frames, study, 1)
    rows = training_rows(data, study, method, "cpu")
    engine = Engine(build_task(study, method, 1), method, rows, training_of(study), 1, keep_reports=True)
    x = {d.name: torch.from_numpy(d.train_x).float() for d in data}
    known, first, stopped = {n: set[int]() for n in engine.names}, dict[str, int](), dict[str, int]()
    for number, _ in enumerate(engine.run(), 1):
        told = dict(flatten(engine.reports))
        for i, name in enumerate(engine.names):
            now = rows_disclosed({k: v[i] for k, v in told.items()}, x[name])
            first.setdefault(name, len(now))
            known[name] |= now
            if len(now) > TOLD_ROWS or len(known[name]) > FREE_ROWS + len(x[name]) // ROWS_EACH:
                stopped.setdefault(name, number)
    return first, stopped


def main() -> None:
    torch.set_num_threads(1)
    out = ["# Columns without a common scale", "", *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(), ""]
    out += ["Printed by `benchmarks/attacks/unscaled.py`.", ""]
    out += ["| table | columns | sites | told before | stopped | of them told before | in rounds |", "| --- " * 7 + "|"]
    for world in WORLDS:
        for how in ("raw", "scaled"):
            study, frames = world_of(world, 1)
            if how == "scaled":
                study, frames = scaled(frames, study)
            first, stopped = looked_at(study, frames)
            early = {n for n, rows in first.items() if rows > MOST_FIRST}
            when = ", ".join(map(str, sorted(set(stopped.values()))))
            both = len(early & stopped.keys())
            out.append(f"| {world} | {how} | {len(first)} | {len(early)} | {len(stopped)} | {both} | {when} |")
            print(out[-1], flush=True)
    (Path(__file__).parent / "results" / "unscaled.md").write_text("\n".join(out) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""What the reports of folds give away about who is in a site's rows, beside what the run's own report gives away.

    python benchmarks/attacks/fold_leaks.py    # writes benchmarks/attacks/results/fold_leaks.md

`[verdict]` in a study trains once more for each fold of a site's rows, all from the same first model: a person who is
at the site is in all these trainings but one. The attacker is the coordinator, who keeps to every rule. It has this
site's reports of the first round (under masks: the total of four sites), the whole row of a person, how the site
scales its columns, and the gradient of that row at the first model. A report is scored by how far it goes along that
gradient. What the attacker makes of it:

    run           the run's own report: what it has without folds
    mean          the mean over the reports of all folds
    difference    the sum of all folds' reports over (folds - 1), less that of one fold: what the rows of that fold
                  alone would say, if training were one step; its cosine with the person's gradient, in the best fold
    both          the two put together, each in units of its spread over people who are not there

AUC of twenty people who are there against twenty who are not, over TRIALS draws of patients of the heart study (all
four hospitals mixed), with a 95 % interval. Draws of batches and dropout are secret, as they are between machines.
Positive control: one row in each fold, all rows in one step, no dropout, no class weights, one scale for all folds:
then the difference is that row's own gradient, and must give it away. Negative control: another site's reports, where
nobody asked about is (must be one half).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

import vitrail as vt
from vitrail.core.task import Batch
from vitrail.core.tensors import flatten
from vitrail.data.encoding import SiteData
from vitrail.data.readers.tables import clean
from vitrail.data.splitting import partition_folds
from vitrail.engine.local import Engine
from vitrail.runs.setup import build_task, resolve, training_of, training_rows
from vitrail.studies.folds import FoldedRows

TRIALS, EACH, OTHERS = 24, 20, 3
PLACE = Path(__file__).parent / "results" / "fold_leaks.md"
HOWS = ("run", "mean", "difference", "both")


class Case(NamedTuple):
    name: str
    rows: int
    folds: int
    plain_step: bool = False  # all rows in one step, no dropout
    masked: bool = False
    elsewhere: bool = False  # the reports are of a site where nobody asked about is


CASES = (
    Case("control: one row in a fold, one step", 20, 20, plain_step=True),
    Case("control: of another site", 50, 5, elsewhere=True),
    Case("2 rows in a fold", 20, 10),
    Case("10 rows in a fold", 50, 5),
    Case("40 rows in a fold", 200, 5),
    Case("10 rows in a fold, under masks", 50, 5, masked=True),
)


def study_of(case: Case) -> tuple[vt.Study, Any]:
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    changes: dict[str, Any] = {"training": {"rounds": 1}}
    if case.plain_step:
        changes = {"training": {"rounds": 1, "batch": 1 << 10, "class_weights": "none"}, "network": {"dropout": 0.0}}
    return resolve(study.with_changes(**changes), "fedavg", None)


def report(study: vt.Study, method: Any, data: SiteData) -> Tensor:
    """[number]: what this site says in the first round, draws of its own."""
    rows, task = training_rows([data], study, method, "cpu"), build_task(study, method, study.seeds[0])
    given = task, method, rows, training_of(study), study.seeds[0]
    engine = Engine(*given, keep_reports=True, secrets={data.name: secrets.token_hex(16)})
    next(going := engine.run())
    going.close()
    return torch.cat([v[0].flatten() for k, v in flatten(engine.reports) if "/" in k])


def gradients(study: vt.Study, method: Any, data: SiteData, people: pd.DataFrame) -> Tensor:
    """[person, number]: of each one's row at the first model, of length one."""
    task = build_task(study, method, study.seeds[0])
    x = torch.from_numpy(data.encoder.matrix(people)).float()
    y = torch.nn.functional.one_hot(torch.from_numpy(people[study.target.column].to_numpy().astype(np.int64)), 2)
    start = {k: v.expand(len(people), *v.shape) for k, v in task.start.items()}
    units = tuple(torch.ones(len(people), 1, n) for n in task.net.units) if task.net.dropout else ()
    found = task.grad(start, Batch(x[:, None], y[:, None].float(), torch.ones(len(people), 1, 1), units))
    flat = torch.cat([found[k].flatten(1) for k in task.start], 1)
    return torch.nn.functional.normalize(flat, dim=1)


def attack(case: Case, trial: int) -> dict[str, float]:
    """AUC of each way."""
    study, method = study_of(case)
    every = pd.concat([clean(f, study) for f in vt.datasets.heart_disease().values()], ignore_index=True)
    rng = np.random.default_rng([trial, case.rows, case.folds])
    order = rng.permutation(len(every))
    parts = [order[i * case.rows : (i + 1) * case.rows] for i in range(1 + OTHERS)]
    pool = order[(1 + OTHERS) * case.rows :]
    people = every.iloc[np.append(rng.choice(parts[0], min(EACH, case.rows), replace=False), pool[:EACH])]
    members = len(people) - EACH
    target = every.iloc[parts[1] if case.elsewhere else parts[0]]
    sites = [target, *(every.iloc[p] for p in parts[1:] if case.masked)]
    cuts = [cut(study, rows, case.folds, int(rng.integers(2**60))) for rows in sites]
    whole = [FoldedRows(1, {"site": np.full(len(rows), -1)}, {"site": rows}, study).fold(0)[0] for rows in sites]
    mine = gradients(study, method, whole[0], people)
    said = torch.stack([report(study, method, data) for data in whole]).sum(0)
    scale = {"site": whole[0].encoder} if case.plain_step else None
    folds = torch.stack(
        [torch.stack([report(study, method, c.fold(k, scale)[0]) for c in cuts]).sum(0) for k in range(case.folds)]
    )  # [fold, number]
    single = torch.nn.functional.normalize(folds.sum(0) / (case.folds - 1) - folds, dim=1)
    scores = {"run": -mine @ said, "mean": -mine @ folds.mean(0), "difference": (-mine @ single.T).amax(1)}
    scores = {k: v.numpy() for k, v in scores.items()}
    spread = {k: v / v[members:].std() for k, v in scores.items()}
    scores["both"] = spread["mean"] + spread["difference"]
    return {k: auc(v[:members], v[members:]) for k, v in scores.items()}


def cut(study: vt.Study, rows: pd.DataFrame, folds: int, seed: int) -> FoldedRows:
    lots = partition_folds(rows[study.target.column].to_numpy(), study, seed, folds)
    return FoldedRows(folds, {"site": lots}, {"site": rows}, study)


def auc(inside: NDArray[Any], outside: NDArray[Any]) -> float:
    a, b = inside[:, None], outside
    return float((a > b).mean() + 0.5 * (a == b).mean())


def lines() -> Iterator[str]:
    yield "| reports | rows | folds | " + " | ".join(HOWS) + " | difference less run |"
    yield "| --- " * (4 + len(HOWS)) + "|"
    for case in CASES:
        told = pd.DataFrame([attack(case, trial) for trial in range(TRIALS)])
        told["more"] = told["difference"] - told["run"]
        half = 1.96 * told.std() / TRIALS**0.5
        cells = [f"{told[k].mean():.2f} +- {half[k]:.2f}" for k in HOWS] + [
            f"{told.more.mean():+.2f} +- {half.more:.2f}"
        ]
        line = f"| {case.name} | {case.rows} | {case.folds} | {' | '.join(cells)} |"
        print(line, flush=True)
        yield line


if __name__ == "__main__":
    torch.set_num_threads(1)
    about = (__doc__ or "").split("\n\n", 2)[2].strip().replace("TRIALS", str(TRIALS))
    text = "# What the reports of folds give away\n\n" + about + "\n\n" + "\n".join(lines()) + "\n"
    PLACE.write_text(text)

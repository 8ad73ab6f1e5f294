"""Weight Erosion in sums: does it give the open run's models, what does it cost, and what can be read of a site?

    python benchmarks/methods/erosion_sums.py           # about a minute on one core

Heart disease, four hospitals, a linear model, three seeds. Compared with the open run: every user's model and alphas,
under the rounding of secure aggregation. Read: from the total that the coordinator sees in a round, less the user's own
update, which everybody sees, how near is that to the update of one site? Its cosine with that site's true update is
given for an honest coordinator, and for one that sends a false g_0 to all sites but that one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.exchange import Roster, Stage
from vitrail.core.task import Task
from vitrail.core.tensors import Params, map_tensors
from vitrail.data.encoding import prepare
from vitrail.engine.batches import Sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training
from vitrail.methods.blocks.erosion_at_sites import Compared, Coord, Erode
from vitrail.methods.erosion_sums import ErosionSums
from vitrail.privacy.guards import Guards
from vitrail.runs.setup import build_task, training_rows

SEEDS, ROUNDS, FALSE = (1, 2, 3), 40, 1e-4
GIVEN = {"p_d": 0.005, "p_s": 0.2}
TRAINING = Training(rounds=ROUNDS, batch=32, lr=0.1, mean=True)
MASKED = Guards(masked=True)


@dataclass(frozen=True)
class Isolate(Erode):
    """Sends the true g_0 to one site only; from the other, short one all others are far."""

    def send(self, task: Task, coord: Coord, roster: Roster) -> Compared:
        down = super().send(task, coord, roster)
        others = torch.arange(len(roster.names)) != target_of(self.method, roster.names)
        others &= down.own[:, 0] == 0
        false = {k: v.clone() for k, v in down.reference.items()}
        for v in false.values():
            v[others] *= FALSE
        return down._replace(reference=false)


@dataclass(frozen=True)
class Curious(ErosionSums):
    def plan(self, rounds: int) -> tuple[Stage, ...]:
        (stage,) = super().plan(rounds)
        return (stage._replace(exchanges=(self, Isolate(self))),)


def target_of(method: ErosionSums, names: tuple[str, ...]) -> int:
    """The first site that is not the user."""
    return next(i for i, name in enumerate(names) if name != method.user)


def heart(seed: int) -> tuple[Task, Sites]:
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    study = study.with_changes(network={"kind": "linear"}, standardise="global")
    method, data = vt.methods.build("weight_erosion"), prepare(vt.datasets.heart_disease(), study, seed)
    return build_task(study, method, seed), training_rows(data, study, method, "cpu")


def moments_of(engine: Engine) -> list[Snapshot]:
    """Of every round; what the next one would overwrite is copied."""
    return [
        m._replace(coord=m.coord._replace(models={k: v.clone() for k, v in m.coord.models.items()}))
        for m in engine.run()
    ][:ROUNDS]


def largest(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return max(float((v - other[k]).abs().max()) for k, v in one.items())


def compared(seed: int) -> dict[str, float]:
    task, sites = heart(seed)
    opened = Engine(task, vt.methods.build("weight_erosion", GIVEN), sites, TRAINING, seed)
    summed = Engine(
        task, vt.methods.build("weight_erosion_sums", {**GIVEN, "fewest": 1}), sites, TRAINING, seed, guards=MASKED
    )
    runs = [moments_of(engine) for engine in (opened, summed)]
    models = max(largest(a.coord.models, b.coord.models) for a, b in zip(*runs, strict=True))
    alphas = [torch.stack([m.facts["alpha"].value for m in run]) for run in runs]
    sizes = {}
    for name, engine in (("open", opened), ("sums", summed), ("one user", of_one_user(task, sites, seed))):
        train = engine.contracts[0]
        sizes[f"up {name}"] = float(sum(volume(c.up) for c in train))
        sizes[f"down {name}"] = float(sum(volume(c.down) for c in train))
    return {
        "models": models,
        "alphas": float((alphas[0] - alphas[1]).abs().nan_to_num().max()),
        "eroded": float(1 - alphas[0][-1].mean()),
        **sizes,
    }


def of_one_user(task: Task, sites: Sites, seed: int) -> Engine:
    method = vt.methods.build("weight_erosion_sums", {**GIVEN, "user": sites.names[0]})
    return Engine(task, method, sites, TRAINING, seed, guards=MASKED)


def volume(spec: Any) -> int:
    """Numbers in a message."""
    return sum(int(np.prod(shape, dtype=int)) for shape, _ in spec.values())


def read_by(kind: type[ErosionSums], seed: int) -> list[float]:
    """Per user, in the first round: the cosine of what the coordinator has, less g_0, with the target's update."""
    task, sites = heart(seed)
    out = []
    for user in sites.names:
        seen = dict[str, Any]()

        def listen(names: tuple[str, ...], ex: Any, up: Any, seen: dict[str, Any] = seen) -> Any:
            seen.setdefault(ex.name, map_tensors(torch.clone, up))
            return up

        method = kind(**GIVEN, user=user)
        engine = Engine(task, method, sites, TRAINING, seed, lies=listen, chunk=len(sites.names))
        next(iter(engine.run()))
        target, place = target_of(method, sites.names), sites.names.index(user)
        update, g_0 = seen["alphas"].update, seen["updates"].reference
        rest = flat({k: v[:, 0].sum(0) - g_0[k][place, 0] for k, v in update.items()})
        true = flat({k: v[target, 1] for k, v in update.items()})  # as it is added to the model of all sites
        out.append(float(torch.nn.functional.cosine_similarity(rest, true, dim=0)))
    return out


def flat(tree: Params) -> Tensor:
    return torch.cat([v.flatten() for v in tree.values()]).double()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "erosion_sums.md")
    args = parser.parse_args()
    runs = []
    for seed in SEEDS:
        runs.append(compared(seed))
        print(seed, json.dumps(runs[-1]), flush=True)
    read = {name: [c for s in SEEDS for c in read_by(kind, s)] for name, kind in
            (("an honest coordinator", ErosionSums), ("a false g_0", Curious))}  # fmt: skip
    worst = {k: max(run[k] for run in runs) for k in runs[0]}
    lines = [
        "# Weight Erosion in sums", "",
        f"Heart disease, 4 hospitals, linear model, {ROUNDS} rounds, {len(SEEDS)} seeds; "
        "`python benchmarks/methods/erosion_sums.py`.", "",
        "| against the open run, all users, under secure aggregation | largest over seeds |", "| --- | --- |",
        f"| difference of any parameter of any user's model in any round | {worst['models']:.1e} |",
        f"| difference of any alpha | {worst['alphas']:.1e} |",
        f"| trust lost in the open run, mean over pairs, at least | {min(run['eroded'] for run in runs):.2f} |",
        "",
        "| numbers in the messages of one round and site | from a site | to a site |", "| --- | --- | --- |",
        *(f"| {title} | {worst['up ' + key]:.0f} | {worst['down ' + key]:.0f} |" for key, title in
          (("open", "open, every site is a user"), ("sums", "in sums, every site is a user"),
           ("one user", "in sums, one user"))), "",
        "| what is read of a single site: cosine with its update, first round | median | largest |",
        "| --- | --- | --- |",
        *(f"| {name} | {np.median(v):.2f} | {max(v):.2f} |" for name, v in read.items()), "",
        "The false g_0 gives the coordinator that site's update. Nothing in the method stops it, and the consent form "
        "and the docs say so.", "",
    ]  # fmt: skip
    args.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()

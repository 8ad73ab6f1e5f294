"""Does joining harm nobody, if all agree on how much of the shared model each uses? Known truths, and real tables.

    VITRAIL_DATA=... python benchmarks/verdicts/agreed_mix.py           # one process; resumes: finished cases lie in --cache
    python benchmarks/verdicts/agreed_mix.py --report                   # tables from what is there

The worlds of benchmarks/verdicts/choose.py in which models are linear. Rivals (Local, FedAvg, fine-tuning) have the settings
that choose.py found for each world; the rates of the agreed mix are found here in the same way, on the same two seeds,
within training rows. One run of the agreed mix holds every alternative: from its tables of losses on rows left out come
what all agree on, what each site would choose for itself, and a choice by lot, judged on the same test rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from agreed_mix_report import Case, Result, write
from choose import RATES, engine_of, inner, named, tensors_of
from torch import Tensor
from worlds import WORLDS, Site, World, sites_of

from vitrail.core.facts import AGAINST_ALONE, MIX
from vitrail.core.tensors import map_tensors
from vitrail.engine.local import Engine
from vitrail.methods.agreed_mix import AgreedMix
from vitrail.methods.blocks.model_copies import last, mix

FIRST = 5001  # first seed of the comparison; 1 and 2 are tuned with, 101 and on the rule was shaped on
OWN_RATES = [1.0, 0.3, 0.1]  # of what a site trains alone, beside that of the rounds
LINEAR = [name for name, world in WORLDS.items() if not world.hidden and world.table != "cifar"]
CHOOSE = Path(__file__).parent / "results" / "choose.md"


class Ran(NamedTuple):
    engine: Engine
    names: list[str]
    tables: Any  # the state before the choice is settled: what each site keeps of its losses
    ready: Any  # the state in which every alternative is there
    facts: dict[str, Tensor]
    state: Any  # at the end


def settings_of(world: str) -> dict[str, dict[str, float]]:
    """What choose.py found for the rivals, as its results say."""
    titles = {"Local": "local", "Global": "fedavg", "Fine-tuning": "fine_tune"}
    line = next(v for v in CHOOSE.read_text().splitlines() if v.startswith(f"- {world}: Local lr"))
    found = {}
    for part in line.removeprefix(f"- {world}: ").split("; "):
        title, rest = re.split(r" (?=lr )", part)
        if title in titles:
            found[titles[title]] = {k: float(v) for k, v in (item.split(" ") for item in rest.split(", "))}
    return found


def run(world: World, sites: list[Site], method: Any, lr: float, seed: int) -> Ran:
    (engine, names, _), facts, ready, tables = engine_of(world, sites, method, lr, seed), {}, None, None
    for moment in engine.run():
        facts |= {f.means: f.value.double() for f in moment.facts.values()}
        name = engine.stages[moment.stage].name
        if name in ("train", "tune") and moment.round == engine.stages[moment.stage].rounds:
            ready = map_tensors(torch.clone, engine.settled(moment))
        if name == "choose":
            tables = map_tensors(torch.clone, moment.state)
    return Ran(engine, names, tables, ready, facts, engine.settled(moment))


def row_losses(ran: Ran, sites: list[Site], scores: Any) -> list[Tensor]:
    """Of each site its test rows' log losses, [..., row]; `scores(state of the site, x)` gives [..., row, class]."""
    out, classes = [], ran.engine.task.net.outputs
    for name, site in zip(ran.names, sites, strict=True):
        x, y = tensors_of(site.test_x, site.test_y, classes)
        z = scores(ran.engine.names.index(name), x[None]).double()
        out.append(-(z.log_softmax(-1) * y).sum(-1))
    return out


def predicted(ran: Ran, sites: list[Site]) -> list[Tensor]:
    def scores(at: int, x: Tensor) -> Tensor:
        return ran.engine.method.predict(ran.engine.task, map_tensors(lambda t: t[at : at + 1], ran.state), x)[0]

    return row_losses(ran, sites, scores)


def alternatives(ran: Ran, sites: list[Site]) -> list[Tensor]:
    """[start, alpha, row] for each site."""
    method, task = ran.engine.method, ran.engine.task

    def scores(at: int, x: Tensor) -> Tensor:
        mine = map_tensors(lambda t: t[at : at + 1], ran.ready)
        own = task.output(last(mine.own), x)[0]
        params = [method.method.models(task, map_tensors(lambda t: t[:, -1], mine.of))["own"]]
        params += [{k: v[:, i, -1] for k, v in mine.tuned.items()} for i in range(len(method.tuned))]
        return torch.stack([torch.stack([mix(a, own, task.output(p, x)[0]) for a in method.alphas]) for p in params])

    return row_losses(ran, sites, scores)


def ordered(ran: Ran, value: Tensor) -> list[Any]:
    """In the order of the world's sites."""
    return [value[ran.engine.names.index(n)].double().tolist() for n in ran.names]


def tuned(job: Case) -> Case:
    world, sites = WORLDS[job["world"]], inner(sites_of(WORLDS[job["world"]], job["seed"]), job["seed"])
    ran = run(world, sites, AgreedMix(own_rate=job["own_rate"]), job["lr"], job["seed"])
    return {"loss": float(np.mean([v.mean() for v in predicted(ran, sites)]))}


def compared(job: Case) -> Case:
    world, sites = WORLDS[job["world"]], sites_of(WORLDS[job["world"]], job["seed"])
    rivals, out = {}, Case(honest=[s.honest for s in sites], rows=[len(s.y) for s in sites])
    for name, given in settings_of(job["world"]).items():
        epochs = {"epochs": int(given["epochs"])} if "epochs" in given else {}
        rivals[name] = predicted(run(world, sites, named(name)(**epochs), given["lr"], job["seed"]), sites)
        more = [b - a for a, b in zip(rivals["local"], rivals[name], strict=True)]
        out[name] = {"loss": [float(v.mean()) for v in rivals[name]], "error": [deviation(v) for v in more]}
    ran = run(world, sites, AgreedMix(own_rate=job["own_rate"], **job.get("given", {})), job["lr"], job["seed"])
    tests, said = alternatives(ran, sites), predicted(ran, sites)
    out["test"] = [v.mean(-1).tolist() for v in tests]
    out["test error"] = [deviation(v - a) for v, a in zip(tests, rivals["local"], strict=True)]
    out |= {"left out": ordered(ran, ran.tables.losses), "left out error": ordered(ran, ran.tables.errors)}
    out |= {"alone left out": ordered(ran, ran.tables.alone), "said": [float(v.mean()) for v in said]}
    return {**out, "agreed": ran.facts[MIX].tolist(), "against": ran.facts[AGAINST_ALONE].tolist()}


def deviation(rows: Tensor) -> Any:
    """The standard error of the mean over rows."""
    return (rows.std(-1) / rows.shape[-1] ** 0.5).tolist()


# --- all cases -------------------------------------------------------------------------------------------------------


def place(job: Case, folder: Path) -> Path:
    given = "".join(f"-{k}{v}" for k, v in job.get("given", {}).items()).replace(" ", "")
    rates = f"{job['lr']:g}-{job['own_rate']:g}"
    return folder / f"{job['step']}-{job['world'].replace(' ', '_')}-{job['seed']}-{rates}{given}.json"


def carry_out(jobs: list[Case], folder: Path, until: float) -> None:
    torch.set_num_threads(1)
    todo = [j for j in jobs if not place(j, folder).exists()]
    for n, job in enumerate(todo, 1):
        if time.process_time() > until:
            print(f"stopped with {len(todo) - n + 1} to do: call again to go on", flush=True)
            return
        began = time.process_time()
        done = (tuned if job["step"] == "tune" else compared)(job)
        where = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
        path = place(job, folder)
        path.with_suffix(".tmp").write_text(
            json.dumps({**job, **done, "where": where, "s": time.process_time() - began})
        )
        path.with_suffix(".tmp").replace(path)
        if n % 20 == 0 or n == len(todo):
            print(f"{n} of {len(todo)} after {time.process_time():.0f} CPU s", flush=True)


def read(jobs: list[Case], folder: Path) -> list[Case]:
    return [json.loads(path.read_text()) for job in jobs if (path := place(job, folder)).exists()]


def to_tune(worlds: list[str]) -> list[Case]:
    return [
        {"step": "tune", "world": w, "seed": s, "lr": lr, "own_rate": own}
        for s, w, lr, own in itertools.product((1, 2), worlds, RATES, OWN_RATES)
    ]


def rates_of(world: str, folder: Path) -> dict[str, float]:
    """Those with the lowest mean over the tuning seeds; nothing before all are tried."""
    done, means = read(to_tune([world]), folder), {}
    if len(done) < len(to_tune([world])):
        return {}
    for rates in itertools.product(RATES, OWN_RATES):
        means[rates] = np.mean([c["loss"] for c in done if (c["lr"], c["own_rate"]) == rates])
    best = min(means, key=lambda rates: float(np.nan_to_num(means[rates], nan=np.inf)))
    return dict(zip(("lr", "own_rate"), best, strict=True))


def to_compare(worlds: list[str], folder: Path, first: int, seeds: int, **given: Any) -> list[Case]:
    rates = {w: rates_of(w, folder) for w in worlds}
    more = {"given": given} if given else {}
    step = "compare" if first == FIRST else "shape"
    return [
        {"step": step, "world": w, "seed": s, **found, **more}
        for s in range(first, first + seeds)
        for w, found in rates.items()
        if found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", help="names, separated by semicolons; all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=FIRST, help="first seed; others than the default shape the rule")
    parser.add_argument("--folds", type=int, help="others than the default, to shape the rule")
    parser.add_argument("--minutes", type=float, default=30, help="of CPU time, then stop")
    parser.add_argument("--cache", type=Path, default=Path("scratch/agreed_mix"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "agreed_mix.md")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    worlds = args.worlds.split(";") if args.worlds else LINEAR
    if unknown := [w for w in worlds if w not in LINEAR]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(LINEAR)}")
    args.cache.mkdir(parents=True, exist_ok=True)
    given = {"folds": args.folds} if args.folds else {}
    if not args.report:
        carry_out(to_tune(worlds), args.cache, 60 * args.minutes)
        carry_out(to_compare(worlds, args.cache, args.first, args.seeds, **given), args.cache, 60 * args.minutes)
    done = read(to_compare(worlds, args.cache, args.first, args.seeds, **given), args.cache)
    results = [Result(w, found) for w in worlds if len(found := [c for c in done if c["world"] == w]) > 1]
    if results:
        write(results, args.out)


if __name__ == "__main__":
    main()
